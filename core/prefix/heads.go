package prefix

import (
	"math/bits"
	"sync/atomic"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// heads finds the page that begins with a block. It is all that readers search, and
// small: one entry for up to 64 blocks. It is cut into tables so that rebuilding one
// takes the writer microseconds.
//
// A table has open addressing. Readers may meet any of the writer's steps, and need
// no more than this of them: a slot with a key has had it before or since its page
// came, and a page says itself which block it begins with. A page that goes leaves
// its slot with a key and no page, to be used again or be left behind by the next
// table.
type heads struct {
	shards [64]headShard
	live   int    // pages, the writer's count
	bytes  int    // likewise
	factor uint64 // does not change
}

type headShard struct {
	table atomic.Pointer[headTable]
	used  int32 // slots with a key, the writer's count
	live  int32 // slots with a page
}

type headTable struct {
	slots []headSlot // a power of two of them
	shift uint64     // 64 less its logarithm
}

type headSlot struct {
	key  atomic.Uint64 // 0: never used
	page atomic.Pointer[version]
}

// mix spreads the bits of a hash over the upper ones: that of a sequence's first block is
// as good as the engine's own. Whoever sends events can choose hashes, and with a factor that
// he knows have as many as he likes meet in one place of a table. With one that is odd and
// drawn, two hashes are equal in their n upper bits with a probability of 2^(1-n), whichever
// they are (multiply-shift hashing, Dietzfelbinger et al. 1997); lower bits are not as good.
func mix(seq kv.SeqHash, factor uint64) uint64 { return uint64(seq) * factor }

// factorOf returns the factor of a seed.
func factorOf(seed uint64) uint64 { return splitmix.Step ^ seed<<1 }

func shardOf(mixed uint64) uint64 { return mixed >> 58 }

// home returns where a block's slot would be if all were free.
func (t *headTable) home(mixed uint64) int { return int(mixed << 6 >> t.shift) }

// keyOf returns what stands for seq in a slot, which is never 0. Which block it is
// for certain, the page says.
func keyOf(seq kv.SeqHash) uint64 { return max(1, uint64(seq)) }

// find returns the page that begins with seq, or nil. Readers call it.
func (h *heads) find(seq kv.SeqHash) *version {
	mixed := mix(seq, h.factor)
	t := h.shards[shardOf(mixed)].table.Load()
	if t == nil {
		return nil
	}
	key := keyOf(seq)
	for at := t.home(mixed); ; at++ {
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

// put makes v the page that begins with v.head.
func (h *heads) put(v *version) {
	mixed := mix(v.head, h.factor)
	s := &h.shards[shardOf(mixed)]
	if slot := s.slot(v.head, mixed); slot != nil {
		slot.page.Store(v)
		return
	}
	if t := s.table.Load(); t == nil || 4*(int(s.used)+1) > 3*len(t.slots) {
		h.rebuild(s, int(s.live)+1)
	}
	s.insert(v, mixed)
	h.live++
}

// remove forgets the page that begins with seq.
func (h *heads) remove(seq kv.SeqHash) {
	mixed := mix(seq, h.factor)
	s := &h.shards[shardOf(mixed)]
	slot := s.slot(seq, mixed)
	if slot == nil {
		return
	}
	slot.page.Store(nil)
	s.live--
	h.live--
	if slots := len(s.table.Load().slots); slots > minHeadSlots && 8*int(s.live) < slots {
		h.rebuild(s, int(s.live))
	}
	if h.live == 0 { // one page that comes and goes should not make and leave a table
		for i := range h.shards {
			h.rebuild(&h.shards[i], 0)
		}
	}
}

// slot returns the slot of the page that begins with seq, or nil.
func (s *headShard) slot(seq kv.SeqHash, mixed uint64) *headSlot {
	t := s.table.Load()
	if t == nil {
		return nil
	}
	key := keyOf(seq)
	for at := t.home(mixed); ; at++ {
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

// insert puts v, which is not there, into the first slot without a page.
func (s *headShard) insert(v *version, mixed uint64) {
	t := s.table.Load()
	for at := t.home(mixed); ; at++ {
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

// rebuild makes a table of s in which live pages take at most half, or none for none.
func (h *heads) rebuild(s *headShard, live int) {
	old := s.table.Load()
	h.bytes -= old.bytes()
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
	h.bytes += t.bytes()
	var next headShard // readers go on with the old table until the new one is full
	next.table.Store(t)
	if old != nil {
		for i := range old.slots {
			if v := old.slots[i].page.Load(); v != nil {
				next.insert(v, mix(v.head, h.factor))
			}
		}
	}
	s.used, s.live = next.used, next.live
	s.table.Store(t)
}

func (t *headTable) bytes() int {
	if t == nil {
		return 0
	}
	return alloc(32) + allocPointers(16*len(t.slots))
}
