package frontend

import (
	"context"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/parse"
	"penstock/internal/engine"
)

// plain is a decoder of ASCII that allocates nothing.
type plain struct{}

func (plain) Push(dst []byte, id kv.Token) []byte { return append(dst, byte(id)) }
func (plain) Flush(dst []byte) []byte             { return dst }

// planeOf is a plane whose only worker answers with frames.
type planeOf func(recv func([]byte) error) error

func (p planeOf) Call(_ context.Context, _, _ string, _ []byte, recv func([]byte) error) error {
	return p(recv)
}

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
			rules: textRules{tokenizer: byteTokenizer{}}, choices: make([]answerChoice, 1), lastToken: make([]time.Time, 1),
			firstToken: w.f.metrics.unknown.firstToken.WithLabelValues(),
			interToken: w.f.metrics.unknown.interToken.WithLabelValues(),
		}
		g.Request = engine.Request{Model: "bytes", Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 1000}}
		g.Route = route.Request{ID: "r", Model: "bytes"}
		g.Workers, g.Sink = w.f.catalog.latestWorkers(must(w.f.catalog.findServed("bytes"))), g
		g.emit = func(_ dispatch.AttemptEvent, g *generationTask) error {
			for i := range g.chunks {
				buf = writer.Append(buf[:0], &g.chunks[i])
			}
			return nil
		}
		c := &g.choices[0]
		c.decoder, c.stopMatcher = plain{}, newStopMatcher(newStopStrings([]string{"stop", "ttt"}))
		if grammar != nil {
			c.parser.parser = grammar.NewParser(parse.StyleDecides, "seed")
		}
		w.f.dispatcher.Plane = planeOf(func(recv func([]byte) error) error {
			var frame []byte
			d := engine.Delta{Attempt: 1, Tokens: []kv.Token{'t', 'o'}}
			send := func() {
				frame = engine.AppendDelta(frame[:0], &d)
				d.Pos += 2
				if err := recv(frame); err != nil {
					t.Fatal(err)
				}
			}
			if n := testing.AllocsPerRun(200, send); n != 0 {
				t.Errorf("%v allocations for each delta", n)
			}
			d.Tokens, d.Finish = nil, engine.FinishLength
			send()
			return nil
		})
		if err := w.f.dispatcher.Generate(t.Context(), &g.Generation, 1); err != nil {
			t.Error(err)
		}
		if len(buf) == 0 {
			t.Error("nothing was emitted")
		}
	})
}
