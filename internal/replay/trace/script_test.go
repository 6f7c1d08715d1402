package trace

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"penstock/internal/fixturetest"
	"penstock/internal/replay"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// TestScripts reads the files in testdata/script and compares each request, or why
// the file is refused:
//
//	read [format=F] [ignore-unknown] [block-size=N] [sort[=BYTES]]
//	describe [the same]
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w, err := openText(d.Input, scriptOptions(t, d))
			if err != nil {
				return "error: " + err.Error() + "\n"
			}
			switch d.Cmd {
			case "read":
				return first(readAll(t, w))
			case "describe":
				s, err := Describe(w)
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				var out strings.Builder
				if _, err := s.WriteTo(&out); err != nil {
					t.Fatal(err)
				}
				return out.String()
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func scriptOptions(t *testing.T, d *datadriven.TestData) Options {
	var opts Options
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "format":
			arg.Scan(t, 0, (*string)(&opts.Format))
		case "ignore-unknown":
			opts.IgnoreUnknown = true
		case "block-size":
			arg.Scan(t, 0, &opts.BlockSize)
		case "sort":
			if opts.Sort = true; len(arg.Vals) > 0 {
				arg.Scan(t, 0, &opts.SortBytes)
			}
		default:
			d.Fatalf(t, "unknown argument %s", arg.Key)
		}
	}
	return opts
}

// text is a spool in memory.
type text struct{ *strings.Reader }

func (text) Close() error { return nil }

// openText is Open for a file that has this text.
func openText(content string, opts Options) (*Workload, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	w := &Workload{name: "FILE", spool: text{strings.NewReader(content)}, opts: opts}
	if err := w.detectFormat(); err != nil {
		return nil, fmt.Errorf("read trace %s: %w", w.name, err)
	}
	return w, nil
}

// first returns the text of a run, and the error in it.
func first(text string, err error) string {
	if err != nil {
		return text + "error: " + err.Error() + "\n"
	}
	return text
}

// readAll describes each request of w.
func readAll(t testing.TB, w *Workload) (string, error) {
	t.Helper()
	from, err := w.Open()
	if err != nil {
		return "", err
	}
	defer func() {
		if err := from.Close(); err != nil {
			t.Error(err)
		}
	}()
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n", w.Format())
	var r replay.Request
	for {
		if err := from.Next(&r); err == io.EOF {
			break
		} else if err != nil {
			return out.String(), err
		}
		out.WriteString(show(&r))
	}
	if n := from.(*traceSource).Failed(); n > 0 {
		fmt.Fprintf(&out, "failed: %d\n", n)
	}
	return out.String(), nil
}

// show writes what a request has, and nothing of what it does not have.
func show(r *replay.Request) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d line %d:", r.Index, r.Line)
	if r.At >= 0 {
		fmt.Fprintf(&b, " at=%v", r.At)
	}
	if r.Session != "" {
		fmt.Fprintf(&b, " session=%q", r.Session)
	}
	if r.Delay != 0 {
		fmt.Fprintf(&b, " delay=%v", r.Delay)
	}
	fmt.Fprintf(&b, " in=%d", r.Input)
	if r.Output != 0 {
		fmt.Fprintf(&b, " out=%d", r.Output)
	}
	if r.Blocks != nil || r.BlockTokens != 0 {
		fmt.Fprintf(&b, " blocks=%v of %d", r.Blocks, r.BlockTokens)
	}
	if r.Tokens != nil {
		fmt.Fprintf(&b, " tokens=%v", r.Tokens)
	}
	if r.Text != "" {
		fmt.Fprintf(&b, " text=%q", r.Text)
	}
	for _, part := range []struct {
		name string
		json []byte
	}{{"messages", r.Messages}, {"tools", r.Tools}, {"payload", r.Payload}, {"extra", r.Extra}} {
		if part.json != nil {
			fmt.Fprintf(&b, " %s=%s", part.name, part.json)
		}
	}
	for _, m := range r.Media {
		fmt.Fprintf(&b, " %s{%q %dx%d tokens=%d url=%q}", m.Kind, m.ID, m.Width, m.Height, m.Tokens, m.URL)
	}
	if r.Model != "" {
		fmt.Fprintf(&b, " model=%q", r.Model)
	}
	if r.Salt != "" {
		fmt.Fprintf(&b, " salt=%q", r.Salt)
	}
	if r.Priority != 0 {
		fmt.Fprintf(&b, " priority=%d", r.Priority)
	}
	b.WriteByte('\n')
	return b.String()
}
