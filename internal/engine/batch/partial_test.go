package batch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// partialDice is a computer of dice whose states cannot compute what was cached when they were made.
type partialDice struct {
	dice
	partial, whole atomic.Int64 // requests started
	made, released atomic.Int64 // states
	wrong          atomic.Int64 // work that a state cannot compute
	// afterLookup, if set, is called between the look-up and the queue.
	afterLookup func()
}

type partialDie struct {
	*die
	first    int
	computer *partialDice
}

func (d *partialDie) FirstComputable() int { return d.first }
func (d *partialDie) Release()             { d.computer.released.Add(1) }

func (p *partialDice) SavesByPrefix(*engine.Request) bool { return true }

func (p *partialDice) StartRequest(ctx context.Context, req *engine.Request, stops []kv.Token) ([]State, error) {
	p.whole.Add(1)
	return p.start(ctx, req, stops, 0)
}

func (p *partialDice) StartPartial(ctx context.Context, req *engine.Request, stops []kv.Token, cached int) ([]State, error) {
	p.partial.Add(1)
	if p.afterLookup != nil {
		p.afterLookup()
	}
	return p.start(ctx, req, stops, cached)
}

func (p *partialDice) start(ctx context.Context, req *engine.Request, stops []kv.Token, first int) ([]State, error) {
	states, err := p.dice.StartRequest(ctx, req, stops)
	for i := range states {
		states[i] = &partialDie{states[i].(*die), first, p}
		p.made.Add(1)
	}
	return states, err
}

func (p *partialDice) ComputeBatch(ctx context.Context, b *Batch) error {
	plain := *b
	plain.States = nil
	for i, s := range b.States {
		d := s.(*partialDie)
		if b.Plan.Work[i].Start < d.first {
			p.wrong.Add(1)
		}
		plain.States = append(plain.States, d.die)
	}
	return p.dice.ComputeBatch(ctx, &plain)
}

func partialEngine(t *testing.T, change func(*Config)) (*Engine, *partialDice) {
	e := small(t, change)
	p := &partialDice{}
	e.computer = p
	return e, p
}

// TestPartialStart: a request whose prompt is cached is started for the rest alone.
func TestPartialStart(t *testing.T) {
	e, p := partialEngine(t, nil)
	enginetest.MustGenerate(t, enginetest.Start(t, e), e, greedy(1, 40, 8)) // cold: nothing is cached
	if p.whole.Load() != 1 || p.partial.Load() != 0 {
		t.Errorf("cold: %d and %d", p.whole.Load(), p.partial.Load())
	}
}

// TestEvictedAfterLookup: a request whose blocks are evicted between the look-up and its turn is started again
// and answered as if they had not been; it is accepted once.
func TestEvictedAfterLookup(t *testing.T) {
	e, p := partialEngine(t, nil)
	ctx := enginetest.Start(t, e)
	req := greedy(1, 40, 8)
	req.Choices, req.Sampling.Temperature, req.Sampling.Seed = 2, 1, 3
	want := enginetest.MustGenerate(t, ctx, e, req)
	ask := func() []enginetest.Choice {
		t.Helper()
		accepted := 0
		r := enginetest.NewRecorder(req)
		if err := e.Generate(ctx, req, func(d *engine.Delta) error {
			if d.Accepted {
				accepted++
			}
			return r.Sink(d)
		}); err != nil {
			t.Fatal(err)
		}
		if accepted != 1 {
			t.Errorf("accepted %d times", accepted)
		}
		for i := range r.Choices {
			if !slices.Equal(r.Choices[i].Tokens, want[i].Tokens) {
				t.Errorf("choice %d: %v, want %v", i, r.Choices[i].Tokens, want[i].Tokens)
			}
		}
		return r.Choices
	}
	if got := ask(); got[0].Cached != 36 || p.partial.Load() != 1 || e.restarts.Load() != 0 {
		t.Errorf("warm: %+v, %d partial, %d restarts", got[0], p.partial.Load(), e.restarts.Load())
	}
	p.afterLookup = func() {
		p.afterLookup = nil
		for i := range 4 { // 480 tokens
			enginetest.MustGenerate(t, ctx, e, greedy(10+i, 100, 20))
		}
	}
	if ask(); e.restarts.Load() != 1 {
		t.Errorf("%d restarts, want 1", e.restarts.Load())
	}
	if p.wrong.Load() != 0 {
		t.Errorf("states were asked %d times for what they cannot compute", p.wrong.Load())
	}
}

// TestPartialUnderPressure: with a cache so small that sequences are preempted, and their blocks evicted in
// the middle of answers, the answers are those of a computer that is never partial.
func TestPartialUnderPressure(t *testing.T) {
	plain := small(t, func(c *Config) { c.Reuse = paged.Off })
	plainCtx := enginetest.Start(t, plain)
	e, p := partialEngine(t, func(c *Config) { c.Card.Blocks, c.MaxSeqs, c.Card.ContextLength = 32, 8, 125 })
	ctx := enginetest.Start(t, e)
	var requests []*engine.Request
	var want [][]enginetest.Choice
	for i := range 24 {
		req := greedy(i%5, 40, 10+i*7%60)
		req.ID, req.Choices = fmt.Sprint("request-", i), 1+i%2
		req.Prompt = append(req.Prompt, kv.Token(i%6))
		req.Sampling.Temperature, req.Sampling.Seed, req.Logprobs = 1, uint64(i), i%3-1
		requests = append(requests, req)
		want = append(want, enginetest.MustGenerate(t, plainCtx, plain, req))
	}
	// How many restarts there are in a round depends on the scheduler of the machine.
	for round := 0; round < 6 || e.restarts.Load() < 3 && round < 1000; round++ {
		var wg sync.WaitGroup
		for i, req := range requests {
			wg.Go(func() {
				got, err := enginetest.Generate(ctx, e, req)
				if err != nil {
					t.Errorf("%s: %v", req.ID, err)
					return
				}
				for k := range got {
					if !slices.Equal(got[k].Tokens, want[i][k].Tokens) || got[k].Finish != want[i][k].Finish || len(got[k].Logprobs) != len(want[i][k].Logprobs) {
						t.Errorf("%s, choice %d: %+v, want %+v", req.ID, k, got[k], want[i][k])
					}
				}
			})
		}
		wg.Wait()
	}
	if p.partial.Load() == 0 || e.restarts.Load() == 0 || e.Load().Preemptions == 0 {
		t.Errorf("%d partial starts, %d restarts, %d preemptions: the test proves nothing", p.partial.Load(), e.restarts.Load(), e.Load().Preemptions)
	}
	if p.wrong.Load() != 0 {
		t.Errorf("states were asked %d times for what they cannot compute", p.wrong.Load())
	}
	if p.made.Load() != p.released.Load() {
		t.Errorf("of %d states %d were released", p.made.Load(), p.released.Load())
	}
	t.Logf("%d whole and %d partial starts, %d restarts, %d preemptions", p.whole.Load(), p.partial.Load(), e.restarts.Load(), e.Load().Preemptions)
}

// TestConformancePartial: an engine with a partial computer passes the conformance suite.
func TestConformancePartial(t *testing.T) {
	enginetest.Test(t, enginetest.Options{New: func(t testing.TB) engine.Engine {
		e := small(t, nil)
		e.computer = &partialDice{}
		return e
	}})
}
