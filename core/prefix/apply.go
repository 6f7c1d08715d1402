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
func (x *Index) Apply(w kv.Worker, ev kv.Event) {
	if ev.Tier >= kv.Tiers {
		return
	}
	switch ev.Kind {
	case kv.Stored:
		if uint64(ev.Start)+uint64(len(ev.Blocks)) > math.MaxUint32 {
			return
		}
		x.store(x.number(w), ev)
	case kv.Removed:
		x.remove(x.number(w), ev)
	case kv.Cleared:
		x.counts.Clears++
		x.empty(x.number(w))
	}
	x.settle()
}

// DropWorker removes w and all its blocks; blocks in pools stay. It reports whether w was known.
func (x *Index) Drop(w kv.Worker) bool {
	n, ok := x.numbers[w]
	if !ok {
		return false
	}
	x.empty(n)
	x.forget(n)
	x.settle()
	return true
}

// storeEvent adds the blocks of ev to worker n.
func (x *Index) store(n uint32, ev kv.Event) {
	x.seqs = x.seqs[:0]
	seq := ev.Parent
	for i, b := range ev.Blocks {
		seq = kv.Extend(seq, ev.Start+uint32(i), b)
		x.seqs = append(x.seqs, seq)
	}
	if len(ev.Labels) != len(ev.Blocks) {
		ev.Labels = nil
	}
	x.storeNamed(n, ev, x.seqs)
	if cap(x.seqs) > maxScratch {
		x.seqs = nil
	}
}

// maxScratch is how many hashes of scratch are kept for the next event.
const maxScratch = 64 << 10

// storeHashed adds the blocks of ev, whose prefixes are seqs, to worker n, page by page.
func (x *Index) storeNamed(n uint32, ev kv.Event, seqs []kv.SeqHash) {
	s := storing{x: x, n: n, ev: ev, seqs: seqs}
	if ev.Start > 0 {
		if s.before, s.attached = x.locate(ev.Parent); !s.attached || !x.holds(n, s.before) {
			x.counts.Orphans++
		}
	}
	for warm := 0; s.i < len(seqs); s.page() {
		if s.i >= warm {
			warm = min(s.i+warmed, len(seqs))
			x.where.warm(seqs[s.i:warm])
		}
	}
}

// holdsBlock reports whether worker n holds the block at p, on any tier.
func (x *Index) holds(n uint32, p place) bool {
	g := x.pages.get(p.page).of(n)
	return g.any()>>p.offset&1 != 0
}

// storeCursor is the progress of storing a Stored event.
type storing struct {
	x    *Index
	n    uint32 // number of the worker
	ev   kv.Event
	seqs []kv.SeqHash // prefixes of its blocks
	i    int          // blocks done
	// prev is the location of the block before the next one, if attached.
	before   place
	attached bool
}

// storePage stores as many of the next blocks as belong to one page, or refuses one.
func (s *storing) page() {
	x, room := s.x, s.x.room(s.n)
	at, known := x.locate(s.seqs[s.i])
	switch {
	case known:
		x.open(at.page)
	case room == 0:
		x.counts.Refused++
		s.i++
		s.attached = false
		return
	default:
		at = s.begin()
	}
	h := x.edit.of(s.n)
	mask, run := s.found(int(at.offset))
	if fresh := mask &^ h.any(); bits.OnesCount64(fresh) > room {
		over := above(fresh, room)
		x.counts.Refused += uint64(bits.OnesCount64(over))
		mask &^= over
	}
	room -= bits.OnesCount64(mask &^ h.any())
	added := s.extend(int(at.offset)+run, run, room)
	mask |= maskOf(int(at.offset)+run, added)

	had := h.on(s.ev.Tier)
	x.counts.Duplicates += uint64(bits.OnesCount64(mask & had))
	x.counts.Stored += uint64(bits.OnesCount64(mask &^ had))
	h.store(s.ev.Tier, mask)
	if s.ev.Labels != nil {
		h.label(mask, int(at.offset), s.ev.Labels[s.i:])
	}
	x.put(s.n, h)
	s.i += run + added
	before, follows := s.before, s.attached && s.before.offset == window-1 && at.offset == 0
	s.before, s.attached = place{x.edit.id, at.offset + uint8(run+added-1)}, true
	x.commit()
	if follows {
		x.follow(before.page, s.before.page)
	}
}

// openNextPage opens the page for the next block, which is in no page: the page of the block before it if
// that has room after it, else a new one.
func (s *storing) begin() place {
	x := s.x
	if !s.attached {
		offset := (s.ev.Start + uint32(s.i)) % window
		return place{x.create(int(offset)).id, uint8(offset)}
	}
	offset := (s.before.offset + 1) % window
	if v := x.pages.get(s.before.page); offset != 0 && offset == v.start+v.n {
		return place{x.open(s.before.page).id, offset}
	}
	return place{x.create(int(offset)).id, offset}
}

// matchPage returns how many of the next blocks the open page has from an offset on.
func (s *storing) found(offset int) (mask uint64, run int) {
	e, next := &s.x.edit, s.seqs[s.i:]
	for offset+run < e.end() && run < len(next) && e.hashes[offset+run-e.start] == next[run] {
		run++
	}
	if run == 0 {
		return 0, 0
	}
	return maskOf(offset, run), run
}

// extendPage appends to the open page, if it ends at the offset, up to room blocks after the run which was
// found in it, as long as they are in no page.
func (s *storing) extend(offset, run, room int) (added int) {
	x, e, next := s.x, &s.x.edit, s.seqs[s.i+run:]
	for offset+added == e.end() && e.end() < window && added < min(room, len(next)) {
		if _, known := x.locate(next[added]); known {
			break
		}
		e.extend(next[added], min(room, len(next))-added-1)
		x.where.add(next[added], place{e.id, uint8(offset + added)})
		added++
	}
	return added
}

// roomFor returns how many more blocks worker n may hold.
func (x *Index) room(n uint32) int {
	if x.bytes() >= x.cfg.MaxBytes {
		return 0
	}
	return max(0, x.cfg.MaxBlocks-x.workers[n].held)
}

// clearLowest returns mask without its lowest n bits.
func above(mask uint64, n int) uint64 {
	for range n {
		mask &= mask - 1
	}
	return mask
}

// removeBlocks removes the blocks of ev from worker n, page by page.
func (x *Index) remove(n uint32, ev kv.Event) {
	for i, warm := 0, 0; i < len(ev.Seqs); {
		if i >= warm {
			warm = min(i+warmed, len(ev.Seqs))
			x.where.warm(ev.Seqs[i:warm])
		}
		i += x.removeRun(n, ev.Tier, ev.Seqs[i:])
	}
}

// removeRun removes the first of seqs and the following ones in the same page, and returns how many there
// were. Engines remove blocks which they stored together in the same order or in reverse.
func (x *Index) removeRun(n uint32, t kv.Tier, seqs []kv.SeqHash) int {
	at, known := x.locate(seqs[0])
	if !known {
		x.counts.Unknown++
		return 1
	}
	e := x.open(at.page)
	h := e.of(n)
	on := h.on(t)
	mask := uint64(0)
	run := 0
	for ; run < len(seqs); run++ {
		offset, here := e.near(int(at.offset), seqs[run])
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
	h.remove(t, mask)
	x.put(n, h)
	x.commit()
	return run
}

// findNear returns the offset of seq in e if it is at the given offset or next to it.
func (e *edit) near(offset int, seq kv.SeqHash) (int, bool) {
	for _, at := range [...]int{offset + 1, offset - 1, offset} {
		if at >= e.start && at < e.end() && e.hashes[at-e.start] == seq {
			return at, true
		}
	}
	return 0, false
}

// removeAll removes all blocks of worker n.
func (x *Index) empty(n uint32) {
	for _, id := range x.workers[n].pages.take() {
		if id != 0 {
			x.open(id)
			x.put(n, group{})
			x.commit()
		}
	}
}
