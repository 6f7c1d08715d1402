package batch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/core/pool"
	"penstock/core/poolindex"
	"penstock/core/prefix"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
)

// routerReplica is what a router knows from the events of engines.
type routerReplica struct {
	t  testing.TB
	mu struct {
		sync.Mutex
		index *prefix.Index
		pools *poolindex.Table
		moves []string // the moves of blocks, in order
	}
}

func newRouterReplica(t testing.TB) *routerReplica {
	t.Helper()
	r := &routerReplica{t: t}
	var err error
	if r.mu.index, err = prefix.New(prefix.Config{}); err != nil {
		t.Fatal(err)
	}
	if r.mu.pools, err = poolindex.New(poolindex.Config{}); err != nil {
		t.Fatal(err)
	}
	return r
}

// watch follows the events of an engine until the returned function is called.
func (r *routerReplica) watch(ctx context.Context, e *Engine, id kv.WorkerID) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- e.WatchKV(ctx, func(events []kv.Event) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			for i := range events {
				r.applyLocked(kv.Worker{ID: id}, &events[i])
			}
			return nil
		})
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
	}
}

func (r *routerReplica) applyLocked(w kv.Worker, ev *kv.Event) {
	var effects []poolindex.Effect
	if ev.Kind == kv.Moved {
		r.mu.moves = append(r.mu.moves, fmt.Sprint(w.ID, " ", ev.Move.To, " ", len(ev.Seqs)))
		effects = r.mu.pools.ApplyMove(0, w, ev, nil)
	} else {
		r.mu.index.ApplyEvent(w, *ev)
		effects = r.mu.pools.RetryParked(ev, nil)
	}
	r.mu.pools.ApplyEffects(r.mu.index, effects)
}

// expectAttachable compares how many of a request's blocks each worker can attach.
func (r *routerReplica) expectAttachable(when string, req *engine.Request, want map[kv.WorkerID]int) {
	r.t.Helper()
	synctest.Wait()
	hasher, err := kv.NewHasher(8, req.Salt)
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var m prefix.Match
	r.mu.index.Match(&m, hasher.AppendSeqHashes(nil, req.Prompt, nil), nil)
	got := map[kv.WorkerID]int{}
	for _, o := range m.AppendOverlaps(nil) {
		if o.Attachable > 0 {
			got[o.Worker.ID] = o.Attachable
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("%s: attachable blocks by worker (-want +got):\n%s", when, diff)
	}
}

// expectMoves compares the moves since the last call.
func (r *routerReplica) expectMoves(when string, want ...string) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff(want, r.mu.moves); diff != "" {
		r.t.Errorf("%s: moves (-want +got):\n%s", when, diff)
	}
	r.mu.moves = nil
}

func owners(ids ...kv.WorkerID) (all []kv.Worker) {
	for _, id := range ids {
		all = append(all, kv.Worker{ID: id})
	}
	return all
}

// TestPoolAnnounced: routers learn which blocks are in the pool and which workers can attach it, also routers which begin
// to watch later, and after the death of the worker which had put them there.
func TestPoolAnnounced(t *testing.T) { synctest.Test(t, testPoolAnnounced) }

func testPoolAnnounced(t *testing.T) {
	p := newMemPool(t, 6)
	room := p.attach(t, 0).view.Blocks()
	dying := p.attach(t, 1)
	first, _ := pooled(t, dying, nil)
	second, _ := pooled(t, p.attach(t, 2), nil)
	ctx := enginetest.Start(t, first)
	enginetest.Start(t, second)
	router := newRouterReplica(t)
	stopFirst := router.watch(ctx, first, 1)
	synctest.Wait()
	defer router.watch(ctx, second, 2)()
	router.expectMoves("at first", "1 local_gpu 0", "2 local_gpu 0")
	first.PoolOwnersChanged(owners(1, 2), nil)
	router.expectMoves("with two owners", "1 cxl_pooled 0")

	req := greedy(1, 9+8, 1)
	expectChoice(t, ctx, first, req, 0)
	router.expectMoves("of two blocks", "1 in_transit 1", "1 cxl_pooled 1", "1 in_transit 1", "1 cxl_pooled 1")
	router.expectAttachable("of two blocks", req, map[kv.WorkerID]int{1: 2, 2: 2})

	late := newRouterReplica(t)
	stopLate := late.watch(ctx, first, 1)
	late.expectMoves("of a later router", "1 local_gpu 0", "1 cxl_pooled 2")
	late.expectAttachable("of a later router", req, map[kv.WorkerID]int{1: 2, 2: 2})

	// Worker 1 dies. Routers which do not know its blocks learn of them from worker 2, and from their descriptions.
	stopFirst()
	stopLate()
	dying.view.Leave()
	router = newRouterReplica(t)
	stop := router.watch(ctx, second, 2)
	synctest.Wait()
	second.PoolOwnersChanged(owners(2), nil)
	router.expectMoves("of a router without worker 1", "2 local_gpu 0", "2 cxl_pooled 2", "2 cxl_pooled 0")
	router.expectAttachable("of a router without worker 1", req, map[kv.WorkerID]int{2: 2})
	stop()

	// Evictions are announced by the worker which evicts.
	router = newRouterReplica(t)
	defer router.watch(ctx, second, 2)()
	synctest.Wait()
	expectChoice(t, ctx, second, greedy(2, 8*room+1, 1), 0)
	router.expectAttachable("of evicted blocks", req, map[kv.WorkerID]int{})
	router.expectAttachable("of what evicted them", greedy(2, 8*room+1, 1), map[kv.WorkerID]int{2: room})
	expectIdle(t, second)
	p.check(t)
}

// TestPoolAdopted: the blocks of a dead worker whose last events did not arrive are announced by another one.
func TestPoolAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		dying := p.attach(t, 1)
		first, _ := pooled(t, dying, nil)
		second, _ := pooled(t, p.attach(t, 2), nil)
		ctx := enginetest.Start(t, first)
		enginetest.Start(t, second)
		router := newRouterReplica(t)
		defer router.watch(ctx, second, 2)()
		req := greedy(1, 41, 1)
		expectChoice(t, ctx, second, greedy(2, 41, 1), 0)
		expectChoice(t, ctx, first, req, 0)
		router.expectAttachable("at first", req, map[kv.WorkerID]int{})
		router.mu.moves = nil
		dying.view.Leave()
		second.PoolOwnersChanged(owners(2), owners(1))
		router.expectMoves("after the death", "2 cxl_pooled 0", "2 cxl_pooled 5")
		router.expectAttachable("after the death", req, map[kv.WorkerID]int{2: 5})
		expectIdle(t, second)
	})
}

// TestPoolAborted: a block which was evicted from the cache before it was read is announced as in transit no more.
func TestPoolAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		view := p.attach(t, 1)
		e, _ := pooled(t, view, nil)
		ctx := enginetest.Start(t, e)
		router := newRouterReplica(t)
		defer router.watch(ctx, e, 1)()
		router.expectMoves("at first", "1 local_gpu 0")
		release := view.hangFrom(3) // after the look-up and the reservation
		enginetest.MustGenerate(t, ctx, e, greedy(1, 9, 1))
		synctest.Wait()
		view.view.Leave()
		release()
		router.expectMoves("of a worker which is no owner any more", "1 in_transit 1", "1 local_gpu 1")
		expectPool(t, e, "of a worker which is no owner any more", PoolStats{Dropped: 1})
	})
}

// TestPoolDescriptionHeldBack: what happens in the pool while it is listed is announced after the list. A pool which does
// not answer holds up a description for a bounded time.
func TestPoolDescriptionHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		view := p.attach(t, 1)
		e, _ := pooled(t, view, nil)
		ctx := enginetest.Start(t, e)
		e.PoolOwnersChanged(owners(1), nil)
		req := greedy(1, 41, 1)
		expectChoice(t, ctx, e, req, 0)
		synctest.Wait()
		release := view.hangFrom(1)
		router := newRouterReplica(t)
		defer router.watch(ctx, e, 1)()
		router.expectMoves("while the pool is listed")
		e.pool.feed.announceMove(ctx, kv.Evicted, kv.MoELabel{}, hashesOf(t, req)[4])
		router.expectMoves("while something happens")
		release()
		router.expectMoves("after all", "1 local_gpu 0", "1 cxl_pooled 5", "1 evicted 1")
		router.expectAttachable("after all", req, map[kv.WorkerID]int{1: 4})

		release = view.hangFrom(1)
		late := newRouterReplica(t)
		defer late.watch(ctx, e, 1)()
		enginetest.MustGenerate(t, ctx, e, greedy(2, 9, 1)) // it waits for as long
		late.expectMoves("without a list", "1 local_gpu 0")
		release()
		late.expectMoves("at once", "1 in_transit 1", "1 cxl_pooled 1")
		time.Sleep(2 * poolPatience) // the pool is listed again then; the clock is a fake one
		late.expectMoves("when the pool answers", "1 cxl_pooled 6")
		late.expectAttachable("when the pool answers", req, map[kv.WorkerID]int{1: 5})
		time.Sleep(3 * poolPatience) // nothing follows; the clock is a fake one
		late.expectMoves("after all")
		expectIdle(t, e)
		p.check(t)
	})
}

// listWhileStepping makes a router watch an engine, and returns when the engine is in a step and has listed its pool. The
// list is announced after goOn.
func listWhileStepping(t *testing.T, p *memPool, view *poolView, req *engine.Request) (ctx context.Context, e *Engine, r *routerReplica, goOn func()) {
	t.Helper()
	e, _, g := steppedPooled(t, view, nil)
	ctx = enginetest.Start(t, e)
	ended := startGenerating(ctx, e, req)
	r = newRouterReplica(t)
	<-g.Enter
	stop := r.watch(ctx, e, view.worker.ID)
	synctest.Wait()
	release := view.hangFrom(1)
	g.Leave <- struct{}{}
	<-g.Enter
	release()
	synctest.Wait()
	return ctx, e, r, func() {
		t.Helper()
		t.Cleanup(stop)
		g.Leave <- struct{}{}
		g.Open(t)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		synctest.Wait()
	}
}

// TestPoolEvictedWhileListed: a block which another worker evicts after it was listed, and announces as evicted before the
// list is announced, is announced as evicted once more.
func TestPoolEvictedWhileListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 6)
		view, listed := p.attach(t, 1), greedy(1, 17, 1)
		before, _ := pooled(t, view, nil)
		expectChoice(t, enginetest.Start(t, before), before, listed, 0)
		synctest.Wait()
		ctx, first, router, goOn := listWhileStepping(t, p, view, greedy(3, 17, 5))
		room := p.attach(t, 0).view.Blocks()
		second, _ := pooled(t, p.attach(t, 2), nil)
		enginetest.Start(t, second)
		defer router.watch(ctx, second, 2)()
		first.PoolOwnersChanged(owners(1, 2), nil)
		evicting := greedy(2, 8*room+1, 1)
		expectChoice(t, ctx, second, evicting, 0)
		heldBack := hashesOf(t, greedy(4, 9, 1))[0] // which is not there either
		first.pool.feed.announceMove(ctx, kv.Pooled, kv.MoELabel{}, heldBack)
		synctest.Wait()
		goOn()
		time.Sleep(2 * poolPatience) // the pool is listed again then; the clock is a fake one
		router.expectAttachable("of blocks which were listed", listed, map[kv.WorkerID]int{})
		if b := router.mu.pools.AppendBlock(nil, heldBack); len(b) != 1 || b[0].State != kv.Evicted {
			t.Errorf("a block whose move was held back is %+v", b)
		}
		router.expectAttachable("of what evicted them", evicting, map[kv.WorkerID]int{1: room, 2: room})
		expectIdle(t, first)
		p.check(t)
	})
}

// TestPoolOwnerDiesWhileListed: a list which was made before the death of an owner was known does not hold: the blocks of
// the dead are announced.
func TestPoolOwnerDiesWhileListed(t *testing.T) {
	for name, inProgress := range map[string]bool{"the list is there": false, "the list is being made": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newMemPool(t, 60)
				dying, view := p.attach(t, 1), p.attach(t, 2)
				first, _ := pooled(t, dying, nil)
				req := greedy(1, 41, 1)
				expectChoice(t, enginetest.Start(t, first), first, req, 0)
				synctest.Wait()
				var second *Engine
				var router *routerReplica
				goOn, gate := func() {}, make(chan struct{})
				if inProgress {
					second, _ = pooled(t, view, nil)
					ctx := enginetest.Start(t, second)
					router = newRouterReplica(t)
					view.left = func() { <-gate }
					stop := router.watch(ctx, second, 2)
					defer func() { stop() }()
					synctest.Wait()
				} else {
					_, second, router, goOn = listWhileStepping(t, p, view, greedy(2, 17, 5))
				}
				dying.view.Leave()
				second.PoolOwnersChanged(owners(2), owners(1))
				close(gate)
				goOn()
				router.expectAttachable("after the death", req, map[kv.WorkerID]int{2: 5})
				expectIdle(t, second)
			})
		})
	}
}

// TestPoolHangsAtDeath: the blocks of a dead worker are announced when the pool answers again.
func TestPoolHangsAtDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		dying, view := p.attach(t, 1), p.attach(t, 2)
		first, _ := pooled(t, dying, nil)
		second, _ := pooled(t, view, nil)
		ctx := enginetest.Start(t, first)
		enginetest.Start(t, second)
		req := greedy(1, 41, 1)
		expectChoice(t, ctx, first, req, 0)
		router := newRouterReplica(t)
		defer router.watch(ctx, second, 2)()
		router.expectMoves("at first", "2 local_gpu 0")
		dying.view.Leave()
		release := view.hangFrom(1)
		second.PoolOwnersChanged(owners(2), owners(1))
		time.Sleep(5 * poolPatience) // the list is given up; the clock is a fake one
		router.expectMoves("while the pool hangs", "2 cxl_pooled 0")
		release()
		time.Sleep(2 * poolPatience) // the pool is listed again then; the clock is a fake one
		router.expectMoves("when the pool answers", "2 cxl_pooled 5")
		router.expectAttachable("when the pool answers", req, map[kv.WorkerID]int{2: 5})
		expectIdle(t, second)
	})
}

// TestPoolLostWhileAnnouncing: what was not announced when the pool is lost is not announced after that, be it of a list or
// of the copier.
func TestPoolLostWhileAnnouncing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		view := p.attach(t, 1)
		before, _ := pooled(t, view, nil)
		listed := greedy(1, 17, 1)
		expectChoice(t, enginetest.Start(t, before), before, listed, 0)
		synctest.Wait()
		ctx, e, router, goOn := listWhileStepping(t, p, view, greedy(2, 17, 5))
		e.PoolOwnersChanged(owners(1), nil)
		moved := hashesOf(t, greedy(3, 9, 1))[0]
		e.pool.feed.announceMove(ctx, kv.Pooled, kv.MoELabel{}, moved)
		view.view.Leave() // its memory cannot be used
		e.PoolLost()
		goOn()
		time.Sleep(3 * poolPatience) // nothing follows; the clock is a fake one
		router.expectAttachable("of a lost pool", listed, map[kv.WorkerID]int{})
		for _, seq := range append(hashesOf(t, listed), moved) {
			if b := router.mu.pools.AppendBlock(nil, seq); len(b) != 0 {
				t.Errorf("a block of a lost pool is %+v", b)
			}
		}
		expectIdle(t, e)
	})
}

// TestPoolListedAtEnd: the pool is not listed any more when its engine ends, however slow it is.
func TestPoolListedAtEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := pooled(t, newMemPool(t, 4).attach(t, 1), nil)
		stop := e.pool.start(t.Context())
		if !e.pool.makeList(new(atomic.Int64), nil).usable {
			t.Error("the pool is not listed before")
		}
		stop()
		if e.pool.makeList(new(atomic.Int64), nil).usable {
			t.Error("the pool is listed when the engine has ended")
		}
	})
}

// TestPoolLost: an engine whose pool is lost announces that it cannot attach it, and none of its blocks.
func TestPoolLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		view := p.attach(t, 1)
		e, _ := pooled(t, view, nil)
		ctx := enginetest.Start(t, e)
		e.PoolOwnersChanged(owners(1), nil)
		router := newRouterReplica(t)
		defer router.watch(ctx, e, 1)()
		req := greedy(1, 41, 1)
		expectChoice(t, ctx, e, req, 0)
		router.expectAttachable("at first", req, map[kv.WorkerID]int{1: 5})
		view.view.Leave() // its memory cannot be used
		e.PoolLost()
		router.expectAttachable("of a lost pool", req, map[kv.WorkerID]int{})
		if pools := router.mu.pools.AppendPools(nil); len(pools) > 1 || len(pools) == 1 && (pools[0].Pooled != 0 || len(pools[0].Access) != 0) {
			t.Errorf("the router knows of a lost pool: %+v", pools)
		}
		late := newRouterReplica(t)
		defer late.watch(ctx, e, 1)()
		late.expectAttachable("of a later router", req, map[kv.WorkerID]int{})
		expectIdle(t, e)
	})
}

func hashesOf(t testing.TB, req *engine.Request) []kv.SeqHash {
	t.Helper()
	hasher, err := kv.NewHasher(8, req.Salt)
	if err != nil {
		t.Fatal(err)
	}
	return hasher.AppendSeqHashes(nil, req.Prompt, nil)
}

// TestPoolLabels: moves carry the labels of the blocks, also in descriptions.
func TestPoolLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		label := kv.MoELabel{Has: kv.HasExpert, Layer: 3, Expert: 5}
		e, _ := pooled(t, p.attach(t, 1), func(c *Config) {
			c.LabelEvents = func(events []kv.Event) {
				for i := range events {
					if ev := &events[i]; ev.Kind == kv.Stored {
						ev.Labels = slices.Repeat([]kv.MoELabel{label}, len(ev.Blocks))
					}
				}
			}
		})
		ctx := enginetest.Start(t, e)
		routers := []*routerReplica{newRouterReplica(t), newRouterReplica(t)}
		defer routers[0].watch(ctx, e, 1)()
		synctest.Wait()
		req := greedy(1, 17, 1)
		expectChoice(t, ctx, e, req, 0)
		synctest.Wait()
		defer routers[1].watch(ctx, e, 1)()
		synctest.Wait()
		for i, r := range routers {
			for _, seq := range hashesOf(t, req) {
				if b := r.mu.pools.AppendBlock(nil, seq); len(b) != 1 || b[0].Label != label || b[0].State != kv.Pooled {
					t.Errorf("router %d: %+v", i, b)
				}
			}
		}
	})
}

// TestPoolMixedLabels: blocks with a label and blocks without one are in events of their own.
func TestPoolMixedLabels(t *testing.T) {
	label := kv.MoELabel{Has: kv.HasExpert, Layer: 3, Expert: 5}
	blocks := []pool.PooledBlock{{Name: 1}, {Name: 2, Parent: 1, Index: 1, Label: label}, {Name: 3, Parent: 2, Index: 2}}
	f := &poolFeed{id: testPoolID}
	var got []kv.Event
	for _, ev := range f.appendPooled(nil, blocks, func(*pool.PooledBlock) bool { return true }) {
		if ev.Kind == kv.Moved {
			got = append(got, ev)
		}
	}
	labelled, unlabelled := f.move(kv.Pooled, []kv.SeqHash{2}), f.move(kv.Pooled, []kv.SeqHash{1, 3})
	labelled.Labels = []kv.MoELabel{label}
	if diff := cmp.Diff([]kv.Event{labelled, unlabelled}, got); diff != "" {
		t.Errorf("moves (-want +got):\n%s", diff)
	}
}

// TestPoolDamageAnnounced: a damaged block which a fetch has evicted is announced as evicted, after what was announced of it.
func TestPoolDamageAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newMemPool(t, 60)
		dead := p.attach(t, 1)
		first, _ := pooled(t, dead, nil)
		ctx, req := enginetest.Start(t, first), greedy(1, 45, 5)
		expectChoice(t, ctx, first, req, 0)
		synctest.Wait()
		dead.view.Leave() // so the second one announces its blocks
		e, _ := pooled(t, p.attach(t, 2), nil)
		enginetest.Start(t, e)
		e.PoolOwnersChanged(owners(2), nil)
		router := newRouterReplica(t)
		defer router.watch(ctx, e, 2)()
		time.Sleep(2 * poolPatience) // the pool is not listed any more; the clock is a fake one
		router.expectAttachable("at first", req, map[kv.WorkerID]int{2: 5})
		router.mu.moves = nil
		p.damage(t, req, 3)
		f := e.pool.lookUp(ctx, paged.Sequence{Tokens: req.Prompt})
		f.readBlocks(ctx, 0, 40, func(*engine.BlockData) error { return nil })
		router.expectMoves("after a fetch", "2 evicted 1")
		router.expectAttachable("after a fetch", req, map[kv.WorkerID]int{2: 3})
		if e.pool.memory.(*poolView).view.HasDamaged() {
			t.Error("a block which was announced is to be announced again")
		}
		expectIdle(t, e)
	})
}

// TestPoolAnnouncedStorm: routers which begin to watch at any time know in the end what is in a small pool.
func TestPoolAnnouncedStorm(t *testing.T) {
	evicted := uint64(0)
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			p := newMemPool(t, 10)
			view := p.attach(t, 1)
			e, _ := pooled(t, view, func(c *Config) { c.Card.Blocks = 30 })
			ctx := enginetest.Start(t, e)
			rng := rand.New(rand.NewPCG(seed, 9))
			var routers []*routerReplica
			for range 40 {
				enginetest.MustGenerate(t, ctx, e, greedy(rng.IntN(6), 9+rng.IntN(60), 1+rng.IntN(9)))
				if rng.IntN(4) == 0 {
					r := newRouterReplica(t)
					routers = append(routers, r)
					defer r.watch(ctx, e, 1)()
				}
				if rng.IntN(4) == 0 {
					synctest.Wait()
				}
			}
			synctest.Wait()
			blocks, _ := view.view.AppendPooled(nil, 0, view.view.Blocks())
			for i, r := range routers {
				known := r.mu.pools.AppendPools(nil)
				if len(known) != 1 || known[0].Pooled != len(blocks) {
					t.Errorf("seed %d, router %d: %+v, and %d blocks are in the pool", seed, i, known, len(blocks))
				}
				for _, b := range blocks {
					if s := r.mu.pools.AppendBlock(nil, b.Name); len(s) != 1 || s[0].State != kv.Pooled {
						t.Errorf("seed %d, router %d: block %d is %+v", seed, i, b.Index, s)
					}
				}
			}
			evicted += e.PoolStats().Evicted
			expectIdle(t, e)
			p.check(t)
		})
	}
	if evicted < 100 {
		t.Errorf("the test tested little: %d blocks were evicted", evicted)
	}
}
