package strictjson

import (
	"fmt"
	"strings"
	"testing"
)

// TestTypeAhead: the type is known before the object is read, which then reads as
// if it had not been looked at, also where it is deep inside others.
func TestTypeAhead(t *testing.T) {
	var many strings.Builder
	for i := range 100 {
		fmt.Fprintf(&many, `"k%d":{"type":"y"},`, i)
	}
	text := `{"a":1,"b":[{` + many.String() + `"type":"x","n":[1]}],"type":null}`
	r, err := NewReader([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	var look func() error
	look = func() error {
		switch r.Kind() {
		case ObjectKind:
			kind, err := r.PeekType()
			if err != nil {
				return err
			}
			kinds = append(kinds, kind)
			return r.ReadObject(func(string) error { return look() })
		case ArrayKind:
			return r.ReadArray("an array", func(int) error { return look() })
		}
		return r.SkipValue()
	}
	if err := look(); err != nil || r.CheckEnd() != nil {
		t.Fatal(err)
	}
	if want := ",x" + strings.Repeat(",y", 100); strings.Join(kinds, ",") != want {
		t.Errorf("types %q", kinds)
	}
	for text, says := range map[string]string{
		`5`:                       "must be an object, not a number",
		`{"type":"x","type":"y"}`: "'type' is given twice",
		`{"a":{"b":1,"b":2}}`:     "'a.b' is given twice",
		`{"a":` + strings.Repeat("[", maxDepth+1): "nested deeper",
		`{"type":"x"`:                  "unexpected end",
		`{"type":"x","n":1e999999999}`: "out of range",
	} {
		r, err := NewReader([]byte(text))
		if err == nil {
			_, err = r.PeekType()
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40s: %v, want %q", text, err, says)
		}
	}
}
