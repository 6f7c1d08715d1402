package frontend

import (
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/parse"
	"penstock/internal/engine"
)

// plain is a decoder of ASCII that allocates nothing.
type plain struct{}

func (plain) Push(dst []byte, id kv.Token) []byte { return append(dst, byte(id)) }
func (plain) Flush(dst []byte) []byte             { return dst }

// TestTokensDoNotAllocate: a delta on its way from the request plane to the bytes of an event allocates
// nothing except for the list of its tokens, which grows by doubling.
func TestTokensDoNotAllocate(t *testing.T) {
	grammar, err := parse.CompileGrammar(parse.Config{Tools: "hermes", Reasoning: "qwen3"})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("plain", func(t *testing.T) { tokensDoNotAllocate(t, nil) })
	t.Run("parsed", func(t *testing.T) { tokensDoNotAllocate(t, grammar) })
}

func tokensDoNotAllocate(t *testing.T, grammar *parse.Grammar) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(7, constant("hi"))
		writer := openai.NewWriter(&api.Request{Stream: true, Logprobs: -1}, &api.Head{ID: "id", Model: "bytes"})
		buf := make([]byte, 0, 4096)
		g := &generationTask{
			f: w.f, request: engine.Request{Attempt: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 1000}}, rules: textRules{tokenizer: byteTokenizer{}},
			choices: make([]answerChoice, 1), openChoices: 1, lastToken: make([]time.Time, 1), accepted: true,
			firstToken: w.f.metrics.unknown.firstToken.WithLabelValues(),
			interToken: w.f.metrics.unknown.interToken.WithLabelValues(),
		}
		g.emit = func(e *generationEvent) error {
			for i := range e.chunks {
				buf = writer.Append(buf[:0], &e.chunks[i])
			}
			return nil
		}
		g.cached.ObserveDelta(&engine.Delta{Tokens: make([]kv.Token, 1)}) // the router has been told
		c := &g.choices[0]
		c.decoder, c.stopMatcher = plain{}, newStopMatcher(newStopStrings([]string{"stop", "ttt"}))
		c.tokens = make([]kv.Token, 0, 1000)
		if grammar != nil {
			c.parser.parser = grammar.NewParser(parse.StyleDecides, "seed")
		}
		pos := 0
		var frame []byte
		d := engine.Delta{Attempt: 1, Tokens: []kv.Token{'t', 'o'}}
		if n := testing.AllocsPerRun(200, func() {
			d.Pos = pos
			pos += len(d.Tokens)
			frame = engine.AppendDelta(frame[:0], &d)
			if err := g.handleFrame(frame); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%v allocations for each delta", n)
		}
		if len(buf) == 0 {
			t.Error("nothing was emitted")
		}
	})
}
