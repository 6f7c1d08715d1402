package prefix

import "penstock/core/kv"

// blockTable finds the location of every block which is in a page. Only the writer uses it.
//
// A slot is 8 bytes: 26 bits of the hash, the page and the offset in its window. The whole hash is compared
// in the page. The table is divided into shards which grow and shrink independently, so that no event pays
// for more than one shard. A shard may have any size, not only a power of two: it is between half and three
// quarters full.
type where struct {
	shards [256]whereShard
	n      int // blocks
	bytes  int
	factor uint64
	sum    uint64 // see prefetch
}

type whereShard struct {
	slots []uint64 // 0: empty
	n     int
}

// blockLocation is where a block is: the page and the offset in its window.
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

// homeSlot returns where a slot is if all are free: slots are in the order of their hash bits.
func (s *whereShard) home(slot uint64) int {
	return int(slot >> printShift * uint64(len(s.slots)) >> printBits)
}

func (s *whereShard) next(at int) int {
	if at++; at == len(s.slots) {
		return 0
	}
	return at
}

// locateBlock returns where seq is.
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

// prefetchBlocks is how many blocks are prefetched: as many as a page has, which takes a small part of the
// processor's cache.
const warmed = window

// prefetch reads the slots at which the searches for seqs begin, and ignores their content. The table is far
// larger than the processor's cache and the blocks are at random positions in it, so successive searches
// would each wait for memory. These reads are independent of one another, so they wait for memory at the same
// time.
func (w *where) warm(seqs []kv.SeqHash) {
	sum := w.sum
	for _, seq := range seqs {
		mixed := mix(seq, w.factor)
		if s := &w.shards[mixed>>56]; len(s.slots) > 0 {
			sum += s.slots[s.home(whereSlot(mixed, place{}))]
		}
	}
	w.sum = sum // prevents the compiler from removing the reads
}

// addBlock records that seq, which is in no page, is at p.
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

// removeBlock records that seq is no longer at p, and moves up the entries which its slot displaced, so that
// no tombstones are left.
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

// stepsBack returns how many steps a is before b.
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
