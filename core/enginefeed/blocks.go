package enginefeed

import (
	"cmp"
	"math"
	"slices"
	"unsafe"

	"penstock/core/kv"
)

// block is one of ours. It is remembered while there is a copy of it.
type block struct {
	prev   kv.SeqHash // the prefix before it
	hash   kv.BlockHash
	depth  uint32        // its place in the sequence
	parent uint32        // the number of the block before it, which may be another one's by now
	refs   [tiers]uint16 // copies by tier; one that is full stays full
	salt   uint16
}

// seq returns the prefix that ends with b.
func (b *block) seq() kv.SeqHash { return kv.Extend(b.prev, b.depth, b.hash) }

// blocks are ours by the engine's names.
type blocks struct {
	index
	all slab[block]
	on  [tiers]int // that are told of, by tier
}

// put remembers a block of a name that is not known.
func (x *blocks) put(t *Table, name kv.EngineHash, b block) uint32 {
	id := x.add(name)
	x.all.reach(0)
	*x.all.reach(id) = b
	t.salts.take(b.salt)
	return id
}

// ref counts a copy of a block, and tells of it if it is the first one on its tier. seq is what it ends.
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

// remove takes a copy of a block from its tier. It reports whether there was one.
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

// gone tells that the last copy of a block on a tier is gone, and forgets it if there is none on others.
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

// settle forgets a block without copies.
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

// empty takes all copies from a tier and tells nobody.
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

// Describe appends to out a Cleared event and Stored events that say all that is known,
// parents before children. The slices of the events are the caller's.
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
			if tier == kv.TierDevice { // a block may follow an inferred one, and the other way round
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

// byDepth returns the numbers of all blocks, those at the beginning of sequences first, and of equal depth the
// smaller number first.
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
	// Counted: from[d] is where those of depth d go.
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

// children returns for each block one that follows it, so that runs are told of at once.
func (x *blocks) children(order []uint32) []uint32 {
	next := make([]uint32, x.top+1)
	for _, id := range order {
		b := x.all.at(id)
		if b.depth == 0 || b.parent == 0 {
			continue
		}
		// The number may have gone to another block: only the block before has this prefix.
		if p := x.all.at(b.parent); p.refs != [tiers]uint16{} && p.depth+1 == b.depth && p.seq() == b.prev {
			next[b.parent] = id
		}
	}
	return next
}

// rooms is where the slices of the events of one call are, and the event that may still grow.
type rooms struct {
	hashes []kv.BlockHash
	seqs   []kv.SeqHash
	open   kv.EventKind // the kind of the last event, if it may grow; its slice is set when it is closed
	from   int          // where its slice begins
	seq    kv.SeqHash   // what the last block of a stored one ends
	expect int          // about how many blocks the call tells of
	base   int          // how many events were there before the call
	clears int          // of one tier beside others, in the call
}

// maxRun is how many blocks one event tells of.
const maxRun = 4096

// close gives the last event its slice.
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

// tellCleared tells that nothing of what was told of holds any more, in place of what this call has told: else
// a batch of many clears could tell of all blocks as many times.
func (t *Table) tellCleared() {
	r := &t.room
	r.open, r.hashes, r.seqs = 0, r.hashes[:0], r.seqs[:0]
	clear(t.out[r.base:])
	t.out = append(t.out[:r.base], kv.Event{Kind: kv.Cleared})
}

// tellStored tells that a block, which ends seq, is on a tier, with those before it if it follows them.
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

// tellRemoved tells that a block left a tier.
func (t *Table) tellRemoved(tier kv.Tier, seq kv.SeqHash) {
	r := &t.room
	if r.open != kv.Removed || t.out[len(t.out)-1].Tier != tier || len(r.seqs)-r.from >= maxRun {
		t.close()
		t.out = append(t.out, kv.Event{Kind: kv.Removed, Tier: tier})
		r.open, r.from = kv.Removed, len(r.seqs)
	}
	r.seqs = append(r.seqs, seq)
}
