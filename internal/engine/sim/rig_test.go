package sim

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/core/splitmix"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// request returns a greedy request for n tokens after a prompt that depends on seed
// in every token and has text throughout.
func request(seed, prompt, n int) *engine.Request {
	req := &engine.Request{Attempt: 1, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: n, IgnoreEOS: true}}
	for i := range prompt {
		req.Prompt = append(req.Prompt, kv.Token(10+splitmix.Mix(uint64(seed)<<32+uint64(i))%80))
	}
	return req
}

// stopwatch measures a request: when each of its tokens came, in milliseconds since it was sent.
type stopwatch struct {
	tokens []kv.Token
	at     []float64
	cached int
	err    error
}

func (s *stopwatch) run(ctx context.Context, e engine.Engine, req *engine.Request) {
	sent := time.Now()
	s.err = e.Generate(ctx, req, func(d *engine.Delta) error {
		for _, token := range d.Tokens {
			s.tokens = append(s.tokens, token)
			s.at = append(s.at, float64(time.Since(sent))/1e6)
		}
		s.cached += d.Cached
		return nil
	})
}

// after waits in virtual time.
func after(d time.Duration) { <-time.NewTimer(d).C }

// steps returns first and the n numbers that follow it in steps.
func steps(first, step float64, n int) []float64 {
	all := []float64{first}
	for range n {
		first += step
		all = append(all, first)
	}
	return all
}

func (s *stopwatch) expect(t *testing.T, what string, want ...[]float64) {
	t.Helper()
	if all := slices.Concat(want...); s.err != nil || !slices.Equal(s.at, all) {
		t.Errorf("%s: tokens came after %v ms, want %v (%v)", what, s.at, all, s.err)
	}
}

// queued passes requests to an engine that does not run yet, in order, and then runs it.
func queued(t *testing.T, e *Engine, requests ...*engine.Request) []stopwatch {
	t.Helper()
	watches := make([]stopwatch, len(requests))
	var wg sync.WaitGroup
	for i, req := range requests {
		wg.Go(func() { watches[i].run(t.Context(), e, req) })
		synctest.Wait()
	}
	enginetest.Start(t, e)
	wg.Wait()
	return watches
}
