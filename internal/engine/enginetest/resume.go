package enginetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"

	"github.com/google/go-cmp/cmp"
)

// testResume cuts a run after every number of tokens, resumes it on another engine and expects the rest of
// the uncut run, token for token and log-probability for log-probability.
func (s *suite) testResume(t *testing.T) {
	first, firstCtx := s.startEngine(t)
	second, secondCtx := s.startEngine(t)
	const length = 18
	for name, change := range map[string]func(*engine.Request){
		"greedy": func(*engine.Request) {},
		"seeded": func(r *engine.Request) { r.Sampling = engine.Sampling{Temperature: 1, Seed: 11} },
		"filters": func(r *engine.Request) {
			r.Sampling = engine.Sampling{Temperature: 1.2, TopK: 40, TopP: 0.9, MinP: 0.01, Seed: 12}
		},
		"penalties": func(r *engine.Request) {
			r.Sampling = engine.Sampling{Temperature: 0.8, Seed: 13, RepetitionPenalty: 1.3, PresencePenalty: 0.7, FrequencyPenalty: 0.4}
		},
		"choices": func(r *engine.Request) {
			r.Choices, r.Sampling = 3, engine.Sampling{Temperature: 1.5, Seed: 14}
		},
		"logprobs": func(r *engine.Request) {
			r.Logprobs, r.Sampling = 3, engine.Sampling{Temperature: 1, Seed: 15, PresencePenalty: 1}
		},
		"guide": func(r *engine.Request) {
			if s.card.StructuredOutput {
				r.OutputSchema = &engine.OutputSchema{Schema: []byte(`{"type":"object","properties":{"k":{"type":"array","items":{"type":"integer","maximum":9999}}},"required":["k"]}`)}
			}
			r.Choices, r.Logprobs, r.Sampling = 3, 2, engine.Sampling{Temperature: 1, Seed: 16, PresencePenalty: 0.5}
		},
		"minimum": func(r *engine.Request) {
			r.Stop.MinTokens = 9
			for i := range s.card.VocabSize / 2 {
				r.Stop.Tokens = append(r.Stop.Tokens, kv.Token(i*2))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := s.newRequest(10, 37, length)
			change(req)
			if s.NoLogprobs {
				req.Logprobs = -1
			}
			whole := MustGenerate(t, firstCtx, first, req)
			var wg sync.WaitGroup
			for cut := range length + 1 {
				wg.Go(func() {
					again := *req
					again.Attempt = 2
					want := cutAt(&again, whole, cut)
					got, err := Generate(secondCtx, second, &again)
					if err != nil {
						t.Errorf("cut %d: %v", cut, err)
						return
					}
					for i := range got {
						got[i].Cached = 0
					}
					if s.Redraws {
						s.checkRedrawn(t, cut, &again, got)
						return
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("cut %d (-uncut +resumed):\n%s", cut, diff)
					}
				})
			}
			wg.Wait()
		})
	}
	requireIdle(t, second, "after all requests")
}

// checkRedrawn checks that the rest of a stream ends as it must: at its length limit, or with a stop token at
// a valid position.
func (s *suite) checkRedrawn(t *testing.T, cut int, req *engine.Request, got []Choice) {
	for i, c := range got {
		before := len(req.Generated[i])
		all := before + len(c.Tokens)
		stopped := func(at int, token kv.Token) bool {
			return at >= req.Stop.MinTokens && (slices.Contains(req.Stop.Tokens, token) || !req.Stop.IgnoreEOS && slices.Contains(s.card.EOS, token))
		}
		switch {
		case req.Done[i]:
		case c.Finish == engine.FinishLength && all != req.Stop.MaxTokens:
			t.Errorf("cut %d: choice %d ends for its length after %d tokens", cut, i, all)
		case c.Finish == engine.FinishStop && len(c.Tokens) > 0 && !stopped(all-1, c.Tokens[len(c.Tokens)-1]) && req.OutputSchema == nil:
			t.Errorf("cut %d: choice %d ends with no stop token, after %d tokens", cut, i, all)
		}
		for at, token := range c.Tokens[:max(len(c.Tokens)-1, 0)] {
			if slices.Contains(req.Stop.Tokens, token) && req.OutputSchema == nil {
				t.Errorf("cut %d: choice %d has a stop token at %d and goes on", cut, i, before+at)
			}
		}
	}
}

// cutAt makes req the resumption of whole after cut tokens, choices other than the first cut elsewhere, and
// returns the rest of the output.
func cutAt(req *engine.Request, whole []Choice, cut int) []Choice {
	req.ID = fmt.Sprintf("cut-%d", cut)
	req.Generated, req.Done = nil, nil
	var rest []Choice
	for i, c := range whole {
		at := cut
		if i > 0 {
			at = cut * (i + 2) % (len(c.Tokens) + 1)
		}
		at = min(at, len(c.Tokens))
		left := Choice{Finish: c.Finish}
		left.Tokens = append(left.Tokens, c.Tokens[at:]...)
		if c.Logprobs != nil {
			left.Logprobs = append(left.Logprobs, c.Logprobs[at:]...)
		}
		req.Generated = append(req.Generated, c.Tokens[:at])
		// The caller knows of some of the finishes.
		done := at == len(c.Tokens) && cut%2 == 0
		if done {
			left = Choice{}
		}
		req.Done = append(req.Done, done)
		rest = append(rest, left)
	}
	return rest
}
