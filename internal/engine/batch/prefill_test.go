package batch

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// TestPrefill computes a prompt between requests that fill the cache: it is computed completely each time,
// also after a preemption, and leaves nothing behind.
func TestPrefill(t *testing.T) { synctest.Test(t, testPrefill) }

func testPrefill(t *testing.T) {
	e := small(t, func(c *Config) { c.Card.Blocks, c.TokenBudget = 40, 16 })
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			if _, err := enginetest.Generate(t.Context(), e, greedy(i, 10, 60)); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			d := &die{}
			err := e.Prefill(t.Context(), &engine.EmbedRequest{Attempt: 1, Prompt: greedy(9, 101, 1).Prompt}, d)
			if err != nil || d.seen != 101 {
				t.Errorf("computed %d tokens of 101: %v", d.seen, err)
			}
		})
	}
	synctest.Wait() // all are in the inbox
	ctx := enginetest.Start(t, e)
	wg.Wait()
	if l := e.Load(); l.Preemptions == 0 || l.Running+l.Waiting+l.UsedBlocks != 0 {
		t.Errorf("the cache was never full, or is not idle: %+v", l)
	}
	if got := enginetest.MustGenerate(t, ctx, e, greedy(9, 101, 1))[0]; got.Cached != 0 {
		t.Errorf("%d tokens of the prompt are cached", got.Cached)
	}
	for name, bad := range map[string][]kv.Token{"empty": nil, "long": make([]kv.Token, 320), "foreign": {vocab}} {
		err := e.Prefill(ctx, &engine.EmbedRequest{Attempt: 1, Prompt: bad}, &die{})
		if fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOver ends a choice by its state: after a token, in a delta of its own, and before the first token of a
// resumption.
func TestOver(t *testing.T) {
	e := small(t, nil)
	e.computer = limited{e.computer}
	ctx := enginetest.Start(t, e)
	req := greedy(3, 10, 20)
	var last engine.Delta
	r := enginetest.NewRecorder(req)
	err := e.Generate(ctx, req, func(d *engine.Delta) error {
		last = *d
		return r.Sink(d)
	})
	if got := r.Choices[0]; err != nil || len(got.Tokens) != 5 || got.Finish != engine.FinishStop || len(last.Tokens) != 0 {
		t.Errorf("%+v, last delta %+v, %v", got, last, err)
	}
	req.Attempt, req.Generated = 2, [][]kv.Token{r.Choices[0].Tokens}
	if got := enginetest.MustGenerate(t, ctx, e, req)[0]; len(got.Tokens) != 0 || got.Finish != engine.FinishStop {
		t.Errorf("resumed: %+v", got)
	}
}

// limited is a computer whose choices finish after five tokens.
type limited struct{ Computer }

func (l limited) StartRequest(ctx context.Context, req *engine.Request, stops []kv.Token) ([]State, error) {
	states, err := l.Computer.StartRequest(ctx, req, stops)
	for _, s := range states {
		s.(*die).last = 5
	}
	return states, err
}

// TestLabel labels the events of watchers, both changes and descriptions.
func TestLabel(t *testing.T) {
	labelled := 0
	e := small(t, func(c *Config) {
		c.LabelEvents = func(events []kv.Event) { labelled += len(events) }
	})
	ctx := enginetest.Start(t, e)
	enginetest.MustGenerate(t, ctx, e, greedy(1, 30, 2))
	if _, err := enginetest.FirstSnapshot(ctx, e); err != nil {
		t.Fatal(err)
	}
	enginetest.MustGenerate(t, ctx, e, greedy(1, 30, 2)) // the loop has passed the description
	if labelled < 3 {
		t.Errorf("%d events were labelled; want a change, and a description of two", labelled)
	}
}
