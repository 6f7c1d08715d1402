package jinja

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"penstock/core/fault"
)

// now is what the fixtures' strftime_now says.
var now = time.Date(2026, 3, 7, 9, 5, 3, 0, time.UTC)

// outcome is what Python made of a template: Output is nil if it failed, and
// Raised is the message if the template did that itself.
type outcome struct {
	Source string
	Output *string
	Raised *string
	Error  string
	// Compile says that the template did not compile.
	Compile bool
}

func readFixture(t *testing.T, name string, into any) {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(into); err != nil {
		t.Fatal(err)
	}
}

func render(source string, vars *Dict) (string, error) {
	t, err := Compile(source)
	if err != nil {
		return "", err
	}
	return t.Render(vars, now)
}

func check(t *testing.T, name string, want outcome, got string, err error) {
	t.Helper()
	var refused *fault.Error
	switch {
	case err != nil && !errors.As(err, &refused):
		t.Errorf("%s: %v has no code", name, err)
	case want.Output != nil && err != nil:
		t.Errorf("%s: %v, want %q", name, err, *want.Output)
	case want.Output != nil && got != *want.Output:
		t.Errorf("%s:\n got %q\nwant %q", name, got, *want.Output)
	case want.Output == nil && err == nil:
		t.Errorf("%s: %q, want an error: %s", name, got, want.Error)
	case want.Raised != nil && (err.Error() != *want.Raised || refused.Code != fault.Invalid):
		t.Errorf("%s: %v (%v), want the template's %q", name, err, refused.Code, *want.Raised)
	}
}

func dictOf(t *testing.T, data []byte) *Dict {
	t.Helper()
	v, err := FromJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	d, ok := v.(*Dict)
	if !ok {
		t.Fatalf("%T is no dictionary", v)
	}
	return d
}

// TestProbes holds each feature against Jinja2's own output.
func TestProbes(t *testing.T) {
	var f struct {
		Vars   json.RawMessage
		Probes []outcome
	}
	readFixture(t, "probes.json.gz", &f)
	if len(f.Probes) < 300 {
		t.Fatalf("only %d probes", len(f.Probes))
	}
	vars := dictOf(t, f.Vars)
	for _, p := range f.Probes {
		got, err := render(p.Source, vars)
		check(t, p.Source, p, got, err)
		if _, err := Compile(p.Source); (err != nil) != p.Compile {
			t.Errorf("%s: compiling says %v, want an error: %v", p.Source, err, p.Compile)
		}
	}
}
