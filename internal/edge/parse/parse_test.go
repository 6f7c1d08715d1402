package parse

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
)

// configOf reads tools=, reasoning=, start= and fallback= of a script's command.
func configOf(t *testing.T, d *datadriven.TestData, fs []Function) config {
	t.Helper()
	cfg := config{Config: Config{Functions: fs}, Seed: "seed"}
	for _, arg := range d.CmdArgs {
		switch v := arg.Vals[0]; arg.Key {
		case "tools":
			cfg.Tools = v
		case "reasoning":
			cfg.Reasoning = v
		case "start":
			cfg.Start = map[string]StartState{"open": StartOpen, "closed": StartClosed, "amid": StartAmid}[v]
		case "fallback":
			cfg.Fallback = map[string]ContentFallback{"repeat": RepeatReasoning, "move": MoveReasoning}[v]
		default:
			t.Fatalf("%s: unknown argument %s", d.Pos, arg.Key)
		}
	}
	return cfg
}

// inPieces parses text in pieces which end at cuts.
func inPieces(t *testing.T, cfg config, text string, cuts ...int) Answer {
	t.Helper()
	p, err := newParser(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var f Fold
	var events []Event
	from := 0
	for _, cut := range append(cuts, len(text)) {
		events = p.Push(events[:0], []byte(text[from:cut]))
		check(t, &f, events)
		f.Add(events)
		from = cut
	}
	events = p.Close(events[:0])
	check(t, &f, events)
	f.Add(events)
	return f.Answer()
}

// check checks the order of events.
func check(t *testing.T, f *Fold, events []Event) {
	t.Helper()
	calls, ended := len(f.calls), len(f.calls) > 0 && f.calls[len(f.calls)-1].Complete
	for _, e := range events {
		switch {
		case e.Kind == CallBegin && (e.Index != calls || e.Name == "" || e.ID == ""):
			t.Fatalf("call %d is %+v", calls, e)
		case e.Kind == CallBegin:
			calls, ended = calls+1, false
		case e.Kind == CallEnd || e.Kind == Arguments:
			if e.Index != calls-1 || ended {
				t.Fatalf("%v of call %d after %d calls", e.Kind, e.Index, calls)
			}
			ended = e.Kind == CallEnd
		}
		if e.Kind != CallBegin && e.Kind != CallEnd && len(e.Text) == 0 {
			t.Fatalf("empty %v", e.Kind)
		}
	}
}

func (a Answer) String() string {
	var b strings.Builder
	if a.Reasoning != "" {
		fmt.Fprintf(&b, "reasoning %q\n", a.Reasoning)
	}
	if a.Content != "" {
		fmt.Fprintf(&b, "content %q\n", a.Content)
	}
	for _, c := range a.Calls {
		fmt.Fprintf(&b, "call %s %s", c.Name, c.Arguments)
		if !c.Complete {
			b.WriteString(" (incomplete)")
		} else if !json.Valid([]byte(c.Arguments)) {
			b.WriteString(" (invalid)")
		}
		if !strings.HasPrefix(c.ID, "call_") {
			fmt.Fprintf(&b, " id=%s", c.ID)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// beginsCall reports whether text is reasoning followed by the start of a call.
func beginsCall(cfg config, text, reasoning string) bool {
	rest, ok := strings.CutPrefix(text, reasoning)
	rest = strings.TrimSpace(rest)
	f, _ := findFormat(cfg.Tools)
	return ok && slices.ContainsFunc(f.open, func(m string) bool { return strings.HasPrefix(rest, m) || strings.HasPrefix(m, rest) })
}

// TestGolden parses the corpus whole, in two pieces cut at every byte, in random pieces and byte by byte; the
// answers must be equal. For a prefix of the text, every call and name must be one of the whole answer's.
func TestGolden(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	datadriven.Walk(t, "testdata/golden", func(t *testing.T, path string) {
		var fs []Function
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "functions" {
				fs = nil
				var in map[string]json.RawMessage
				if d.Input != "" {
					if err := json.Unmarshal([]byte(d.Input), &in); err != nil {
						t.Fatal(err)
					}
				}
				for name, parameters := range in {
					fs = append(fs, Function{name, parameters})
				}
				return ""
			}
			cfg := configOf(t, d, fs)
			whole, err := Whole(cfg, []byte(d.Input))
			if err != nil {
				return err.Error() + "\n"
			}
			same := func(cuts ...int) {
				if diff := cmp.Diff(whole, inPieces(t, cfg, d.Input, cuts...)); diff != "" {
					t.Fatalf("%s: cut at %v (seed %d): %s", d.Pos, cuts, seed, diff)
				}
			}
			var every []int
			for i := range d.Input {
				same(i)
				every = append(every, i)
				part := inPieces(t, cfg, d.Input[:i])
				if len(part.Calls) > len(whole.Calls) {
					t.Fatalf("%s: %d calls in the first %d bytes", d.Pos, len(part.Calls), i)
				}
				for j, c := range part.Calls {
					if c.Name != whole.Calls[j].Name || c.ID != whole.Calls[j].ID {
						t.Fatalf("%s: in the first %d bytes call %d is %+v", d.Pos, i, j, c)
					}
					if c.Complete && c != whole.Calls[j] {
						t.Fatalf("%s: in the first %d bytes call %d is complete: %+v", d.Pos, i, j, c)
					}
				}
				// The text held at the end is at most a marker or a call's header.
				n := len(part.Reasoning) - len("Here is my thought process:")
				if n > 0 && !strings.HasPrefix(whole.Reasoning, part.Reasoning[:n]) && !beginsCall(cfg, part.Reasoning, whole.Reasoning) {
					t.Fatalf("%s: in the first %d bytes reasoning is %q", d.Pos, i, part.Reasoning)
				}
			}
			same(every...)
			for range 20 {
				var cuts []int
				for i := range d.Input {
					if rng.IntN(5) == 0 {
						cuts = append(cuts, i)
					}
				}
				same(cuts...)
			}
			return whole.String()
		})
	})
}
