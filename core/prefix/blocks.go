package prefix

import "penstock/core/kv"

// blockTable finds the location of every block which is in a page. Only the writer uses it.
//
// A slot is 8 bytes: 26 bits of the hash, the page and the offset in its window. The whole hash is compared
// in the page. The table is divided into shards which grow and shrink independently, so that no event pays
// for more than one shard. A shard may have any size, not only a power of two: it is between half and three
// quarters full.
type blockTable struct {
	shards      [256]blockShard
	count       int // blocks
	bytes       int
	factor      uint64
	prefetchSum uint64 // see prefetch
}

type blockShard struct {
	slots []uint64 // 0: empty
	count int
}

// blockLocation is where a block is: the page and the offset in its window.
type blockLocation struct {
	page   uint32
	offset uint8
}

const (
	printBits  = 26
	printShift = 64 - printBits
)

func packSlot(mixed uint64, p blockLocation) uint64 {
	return mixed<<8>>(64-printBits)<<printShift | uint64(p.page)<<6 | uint64(p.offset)
}

func unpackSlot(slot uint64) blockLocation {
	return blockLocation{page: uint32(slot >> 6), offset: uint8(slot & 63)}
}

// homeSlot returns where a slot is if all are free: slots are in the order of their hash bits.
func (s *blockShard) homeSlot(slot uint64) int {
	return int(slot >> printShift * uint64(len(s.slots)) >> printBits)
}

func (s *blockShard) nextSlot(at int) int {
	if at++; at == len(s.slots) {
		return 0
	}
	return at
}

// locateBlock returns where seq is.
func (x *Index) locateBlock(seq kv.SeqHash) (blockLocation, bool) {
	mixed := mixHash(seq, x.blocks.factor)
	s := &x.blocks.shards[mixed>>56]
	if s.count == 0 {
		return blockLocation{}, false
	}
	print := packSlot(mixed, blockLocation{})
	for at := s.homeSlot(print); s.slots[at] != 0; at = s.nextSlot(at) {
		if slot := s.slots[at]; (slot^print)>>printShift == 0 {
			if p := unpackSlot(slot); x.blockHash(p) == seq {
				return p, true
			}
		}
	}
	return blockLocation{}, false
}

// prefetchBlocks is how many blocks are prefetched: as many as a page has, which takes a small part of the
// processor's cache.
const prefetchBlocks = window

// prefetch reads the slots at which the searches for seqs begin, and ignores their content. The table is far
// larger than the processor's cache and the blocks are at random positions in it, so successive searches
// would each wait for memory. These reads are independent of one another, so they wait for memory at the same
// time.
func (w *blockTable) prefetch(seqs []kv.SeqHash) {
	sum := w.prefetchSum
	for _, seq := range seqs {
		mixed := mixHash(seq, w.factor)
		if s := &w.shards[mixed>>56]; len(s.slots) > 0 {
			sum += s.slots[s.homeSlot(packSlot(mixed, blockLocation{}))]
		}
	}
	w.prefetchSum = sum // prevents the compiler from removing the reads
}

// addBlock records that seq, which is in no page, is at p.
func (w *blockTable) addBlock(seq kv.SeqHash, p blockLocation) {
	mixed := mixHash(seq, w.factor)
	s := &w.shards[mixed>>56]
	if 4*(s.count+1) > 3*len(s.slots) {
		w.resizeShard(s, max(minBlockSlots, len(s.slots)+len(s.slots)/2))
	}
	s.insertSlot(packSlot(mixed, p))
	w.count++
}

func (s *blockShard) insertSlot(slot uint64) {
	at := s.homeSlot(slot)
	for s.slots[at] != 0 {
		at = s.nextSlot(at)
	}
	s.slots[at] = slot
	s.count++
}

// removeBlock records that seq is no longer at p, and moves up the entries which its slot displaced, so that
// no tombstones are left.
func (w *blockTable) removeBlock(seq kv.SeqHash, p blockLocation) {
	mixed := mixHash(seq, w.factor)
	s := &w.shards[mixed>>56]
	slot := packSlot(mixed, p)
	at := s.homeSlot(slot)
	for s.slots[at] != slot {
		at = s.nextSlot(at)
	}
	for next := s.nextSlot(at); s.slots[next] != 0; next = s.nextSlot(next) {
		if s.stepsBack(s.homeSlot(s.slots[next]), next) >= s.stepsBack(at, next) {
			s.slots[at] = s.slots[next]
			at = next
		}
	}
	s.slots[at] = 0
	s.count--
	w.count--
	switch {
	case w.count == 0:
		for i := range w.shards {
			w.resizeShard(&w.shards[i], 0)
		}
	case 4*s.count < len(s.slots) && len(s.slots) > minBlockSlots:
		w.resizeShard(s, max(minBlockSlots, len(s.slots)/2))
	}
}

// stepsBack returns how many steps a is before b.
func (s *blockShard) stepsBack(a, b int) int {
	if a <= b {
		return b - a
	}
	return b - a + len(s.slots)
}

const minBlockSlots = 16

func (w *blockTable) resizeShard(s *blockShard, slots int) {
	old := s.slots
	w.bytes += allocBytes(8*slots) - allocBytes(8*len(old))
	s.slots, s.count = nil, 0
	if slots == 0 {
		return
	}
	s.slots = make([]uint64, slots)
	for _, slot := range old {
		if slot != 0 {
			s.insertSlot(slot)
		}
	}
}
