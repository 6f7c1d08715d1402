package engineevents

import (
	"cmp"
	"math"
	"slices"
	"unsafe"

	"penstock/core/kv"
)

// blockEntry is one Penstock block. The table remembers it while it has a copy.
type blockEntry struct {
	prefix kv.SeqHash // the prefix before the block
	hash   kv.BlockHash
	depth  uint32            // the block's index in its sequence
	parent uint32            // the id of the previous block; the id may belong to another block by now
	refs   [tierCount]uint16 // copies by tier; a counter which reaches its maximum stays there
	salt   uint16
}

// seq returns the prefix which ends with b.
func (b *blockEntry) seq() kv.SeqHash { return kv.ExtendSeq(b.prefix, b.depth, b.hash) }

// blockMap holds the Penstock blocks, keyed by engine hash.
type blockMap struct {
	hashIndex
	entries chunkedArray[blockEntry]
	onTier  [tierCount]int // announced blocks, by tier
}

// insertBlock adds a block under an unknown engine hash.
func (x *blockMap) insertBlock(t *Table, name kv.EngineHash, b blockEntry) uint32 {
	id := x.assignID(name)
	x.entries.ensure(0)
	*x.entries.ensure(id) = b
	t.salts.retain(b.salt)
	return id
}

// addCopy counts a copy of a block, and announces the block if the copy is the first on its tier. seq is
// the prefix which the block ends.
func (x *blockMap) addCopy(t *Table, id uint32, tier kv.Tier, seq kv.SeqHash) {
	b := x.entries.at(id)
	if b.refs[tier] < 1<<16-1 {
		b.refs[tier]++
	}
	if b.refs[tier] == 1 && b.salt != opaqueSalt {
		x.onTier[tier]++
		if !t.partial || !t.inferred.recordStored(tier, seq) {
			t.emitStored(tier, b, seq)
		}
	}
}

// removeCopy removes one copy of a block from a tier. It reports whether there was one.
func (x *blockMap) removeCopy(t *Table, name kv.EngineHash, tier kv.Tier) bool {
	id := x.findID(name)
	if id == 0 {
		return false
	}
	b := x.entries.at(id)
	if b.refs[tier] == 0 {
		return false
	}
	if b.refs[tier]--; b.refs[tier] == 0 {
		x.removeLastCopy(t, id, tier)
	}
	return true
}

// removeLastCopy announces that the last copy of a block on a tier is gone, and drops the block if no other
// tier has one.
func (x *blockMap) removeLastCopy(t *Table, id uint32, tier kv.Tier) {
	b := x.entries.at(id)
	if b.salt != opaqueSalt {
		x.onTier[tier]--
		if seq := b.seq(); !t.partial || t.inferred.recordRemoved(t, tier, seq) {
			t.emitRemoved(tier, seq)
		}
	}
	x.dropIfUnused(t, id)
}

// dropIfUnused drops a block which has no copies.
func (x *blockMap) dropIfUnused(t *Table, id uint32) {
	b := x.entries.at(id)
	if b.refs != [tierCount]uint16{} {
		return
	}
	if len(t.labels) > 0 {
		delete(t.labels, b.seq())
	}
	t.salts.release(b.salt)
	if t.pagesPerBlock == 1 {
		t.roots.removeRoot(*x.hashes.at(id))
	}
	x.releaseID(id)
	*b = blockEntry{}
}

// clearTier removes all copies from a tier without announcing it.
func (x *blockMap) clearTier(t *Table, tier kv.Tier) {
	for id := uint32(1); id <= x.maxID; id++ {
		if b := x.entries.at(id); b.refs[tier] > 0 {
			b.refs[tier] = 0
			x.dropIfUnused(t, id)
		}
	}
	x.onTier[tier] = 0
}

func (x *blockMap) clearBlocks() {
	x.hashIndex.clearIndex()
	x.entries, x.onTier = chunkedArray[blockEntry]{}, [tierCount]int{}
}

func (x *blockMap) sizeBytes() int {
	return x.hashIndex.sizeBytes() + int(unsafe.Sizeof(blockEntry{}))*chunkLen*len(x.entries.chunks)
}

// Describe appends to out a Cleared event and Stored events which describe the whole table, parents before
// children, and what describes the blocks in pools. The slices of the events are as after Apply.
func (t *Table) Describe(out []kv.Event) []kv.Event {
	t.beginCall(out)
	t.buffer.expectedBlocks = t.blocks.count
	t.describeBlocks()
	return t.finishCall()
}

func (t *Table) describeBlocks() {
	t.emitCleared()
	x, nodes := &t.blocks, t.inferred.newEmitter()
	if x.count == 0 {
		nodes.emitUpTo(t, math.MaxUint32)
		return
	}
	order := x.idsByDepth()
	next := x.nextInRun(order)
	told := make([]bool, x.maxID+1)
	for tier := range kv.Tier(tierCount) {
		clear(told)
		for _, id := range order {
			if tier == kv.TierDevice { // a block may follow an inferred one, and the reverse
				nodes.emitUpTo(t, x.entries.at(id).depth)
			}
			for ; id != 0 && !told[id]; id = next[id] {
				b := x.entries.at(id)
				if b.refs[tier] == 0 || b.salt == opaqueSalt {
					break
				}
				told[id] = true
				t.emitStored(tier, b, b.seq())
			}
		}
		if tier == kv.TierDevice {
			nodes.emitUpTo(t, math.MaxUint32)
		}
	}
}

// idsByDepth returns the ids of all blocks in order of depth. Blocks of equal depth are in order of id.
func (x *blockMap) idsByDepth() []uint32 {
	deepest := uint32(0)
	for id := uint32(1); id <= x.maxID; id++ {
		deepest = max(deepest, x.entries.at(id).depth)
	}
	order := make([]uint32, 0, x.count)
	if int64(deepest) > int64(4*x.count+1024) {
		for id := uint32(1); id <= x.maxID; id++ {
			if x.entries.at(id).refs != [tierCount]uint16{} {
				order = append(order, id)
			}
		}
		slices.SortStableFunc(order, func(a, b uint32) int { return cmp.Compare(x.entries.at(a).depth, x.entries.at(b).depth) })
		return order
	}
	// Counting sort: from[d] is where blocks of depth d go.
	from := make([]uint32, deepest+2)
	for id := uint32(1); id <= x.maxID; id++ {
		if b := x.entries.at(id); b.refs != [tierCount]uint16{} {
			from[b.depth+1]++
		}
	}
	for d := range deepest + 1 {
		from[d+1] += from[d]
	}
	order = order[:x.count]
	for id := uint32(1); id <= x.maxID; id++ {
		if b := x.entries.at(id); b.refs != [tierCount]uint16{} {
			order[from[b.depth]] = id
			from[b.depth]++
		}
	}
	return order
}

// nextInRun returns, for each block, one block which follows it, so that a run is announced in one event.
func (x *blockMap) nextInRun(order []uint32) []uint32 {
	next := make([]uint32, x.maxID+1)
	for _, id := range order {
		b := x.entries.at(id)
		if b.depth == 0 || b.parent == 0 {
			continue
		}
		// The id may belong to another block by now: only the real parent has this prefix.
		if p := x.entries.at(b.parent); p.refs != [tierCount]uint16{} && p.depth+1 == b.depth && p.seq() == b.prefix {
			next[b.parent] = id
		}
	}
	return next
}

// eventBuffer holds the slices of the events of one call, and the event which may still grow.
type eventBuffer struct {
	hashes         []kv.BlockHash
	seqs           []kv.SeqHash
	openKind       kv.EventKind  // the kind of the last event if it may grow; closeEvent sets its slice
	openStart      int           // where its slice starts
	openSeq        kv.SeqHash    // the prefix which the last block of an open Stored event ends
	openLabels     []kv.MoELabel // labels of the first blocks of the open event; the others have none
	describesPools bool          // the call ends with a description of the blocks in pools
	losesMoves     bool          // the batch has transitions which cannot be read: no block enters a pool with it
	expectedBlocks int           // the approximate number of blocks which the call announces
	base           int           // the number of events in out before the call
	tierClears     int           // clears of a single tier in this call
	cleared        bool          // the call's first event is Cleared
	keptMoves      int           // the number of events after it which a further clear keeps
}

// maxEventBlocks is the largest number of blocks in one event.
const maxEventBlocks = 4096

// closeEvent sets the slice of the last event.
func (t *Table) closeEvent() {
	r := &t.buffer
	switch r.openKind {
	case kv.Stored:
		t.out[len(t.out)-1].Blocks = slices.Clip(r.hashes[r.openStart:])
		t.out[len(t.out)-1].Labels = r.takeLabels(len(r.hashes) - r.openStart)
	case kv.Moved:
		t.out[len(t.out)-1].Seqs = slices.Clip(r.seqs[r.openStart:])
		t.out[len(t.out)-1].Labels = r.takeLabels(len(r.seqs) - r.openStart)
	case kv.Removed:
		t.out[len(t.out)-1].Seqs = slices.Clip(r.seqs[r.openStart:])
	}
	r.openKind = 0
}

// takeLabels returns one label for each of the n blocks of the open event, nil if none has one.
func (r *eventBuffer) takeLabels(n int) []kv.MoELabel {
	labels := r.openLabels
	r.openLabels = nil
	if len(labels) == 0 {
		return nil
	}
	for len(labels) < n {
		labels = append(labels, kv.MoELabel{})
	}
	return labels
}

// emitCleared announces that nothing announced so far holds. It replaces the earlier events of this call:
// otherwise a batch of many clears could announce every block as many times. Moves out of pools stay, after it: they
// may be of blocks of other workers, which the description of the pools does not cover.
func (t *Table) emitCleared() {
	r := &t.buffer
	t.closeEvent()
	decided := r.base
	if r.cleared {
		decided += 1 + r.keptMoves
	}
	var moves []kv.Event
	for _, ev := range t.out[decided:] {
		if ev.Kind == kv.Moved && (ev.Move.To == kv.LocalGPU || ev.Move.To == kv.Evicted) {
			ev.Seqs = slices.Clone(ev.Seqs)
			moves = append(moves, ev)
		}
	}
	clear(t.out[decided:])
	t.out = t.out[:decided]
	if !r.cleared {
		t.out = append(t.out, kv.Event{Kind: kv.Cleared})
	}
	t.out = append(t.out, moves...)
	r.cleared, r.keptMoves = true, r.keptMoves+len(moves)
	r.hashes, r.seqs, r.describesPools = r.hashes[:0], r.seqs[:0], true
}

// emitStored announces that a block, which ends seq, is on a tier. It extends the open event if the block
// follows that event's last block.
func (t *Table) emitStored(tier kv.Tier, b *blockEntry, seq kv.SeqHash) {
	r := &t.buffer
	grows := false
	if r.openKind == kv.Stored {
		last, n := &t.out[len(t.out)-1], len(r.hashes)-r.openStart
		grows = last.Tier == tier && n < maxEventBlocks && b.depth > 0 && b.depth == last.Start+uint32(n) && b.prefix == r.openSeq
	}
	if !grows {
		t.closeEvent()
		t.out = append(t.out, kv.Event{Kind: kv.Stored, Tier: tier, Start: b.depth, Parent: b.prefix})
		r.openKind, r.openStart = kv.Stored, len(r.hashes)
	}
	if r.hashes == nil {
		r.hashes = make([]kv.BlockHash, 0, r.expectedBlocks)
	}
	r.hashes = append(r.hashes, b.hash)
	r.openSeq = seq
	if len(t.labels) > 0 {
		r.addLabel(t.labels[seq], len(r.hashes)-r.openStart)
	}
}

// emitRemoved announces that a block was evicted from a tier.
func (t *Table) emitRemoved(tier kv.Tier, seq kv.SeqHash) {
	r := &t.buffer
	if r.openKind != kv.Removed || t.out[len(t.out)-1].Tier != tier || len(r.seqs)-r.openStart >= maxEventBlocks {
		t.closeEvent()
		t.out = append(t.out, kv.Event{Kind: kv.Removed, Tier: tier})
		r.openKind, r.openStart = kv.Removed, len(r.seqs)
	}
	r.seqs = append(r.seqs, seq)
}
