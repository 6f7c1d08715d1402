package enginetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine"
)

// testConcurrent runs many requests at once and expects of each the same output as alone.
func (s *suite) testConcurrent(t *testing.T) {
	alone, aloneCtx := s.startEngine(t)
	e, ctx := s.startEngine(t)
	const n = 24
	requests, want := make([]*engine.Request, n), make([][]Choice, n)
	for i := range requests {
		requests[i] = s.newRequest(uint64(i/2), 5+i*7%60, 3+i*5%30) // pairs share prompts
		requests[i].Choices = 1 + i%3
		if i%4 > 0 {
			requests[i].Sampling = engine.Sampling{Temperature: 1, Seed: uint64(i)}
		}
		want[i] = MustGenerate(t, aloneCtx, alone, requests[i])
	}
	var wg sync.WaitGroup
	for i, req := range requests {
		wg.Go(func() {
			got, err := Generate(ctx, e, req)
			if err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			for c := range got {
				if !slices.Equal(got[c].Tokens, want[i][c].Tokens) || got[c].Finish != want[i][c].Finish {
					t.Errorf("request %d choice %d: %v, alone %v", i, c, got[c].Tokens, want[i][c].Tokens)
				}
			}
		})
	}
	wg.Wait()
	requireIdle(t, e, "after all requests")
}

// testCancel cancels the context within each call of the sink in turn: just after the acceptance, at the
// first token and later. A request may still succeed only if the sink had its last delta.
func (s *suite) testCancel(t *testing.T) {
	e, ctx := s.startEngine(t)
	for after := range 5 {
		reqCtx, cancel := context.WithCancel(ctx)
		req := s.newRequest(uint64(20+after), 50, 200)
		req.Choices, req.Sampling = 2, engine.Sampling{Temperature: 1}
		r, deltas := NewRecorder(req), 0
		err := e.Generate(reqCtx, req, func(d *engine.Delta) error {
			if deltas == after {
				cancel()
			}
			deltas++
			return r.Sink(d)
		})
		cancel()
		complete := err == nil && after > 0 && deltas <= after+1 && r.Complete() == nil
		if !errors.Is(err, context.Canceled) && !complete {
			t.Errorf("canceled at delta %d: error %v after %d deltas", after, err, deltas)
		}
		requireIdle(t, e, "after a canceled request")
	}
}

// testSinkError fails each call of the sink in turn. An engine may merge deltas, so that later calls may not
// occur.
func (s *suite) testSinkError(t *testing.T) {
	e, ctx := s.startEngine(t)
	broken := errors.New("sink is broken")
	for after := range 4 {
		req := s.newRequest(uint64(30+after), 50, 200)
		r, deltas := NewRecorder(req), 0
		err := e.Generate(ctx, req, func(d *engine.Delta) error {
			if deltas++; deltas > after {
				return broken
			}
			return r.Sink(d)
		})
		complete := err == nil && after > 1 && deltas <= after && r.Complete() == nil
		if (!errors.Is(err, broken) || deltas != after+1) && !complete {
			t.Errorf("sink broken at delta %d: error %v after %d deltas", after, err, deltas)
		}
		requireIdle(t, e, "after a broken sink")
	}
}

// testSlowSink blocks one request's sink until other requests have finished, and then expects all of its
// tokens.
func (s *suite) testSlowSink(t *testing.T) {
	e, ctx := s.startEngine(t)
	req := s.newRequest(40, 20, 100)
	want := MustGenerate(t, ctx, e, req)[0].Tokens

	held, release := make(chan struct{}), make(chan struct{})
	r, result := NewRecorder(req), make(chan error, 1)
	go func() {
		result <- e.Generate(ctx, req, func(d *engine.Delta) error {
			if len(d.Tokens) > 0 && len(r.Choices[0].Tokens) == 0 {
				close(held)
				<-release
			}
			return r.Sink(d)
		})
	}()
	<-held
	for i := range 4 {
		MustGenerate(t, ctx, e, s.newRequest(uint64(41+i), 20, 120))
	}
	close(release)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if got := r.Choices[0].Tokens; !slices.Equal(got, want) {
		t.Errorf("after a pause: %v, want %v", got, want)
	}
	requireIdle(t, e, "after all requests")
}

// testCached checks the count of cached tokens: none for a new prompt; for a known one all full blocks except
// the last token's.
func (s *suite) testCached(t *testing.T) {
	e, ctx := s.startEngine(t)
	if _, ok := e.(engine.KVSource); !ok {
		return // without KV events there is no known cache
	}
	size := s.card.BlockSize
	for _, n := range []int{size - 1, size, size + 1, 3 * size, 3*size + 2} {
		req := s.newRequest(uint64(50+n), n, 2)
		req.Choices, req.Sampling = 2, engine.Sampling{Temperature: 1}
		again := (n - 1) / size * size
		if s.SingleTokens {
			again = n - 1
		}
		for attempt, want := range []int{0, again} {
			known := false
			for i, c := range MustGenerate(t, ctx, e, req) {
				known = known || c.Cached != engine.CachedUnknown
				if c.Cached != want && c.Cached != engine.CachedUnknown {
					t.Errorf("prompt of %d, time %d, choice %d: %d tokens cached, want %d", n, attempt+1, i, c.Cached, want)
				}
			}
			if !known {
				t.Errorf("prompt of %d, time %d: no choice says how many tokens were cached", n, attempt+1)
			}
		}
		req.Salt = kv.Salt{Namespace: "other"}
		if c := MustGenerate(t, ctx, e, req)[0]; c.Cached > 0 {
			t.Errorf("prompt of %d under another salt: %d tokens cached", n, c.Cached)
		}
	}
}

// Gate blocks an engine's computations, so that a test decides when they happen.
type Gate struct {
	// Enter receives one value when a computation starts; it continues when Leave receives one.
	Enter, Leave chan struct{}
}

// NewGate returns a closed gate.
func NewGate() *Gate { return &Gate{make(chan struct{}), make(chan struct{})} }

// AwaitLeave waits until the test lets the caller continue.
func (g *Gate) AwaitLeave() {
	g.Enter <- struct{}{}
	<-g.Leave
}

// Open lets every computation through from now on, until the test ends.
func (g *Gate) Open(t testing.TB) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-g.Enter:
				g.Leave <- struct{}{}
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() { close(stop); wg.Wait() })
}
