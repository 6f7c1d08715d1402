package frontend

import (
	"encoding/json"
	"strings"
	"testing"

	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
)

// TestBuiltinTokenizer: with a real vocabulary a stop string or a character may span tokens, and the
// engine gets the template's prompt.
func TestBuiltinTokenizer(t *testing.T) {
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.opens = func(engine.TokenizerRef) (*prep.Pipeline, error) { return pipe, nil }
		const said = "The penstock carries water — 水 and 😀 — to the turbine. It stops here, of course."
		s := &script{tokens: pipe.EncodeText(nil, said)}
		w.worker(7, s, func(c *engine.Card) { c.VocabSize, c.EOS = pipe.Tokenizer.VocabSize(), nil })
		body := `{"model":"bytes","stop":"stops here","max_tokens":300,"messages":[{"role":"user","content":"What does a penstock do?"}],"stream":`

		var whole struct {
			Choices []struct{ Message struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(w.post("/v1/chat/completions", body+`false}`).body), &whole); err != nil {
			t.Fatal(err)
		}
		streamed := ""
		for line := range strings.Lines(w.post("/v1/chat/completions", body+`true}`).body) {
			var chunk struct {
				Choices []struct{ Delta struct{ Content string } }
			}
			data, ok := strings.CutPrefix(line, "data: {")
			if !ok {
				continue
			}
			if err := json.Unmarshal([]byte("{"+data), &chunk); err != nil {
				t.Fatal(err)
			}
			streamed += chunk.Choices[0].Delta.Content
		}
		want, _, _ := strings.Cut(said, "stops here")
		if got := whole.Choices[0].Message.Content; got != want || streamed != want {
			t.Errorf("whole %q\nstreamed %q\nwant %q", got, streamed, want)
		}
		prompt, err := pipe.EncodeChat(nil, &prep.Chat{
			Messages:            []prep.Message{{Role: "user", Content: "What does a penstock do?"}},
			AddGenerationPrompt: true,
		})
		if got := s.seen()[0].Prompt; err != nil || len(got) != len(prompt) {
			t.Errorf("the engine got %d tokens, the template makes %d: %v", len(got), len(prompt), err)
		}
	})
}
