package enginefeed

import (
	"cmp"
	"math"
	"slices"
	"unsafe"

	"penstock/core/kv"
)

// blockEntry is one Penstock block. The table remembers it while it has a copy.
type block struct {
	prev   kv.SeqHash // the prefix before the block
	hash   kv.BlockHash
	depth  uint32        // the block's index in its sequence
	parent uint32        // the id of the previous block; the id may belong to another block by now
	refs   [tiers]uint16 // copies by tier; a counter which reaches its maximum stays there
	salt   uint16
}

// seq returns the prefix which ends with b.
func (b *block) seq() kv.SeqHash { return kv.Extend(b.prev, b.depth, b.hash) }

// blockMap holds the Penstock blocks, keyed by engine hash.
type blocks struct {
	index
	all slab[block]
	on  [tiers]int // announced blocks, by tier
}

// insertBlock adds a block under an unknown engine hash.
func (x *blocks) put(t *Table, name kv.EngineHash, b block) uint32 {
	id := x.add(name)
	x.all.reach(0)
	*x.all.reach(id) = b
	t.salts.take(b.salt)
	return id
}

// addCopy counts a copy of a block, and announces the block if the copy is the first on its tier. seq is
// the prefix which the block ends.
func (x *blocks) ref(t *Table, id uint32, tier kv.Tier, seq kv.SeqHash) {
	b := x.all.at(id)
	if b.refs[tier] < 1<<16-1 {
		b.refs[tier]++
	}
	if b.refs[tier] == 1 && b.salt != opaque {
		x.on[tier]++
		if !t.partial || !t.inferred.taken(tier, seq) {
			t.tellStored(tier, b, seq)
		}
	}
}

// removeCopy removes one copy of a block from a tier. It reports whether there was one.
func (x *blocks) remove(t *Table, name kv.EngineHash, tier kv.Tier) bool {
	id := x.find(name)
	if id == 0 {
		return false
	}
	b := x.all.at(id)
	if b.refs[tier] == 0 {
		return false
	}
	if b.refs[tier]--; b.refs[tier] == 0 {
		x.gone(t, id, tier)
	}
	return true
}

// removeLastCopy announces that the last copy of a block on a tier is gone, and drops the block if no other
// tier has one.
func (x *blocks) gone(t *Table, id uint32, tier kv.Tier) {
	b := x.all.at(id)
	if b.salt != opaque {
		x.on[tier]--
		if seq := b.seq(); !t.partial || t.inferred.left(t, tier, seq) {
			t.tellRemoved(tier, seq)
		}
	}
	x.settle(t, id)
}

// dropIfUnused drops a block which has no copies.
func (x *blocks) settle(t *Table, id uint32) {
	b := x.all.at(id)
	if b.refs != [tiers]uint16{} {
		return
	}
	t.salts.give(b.salt)
	if t.per == 1 {
		t.roots.drop(*x.names.at(id))
	}
	x.drop(id)
	*b = block{}
}

// clearTier removes all copies from a tier without announcing it.
func (x *blocks) empty(t *Table, tier kv.Tier) {
	for id := uint32(1); id <= x.top; id++ {
		if b := x.all.at(id); b.refs[tier] > 0 {
			b.refs[tier] = 0
			x.settle(t, id)
		}
	}
	x.on[tier] = 0
}

func (x *blocks) clear() {
	x.index.clear()
	x.all, x.on = slab[block]{}, [tiers]int{}
}

func (x *blocks) bytes() int {
	return x.index.bytes() + int(unsafe.Sizeof(block{}))*chunk*len(x.all.chunks)
}

// Describe appends to out a Cleared event and Stored events which describe the whole table, parents before
// children. The caller owns the slices of the events.
func (t *Table) Describe(out []kv.Event) []kv.Event {
	t.begin(out)
	t.room.expect = t.blocks.n
	t.describe()
	return t.done()
}

func (t *Table) describe() {
	t.tellCleared()
	x, nodes := &t.blocks, t.inferred.description()
	if x.n == 0 {
		nodes.tell(t, math.MaxUint32)
		return
	}
	order := x.byDepth()
	next := x.children(order)
	told := make([]bool, x.top+1)
	for tier := range kv.Tier(tiers) {
		clear(told)
		for _, id := range order {
			if tier == kv.TierDevice { // a block may follow an inferred one, and the reverse
				nodes.tell(t, x.all.at(id).depth)
			}
			for ; id != 0 && !told[id]; id = next[id] {
				b := x.all.at(id)
				if b.refs[tier] == 0 || b.salt == opaque {
					break
				}
				told[id] = true
				t.tellStored(tier, b, b.seq())
			}
		}
		if tier == kv.TierDevice {
			nodes.tell(t, math.MaxUint32)
		}
	}
}

// idsByDepth returns the ids of all blocks in order of depth. Blocks of equal depth are in order of id.
func (x *blocks) byDepth() []uint32 {
	deepest := uint32(0)
	for id := uint32(1); id <= x.top; id++ {
		deepest = max(deepest, x.all.at(id).depth)
	}
	order := make([]uint32, 0, x.n)
	if int64(deepest) > int64(4*x.n+1024) {
		for id := uint32(1); id <= x.top; id++ {
			if x.all.at(id).refs != [tiers]uint16{} {
				order = append(order, id)
			}
		}
		slices.SortStableFunc(order, func(a, b uint32) int { return cmp.Compare(x.all.at(a).depth, x.all.at(b).depth) })
		return order
	}
	// Counting sort: from[d] is where blocks of depth d go.
	from := make([]uint32, deepest+2)
	for id := uint32(1); id <= x.top; id++ {
		if b := x.all.at(id); b.refs != [tiers]uint16{} {
			from[b.depth+1]++
		}
	}
	for d := range deepest + 1 {
		from[d+1] += from[d]
	}
	order = order[:x.n]
	for id := uint32(1); id <= x.top; id++ {
		if b := x.all.at(id); b.refs != [tiers]uint16{} {
			order[from[b.depth]] = id
			from[b.depth]++
		}
	}
	return order
}

// nextInRun returns, for each block, one block which follows it, so that a run is announced in one event.
func (x *blocks) children(order []uint32) []uint32 {
	next := make([]uint32, x.top+1)
	for _, id := range order {
		b := x.all.at(id)
		if b.depth == 0 || b.parent == 0 {
			continue
		}
		// The id may belong to another block by now: only the real parent has this prefix.
		if p := x.all.at(b.parent); p.refs != [tiers]uint16{} && p.depth+1 == b.depth && p.seq() == b.prev {
			next[b.parent] = id
		}
	}
	return next
}

// eventBuffer holds the slices of the events of one call, and the event which may still grow.
type rooms struct {
	hashes []kv.BlockHash
	seqs   []kv.SeqHash
	open   kv.EventKind // the kind of the last event if it may grow; closeEvent sets its slice
	from   int          // where its slice starts
	seq    kv.SeqHash   // the prefix which the last block of an open Stored event ends
	expect int          // the approximate number of blocks which the call announces
	base   int          // the number of events in out before the call
	clears int          // clears of a single tier in this call
}

// maxEventBlocks is the largest number of blocks in one event.
const maxRun = 4096

// closeEvent sets the slice of the last event.
func (t *Table) close() {
	r := &t.room
	switch r.open {
	case kv.Stored:
		t.out[len(t.out)-1].Blocks = slices.Clip(r.hashes[r.from:])
	case kv.Removed:
		t.out[len(t.out)-1].Seqs = slices.Clip(r.seqs[r.from:])
	}
	r.open = 0
}

// emitCleared announces that nothing announced so far holds. It replaces the earlier events of this call:
// otherwise a batch of many clears could announce every block as many times.
func (t *Table) tellCleared() {
	r := &t.room
	r.open, r.hashes, r.seqs = 0, r.hashes[:0], r.seqs[:0]
	clear(t.out[r.base:])
	t.out = append(t.out[:r.base], kv.Event{Kind: kv.Cleared})
}

// emitStored announces that a block, which ends seq, is on a tier. It extends the open event if the block
// follows that event's last block.
func (t *Table) tellStored(tier kv.Tier, b *block, seq kv.SeqHash) {
	r := &t.room
	grows := false
	if r.open == kv.Stored {
		last, n := &t.out[len(t.out)-1], len(r.hashes)-r.from
		grows = last.Tier == tier && n < maxRun && b.depth > 0 && b.depth == last.Start+uint32(n) && b.prev == r.seq
	}
	if !grows {
		t.close()
		t.out = append(t.out, kv.Event{Kind: kv.Stored, Tier: tier, Start: b.depth, Parent: b.prev})
		r.open, r.from = kv.Stored, len(r.hashes)
	}
	if r.hashes == nil {
		r.hashes = make([]kv.BlockHash, 0, r.expect)
	}
	r.hashes = append(r.hashes, b.hash)
	r.seq = seq
}

// emitRemoved announces that a block was evicted from a tier.
func (t *Table) tellRemoved(tier kv.Tier, seq kv.SeqHash) {
	r := &t.room
	if r.open != kv.Removed || t.out[len(t.out)-1].Tier != tier || len(r.seqs)-r.from >= maxRun {
		t.close()
		t.out = append(t.out, kv.Event{Kind: kv.Removed, Tier: tier})
		r.open, r.from = kv.Removed, len(r.seqs)
	}
	r.seqs = append(r.seqs, seq)
}
