package batch

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// TestStorm drives the loop step by step through requests of all kinds that end in all ways, with a cache
// that is too small for them, and checks after every step that the scheduler is consistent and that no
// sequence is lost.
func TestStorm(t *testing.T) {
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) { storm(t, seed) })
	}
}

func storm(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	e := small(t, func(c *Config) { c.Card.Blocks, c.MaxSeqs, c.MaxWaiting, c.TokenBudget = 40, 6, 20, 12 })
	l, err := e.newLoop()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	replica, watched := enginetest.NewCacheReplica(), make(chan error, 1)
	go func() { watched <- e.WatchKV(ctx, replica.Sink) }()

	outcomes := map[string]int{}
	results := make(chan string, 60)
	broken := errors.New("sink is broken")
	send := func() {
		req := greedy(rng.IntN(5), 1+rng.IntN(90), 1+rng.IntN(30))
		req.Choices, req.Sampling = 1+rng.IntN(3), engine.Sampling{Temperature: float64(rng.IntN(2)), Seed: seed}
		end, after := rng.IntN(4), rng.IntN(6)
		go func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			deltas, r := 0, enginetest.NewRecorder(req)
			err := e.Generate(ctx, req, func(d *engine.Delta) error {
				if deltas++; deltas > after {
					switch end {
					case 0:
						cancel()
					case 1:
						return broken
					}
				}
				return r.Sink(d)
			})
			switch {
			case err == nil && r.Complete() == nil:
				results <- "complete"
			case errors.Is(err, context.Canceled):
				results <- "canceled"
			case errors.Is(err, broken):
				results <- "broken"
			default:
				results <- "failed: " + err.Error()
			}
		}()
	}
	sent, done := 0, 0
	for done < 60 {
		for sent < 60 && sent-done < 8 && rng.IntN(3) > 0 {
			send()
			sent++
		}
		synctest.Wait()
		l.runOnce(ctx)
		synctest.Wait()
		for len(results) > 0 {
			outcomes[<-results]++
			done++
		}
		checkLoop(t, l, seed)
	}
	for _, outcome := range []string{"complete", "canceled", "broken"} {
		done -= outcomes[outcome]
		if outcomes[outcome] == 0 {
			t.Errorf("seed %d: no request was %s", seed, outcome)
		}
	}
	if done != 0 {
		t.Errorf("seed %d: outcomes %v", seed, outcomes)
	}
	if load := e.Load(); load.Running+load.Waiting+load.UsedBlocks+load.PrefillTokens != 0 || e.mu.sequences != 0 {
		t.Errorf("seed %d: not idle at the end: %+v, %d sequences", seed, load, e.mu.sequences)
	}
	truth := enginetest.NewCacheReplica()
	if err := truth.Sink(l.sched.AppendDump(nil)); err != nil {
		t.Errorf("seed %d: dump: %v", seed, err)
	}
	if !maps.Equal(truth.Seqs(), replica.Seqs()) {
		t.Errorf("seed %d: the watcher has %d blocks, the cache %d", seed, len(replica.Seqs()), len(truth.Seqs()))
	}
	cancel()
	if err := <-watched; err != nil {
		t.Errorf("seed %d: watch: %v", seed, err)
	}
	l.shutDown()
}

// checkLoop fails unless the loop's state agrees with the scheduler's.
func checkLoop(t *testing.T, l *loop, seed uint64) {
	t.Helper()
	if err := l.sched.Check(); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	open, added := 0, 0
	for _, r := range l.taken {
		if len(r.open) == 0 || r.finished {
			t.Fatalf("seed %d: a request that is over is still kept", seed)
		}
		for _, c := range r.open {
			open++
			if c.scheduled {
				added++
				if l.scheduled[c.id] != c {
					t.Fatalf("seed %d: sequence %d is not live", seed, c.id)
				}
			}
		}
	}
	stats := l.sched.Stats()
	if added != len(l.scheduled) || added != stats.Running+stats.Waiting {
		t.Fatalf("seed %d: %d choices were added, %d are live, the scheduler has %d", seed, added, len(l.scheduled), stats.Running+stats.Waiting)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.mu.inbox {
		open += len(r.open)
	}
	if open != l.mu.sequences {
		t.Fatalf("seed %d: %d choices are open, %d are counted", seed, open, l.mu.sequences)
	}
}

// TestStepHardlyAllocates runs decode steps of a full batch.
func TestStepHardlyAllocates(t *testing.T) {
	ctx := t.Context()
	e := small(t, func(c *Config) { c.Card.Blocks, c.Card.BlockSize = 400, 16 })
	l, err := e.newLoop()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		req := greedy(i, 20, 280)
		r, err := e.newRequest(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.submitRequest(r); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		l.runOnce(ctx)
	}
	// Blocks fill and unread outboxes grow, but neither in every step.
	if n := testing.AllocsPerRun(100, func() { l.runOnce(ctx) }); n > 1 {
		t.Errorf("%v allocations per step of 8 sequences", n)
	}
	if load := e.Load(); load.Running != 8 {
		t.Fatalf("%d sequences ran, want 8", load.Running)
	}
	l.shutDown()
}
