package router

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"penstock/core/engineevents"
	"penstock/core/kv"
)

// pooledEngine is an engine of another make whose worker publishes to a shelf.
type pooledEngine struct {
	s      *shelf
	worker kv.Worker
	table  *engineevents.Table
}

func (s *shelf) newEngine(w kv.Worker) *pooledEngine {
	table, err := engineevents.NewTable(engineevents.Config{BlockSize: 2})
	if err != nil {
		s.t.Fatal(err)
	}
	return &pooledEngine{s: s, worker: w, table: table}
}

// apply publishes what events of the engine, in one batch, mean.
func (g *pooledEngine) apply(events ...engineevents.Event) {
	g.s.t.Helper()
	g.s.say(g.worker, g.table.Apply(&engineevents.Batch{Rank: -1, Events: events}, nil)...)
}

// engineBlocks is the engine's event which stores a chain of blocks with these tokens and hashes.
func engineBlocks(hashes ...kv.EngineHash) engineevents.Event {
	e := engineevents.Event{Kind: engineevents.Stored, Group: -1, Hashes: hashes, BlockSize: 2}
	for _, h := range hashes {
		e.Tokens = append(e.Tokens, kv.Token(h), kv.Token(h))
	}
	return e
}

func engineRemoves(hashes ...kv.EngineHash) engineevents.Event {
	return engineevents.Event{Kind: engineevents.Removed, Group: -1, Hashes: hashes}
}

// engineMoves is the engine's transition of blocks; pool < 0 names none.
func engineMoves(to kv.PoolState, pool int, hashes ...kv.EngineHash) engineevents.Event {
	e := engineevents.Event{Kind: engineevents.Moved, Group: -1, Hashes: hashes, Move: kv.PoolMove{To: to, OfBlocks: true}}
	if pool >= 0 {
		e.Move.Pool, e.Move.HasPool = kv.PoolID(pool), true
	}
	return e
}

// wantBlocks looks up the chain of engineBlocks.
func (s *shelf) wantBlocks(want string, hashes ...kv.EngineHash) {
	s.t.Helper()
	if got := s.findsChain(s.engineChain(hashes...), nil); got != want {
		s.t.Errorf("%v is found as %q, want %q", hashes, got, want)
	}
}

// engineChain returns the prefixes of a chain of engineBlocks.
func (s *shelf) engineChain(hashes ...kv.EngineHash) []kv.SeqHash {
	h, err := kv.NewHasher(2, kv.Salt{})
	if err != nil {
		s.t.Fatal(err)
	}
	return h.AppendSeqHashes(nil, engineBlocks(hashes...).Tokens, nil)
}

// TestEnginePoolStaysFound: blocks which are in no worker's own memory any more are found in the pool, whatever
// describes the engine's cache, and by a router which starts later.
func TestEnginePoolStaysFound(t *testing.T) {
	const pooled = "1.0:3 attachable 3 fetched 3"
	cleared := engineevents.Event{Kind: engineevents.Cleared, Group: -1}
	for name, end := range map[string]func(g *pooledEngine){
		"cleared":            func(g *pooledEngine) { g.apply(cleared) },
		"removed, described": func(g *pooledEngine) { g.apply(engineRemoves(3, 2, 1)); g.s.say(one, g.table.Describe(nil)...) },
		"removed, cleared":   func(g *pooledEngine) { g.apply(engineRemoves(3, 2, 1)); g.apply(cleared) },
		"restarted":          func(g *pooledEngine) { g.s.say(one, g.table.ClearRestarted(nil)...) },
		"moved again":        func(g *pooledEngine) { g.apply(cleared); g.apply(engineMoves(kv.Pooled, 5, 3, 2, 1)) },
		"to another pool":    func(g *pooledEngine) { g.apply(cleared); g.apply(engineMoves(kv.Pooled, 6, 1, 2, 3)) },
		"pooled when removed": func(g *pooledEngine) {
			g.apply(engineMoves(kv.Evicted, 5), engineMoves(kv.InTransit, 5, 1, 2, 3), engineRemoves(3, 2, 1))
			g.s.say(one, g.table.Describe(nil)...)
			g.apply(engineMoves(kv.Pooled, -1, 1, 2, 3))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			g := s.newEngine(one)
			g.apply(engineBlocks(1, 2, 3), engineMoves(kv.Pooled, 5, 1, 2, 3))
			end(g)
			s.wantBlocks(pooled, 1, 2, 3)
			later := newShelf(t)
			later.say(one, g.table.Describe(nil)...)
			later.wantBlocks(pooled, 1, 2, 3)
			for _, s := range []*shelf{s, later} {
				if n := s.c.poolStats().Parked; n > 0 {
					t.Errorf("%d blocks have no place", n)
				}
				if n := s.c.mu.sources[one].anomalies; n != (eventAnomalies{}) {
					t.Errorf("anomalies %+v", n)
				}
			}
		})
	}
}

// TestTransitionWithoutPool: a transition which names no pool concerns the pool which this engine named, also if another
// worker reported the block in another pool since.
func TestTransitionWithoutPool(t *testing.T) {
	s := newShelf(t)
	a, b := s.newEngine(one), s.newEngine(two)
	a.apply(engineBlocks(1), engineMoves(kv.InTransit, 1, 1))
	b.apply(engineBlocks(1), engineMoves(kv.Pooled, 2, 1))
	a.apply(engineMoves(kv.Pooled, -1, 1))
	const access = "[{1 1 [{1 0}]} {2 1 [{2 0}]}]"
	if got := fmt.Sprint(s.c.poolRows()); got != access {
		t.Errorf("pools %s, want %s", got, access)
	}
	a.apply(engineMoves(kv.Evicted, -1, 1))
	if got, want := fmt.Sprint(s.c.poolRows()), "[{1 0 [{1 0}]} {2 1 [{2 0}]}]"; got != want {
		t.Errorf("after the eviction pools %s, want %s", got, want)
	}
}

// TestOtherListKeepsPlace: a block which is in a pool only stays found when its access list changes.
func TestOtherListKeepsPlace(t *testing.T) {
	s := newShelf(t)
	g := s.newEngine(one)
	listed := func(w kv.Worker) engineevents.Event {
		e := engineMoves(kv.Pooled, 5, 1, 2)
		e.Move.Access = []kv.Worker{w}
		return e
	}
	g.apply(engineBlocks(1, 2), listed(two), engineRemoves(2, 1))
	s.wantBlocks("2.0:2 attachable 2 fetched 2", 1, 2)
	e := moved("", kv.Pooled, three)
	e.Seqs, e.Move.Pool, e.Move.OfBlocks = s.engineChain(1, 2), 5, true
	s.say(one, e)
	s.wantBlocks("3.0:2 attachable 2 fetched 2", 1, 2)
}

// TestClearKeepsEvictions: a clear of the engine's cache in the same batch does not hide that blocks of other workers
// left a pool.
func TestClearKeepsEvictions(t *testing.T) {
	cleared := engineevents.Event{Kind: engineevents.Cleared, Group: -1}
	for name, batch := range map[string][]engineevents.Event{
		"pool":          {engineMoves(kv.Evicted, 5), cleared},
		"block":         {engineBlocks(1, 2), engineMoves(kv.Evicted, 5, 2, 1), cleared},
		"two clears":    {engineBlocks(1, 2), engineMoves(kv.Evicted, 5, 1), cleared, engineBlocks(1, 2), engineMoves(kv.Evicted, 5, 2), cleared},
		"nothing after": {engineMoves(kv.Evicted, 5), cleared, cleared, engineBlocks(1, 2), cleared},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			a, b := s.newEngine(one), s.newEngine(two)
			a.apply(engineBlocks(1, 2), engineMoves(kv.Pooled, 5, 1, 2), engineRemoves(2, 1))
			b.apply(batch...)
			s.wantBlocks("", 1, 2)
			if n := s.c.poolStats(); n.Pooled != 0 || n.Evicted != 2 {
				t.Errorf("%+v", n)
			}
		})
	}
}

// TestEndDetaches: a worker which moved blocks into a pool, without a list of who can attach it, can fetch from it until
// it ends or restarts.
func TestEndDetaches(t *testing.T) {
	for name, end := range map[string]func(*shelf){
		"restarted": func(s *shelf) { s.start(two) },
		"died":      func(s *shelf) { s.alive(one, two); s.alive(one); s.start(two) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			a, b := s.newEngine(one), s.newEngine(two)
			a.apply(engineBlocks(1, 2), engineMoves(kv.Pooled, 5, 1), engineRemoves(2, 1))
			b.apply(engineBlocks(1, 2), engineMoves(kv.Pooled, 5, 1, 2), engineRemoves(2, 1))
			s.wantBlocks("1.0:2 attachable 2 fetched 2; 2.0:2 attachable 2 fetched 2", 1, 2)
			end(s)
			s.wantBlocks("1.0:2 attachable 2 fetched 2", 1, 2)
			if got, want := fmt.Sprint(s.c.poolRows()), "[{5 2 [{1 0}]}]"; got != want {
				t.Errorf("pools %s, want %s", got, want)
			}
		})
	}
}

// TestLateRouterKnowsPools: whatever an engine does, a router which starts later finds its blocks where the router finds
// them which has followed it, and both have a place for every block in the pool.
func TestLateRouterKnowsPools(t *testing.T) {
	chain := []kv.EngineHash{1, 2, 3, 4, 5, 6}
	rapid.Check(t, func(rt *rapid.T) {
		s := newShelf(t)
		g := s.newEngine(one)
		blocks := func() []kv.EngineHash { return rapid.SliceOfN(rapid.SampledFrom(chain), 1, 4).Draw(rt, "blocks") }
		for range rapid.IntRange(1, 12).Draw(rt, "batches") {
			var batch []engineevents.Event
			for range rapid.IntRange(1, 3).Draw(rt, "events") {
				pool := rapid.IntRange(0, 1).Draw(rt, "with pool")*6 - 1
				switch rapid.IntRange(0, 7).Draw(rt, "what") {
				case 0, 1:
					batch = append(batch, engineBlocks(chain[:rapid.IntRange(1, 6).Draw(rt, "stored")]...))
				case 2:
					batch = append(batch, engineRemoves(blocks()...))
				case 3:
					batch = append(batch, engineMoves(kv.InTransit, 5, blocks()...))
				case 4, 5:
					batch = append(batch, engineMoves(kv.Pooled, 5, blocks()...))
				case 6:
					to := rapid.SampledFrom([]kv.PoolState{kv.Evicted, kv.LocalGPU}).Draw(rt, "out")
					batch = append(batch, engineMoves(to, pool, blocks()...))
				case 7:
					batch = append(batch, engineevents.Event{Kind: engineevents.Cleared, Group: -1})
				}
			}
			g.apply(batch...)
			later := newShelf(t)
			later.say(one, g.table.Describe(nil)...)
			for n := range chain {
				got, want := later.findsChain(s.engineChain(chain[:n+1]...), nil), s.findsChain(s.engineChain(chain[:n+1]...), nil)
				if got != want {
					rt.Fatalf("after %+v the router which has followed finds %d blocks as %q, the other one as %q", batch, n+1, want, got)
				}
			}
			for _, s := range []*shelf{s, later} {
				if n := s.c.poolStats(); n.Parked > 0 || n.Pooled+n.InTransit != g.table.Stats().InPools {
					rt.Fatalf("after %+v the pool is %+v, the engine has %d there", batch, n, g.table.Stats().InPools)
				}
			}
		}
	})
}
