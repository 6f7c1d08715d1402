package prefix

import "penstock/core/kv"

// where finds the place of every block that is in a page. Only the writer uses it.
//
// A slot is 8 bytes: 26 bits of the hash, the page and the offset in its window. The
// whole hash is in the page, where it is compared. The table is cut into parts that
// grow and shrink by themselves, so that no event pays for more than a part, and a
// part has any size, not a power of two: it is between a half and three quarters full.
type where struct {
	shards [256]whereShard
	n      int // blocks
	bytes  int
	factor uint64
	sum    uint64 // see warm
}

type whereShard struct {
	slots []uint64 // 0: empty
	n     int
}

// place is where a block is: in which page, at which offset of its window.
type place struct {
	page   uint32
	offset uint8
}

const (
	printBits  = 26
	printShift = 64 - printBits
)

func whereSlot(mixed uint64, p place) uint64 {
	return mixed<<8>>(64-printBits)<<printShift | uint64(p.page)<<6 | uint64(p.offset)
}

func placeOf(slot uint64) place {
	return place{page: uint32(slot >> 6), offset: uint8(slot & 63)}
}

// home returns where a slot would be if all were free: in the order of prints.
func (s *whereShard) home(slot uint64) int {
	return int(slot >> printShift * uint64(len(s.slots)) >> printBits)
}

func (s *whereShard) next(at int) int {
	if at++; at == len(s.slots) {
		return 0
	}
	return at
}

// locate returns where seq is.
func (x *Index) locate(seq kv.SeqHash) (place, bool) {
	mixed := mix(seq, x.where.factor)
	s := &x.where.shards[mixed>>56]
	if s.n == 0 {
		return place{}, false
	}
	print := whereSlot(mixed, place{})
	for at := s.home(print); s.slots[at] != 0; at = s.next(at) {
		if slot := s.slots[at]; (slot^print)>>printShift == 0 {
			if p := placeOf(slot); x.hashAt(p) == seq {
				return p, true
			}
		}
	}
	return place{}, false
}

// warmed is how many blocks are looked at ahead: as many as a page has, and little of what is nearest
// to the processor.
const warmed = window

// warm reads the slots at which the searches for seqs begin. What is there is not looked at: a
// table is far larger than what is near to the processor, blocks are anywhere in it, and whoever
// is about to search for one after another waits for each. These reads do not depend on one
// another, so all are waited for at once.
func (w *where) warm(seqs []kv.SeqHash) {
	sum := w.sum
	for _, seq := range seqs {
		mixed := mix(seq, w.factor)
		if s := &w.shards[mixed>>56]; len(s.slots) > 0 {
			sum += s.slots[s.home(whereSlot(mixed, place{}))]
		}
	}
	w.sum = sum // so that no compiler leaves the reads out
}

// add says that seq, which is nowhere, is at p.
func (w *where) add(seq kv.SeqHash, p place) {
	mixed := mix(seq, w.factor)
	s := &w.shards[mixed>>56]
	if 4*(s.n+1) > 3*len(s.slots) {
		w.resize(s, max(minWhereSlots, len(s.slots)+len(s.slots)/2))
	}
	s.insert(whereSlot(mixed, p))
	w.n++
}

func (s *whereShard) insert(slot uint64) {
	at := s.home(slot)
	for s.slots[at] != 0 {
		at = s.next(at)
	}
	s.slots[at] = slot
	s.n++
}

// remove says that seq is no longer at p, where it is, and moves up what was pushed
// away from its place, so that no marks are left.
func (w *where) remove(seq kv.SeqHash, p place) {
	mixed := mix(seq, w.factor)
	s := &w.shards[mixed>>56]
	slot := whereSlot(mixed, p)
	at := s.home(slot)
	for s.slots[at] != slot {
		at = s.next(at)
	}
	for next := s.next(at); s.slots[next] != 0; next = s.next(next) {
		if s.behind(s.home(s.slots[next]), next) >= s.behind(at, next) {
			s.slots[at] = s.slots[next]
			at = next
		}
	}
	s.slots[at] = 0
	s.n--
	w.n--
	switch {
	case w.n == 0:
		for i := range w.shards {
			w.resize(&w.shards[i], 0)
		}
	case 4*s.n < len(s.slots) && len(s.slots) > minWhereSlots:
		w.resize(s, max(minWhereSlots, len(s.slots)/2))
	}
}

// behind returns how many steps a is behind b.
func (s *whereShard) behind(a, b int) int {
	if a <= b {
		return b - a
	}
	return b - a + len(s.slots)
}

const minWhereSlots = 16

func (w *where) resize(s *whereShard, slots int) {
	old := s.slots
	w.bytes += alloc(8*slots) - alloc(8*len(old))
	s.slots, s.n = nil, 0
	if slots == 0 {
		return
	}
	s.slots = make([]uint64, slots)
	for _, slot := range old {
		if slot != 0 {
			s.insert(slot)
		}
	}
}
