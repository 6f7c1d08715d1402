package tiny

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

func guidedBy(schema string, seed, n int) *engine.Request {
	req := within(96, greedy(seed, 12, n))
	req.OutputSchema = &engine.OutputSchema{Schema: []byte(schema)}
	req.Sampling = engine.Sampling{Temperature: 1, Seed: uint64(seed)}
	return req
}

func textOf(tokens []kv.Token) string {
	var b []byte
	for _, t := range tokens {
		b, _ = pieceText(b, t)
	}
	return string(b)
}

// TestGuideEnds: with a stop token that can be sampled a choice ends with it, else by itself, and not earlier
// if the text can continue.
func TestGuideEnds(t *testing.T) {
	e := small(t, nil)
	ctx := enginetest.Start(t, e)
	const schema = `{"const":{"a":1}}`
	req := guidedBy(schema, 1, 50)
	req.Stop.IgnoreEOS = false // 7 is end of sequence; 8 too, but masked
	got := enginetest.MustGenerate(t, ctx, e, req)[0]
	n := len(got.Tokens)
	if got.Finish != engine.FinishStop || got.Tokens[n-1] != 7 || textOf(got.Tokens[:n-1]) != `{"a":1}` {
		t.Errorf("with end of sequence: %q, finish %d", textOf(got.Tokens), got.Finish)
	}
	req.Stop.IgnoreEOS = true
	bare := enginetest.MustGenerate(t, ctx, e, req)[0]
	if bare.Finish != engine.FinishStop || textOf(bare.Tokens) != `{"a":1}` {
		t.Errorf("without: %q, finish %d", textOf(bare.Tokens), bare.Finish)
	}
	// The last token that fits ends the text too.
	req.Stop.MaxTokens = len(bare.Tokens)
	if again := enginetest.MustGenerate(t, ctx, e, req)[0]; again.Finish != engine.FinishStop || !slices.Equal(again.Tokens, bare.Tokens) {
		t.Errorf("with no room to spare: %q, finish %d", textOf(again.Tokens), again.Finish)
	}
	req.Stop.MaxTokens--
	if short := enginetest.MustGenerate(t, ctx, e, req)[0]; short.Finish != engine.FinishLength {
		t.Errorf("with too little room: %q, finish %d", textOf(short.Tokens), short.Finish)
	}
	// Text of a stop token is not text of the answer.
	req = guidedBy(`{"type":"array","items":{"const":1},"minItems":2,"maxItems":2}`, 2, 50)
	commas := []kv.Token{kv.Token(slices.Index(pieces, ","))}
	for t := commas[0] + 1; t < 96; t++ {
		if textOf([]kv.Token{t}) == "," {
			commas = append(commas, t)
		}
	}
	req.Stop.Tokens = commas
	_, err := enginetest.Generate(ctx, e, req)
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Code != fault.Invalid || f.Param != engine.SchemaParam {
		t.Errorf("a text that needs the stop token: error %v", err)
	}
	req = guidedBy(`{"type":"integer"}`, 3, 50)
	req.Stop.Tokens = commas
	got = enginetest.MustGenerate(t, ctx, e, req)[0]
	if n := len(got.Tokens); got.Finish != engine.FinishStop || !slices.Contains(commas, got.Tokens[n-1]) || !json.Valid([]byte(textOf(got.Tokens[:n-1]))) {
		t.Errorf("a number and the stop token: %q, finish %d", textOf(got.Tokens), got.Finish)
	}
}

// TestGuideMinTokens: a text that may continue does so until the minimum.
func TestGuideMinTokens(t *testing.T) {
	e := small(t, nil)
	ctx := enginetest.Start(t, e)
	for seed := range 6 {
		req := guidedBy(`{"type":"array","items":{"type":"string"}}`, seed, 200)
		req.Stop.IgnoreEOS, req.Stop.MinTokens = false, 0
		req.Sampling.Bias = []engine.TokenBias{{Token: 7, Bias: 100}, {Token: kv.Token(slices.Index(pieces, "]")), Bias: 20}}
		short := enginetest.MustGenerate(t, ctx, e, req)[0]
		if short.Finish != engine.FinishStop || len(short.Tokens) > 20 {
			t.Errorf("seed %d: %q, finish %d", seed, textOf(short.Tokens), short.Finish)
		}
		req = guidedBy(`{"type":"integer","minimum":100}`, seed, 200)
		req.Stop.IgnoreEOS = false
		req.Sampling.Bias = []engine.TokenBias{{Token: 7, Bias: 100}}
		early := enginetest.MustGenerate(t, ctx, e, req)[0]
		req.Stop.MinTokens = 6
		late := enginetest.MustGenerate(t, ctx, e, req)[0]
		if len(early.Tokens) > 4 || len(late.Tokens) != 7 || late.Finish != engine.FinishStop {
			t.Errorf("seed %d: %q, and of at least 6 tokens %q", seed, textOf(early.Tokens), textOf(late.Tokens))
		}
	}
}

// TestGuideLogprobs: log-probabilities are the model's, before the grammar's mask.
func TestGuideLogprobs(t *testing.T) {
	e := small(t, nil)
	ctx := enginetest.Start(t, e)
	req := guidedBy(`{"type":"object"}`, 1, 1)
	req.Logprobs = 5
	guided := enginetest.MustGenerate(t, ctx, e, req)[0].Logprobs[0]
	req.OutputSchema = nil
	free := enginetest.MustGenerate(t, ctx, e, req)[0].Logprobs[0]
	if !slices.Equal(guided.Top, free.Top) {
		t.Errorf("alternatives %v with a guide, %v without", guided.Top, free.Top)
	}
	if text := textOf([]kv.Token{guided.Token}); !strings.HasPrefix(text, "{") || guided.Logprob > free.Top[0].Logprob || guided.Logprob == 0 {
		t.Errorf("drew %q with log-probability %v", text, guided.Logprob)
	}
}

func TestGuideResumedFromElsewhere(t *testing.T) {
	e := small(t, nil)
	ctx := enginetest.Start(t, e)
	req := guidedBy(`{"type":"object"}`, 1, 20)
	req.Attempt, req.Generated = 2, [][]kv.Token{{kv.Token(slices.Index(pieces, "["))}}
	r := enginetest.NewRecorder(req)
	if err := e.Generate(ctx, req, r.Sink); fault.CodeOf(err) != fault.Invalid || err == nil || r.Accepted {
		t.Errorf("an output of another schema: error %v, accepted %v", err, r.Accepted)
	}
}

func TestGuidesAreKept(t *testing.T) {
	g := newGrammarCache(newVocab(pieceText, nil, 96), pieceText)
	open := func(i int) *compiledSchema {
		r, err := g.openSchema(&engine.OutputSchema{Schema: fmt.Appendf(nil, `{"const":%d}`, i)})
		if err != nil {
			t.Error(err)
		}
		return r
	}
	first := open(0)
	for i := range 3 * maxGrammars {
		open(i)
		if open(0) != first {
			t.Fatalf("a schema in use was forgotten after %d others", i)
		}
	}
	if n := len(g.mu.kept); n != maxGrammars {
		t.Errorf("%d schemas are kept, want %d", n, maxGrammars)
	}
	last := open(3*maxGrammars - 1)
	if open(1) == last || open(1).schema != `{"const":1}` {
		t.Error("another schema's rules")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 100 {
				open(i % 12)
			}
		})
	}
	wg.Wait()
	if n := len(g.mu.kept); n > maxGrammars {
		t.Errorf("%d schemas are kept after a storm", n)
	}
}

func BenchmarkGuidedStep(b *testing.B) {
	for name, schema := range map[string]string{"free": "", "guided": `{"type":"string","minLength":100000}`} {
		b.Run(name, func(b *testing.B) {
			e := newBuiltin(b, nil)
			step := stepped(b, e, 8, func(i int) *engine.Request {
				req := greedy(i, 20, 8000)
				req.Sampling = engine.Sampling{Temperature: 1, Seed: uint64(i)}
				if schema != "" {
					req.OutputSchema = &engine.OutputSchema{Schema: []byte(schema)}
				}
				return req
			})
			for b.Loop() {
				step()
			}
		})
	}
}
