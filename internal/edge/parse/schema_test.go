package parse

import (
	"bytes"
	"strings"
	"testing"
)

// TestSchemaWork: the work for each part of an answer does not grow with the client's schema.
func TestSchemaWork(t *testing.T) {
	answer := []byte(tagPrefix + "<tool_call>" + tagPrefix + `<invoke name="f">` + tagPrefix + "<o>" +
		strings.Repeat(tagPrefix+"<a>1"+tagPrefix+"</a>", 100) + tagPrefix + "</o>" + tagPrefix + "</invoke>" + tagPrefix + "</tool_call>")
	work := func(alternatives int) float64 {
		parameters := `{"properties":{"o":{"type":"object","additionalProperties":{"anyOf":[` + strings.Repeat(`{"type":"number"},`, alternatives) + `{"type":"boolean"}]}}}}`
		g, err := CompileGrammar(Config{Tools: "minimax_m3", Functions: []Function{{Name: "f", Parameters: []byte(parameters)}}})
		if err != nil {
			t.Fatal(err)
		}
		return testing.AllocsPerRun(1, func() {
			p := g.NewParser(StyleDecides, "s")
			if out := p.Push(nil, answer); len(out) != 3 || !bytes.HasPrefix(out[1].Text, []byte(`{"o":{"a":[1,1,`)) {
				t.Fatalf("events %v", out)
			}
		})
	}
	if few, many := work(1), work(1000); many > 2*few {
		t.Errorf("%v allocations with one alternative, %v with a thousand", few, many)
	}
}

// TestHeldElements: maxHeld also bounds held parameters without a text.
func TestHeldElements(t *testing.T) {
	g, err := CompileGrammar(Config{Tools: "minimax_m3", Functions: []Function{{Name: "f"}}})
	if err != nil {
		t.Fatal(err)
	}
	p := g.NewParser(StyleDecides, "s")
	p.Push(nil, []byte(tagPrefix+"<tool_call>"+tagPrefix+`<invoke name="f">`))
	p.Push(nil, bytes.Repeat([]byte(tagPrefix+"<o>"+tagPrefix+"</o>"), maxHeld+1))
	if n := len(p.current.(*nestedMachine).pending); n > maxHeld {
		t.Errorf("%d elements are held", n)
	}
}
