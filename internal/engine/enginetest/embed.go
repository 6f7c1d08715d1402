package enginetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// testEmbed checks that embeddings have length 1 and depend only on the prompt, not on other work of the
// engine or its cache.
func (s *suite) testEmbed(t *testing.T) {
	plain, ctx := s.startEngine(t)
	e, ok := plain.(engine.Embedder)
	if !ok {
		return // not supported
	}
	const n = 12
	requests, want := make([]*engine.EmbedRequest, n), make([][]float32, n)
	for i := range requests {
		requests[i] = &engine.EmbedRequest{ID: fmt.Sprint("embed-", i), Attempt: 1, Prompt: s.Prompt(uint64(i/2), 1+i*17%150)}
		var err error
		if want[i], err = e.Embed(ctx, requests[i]); err != nil {
			t.Fatal(err)
		}
		var squares float64
		for _, v := range want[i] {
			squares += float64(v) * float64(v)
		}
		if math.Abs(squares-1) > 1e-5 || len(want[i]) != len(want[0]) {
			t.Errorf("embedding %d has %d elements and length %v, want %d and 1", i, len(want[i]), math.Sqrt(squares), len(want[0]))
		}
		if i > 0 && slices.Equal(want[i], want[i-1]) {
			t.Errorf("embeddings %d and %d are equal", i-1, i)
		}
	}
	requireIdle(t, plain, "after embeddings")

	var wg sync.WaitGroup
	for i, req := range requests {
		wg.Go(func() { // the same prompts, so that some of them are cached
			MustGenerate(t, ctx, plain, &engine.Request{ID: req.ID, Attempt: 1, Choices: 1, Logprobs: -1, Prompt: req.Prompt, Stop: engine.Stop{MaxTokens: 8, IgnoreEOS: true}})
		})
		wg.Go(func() {
			got, err := e.Embed(ctx, req)
			if err != nil || !slices.Equal(got, want[i]) {
				t.Errorf("embedding %d is not what it is alone (%v)", i, err)
			}
		})
	}
	wg.Wait()
	for i, req := range requests {
		if got, err := e.Embed(ctx, req); err != nil || !slices.Equal(got, want[i]) {
			t.Errorf("embedding %d of a prompt in the cache is not what it was (%v)", i, err)
		}
	}

	for name, prompt := range map[string][]kv.Token{
		"empty":                  {},
		"as long as the context": s.Prompt(60, s.card.ContextLength),
		"outside the vocabulary": {kv.Token(s.card.VocabSize)},
	} {
		if _, err := e.Embed(ctx, &engine.EmbedRequest{ID: "bad", Attempt: 1, Prompt: prompt}); err == nil || fault.CodeOf(err) != fault.Invalid {
			t.Errorf("input %s: %v, want %v", name, err, fault.Invalid)
		}
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := e.Embed(gone, requests[0]); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	requireIdle(t, plain, "after all embeddings")
}
