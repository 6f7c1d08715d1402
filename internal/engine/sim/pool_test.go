package sim

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock/core/kv"
)

func letters(name string) (kv.Event, []kv.SeqHash) {
	ev := kv.Event{Kind: kv.Stored}
	var chain []kv.SeqHash
	var seq kv.SeqHash
	for i, b := range []byte(name) {
		ev.Blocks = append(ev.Blocks, kv.BlockHash(b))
		seq = kv.ExtendSeq(seq, uint32(i), kv.BlockHash(b))
		chain = append(chain, seq)
	}
	return ev, chain
}

func newPool(t testing.TB, room int) *Pool {
	p, err := NewPool(5, room)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPoolTellsWhichMemberCopied checks that a block is copied once, and that its eviction is reported to the member
// that reported its arrival, or else to an existing one.
func TestPoolTellsWhichMemberCopied(t *testing.T) {
	p := newPool(t, 3)
	one, two := p.AddMember(kv.Worker{ID: 1}), p.AddMember(kv.Worker{ID: 2})
	abc, chain := letters("abc")
	first := one.StartCopies([]kv.Event{{Kind: kv.Cleared}, abc})
	if !slices.Equal(first, chain) || len(two.StartCopies([]kv.Event{abc})) != 0 {
		t.Fatalf("copied %v of %v", first, chain)
	}
	if two.Has(chain[0]) {
		t.Error("a block is there before its copy ended")
	}
	got := one.AppendMoved(nil, kv.InTransit, first)
	want := []kv.Event{{Kind: kv.Moved, Seqs: chain, Move: kv.PoolMove{To: kv.InTransit, Pool: 5, HasPool: true, Access: []kv.Worker{{ID: 1}, {ID: 2}}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	one.FinishCopies(first)
	if ev := one.AppendMoved(nil, kv.Pooled, first); ev[0].Move.Access != nil {
		t.Error("the access list is told again")
	}
	if !two.Has(chain[0]) || !two.Has(chain[1]) || !two.Has(chain[2]) {
		t.Error("a copied block is not there")
	}
	xy, second := letters("xy")
	two.FinishCopies(two.StartCopies([]kv.Event{xy}))
	if diff := cmp.Diff([]kv.SeqHash{chain[2], chain[1]}, one.AppendPending(nil)[0].Seqs); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if one.HasPending() || two.HasPending() {
		t.Error("more was evicted")
	}
	one.Detach()
	if !two.Has(chain[0]) {
		t.Error("a block left with its worker")
	}
	if ev := two.AppendPending(nil); len(ev) != 3 || ev[1].Move.To != kv.Pooled || !slices.Equal(ev[1].Seqs, chain[:1]) {
		t.Errorf("what it takes over is told as %+v", ev)
	}
	two.Has(second[0]) // so that a is least recently used
	z, _ := letters("z")
	two.FinishCopies(two.StartCopies([]kv.Event{z}))
	if ev := two.AppendPending(nil); len(ev) != 1 || ev[0].Move.To != kv.Evicted {
		t.Errorf("told %+v", ev)
	}
}

// TestPoolDescribes checks that parents come first, and that a member describes only its own blocks.
func TestPoolDescribes(t *testing.T) {
	p := newPool(t, 10)
	one, two := p.AddMember(kv.Worker{ID: 1}), p.AddMember(kv.Worker{ID: 2})
	abc, chain := letters("abc")
	xy, _ := letters("xy")
	one.FinishCopies(one.StartCopies([]kv.Event{abc}))
	two.FinishCopies(two.StartCopies([]kv.Event{xy}))
	got := one.AppendContents(nil)
	if len(got) != 6 || got[0].Move.To != kv.LocalGPU || len(got[0].Seqs) > 0 || got[0].Move.Access == nil {
		t.Fatalf("%+v", got)
	}
	got = got[1:]
	if got[3].Kind != kv.Moved || !slices.Equal(got[3].Seqs, chain) || got[4].Kind != kv.Removed || got[4].Tier != kv.TierPool {
		t.Errorf("%+v", got)
	}
	for i, ev := range got[:3] {
		if ev.Kind != kv.Stored || ev.Tier != kv.TierPool || int(ev.Start) != i {
			t.Errorf("event %d is %+v", i, ev)
		}
	}
}

// TestPoolKeepsChains checks for any sequence of operations that the capacity holds, that no block outlives
// its parent, and that the reported events add up to the content.
func TestPoolKeepsChains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := NewPool(0, rapid.IntRange(1, 6).Draw(t, "room"))
		if err != nil {
			t.Fatal(err)
		}
		members := []*PoolMember{p.AddMember(kv.Worker{ID: 1}), p.AddMember(kv.Worker{ID: 2}), p.AddMember(kv.Worker{ID: 3})}
		told := map[kv.SeqHash]bool{}
		names := []string{"a", "ab", "abc", "abcd", "abx", "x", "xy", "xyz"}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			m := rapid.SampledFrom(members).Draw(t, "member")
			ev, chain := letters(rapid.SampledFrom(names).Draw(t, "blocks"))
			switch rapid.IntRange(0, 8).Draw(t, "what") {
			case 0:
				if len(members) > 1 {
					members = slices.DeleteFunc(members, func(o *PoolMember) bool { return o == m })
					m.Detach() // others report its pending events
				}
			case 1, 2, 3:
				for _, s := range chain {
					if !m.Has(s) {
						break
					}
				}
			default:
				copied := m.StartCopies([]kv.Event{ev})
				m.FinishCopies(copied)
				for _, s := range copied {
					told[s] = true
				}
			}
			for _, m := range members {
				for _, e := range m.AppendPending(nil) {
					for _, s := range e.Seqs {
						switch e.Move.To {
						case kv.Pooled:
							told[s] = true
						case kv.Evicted:
							delete(told, s)
						}
					}
				}
			}
			there := map[kv.SeqHash]bool{}
			seen := map[kv.SeqHash]bool{}
			for b := p.newest; b != nil; b = b.prev {
				there[b.seq], seen[b.seq] = true, true
				if parent := p.blocks[b.parent]; b.index > 0 && parent != nil && !seen[b.parent] {
					t.Fatalf("block %x is newer than the one that it extends", b.seq)
				}
			}
			if len(there) > p.capacity || len(there) != p.used || len(there) != len(p.blocks) {
				t.Fatalf("%d blocks, %d counted, %d known, room for %d", len(there), p.used, len(p.blocks), p.capacity)
			}
			if diff := cmp.Diff(told, there); diff != "" {
				t.Fatalf("-told +there\n%s", diff)
			}
		}
	})
}
