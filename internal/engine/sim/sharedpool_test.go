package sim

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/internal/engine/enginetest"
)

// shared returns two engines with a common pool, and the events of each.
func shared(t *testing.T, room int, moe MoE) (engines [2]*Engine, told [2]*listener) {
	t.Helper()
	pool, err := NewSharedPool(4, room, 5*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for i := range engines {
		cfg := Config{Vocabulary: Vocabulary{Size: 100}, MoE: moe, Pool: pool, PoolWorker: kv.Worker{ID: kv.WorkerID(i + 1)}}
		if engines[i], err = New(cfg); err != nil {
			t.Fatal(err)
		}
		told[i] = &listener{moe: moe}
	}
	for i, e := range engines {
		enginetest.Start(t, e)
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		go func() { _ = e.WatchKV(ctx, told[i].hear) }()
	}
	synctest.Wait()
	return engines, told
}

// listener counts how many blocks moved to which state, and how many of them with their label.
type listener struct {
	moe    MoE
	mu     sync.Mutex
	moved  [kv.Evicted + 1]int
	marked int
	access int
}

func (l *listener) hear(events []kv.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ev := range events {
		if ev.Kind == kv.Moved {
			l.moved[ev.Move.To] += len(ev.Seqs)
			l.access = max(l.access, len(ev.Move.Access))
			for i, label := range ev.Labels {
				if label == l.moe.labelFor(ev.Seqs[i]) {
					l.marked++
				}
			}
		}
	}
	return nil
}

// labeled returns how many moves of blocks had the block's label.
func (l *listener) labeled() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.marked
}

// accessible returns the largest number of workers that a move gave access.
func (l *listener) accessible() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.access
}

func (l *listener) count(to kv.PoolState) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved[to]
}

// TestSharedPool checks that an engine fetches what another one computed once it is reported in the pool,
// with the same tokens, and that this takes the time of the transfer.
func TestSharedPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines, told := shared(t, 1000, MoE{})
		var first, early, late stopwatch
		first.run(t.Context(), engines[0], request(1, 4000, 8))
		if n := told[0].count(kv.InTransit); n != 250 {
			t.Errorf("%d blocks are said to be in transit, want the 250 of the prompt", n)
		}
		if n := told[0].accessible(); n != 2 {
			t.Errorf("%d workers have access", n)
		}
		after(time.Minute) // the engine is idle, and is woken to report
		if n := told[0].count(kv.Pooled); n != 250 {
			t.Errorf("%d blocks are said to be pooled, want 250", n)
		}
		late.run(t.Context(), engines[1], request(1, 4000, 8))
		if late.cached != 3984 { // all but the block of the last token
			t.Errorf("%d tokens of the prompt are cached, want 3984", late.cached)
		}
		if n := told[1].count(kv.InTransit); n != 0 {
			t.Errorf("%d blocks that were fetched are copied again", n)
		}
		early.run(t.Context(), engines[1], request(2, 4000, 8))
		if len(late.tokens) != 8 || len(first.tokens) != 8 || first.err != nil || late.err != nil || early.err != nil {
			t.Fatalf("%v, %v, %v", first.err, late.err, early.err)
		}
		for i := range first.tokens {
			if first.tokens[i] != late.tokens[i] {
				t.Errorf("token %d is %d and %d", i, first.tokens[i], late.tokens[i])
			}
		}
		// 3,984 tokens of 128 KiB at 64 GB/s are 8.2 ms.
		if saved := first.at[0] - late.at[0]; saved < 20 || late.at[0] < 8 {
			t.Errorf("the first token came after %v ms, and %v ms from the pool", first.at[0], late.at[0])
		}
	})
}

// TestSharedPoolEvicts checks that the engine that put a block there reports its eviction, even if idle.
func TestSharedPoolEvicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines, told := shared(t, 100, MoE{Layers: 4, Experts: 4})
		var w stopwatch
		w.run(t.Context(), engines[0], request(1, 1600, 2))
		after(time.Minute)
		if n := told[0].labeled(); n != 200 {
			t.Errorf("%d moves of blocks have the block's label, want the 200 into the pool", n)
		}
		w.run(t.Context(), engines[1], request(2, 1600, 2))
		after(time.Minute)
		if n := told[0].count(kv.Evicted); n != 100 {
			t.Errorf("%d blocks are said to be evicted, want 100", n)
		}
		if n := told[1].count(kv.Evicted); n != 0 {
			t.Errorf("%d blocks of the other one are", n)
		}
	})
}
