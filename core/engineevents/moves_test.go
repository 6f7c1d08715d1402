package engineevents

import (
	"encoding/hex"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
)

// poolEngine reports blocks of two tokens to a table, and moves of them.
type poolEngine struct {
	t     *testing.T
	table *Table
	next  kv.Token
}

func newPoolEngine(t *testing.T, cfg Config) *poolEngine {
	table, err := NewTable(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &poolEngine{t: t, table: table}
}

func (g *poolEngine) apply(events ...Event) []kv.Event {
	return g.table.Apply(&Batch{Rank: -1, Events: events}, nil)
}

// store returns the event which stores a chain of blocks with these engine hashes.
func (g *poolEngine) store(hashes ...kv.EngineHash) Event {
	e := Event{Kind: Stored, Group: -1, Hashes: hashes, BlockSize: 2}
	for range 2 * len(hashes) {
		g.next++
		e.Tokens = append(e.Tokens, g.next)
	}
	return e
}

// seqs returns the prefixes which the blocks of stored events end.
func seqs(events []kv.Event) (all []kv.SeqHash) {
	for _, ev := range events {
		if ev.Kind != kv.Stored {
			continue
		}
		seq := ev.Parent
		for i, b := range ev.Blocks {
			seq = kv.ExtendSeq(seq, ev.Start+uint32(i), b)
			all = append(all, seq)
		}
	}
	return all
}

func moved(m kv.PoolMove, seqs ...kv.SeqHash) kv.Event {
	m.OfBlocks = true
	return kv.Event{Kind: kv.Moved, Seqs: seqs, Move: m}
}

func (g *poolEngine) want(what string, got []kv.Event, want ...kv.Event) {
	g.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		g.t.Errorf("%s: -want +got\n%s", what, diff)
	}
}

func transition(to kv.PoolState, hashes ...kv.EngineHash) Event {
	return Event{Kind: Moved, Group: -1, Hashes: hashes, Move: kv.PoolMove{To: to, OfBlocks: true}}
}

func (e Event) inPool(id kv.PoolID, access ...kv.Worker) Event {
	e.Move.Pool, e.Move.HasPool, e.Move.Access = id, true, access
	return e
}

// inPoolTier returns a Stored event of blocks in the pool, and the Removed event of prefixes after it.
func inPoolTier(stored kv.Event, seqs ...kv.SeqHash) (placed, removed kv.Event) {
	stored.Tier, stored.Labels = kv.TierPool, nil
	return stored, kv.Event{Kind: kv.Removed, Tier: kv.TierPool, Seqs: seqs}
}

// TestTransitions: moves are resolved to our hashes, also after the engine removed the blocks from its own memory.
// Two transitions with two lists in one pool stay apart, and a description repeats both.
func TestTransitions(t *testing.T) {
	g := newPoolEngine(t, Config{BlockSize: 2})
	stored := g.apply(g.store(1, 2, 3))
	s := seqs(stored)
	placed, displaced := inPoolTier(stored[0], s...)
	one, two := kv.Worker{ID: 8}, kv.Worker{ID: 9, Rank: 1}
	transit := kv.PoolMove{To: kv.InTransit, Pool: 5, HasPool: true, Access: []kv.Worker{one}}
	other := kv.PoolMove{To: kv.InTransit, Pool: 5, HasPool: true, Access: []kv.Worker{two}}
	g.want("two transitions", g.apply(transition(kv.InTransit, 1, 2).inPool(5, one), transition(kv.InTransit, 3).inPool(5, two)),
		moved(transit, s[0], s[1]), moved(other, s[2]))
	g.want("without list or pool", g.apply(transition(kv.Pooled, 3, 2, 1)), moved(kv.PoolMove{To: kv.Pooled, Pool: 5, HasPool: true}, s[2], s[1], s[0]))
	transit.To, other.To = kv.Pooled, kv.Pooled
	contents := []kv.Event{moved(kv.PoolMove{To: kv.LocalGPU, Pool: 5, HasPool: true}), placed, moved(other, s[2]), moved(transit, s[1], s[0]), displaced}
	g.want("description", g.table.Describe(nil)[2:], contents...)
	g.want("removed from the device", g.apply(Event{Kind: Removed, Group: -1, Hashes: []kv.EngineHash{3, 2, 1}}), kv.Event{Kind: kv.Removed, Seqs: []kv.SeqHash{s[2], s[1], s[0]}})
	g.want("cleared", g.apply(Event{Kind: Cleared, Group: -1}), append([]kv.Event{{Kind: kv.Cleared}}, contents...)...)
	g.want("evicted", g.apply(transition(kv.Evicted, 2)), moved(kv.PoolMove{To: kv.Evicted, Pool: 5, HasPool: true}, s[1]))
	g.want("evicted twice", g.apply(transition(kv.Evicted, 2, 77)))
	if g.table.Stats().UnknownMoves != 2 || g.table.Stats().InPools != 2 {
		t.Errorf("%+v", g.table.Stats())
	}
	g.want("the pool is empty", g.apply(transition(kv.Evicted).inPool(5)), moved(kv.PoolMove{To: kv.Evicted, Pool: 5, HasPool: true}))
	if p := &g.table.pooled; len(p.bySeq)+len(p.byHash)+len(p.lists) > 0 || p.oldest != nil || p.newest != nil {
		t.Errorf("the table still has %+v", p)
	}
}

// TestPoolsAfterLoss: what an engine put into pools is withdrawn where events are missing, and stays where the engine
// restarted, except for copies which will not be finished.
func TestPoolsAfterLoss(t *testing.T) {
	empty := moved(kv.PoolMove{To: kv.LocalGPU, Pool: 5, HasPool: true})
	start := func() (*poolEngine, kv.Event) {
		g := newPoolEngine(t, Config{BlockSize: 2})
		stored := g.apply(g.store(1, 2))[0]
		g.apply(transition(kv.Pooled, 1).inPool(5), transition(kv.InTransit, 2).inPool(5))
		return g, stored
	}
	g, stored := start()
	s := seqs([]kv.Event{stored})
	stored.Blocks = stored.Blocks[:1]
	placed, displaced := inPoolTier(stored, s[0])
	g.want("restarted", g.table.ClearRestarted(nil), kv.Event{Kind: kv.Cleared}, empty, placed, moved(kv.PoolMove{To: kv.Pooled, Pool: 5, HasPool: true}, s[0]), displaced)
	g.want("an engine with the same hashes", g.apply(transition(kv.Evicted, 1)), moved(kv.PoolMove{To: kv.Evicted, Pool: 5, HasPool: true}, s[0]))
	g, _ = start()
	g.want("events are missing", g.table.Clear(nil), kv.Event{Kind: kv.Cleared}, empty)
	g, _ = start()
	g.want("a transition cannot be read", g.table.Apply(&Batch{LostMoves: 1}, nil), empty)
	g, _ = start()
	beside := g.store(3, 4)
	beside.Moves = []kv.PoolMove{{To: kv.Pooled, Pool: 5, HasPool: true, OfBlocks: true}, {}}
	batch := &Batch{LostMoves: 1, Events: []Event{beside, transition(kv.Pooled, 1, 2).inPool(5), transition(kv.Evicted, 2).inPool(5)}}
	g.want("beside others", g.table.Apply(batch, nil)[1:], moved(kv.PoolMove{To: kv.Evicted, Pool: 5, HasPool: true}, s[1]),
		moved(kv.PoolMove{To: kv.LocalGPU, Pool: 5, HasPool: true}, s[:0]...))
	g, _ = start()
	g.want("a removal cannot be read", g.table.Apply(&Batch{Lost: 1}, nil), kv.Event{Kind: kv.Cleared}, empty)
}

// TestBlockMetadata: labels of stored blocks reach the events, their copies in pools and the descriptions. A stored
// block can be in a pool at once.
func TestBlockMetadata(t *testing.T) {
	g := newPoolEngine(t, Config{BlockSize: 2})
	label := kv.MoELabel{Has: kv.HasExpert, Layer: 3, Expert: 17}
	e := g.store(1, 2)
	e.Labels = []kv.MoELabel{{}, label}
	e.Moves = []kv.PoolMove{{}, {To: kv.Pooled, Pool: 4, HasPool: true, OfBlocks: true}}
	events := g.apply(e)
	s := seqs(events)
	pooled := moved(kv.PoolMove{To: kv.Pooled, Pool: 4, HasPool: true}, s[1])
	pooled.Labels = []kv.MoELabel{label}
	g.want("stored", events[1:], pooled)
	if diff := cmp.Diff(e.Labels, events[0].Labels); diff != "" {
		t.Errorf("labels: -want +got\n%s", diff)
	}
	described := g.table.Describe(nil)
	placed := kv.Event{
		Kind: kv.Stored, Tier: kv.TierPool, Start: 1, Parent: s[0], Blocks: events[0].Blocks[1:], Labels: []kv.MoELabel{label},
	}
	g.want("description", described[1:], events[0], moved(kv.PoolMove{To: kv.LocalGPU, Pool: 4, HasPool: true}), placed, pooled,
		kv.Event{Kind: kv.Removed, Tier: kv.TierPool, Seqs: s[1:]})
	again := e
	again.Labels = []kv.MoELabel{{}, {Has: kv.HasExpert, Layer: 3, Expert: 18}}
	again.Moves = nil
	if events = g.apply(again); len(events) != 1 || len(events[0].Labels) != 1 || events[0].Labels[0].Expert != 18 {
		t.Errorf("another label: %+v", events)
	}
	g.apply(Event{Kind: Removed, Group: -1, Hashes: []kv.EngineHash{2, 2, 1, 1}})
	if len(g.table.labels) > 0 {
		t.Errorf("labels of removed blocks: %v", g.table.labels)
	}
}

// TestJoinedTransitions: a block of ours which several blocks of the engine make enters a pool when all of them do, and
// leaves it with the first.
func TestJoinedTransitions(t *testing.T) {
	g := newPoolEngine(t, Config{BlockSize: 4, EngineBlockSize: 2})
	s := seqs(g.apply(g.store(1, 2, 3, 4)))
	g.want("one of two", g.apply(transition(kv.Pooled, 2).inPool(5)))
	g.want("all", g.apply(transition(kv.Pooled, 1, 2, 3).inPool(5)), moved(kv.PoolMove{To: kv.Pooled, Pool: 5, HasPool: true}, s[0]))
	g.apply(Event{Kind: Removed, Group: -1, Hashes: []kv.EngineHash{4, 3, 2, 1}})
	g.want("the first leaves", g.apply(transition(kv.Evicted, 1)), moved(kv.PoolMove{To: kv.Evicted, Pool: 5, HasPool: true}, s[0]))
	if n := g.table.Stats().UnknownMoves; n != 0 {
		t.Errorf("%d unknown moves", n)
	}
}

// TestTransitionsOfOrphans: blocks which wait for their parent have the state which the last transition gave them, when
// they are stored.
func TestTransitionsOfOrphans(t *testing.T) {
	empty := moved(kv.PoolMove{To: kv.LocalGPU, Pool: 5, HasPool: true})
	for _, c := range []struct {
		what   string
		moves  []Event
		stored bool // in the pool at once
		want   []kv.PoolMove
	}{
		{"evicted", []Event{transition(kv.Evicted, 3)}, true, nil},
		{"evicted from another pool", []Event{transition(kv.Evicted, 3).inPool(6)}, true, []kv.PoolMove{{To: kv.Pooled, Pool: 5, HasPool: true}}},
		{
			"pooled",
			[]Event{transition(kv.InTransit, 3).inPool(5, kv.Worker{ID: 8}), transition(kv.Pooled, 3)},
			false,
			[]kv.PoolMove{{To: kv.Pooled, Pool: 5, HasPool: true, Access: []kv.Worker{{ID: 8}}}},
		},
		{"to another pool", []Event{transition(kv.Pooled, 3).inPool(6)}, true, []kv.PoolMove{{To: kv.Pooled, Pool: 6, HasPool: true}}},
		{"the pool is empty", []Event{transition(kv.Evicted).inPool(5)}, true, nil},
	} {
		g := newPoolEngine(t, Config{BlockSize: 2, Capacity: 9})
		g.table.SetHistory(PartialHistory, nil)
		g.apply(g.store(1))
		orphan := g.store(3)
		orphan.HasParent, orphan.Parent = true, 2
		if c.stored {
			orphan.Moves = []kv.PoolMove{{To: kv.Pooled, Pool: 5, HasPool: true, OfBlocks: true}}
		}
		g.apply(orphan)
		g.apply(c.moves...)
		parent := g.store(2)
		parent.HasParent, parent.Parent = true, 1
		adopted := g.apply(parent)
		want := []kv.Event{}
		for _, m := range c.want {
			want = append(want, moved(m, seqs(adopted)[1]))
		}
		g.want(c.what, adopted[1:], want...)
		if n := g.table.Stats(); n.UnknownMoves != 0 || n.Adopted != 1 {
			t.Errorf("%s: %+v", c.what, n)
		}
	}
	g := newPoolEngine(t, Config{BlockSize: 2, Capacity: 9})
	orphan := g.store(3)
	orphan.HasParent, orphan.Parent = true, 2
	orphan.Moves = []kv.PoolMove{{To: kv.Pooled, Pool: 5, HasPool: true, OfBlocks: true}}
	later := g.store(4)
	later.HasParent, later.Parent, later.Moves = true, 3, orphan.Moves
	g.apply(g.store(1), orphan, transition(kv.Pooled, 1).inPool(5))
	g.table.Apply(&Batch{LostMoves: 1, Events: []Event{later}}, nil)
	parent := g.store(2)
	parent.HasParent, parent.Parent = true, 1
	g.apply(parent)
	g.want("a transition cannot be read", g.table.Describe(nil)[2:], empty)
}

// TestListsOfOrphans: the access lists of waiting blocks are shared, bounded, and forgotten with the last block.
func TestListsOfOrphans(t *testing.T) {
	g := newPoolEngine(t, Config{BlockSize: 2, Capacity: 9})
	names := make([]kv.EngineHash, 4)
	for i := range names {
		names[i] = kv.EngineHash(i) + 10
	}
	orphans := g.store(names...)
	orphans.HasParent, orphans.Parent = true, 9
	orphans.Moves = make([]kv.PoolMove, len(names))
	for i := range orphans.Moves {
		orphans.Moves[i] = kv.PoolMove{To: kv.Pooled, Pool: 5, HasPool: true, OfBlocks: true, Access: []kv.Worker{{ID: 1}}}
	}
	g.apply(orphans)
	if n := len(g.table.orphans.lists); n != 1 {
		t.Fatalf("%d lists", n)
	}
	for id := range kv.WorkerID(maxPooledList) {
		g.apply(transition(kv.Pooled, 13).inPool(5, kv.Worker{ID: id + 2}))
	}
	if n := g.table.Stats().RefusedMoves; n != 1 || len(g.table.orphans.lists) != maxPooledList {
		t.Errorf("%d refused moves, %d lists", n, len(g.table.orphans.lists))
	}
	parent := g.store(9)
	events := g.apply(parent)
	if events = events[1:]; len(events) != 1 || len(events[0].Seqs) != len(names)-1 || len(g.table.orphans.lists) != 0 {
		t.Errorf("stored: %+v, %d lists", events, len(g.table.orphans.lists))
	}
}

// TestPooledBounds: a block whose list has no room is withdrawn, and further pools are left out.
func TestPooledBounds(t *testing.T) {
	g := newPoolEngine(t, Config{BlockSize: 2})
	s := seqs(g.apply(g.store(1)))
	for i := range kv.WorkerID(maxPooledList) {
		g.apply(g.store(kv.EngineHash(i)+2), transition(kv.Pooled, kv.EngineHash(i)+2).inPool(5, kv.Worker{ID: i}))
	}
	g.apply(transition(kv.Pooled, 1).inPool(5))
	g.want("a list too many", g.apply(transition(kv.Pooled, 1).inPool(5, kv.Worker{ID: maxPooledList})), moved(kv.PoolMove{To: kv.LocalGPU, Pool: 5, HasPool: true}, s[0]))
	for id := range kv.PoolID(maxPools) {
		g.apply(transition(kv.Pooled, 1).inPool(id), transition(kv.Evicted, 1).inPool(id+maxPools))
	}
	pooled := func(id kv.PoolID) kv.Event { return moved(kv.PoolMove{To: kv.Pooled, Pool: id, HasPool: true}, s[0]) }
	g.want("pools without blocks", g.apply(transition(kv.Pooled, 1).inPool(maxPools)), moved(kv.PoolMove{To: kv.LocalGPU, HasPool: true}), pooled(maxPools))
	for id := range kv.PoolID(maxPools) {
		g.apply(transition(kv.Pooled, kv.EngineHash(id)+2).inPool(id))
	}
	g.want("a pool too many", g.apply(transition(kv.Pooled, 1).inPool(2*maxPools)))
	g.want("out of a further pool", g.apply(transition(kv.Evicted, 1).inPool(2*maxPools)), moved(kv.PoolMove{To: kv.Evicted, Pool: 2 * maxPools, HasPool: true}, s[0]))
	if n := g.table.Stats().RefusedMoves; n != 3 {
		t.Errorf("%d refused moves", n)
	}
}

// TestDescriptionShares: a description of blocks with alternating access lists has one event for each list, and not a
// copy of the list for each block. Blocks without a label are not in an event with labels: that would erase the labels
// which other workers gave.
func TestDescriptionShares(t *testing.T) {
	g := newPoolEngine(t, Config{BlockSize: 2})
	lists := [][]kv.Worker{{{ID: 1}, {ID: 3}}, {{ID: 2}, {ID: 3}}}
	const n = 20
	for i := range kv.EngineHash(n) {
		e := g.store(i + 1)
		if i%4 < 2 {
			e.Labels = []kv.MoELabel{{Has: kv.HasExpert, Layer: 1, Expert: uint32(i)}}
		}
		g.apply(e, transition(kv.Pooled, i+1).inPool(5, lists[i%2]...))
	}
	var moves []kv.Event
	for _, ev := range g.table.Describe(nil) {
		if ev.Kind == kv.Moved && len(ev.Seqs) > 0 {
			moves = append(moves, ev)
		}
	}
	if len(moves) != 4 {
		t.Fatalf("%d events", len(moves))
	}
	for i, ev := range moves {
		if diff := cmp.Diff(lists[i/2], ev.Move.Access); diff != "" || len(ev.Seqs) != n/4 {
			t.Errorf("event %d of %d blocks: -want +got\n%s", i, len(ev.Seqs), diff)
		}
		if labelled := len(ev.Labels) > 0; labelled != (i%2 == 1) || slices.Contains(ev.Labels, kv.MoELabel{}) {
			t.Errorf("event %d has labels %v", i, ev.Labels)
		}
	}
	if &moves[0].Move.Access[0] != &moves[1].Move.Access[0] {
		t.Error("each event has its own copy of the list")
	}
}

// TestSharedPages: blocks in a pool which have a page of the engine in common leave it together, and each costs as much
// as without the others.
func TestSharedPages(t *testing.T) {
	g := newPoolEngine(t, Config{BlockSize: 4, EngineBlockSize: 2})
	first := g.store(1)
	g.apply(first)
	const n = 4000
	for i := range kv.EngineHash(n) {
		next := g.store(i + 2)
		next.HasParent, next.Parent = true, 1
		g.apply(next, transition(kv.Pooled, 1, i+2).inPool(5))
	}
	if got := g.table.Stats().InPools; got != n {
		t.Fatalf("%d blocks in the pool", got)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	left := g.apply(transition(kv.Evicted, 1))
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20 {
		t.Errorf("%d bytes were allocated", got)
	}
	if len(left) != 1 || len(left[0].Seqs) != n || g.table.Stats().InPools != 0 || len(g.table.pooled.byHash) > 0 {
		t.Errorf("%d events, %+v", len(left), g.table.Stats())
	}
}

// TestPooledNames: the hashes of the engine's blocks are bounded too, and removed blocks do not count.
func TestPooledNames(t *testing.T) {
	g := newPoolEngine(t, Config{BlockSize: 4, EngineBlockSize: 2})
	s := seqs(g.apply(g.store(1, 2, 3, 4, 5, 6)))
	g.apply(transition(kv.Pooled, 1, 2, 3, 4).inPool(5), transition(kv.Evicted, 3))
	if n := g.table.pooled.nameCount; n != 2 {
		t.Errorf("%d hashes are remembered", n)
	}
	g.table.pooled.nameCount = maxPooledName // as if there were as many
	g.want("a block more", g.apply(transition(kv.Pooled, 5, 6).inPool(5))[:1], moved(kv.PoolMove{To: kv.LocalGPU, Pool: 5, HasPool: true}, s[0]))
}

// TestTransitionExample: the bytes on the page of the format are the event which the page says they are.
func TestTransitionExample(t *testing.T) {
	page, err := os.ReadFile("../../docs/format/engine-events.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "```\n85 a4 ")
	payload := []byte{0x92, 0xc0, 0x91, 0x85, 0xa4}
	for line := range strings.Lines(text[:max(0, strings.Index(text, "```"))]) {
		code, _, _ := strings.Cut(line, "   ")
		data, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(code), " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		payload = append(payload, data...)
	}
	var dec Decoder
	var b Batch
	if err := dec.Decode(payload, &b); err != nil || !found {
		t.Fatalf("%x: %v", payload, err)
	}
	want := []Event{transition(kv.InTransit, 11, 12).inPool(5, kv.Worker{ID: 8}, kv.Worker{ID: 9, Rank: 1})}
	if diff := cmp.Diff(want, b.Events); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
