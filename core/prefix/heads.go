package prefix

import (
	"math/bits"
	"sync/atomic"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// headIndex finds the page which begins with a block. It is the only structure which readers search, and
// small: one entry for up to 64 blocks. It is divided into tables so that rebuilding one takes the writer
// microseconds.
//
// A table has open addressing. Readers may observe any intermediate step of the writer, and rely on two facts
// only: a slot with a key has had the key since before its page was set, or since then; and a page itself
// says with which block it begins. Removing a page leaves its slot with a key and no page; the slot is
// reused, or dropped with the next table.
type headIndex struct {
	shards [64]headShard
	live   int    // pages, for the writer
	bytes  int    // for the writer
	factor uint64 // does not change
}

type headShard struct {
	table atomic.Pointer[headTable]
	used  int32 // slots with a key, for the writer
	live  int32 // slots with a page
}

type headTable struct {
	slots []headSlot // their number is a power of two
	shift uint64     // 64 less the logarithm of their number
}

type headSlot struct {
	key  atomic.Uint64 // 0: never used
	page atomic.Pointer[pageVersion]
}

// mixHash moves the entropy of a hash to the upper bits: the hash of a sequence's first block is only as good
// as the engine's own. A sender of events can choose hashes, and with a known factor could make any number of
// them collide in a table. With an odd random factor, two hashes are equal in their n upper bits with a
// probability of at most 2^(1-n), whichever they are (multiply-shift hashing, Dietzfelbinger et al. 1997);
// lower bits are not as good.
func mixHash(seq kv.SeqHash, factor uint64) uint64 { return uint64(seq) * factor }

// factorOf returns the factor for a seed.
func factorOf(seed uint64) uint64 { return splitmix.Step ^ seed<<1 }

func shardOf(mixed uint64) uint64 { return mixed >> 58 }

// homeSlot returns where a block's slot is if all are free.
func (t *headTable) homeSlot(mixed uint64) int { return int(mixed << 6 >> t.shift) }

// keyOf returns the key of seq in a slot, which is never 0. The exact block is compared in the page.
func keyOf(seq kv.SeqHash) uint64 { return max(1, uint64(seq)) }

// findPage returns the page which begins with seq, or nil. Readers call it.
func (h *headIndex) findPage(seq kv.SeqHash) *pageVersion {
	mixed := mixHash(seq, h.factor)
	t := h.shards[shardOf(mixed)].table.Load()
	if t == nil {
		return nil
	}
	key := keyOf(seq)
	for at := t.homeSlot(mixed); ; at++ {
		slot := &t.slots[at&(len(t.slots)-1)]
		switch slot.key.Load() {
		case 0:
			return nil
		case key:
			if v := slot.page.Load(); v != nil && v.head == seq {
				return v
			}
		}
	}
}

// putPage makes v the page which begins with v.head.
func (h *headIndex) putPage(v *pageVersion) {
	mixed := mixHash(v.head, h.factor)
	s := &h.shards[shardOf(mixed)]
	if slot := s.findSlot(v.head, mixed); slot != nil {
		slot.page.Store(v)
		return
	}
	if t := s.table.Load(); t == nil || 4*(int(s.used)+1) > 3*len(t.slots) {
		h.rebuildShard(s, int(s.live)+1)
	}
	s.insertPage(v, mixed)
	h.live++
}

// removePage removes the page which begins with seq.
func (h *headIndex) removePage(seq kv.SeqHash) {
	mixed := mixHash(seq, h.factor)
	s := &h.shards[shardOf(mixed)]
	slot := s.findSlot(seq, mixed)
	if slot == nil {
		return
	}
	slot.page.Store(nil)
	s.live--
	h.live--
	if slots := len(s.table.Load().slots); slots > minHeadSlots && 8*int(s.live) < slots {
		h.rebuildShard(s, int(s.live))
	}
	if h.live == 0 { // a single page which comes and goes repeatedly should not leave tables
		for i := range h.shards {
			h.rebuildShard(&h.shards[i], 0)
		}
	}
}

// findSlot returns the slot of the page which begins with seq, or nil.
func (s *headShard) findSlot(seq kv.SeqHash, mixed uint64) *headSlot {
	t := s.table.Load()
	if t == nil {
		return nil
	}
	key := keyOf(seq)
	for at := t.homeSlot(mixed); ; at++ {
		slot := &t.slots[at&(len(t.slots)-1)]
		switch slot.key.Load() {
		case 0:
			return nil
		case key:
			if v := slot.page.Load(); v != nil && v.head == seq {
				return slot
			}
		}
	}
}

// insertPage puts v, which is not in the table, into the first slot without a page.
func (s *headShard) insertPage(v *pageVersion, mixed uint64) {
	t := s.table.Load()
	for at := t.homeSlot(mixed); ; at++ {
		slot := &t.slots[at&(len(t.slots)-1)]
		if slot.page.Load() != nil {
			continue
		}
		if slot.key.Load() == 0 {
			s.used++
		}
		slot.page.Store(v)
		slot.key.Store(keyOf(v.head))
		s.live++
		return
	}
}

const minHeadSlots = 4

// rebuildShard makes a table for s in which live pages take at most half, or none if there are no pages.
func (h *headIndex) rebuildShard(s *headShard, live int) {
	old := s.table.Load()
	h.bytes -= old.memoryBytes()
	if live == 0 && h.live == 0 {
		s.table.Store(nil)
		s.used = 0
		return
	}
	slots := minHeadSlots
	for slots < 2*live {
		slots *= 2
	}
	t := &headTable{slots: make([]headSlot, slots), shift: uint64(64 - bits.TrailingZeros(uint(slots)))}
	h.bytes += t.memoryBytes()
	var next headShard // readers use the old table until the new one is complete
	next.table.Store(t)
	if old != nil {
		for i := range old.slots {
			if v := old.slots[i].page.Load(); v != nil {
				next.insertPage(v, mixHash(v.head, h.factor))
			}
		}
	}
	s.used, s.live = next.used, next.live
	s.table.Store(t)
}

func (t *headTable) memoryBytes() int {
	if t == nil {
		return 0
	}
	return allocBytes(32) + allocPointerBytes(16*len(t.slots))
}
