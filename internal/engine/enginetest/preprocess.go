package enginetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// testPreprocess checks that prompts depend only on the request, and that the engine accepts them.
func (s *suite) testPreprocess(t *testing.T) {
	plain, ctx := s.startEngine(t)
	e, ok := plain.(engine.Preprocessor)
	if !ok {
		return // not supported
	}
	conversation := func(content string) []byte {
		return fmt.Appendf(nil, `{"messages":[{"role":"user","content":"%s"}],"add_generation_prompt":true,"continue_final_message":false}`, content)
	}
	requests := []*engine.PreprocessRequest{
		{Text: "Where does the water go?"},
		{Text: "Where does the water go? And why?"},
		{Text: "Where does the water go?", ParseSpecial: true, AddSpecial: true},
		{Text: "", AddSpecial: true},
		{Chat: conversation("Where does the water go?")},
		{Chat: conversation("And why?")},
	}
	want := make([]*engine.Preprocessed, len(requests))
	for i, req := range requests {
		req.ID, req.Attempt = fmt.Sprint("preprocess-", i), 1
		p, err := e.Preprocess(ctx, req)
		if err != nil {
			t.Fatalf("prompt %d: %v", i, err)
		}
		if err := p.Validate(s.card.VocabSize); err != nil {
			t.Errorf("prompt %d: %v", i, err)
		}
		want[i] = p
		if len(p.Tokens) == 0 {
			continue // an empty text may have no tokens
		}
		MustGenerate(t, ctx, plain, &engine.Request{
			ID: req.ID, Attempt: 1, Choices: 1, Logprobs: -1, Prompt: p.Tokens, Media: p.Media, Stop: engine.Stop{MaxTokens: 2, IgnoreEOS: true},
		})
	}
	if slices.Equal(want[0].Tokens, want[1].Tokens) || slices.Equal(want[4].Tokens, want[5].Tokens) {
		t.Error("different texts have one prompt")
	}

	var wg sync.WaitGroup
	for i, req := range requests {
		for range 4 {
			wg.Go(func() {
				p, err := e.Preprocess(ctx, req)
				if err != nil || !slices.Equal(p.Tokens, want[i].Tokens) || !slices.Equal(p.Media, want[i].Media) {
					t.Errorf("prompt %d is not what it was (%v)", i, err)
				}
			})
		}
	}
	wg.Wait()

	for name, req := range map[string]*engine.PreprocessRequest{
		"no attempt":       {Text: "x"},
		"both":             {Attempt: 1, Text: "x", Chat: conversation("x")},
		"no JSON":          {Attempt: 1, Chat: []byte("{")},
		"an unknown field": {Attempt: 1, Chat: []byte(`{"messages":[{"role":"user","content":"x"}],"no_such_field":1}`)},
	} {
		if _, err := e.Preprocess(ctx, req); err == nil || fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v, want %v", name, err, fault.Invalid)
		}
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := e.Preprocess(gone, requests[0]); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	requireIdle(t, plain, "after all prompts")
}
