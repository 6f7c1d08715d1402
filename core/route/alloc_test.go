package route

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"penstock/core/activeseq"
	"penstock/core/kv"
)

// loaded returns a router of 64 workers with 16 requests each, and a query of 2000 tokens, some of which each
// of them holds.
func loaded(t testing.TB, cfg Config) (*Router, *Query) { return loadedOf(t, cfg, 64) }

func loadedOf(t testing.TB, cfg Config, workers int) (*Router, *Query) {
	t.Helper()
	const perWorker, depth = 16, 125
	active := mustTable(t, 16)
	r := mustRouter(t, cfg, active)
	rng := rand.New(rand.NewPCG(1, 2))
	prompt := func() []kv.SeqHash {
		c := make([]kv.SeqHash, depth)
		for i := range c {
			c[i] = kv.SeqHash(rng.Uint64())
		}
		return c
	}
	q := &Query{Key: activeseq.AttemptKey{ID: "request", Attempt: 1}, Chain: prompt(), PromptTokens: 16 * depth}
	var list []Target
	for i := range workers {
		w := kv.Worker{ID: kv.WorkerID(i + 1)}
		list = append(list, Target{Worker: w, Addr: fmt.Sprintf("10.0.0.%d:7000", i), BlockSize: 16, State: Ready})
		q.Overlaps = append(q.Overlaps, kv.Overlap{Worker: w, Blocks: [kv.Tiers]int{i % depth}})
	}
	if err := r.SetWorkers(list); err != nil {
		t.Fatal(err)
	}
	for i := range workers * perWorker {
		key := activeseq.AttemptKey{ID: fmt.Sprint("background ", i), Attempt: 1}
		c := prompt()
		copy(c, q.Chain[:i%depth])
		if err := active.Reserve(0, key, list[i%workers].Worker, activeseq.Demand{Chain: c, PromptTokens: 16 * depth}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range workers { // every worker has generated, evicted and spent time on prefill
		at := kv.Mono(1e6 * (i + 1))
		r.RecordFirstToken(at, activeseq.AttemptKey{ID: fmt.Sprint("background ", i), Attempt: 1}, UnknownCached)
		r.RecordEviction(at, list[i].Worker, 1+i%3)
	}
	return r, q
}

func TestPickAllocatesNothing(t *testing.T) {
	for _, mode := range []Mode{KV, Time, RoundRobin, Random, PowerOfTwo, LeastLoaded, Direct} {
		r, q := loaded(t, Config{Mode: mode, Temperature: 0.5})
		if mode == Direct {
			q.Pin = kv.Worker{ID: 7}
		}
		step := func() {
			if _, err := r.Pick(0, q); err != nil {
				t.Fatal(err)
			}
			r.active.Free(q.Key)
		}
		for range 1000 {
			step()
		}
		if allocs := testing.AllocsPerRun(500, step); allocs != 0 {
			t.Errorf("mode %s: %v allocations per pick, want 0", mode, allocs)
		}
	}
}

// TestPreferencesAllocateNothing: sessions, labels, experts, a cost margin and ShouldQueue allocate nothing.
func TestPreferencesAllocateNothing(t *testing.T) {
	for _, stickiness := range []Stickiness{Soft, Hard} {
		r, q := loaded(t, Config{NearCost: 0.05, Sessions: SessionConfig{Stickiness: stickiness}, QueueThreshold: new(100.0)})
		q.Session.ID = "s"
		q.Allowed = []kv.WorkerID{1, 2, 3, 60}
		q.Override.MoE = &MoEQuery{Layer: new(uint32(3)), Experts: []uint32{1, 2}, Fallback: new(false)}
		q.Media = []kv.Media{{Start: 0, End: 16 * 4}}
		for i := range q.Overlaps {
			q.Overlaps[i].Labelled = 1
			q.Held = append(q.Held, HeldMedia{q.Overlaps[i].Worker, 1})
		}
		step := func() {
			if r.ShouldQueue(0, q) {
				t.Fatal("full")
			}
			if _, err := r.Pick(0, q); err != nil {
				t.Fatal(err)
			}
			r.active.Free(q.Key)
		}
		step()
		if allocs := testing.AllocsPerRun(500, step); allocs != 0 {
			t.Errorf("%s: %v allocations per pick, want 0", stickiness, allocs)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, workers := range []int{64, 1000} {
		for _, mode := range []Mode{KV, Time, RoundRobin, PowerOfTwo} {
			b.Run(fmt.Sprintf("workers=%d/mode=%s", workers, mode), func(b *testing.B) {
				r, q := loadedOf(b, Config{Mode: mode}, workers)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := r.Pick(0, q); err != nil {
						b.Fatal(err)
					}
					r.active.Free(q.Key)
				}
			})
		}
	}
}
