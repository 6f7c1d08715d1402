package prefix

import (
	"math"
	"math/bits"

	"penstock/core/kv"
)

// ApplyEvent applies one event of w's cache. Events of one worker must come in the order in which it sent
// them. Storing a held block or removing one which is not held changes only a count. ApplyEvent ignores
// events of an unknown kind or tier, or with impossible positions, and kv.Moved, which does not concern w's
// cache.
func (x *Index) ApplyEvent(w kv.Worker, ev kv.Event) {
	if ev.Tier >= kv.Tiers {
		return
	}
	switch ev.Kind {
	case kv.Stored:
		if uint64(ev.Start)+uint64(len(ev.Blocks)) > math.MaxUint32 {
			return
		}
		x.storeEvent(x.numberOf(w), ev)
	case kv.Removed:
		x.removeBlocks(x.numberOf(w), ev)
	case kv.Cleared:
		x.counts.Clears++
		x.removeAll(x.numberOf(w))
	}
	x.finishChange()
}

// DropWorker removes w and all its blocks; blocks in pools stay. It reports whether w was known.
func (x *Index) DropWorker(w kv.Worker) bool {
	n, ok := x.numbers[w]
	if !ok {
		return false
	}
	x.removeAll(n)
	x.removeWorkers(n)
	x.finishChange()
	return true
}

// storeEvent adds the blocks of ev to worker n.
func (x *Index) storeEvent(n uint32, ev kv.Event) {
	x.scratchSeqs = x.scratchSeqs[:0]
	seq := ev.Parent
	for i, b := range ev.Blocks {
		seq = kv.ExtendSeq(seq, ev.Start+uint32(i), b)
		x.scratchSeqs = append(x.scratchSeqs, seq)
	}
	if len(ev.Labels) != len(ev.Blocks) {
		ev.Labels = nil
	}
	x.storeHashed(n, ev, x.scratchSeqs)
	if cap(x.scratchSeqs) > maxScratch {
		x.scratchSeqs = nil
	}
}

// maxScratch is how many hashes of scratch are kept for the next event.
const maxScratch = 64 << 10

// storeHashed adds the blocks of ev, whose prefixes are seqs, to worker n, page by page.
func (x *Index) storeHashed(n uint32, ev kv.Event, seqs []kv.SeqHash) {
	s := storeCursor{index: x, number: n, ev: ev, seqs: seqs}
	if ev.Start > 0 {
		if s.prev, s.attached = x.locateBlock(ev.Parent); !s.attached || !x.holdsBlock(n, s.prev) {
			x.counts.Orphans++
		}
	}
	for warm := 0; s.done < len(seqs); s.storePage() {
		if s.done >= warm {
			warm = min(s.done+prefetchBlocks, len(seqs))
			x.blocks.prefetch(seqs[s.done:warm])
		}
	}
}

// holdsBlock reports whether worker n holds the block at p, on any tier.
func (x *Index) holdsBlock(n uint32, p blockLocation) bool {
	g := x.pages.pageAt(p.page).holdingsOf(n)
	return g.onAnyTier()>>p.offset&1 != 0
}

// storeCursor is the progress of storing a Stored event.
type storeCursor struct {
	index  *Index
	number uint32 // number of the worker
	ev     kv.Event
	seqs   []kv.SeqHash // prefixes of its blocks
	done   int          // blocks done
	// prev is the location of the block before the next one, if attached.
	prev     blockLocation
	attached bool
}

// storePage stores as many of the next blocks as belong to one page, or refuses one.
func (s *storeCursor) storePage() {
	x, room := s.index, s.index.roomFor(s.number)
	at, known := x.locateBlock(s.seqs[s.done])
	switch {
	case known:
		x.openPage(at.page)
	case room == 0:
		x.counts.Refused++
		s.done++
		s.attached = false
		return
	default:
		at = s.openNextPage()
	}
	h := x.edit.holdingsOf(s.number)
	mask, run := s.matchPage(int(at.offset))
	if fresh := mask &^ h.onAnyTier(); bits.OnesCount64(fresh) > room {
		over := clearLowest(fresh, room)
		x.counts.Refused += uint64(bits.OnesCount64(over))
		mask &^= over
	}
	room -= bits.OnesCount64(mask &^ h.onAnyTier())
	added := s.extendPage(int(at.offset)+run, run, room)
	mask |= maskOf(int(at.offset)+run, added)

	had := h.onTier(s.ev.Tier)
	x.counts.Duplicates += uint64(bits.OnesCount64(mask & had))
	x.counts.Stored += uint64(bits.OnesCount64(mask &^ had))
	h.addBlocks(s.ev.Tier, mask)
	if s.ev.Labels != nil {
		h.setLabels(mask, int(at.offset), s.ev.Labels[s.done:])
	}
	x.setHoldings(s.number, h)
	s.done += run + added
	before, follows := s.prev, s.attached && s.prev.offset == window-1 && at.offset == 0
	s.prev, s.attached = blockLocation{x.edit.id, at.offset + uint8(run+added-1)}, true
	x.commitPage()
	if follows {
		x.linkNext(before.page, s.prev.page)
	}
}

// openNextPage opens the page for the next block, which is in no page: the page of the block before it if
// that has room after it, else a new one.
func (s *storeCursor) openNextPage() blockLocation {
	x := s.index
	if !s.attached {
		offset := (s.ev.Start + uint32(s.done)) % window
		return blockLocation{x.createPage(int(offset)).id, uint8(offset)}
	}
	offset := (s.prev.offset + 1) % window
	if v := x.pages.pageAt(s.prev.page); offset != 0 && offset == v.start+v.count {
		return blockLocation{x.openPage(s.prev.page).id, offset}
	}
	return blockLocation{x.createPage(int(offset)).id, offset}
}

// matchPage returns how many of the next blocks the open page has from an offset on.
func (s *storeCursor) matchPage(offset int) (mask uint64, run int) {
	e, next := &s.index.edit, s.seqs[s.done:]
	for offset+run < e.endOffset() && run < len(next) && e.hashes[offset+run-e.start] == next[run] {
		run++
	}
	if run == 0 {
		return 0, 0
	}
	return maskOf(offset, run), run
}

// extendPage appends to the open page, if it ends at the offset, up to room blocks after the run which was
// found in it, as long as they are in no page.
func (s *storeCursor) extendPage(offset, run, room int) (added int) {
	x, e, next := s.index, &s.index.edit, s.seqs[s.done+run:]
	for offset+added == e.endOffset() && e.endOffset() < window && added < min(room, len(next)) {
		if _, known := x.locateBlock(next[added]); known {
			break
		}
		e.appendBlock(next[added], min(room, len(next))-added-1)
		x.blocks.addBlock(next[added], blockLocation{e.id, uint8(offset + added)})
		added++
	}
	return added
}

// roomFor returns how many more blocks worker n may hold.
func (x *Index) roomFor(n uint32) int {
	if x.memoryBytes() >= x.cfg.MaxBytes {
		return 0
	}
	return max(0, x.cfg.MaxBlocks-x.workers[n].held)
}

// clearLowest returns mask without its lowest n bits.
func clearLowest(mask uint64, n int) uint64 {
	for range n {
		mask &= mask - 1
	}
	return mask
}

// removeBlocks removes the blocks of ev from worker n, page by page.
func (x *Index) removeBlocks(n uint32, ev kv.Event) {
	for i, warm := 0, 0; i < len(ev.Seqs); {
		if i >= warm {
			warm = min(i+prefetchBlocks, len(ev.Seqs))
			x.blocks.prefetch(ev.Seqs[i:warm])
		}
		i += x.removeRun(n, ev.Tier, ev.Seqs[i:])
	}
}

// removeRun removes the first of seqs and the following ones in the same page, and returns how many there
// were. Engines remove blocks which they stored together in the same order or in reverse.
func (x *Index) removeRun(n uint32, t kv.Tier, seqs []kv.SeqHash) int {
	at, known := x.locateBlock(seqs[0])
	if !known {
		x.counts.Unknown++
		return 1
	}
	e := x.openPage(at.page)
	h := e.holdingsOf(n)
	on := h.onTier(t)
	mask := uint64(0)
	run := 0
	for ; run < len(seqs); run++ {
		offset, here := e.findNear(int(at.offset), seqs[run])
		if !here {
			break
		}
		if on>>offset&1 == 0 || mask>>offset&1 != 0 {
			x.counts.Unknown++
		} else {
			x.counts.Removed++
			mask |= 1 << offset
		}
		at.offset = uint8(offset)
	}
	h.removeBlocks(t, mask)
	x.setHoldings(n, h)
	x.commitPage()
	return run
}

// findNear returns the offset of seq in e if it is at the given offset or next to it.
func (e *pageEdit) findNear(offset int, seq kv.SeqHash) (int, bool) {
	for _, at := range [...]int{offset + 1, offset - 1, offset} {
		if at >= e.start && at < e.endOffset() && e.hashes[at-e.start] == seq {
			return at, true
		}
	}
	return 0, false
}

// removeAll removes all blocks of worker n.
func (x *Index) removeAll(n uint32) {
	for _, id := range x.workers[n].pages.takeAll() {
		if id != 0 {
			x.openPage(id)
			x.setHoldings(n, holderGroup{})
			x.commitPage()
		}
	}
}
