package router

import (
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/engine"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
)

var (
	chaosSeeds = flag.Uint64("chaos-seeds", 20, "how many seeds TestChaos tries")
	chaosSeed  = flag.Uint64("chaos-seed", 0, "the first of them")
)

const (
	// chaosLasts is how long faults occur.
	chaosLasts = 40 * time.Second
	// chaosHeals is the time without faults after which the routers' state must be complete: the
	// longest wait between two requests to a worker, plus a margin.
	chaosHeals = 75 * time.Second
)

// TestChaos runs routers and workers while the planes lose, repeat, reorder and delay messages, the
// store is unreachable, truncated or replaced, and processes die, routers at any step of a snapshot.
// checkNow states what holds at any time. Within chaosHeals after the last fault the state of every
// router is complete. One seed is repeated by -run 'TestChaos/seed=N$', or -chaos-seed N -chaos-seeds
// 1.
func TestChaos(t *testing.T) {
	for seed := *chaosSeed; seed < *chaosSeed+*chaosSeeds; seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { chaos(t, seed) })
		})
	}
}

func chaos(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	defer w.close()
	for _, at := range w.routers {
		w.startRouter(at, 0)
	}
	for _, at := range w.workers {
		w.startWorker(at)
	}
	pass(2 * time.Second)
	begun := time.Now()
	for next := begun; time.Since(begun) < chaosLasts; {
		if !time.Now().Before(next) {
			w.worsen()
			next = time.Now().Add(time.Duration(1+w.rng.IntN(6)) * time.Second)
		}
		w.live()
		w.harm()
		pass(time.Duration(1+w.rng.IntN(100)) * time.Millisecond)
		if w.hits(0.2) {
			w.checkNow()
		}
	}
	w.mend()
	for range 15 {
		pass(chaosHeals / 15)
		w.checkNow()
	}
	w.checkHealed(false)
	w.describeAll()
	pass(10 * time.Second)
	w.checkHealed(true)
	w.checkLoads()
}

// live does one step of the workers and clients.
func (w *world) live() {
	at := w.routers[w.rng.IntN(worldRouters)]
	if at.alive() && w.hits(0.7) && len(w.active) < 60 {
		w.send(at)
	}
	if len(w.active) > 0 && w.hits(0.6) {
		s := w.active[w.rng.IntN(len(w.active))]
		switch {
		case !s.router.alive():
		case s.filled:
			w.free(s)
		default:
			w.prefill(s)
		}
	}
	wk := w.workers[w.rng.IntN(worldWorkers)]
	if !wk.alive() {
		return
	}
	w.engines.Lock()
	defer w.engines.Unlock()
	e := wk.engine
	switch k := w.rng.IntN(100); {
	case k < 30:
		p := w.prompts[w.rng.IntN(len(w.prompts))]
		e.store(p, 1+w.rng.IntN(len(p.blocks)))
	case k < 50 && len(e.cache) > 0:
		e.evict(w.rng.IntN(len(e.cache)), 1+w.rng.IntN(8))
	case k < 52:
		e.clear()
	case k < 80:
		e.finish()
		w.tellPool()
	}
}

// worsen draws the faults of the planes until the next call.
func (w *world) worsen() {
	most := func(p float64) float64 { return float64(w.rng.IntN(3)) / 2 * p }
	w.bus.Set(bustest.BusFaults{
		Fail: most(0.3), Lose: most(0.1), Drop: most(0.2), Duplicate: most(0.4), Reorder: most(0.3),
		Delay: time.Duration(w.rng.IntN(3)) * 60 * time.Millisecond,
	})
	w.archive.Set(bustest.ArchiveFaults{Fail: most(0.3), Corrupt: most(0.2), Truncate: most(0.2), Lose: most(0.3)})
}

// harm occasionally causes a fault.
func (w *world) harm() {
	topic := bus.KVEventsTopic("penstock", "backend")
	for _, at := range w.routers {
		switch {
		case at.process != nil && at.dead.Load(): // within a snapshot
			w.buryRouter(at)
		case at.process == nil && w.hits(0.02):
			steps := int64(0)
			if w.hits(0.7) {
				steps = 1 + w.rng.Int64N(24)
			}
			w.startRouter(at, steps)
		case at.alive() && w.hits(0.002):
			w.endRouter(at, (*process).kill)
		case at.alive() && w.hits(0.002):
			w.endRouter(at, (*process).end)
		}
	}
	for _, at := range w.workers {
		switch {
		case at.process == nil && w.hits(0.015):
			w.startWorker(at)
		case at.alive() && w.hits(0.005):
			epoch := at.epoch
			w.endWorker(at, (*process).kill)
			time.AfterFunc(time.Duration(w.rng.IntN(6))*time.Second, func() { w.expire(at, epoch) })
		case at.alive() && w.hits(0.002):
			w.endWorker(at, (*process).end)
		case at.alive() && w.hits(0.005): // a request for a resync that may be unnecessary
			_ = w.store.Publish(w.t.Context(), bus.KVResyncTopic("penstock"), engine.WorkerKey(at.as()), nil)
		}
	}
	switch k := w.rng.IntN(2000); {
	case k < 10:
		w.store.set(true)
		time.AfterFunc(time.Duration(w.rng.IntN(3000))*time.Millisecond, func() { w.store.set(false) })
	case k < 14:
		w.store.replace()
	case k < 22:
		if span, err := w.store.DescribeTopic(w.t.Context(), topic); err == nil && span.Last >= span.First {
			_ = w.store.Purge(w.t.Context(), topic, span.First+w.rng.Uint64N(span.Last-span.First+2))
		}
	}
}

// mend ends all faults.
func (w *world) mend() {
	w.bus.Set(bustest.BusFaults{})
	w.archive.Set(bustest.ArchiveFaults{})
	w.store.set(false)
	for _, at := range w.routers {
		if !at.alive() {
			if at.process != nil {
				w.buryRouter(at)
			}
			w.startRouter(at, 0)
		}
		at.steps.Store(0)
	}
	for _, at := range w.workers {
		if at.process == nil {
			w.startWorker(at)
		}
	}
	w.engines.Lock()
	defer w.engines.Unlock()
	for _, at := range w.workers {
		at.engine.finish()
	}
	w.tellPool()
}

// describeAll makes all workers describe their caches, so that all of the pool is reported.
func (w *world) describeAll() {
	for _, at := range w.workers {
		if err := w.store.Publish(w.t.Context(), bus.KVResyncTopic("penstock"), engine.WorkerKey(at.as()), nil); err != nil {
			w.t.Fatal(err)
		}
	}
}

// checkLoads checks that all routers count the same load.
func (w *world) checkLoads() {
	want := w.loads(w.routers[0])
	for i, at := range w.routers[1:] {
		if got := w.loads(at); got != want {
			w.t.Errorf("router %d counts %+v, router 0 %+v", i+1, got, want)
		}
	}
}
