package parse

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// piece is a part of an answer, which is one token of the vocabulary or not.
type piece struct {
	text  string
	token bool
}

// TestTokens: if the vocabulary has a marker as one token, a model which spells it in pieces means text. The
// boundaries of pieces within a token do not matter.
func TestTokens(t *testing.T) {
	const object = `{"name": "f", "arguments": {}}</tool_call>`
	cfg := Config{
		Tools: "hermes", Reasoning: "qwen3", Functions: testFunctions,
		HasToken: func(m string) bool { return m == "<tool_call>" || m == "</think>" },
	}
	called := []Call{{Name: "f", Arguments: "{}", Complete: true}}
	for _, c := range []struct {
		name   string
		pieces []piece
		want   Answer
	}{
		{"a call", []piece{{"hm\n", false}, {"<tool_call>", true}, {object, false}}, Answer{Reasoning: "hm", Calls: called}},
		{"a token in two parts", []piece{{"hm<", false}, {"<tool_", true}, {"call>", true}, {object, false}}, Answer{Reasoning: "hm<", Calls: called}},
		{"spelled", []piece{{"hm <tool_call>" + object, false}}, Answer{Reasoning: "hm <tool_call>" + object}},
		{
			"mentioned, then called",
			[]piece{{"a ", false}, {"<tool_call>", true}, {" is a tag. ", false}, {"<tool_call>", true}, {object, false}},
			Answer{Reasoning: "a <tool_call> is a tag.", Calls: called},
		},
		{
			"closed inside of markup",
			[]piece{{"a ", false}, {"<tool_call>", true}, {`{"name`, false}, {"</think>", true}, {"b", false}},
			Answer{Reasoning: `a <tool_call>{"name`, Content: "b"},
		},
		{"closed twice", []piece{{"a", false}, {"</think>", true}, {"b ", false}, {"</think>", true}, {"c", false}}, Answer{Reasoning: "a", Content: "b c"}},
		{"closed, and mentioned", []piece{{"a", false}, {"</think>", true}, {"b </think> c", false}}, Answer{Reasoning: "a", Content: "b </think> c"}},
		{"content, spelled", []piece{{"a</think>b<tool_call>" + object, false}}, Answer{Reasoning: "a", Content: "b", Calls: called}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := CompileGrammar(cfg)
			if err != nil {
				t.Fatal(err)
			}
			p := g.NewParser(StartOpen, "seed")
			var f Fold
			for _, part := range c.pieces {
				push := p.Push
				if part.token {
					push = p.PushToken
				}
				f.Add(push(nil, []byte(part.text)))
			}
			f.Add(p.Close(nil))
			got := f.Answer()
			for i := range got.Calls {
				got.Calls[i].ID = ""
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	g, err := CompileGrammar(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"<tool_call>", "</think>"}, g.TokenMarkers()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
