package router

import (
	"testing"

	"penstock/core/kv"
)

// listedMove returns a move of the blocks of a chain whose access list is theirs alone.
func listedMove(name string, to kv.PoolState, access ...kv.Worker) kv.Event {
	ev := moved(name, to, access...)
	ev.Move.OfBlocks = true
	return ev
}

// TestAccessListsOfBlocks: two transitions with two lists in one pool narrow their own blocks and nothing else of the
// pool, and a snapshot keeps both. A transition without a list leaves them.
func TestAccessListsOfBlocks(t *testing.T) {
	s := newShelf(t)
	s.say(one, storedAs("abc"), storedAs("xyz"))
	s.say(one, listedMove("abc", kv.InTransit, two), listedMove("xyz", kv.InTransit, three))
	s.say(one, listedMove("abc", kv.Pooled), listedMove("xyz", kv.Pooled))
	_, data := s.c.takeSnapshot(0, 1<<16)
	later := newShelf(t)
	if _, err := later.c.restoreSnapshot(data); err != nil {
		t.Fatal(err)
	}
	if _, again := later.c.takeSnapshot(0, 1<<16); string(again) != string(data) {
		t.Error("the snapshot of a snapshot differs")
	}
	for _, s := range []*shelf{s, later} {
		s.check()
		for name, want := range map[string]string{
			"abc": "1.0:3; 2.0:3 attachable 3 fetched 3",
			"xyz": "1.0:3; 3.0:3 attachable 3 fetched 3",
		} {
			if got := s.finds(name, nil); got != want {
				t.Errorf("%s is found as %q, want %q", name, got, want)
			}
		}
	}
	// The router which loaded the snapshot finds the blocks where the index has them.
	later.next, later.life = s.next, s.life
	later.say(one, listedMove("abc", kv.Evicted))
	later.check()
	if got, want := later.finds("abc", nil), "1.0:3"; got != want {
		t.Errorf("after eviction abc is found as %q, want %q", got, want)
	}
	// Without lists a pool takes no further section, and older routers read its snapshots.
	plain := newShelf(t)
	plain.say(one, storedAs("abc"), moved("abc", kv.Pooled, one, two))
	if plain.c.mu.pools.HasLists() {
		t.Error("a pool without lists has some")
	}
}
