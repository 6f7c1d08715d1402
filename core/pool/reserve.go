package pool

import (
	"math/bits"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
)

// ChunkBytes is the size of a chunk: all chunks of a block have it but the last one.
const ChunkBytes = 64 << 10

// EvictedBlock is a block which was evicted.
type EvictedBlock struct {
	Name kv.SeqHash
	// Mover is the owner which had published it.
	Mover kv.Worker
}

// BlockWriter is a block which this owner has reserved: it is in transit until Publish or Abort.
type BlockWriter struct {
	entry        int32
	word         entryWord
	name, parent kv.SeqHash
	index        uint32
	contentSum   uint64
	dataSum      uint64 // of what was written
	written      int    // bytes
}

// Reserve takes a place for a block, which is in transit from then on, and appends the blocks which were evicted for it.
// It is ErrExists if the block is there already, and then one in the pool counts as used: an engine which has it need not
// fetch it. It is ErrFull if all blocks are acquired or in transit, and ErrEnded.
//
// It appends to evicted also if it fails.
func (p *View) Reserve(c *Content, label kv.MoELabel, evicted []EvictedBlock) (BlockWriter, []EvictedBlock, error) {
	if err := p.checkContent(c); err != nil {
		return BlockWriter{}, evicted, err
	}
	if !p.IsOwner() {
		return BlockWriter{}, evicted, ErrEnded
	}
	h := entryHead{name: c.Name, identity: p.prepareRecord(c), mover: p.worker, label: label}
	if at := p.locate(&h, noEntry); at.state != entryVacant {
		if at.state == entryPooled {
			p.useBlock(at.entry, c.Name, c.Parent, c.Index)
		}
		return BlockWriter{}, evicted, ErrExists
	}
	e, word, evicted, err := p.takePlace(evicted)
	if err != nil {
		return BlockWriter{}, evicted, err
	}
	w := BlockWriter{entry: e, word: word, name: c.Name, parent: c.Parent, index: c.Index, dataSum: uint64(word.generation())}
	w.contentSum = p.storeContent(e, word.generation(), &h, p.wantedRecord())
	if !p.putIndex(c.Name, e, word.generation()) {
		p.Abort(&w)
		return BlockWriter{}, evicted, ErrFull
	}
	// Another process may have reserved the same block meanwhile. Of two in transit the first entry stays.
	if at := p.locate(&h, e); at.state == entryPooled || at.state == entryInTransit && at.entry < e {
		p.Abort(&w)
		return BlockWriter{}, evicted, ErrExists
	}
	return w, evicted, nil
}

// NextChunk returns the place and the size of the chunk which comes next: 0 after the last one.
func (p *View) NextChunk(w *BlockWriter) (at, size int) {
	return w.written, min(ChunkBytes, p.lay.blockBytes-w.written)
}

// Write writes the next chunk. ErrEnded says that the lease is over by this process's clock, or was ended.
func (p *View) Write(now kv.Mono, w *BlockWriter, chunk []byte) error {
	if _, size := p.NextChunk(w); len(chunk) != size {
		return fault.New(fault.Invalid, "pool: a chunk of %d bytes: it must have %d", len(chunk), size)
	}
	if p.life == 0 || now.Sub(p.renewed) >= p.lease || p.loadEntry(w.entry) != w.word {
		return ErrEnded
	}
	if err := p.data.CopyIn(p.lay.blockAt(w.entry)+w.written, chunk); err != nil {
		return fault.New(fault.PoolLost, "pool: a block cannot be written: %w", err)
	}
	w.dataSum = kv.ContentHash(w.dataSum, chunk)
	w.written += len(chunk)
	return nil
}

// Publish makes a block which is written one of the pool. ErrEnded says that it was taken from this owner.
func (p *View) Publish(w *BlockWriter) error {
	if w.written != p.lay.blockBytes {
		return fault.New(fault.Invalid, "pool: %d of the %d bytes of a block were written", w.written, p.lay.blockBytes)
	}
	if !p.IsOwner() || p.loadEntry(w.entry) != w.word {
		return ErrEnded
	}
	p.useBlock(w.entry, w.name, w.parent, w.index)
	at := p.lay.entryAt(w.entry)
	p.words.Store(at+wordDataSum, w.dataSum)
	p.words.Store(at+wordEntrySum, sumEntry(w.contentSum, w.dataSum))
	if !p.swapEntry(w.entry, w.word, packEntry(entryPooled, 0, 0, w.word.generation())) {
		return ErrEnded
	}
	return nil
}

// useBlock makes a block one of the most recently used. Blocks of a sequence which are used one after another have one tick.
func (p *View) useBlock(e int32, name, parent kv.SeqHash, index uint32) {
	if parent != p.used || index == 0 {
		p.tick = p.nextTick()
	}
	p.used = name
	p.touchEntry(e, p.tick, index)
}

// Abort gives the place of a block back, if it was not taken already.
func (p *View) Abort(w *BlockWriter) {
	p.swapEntry(w.entry, w.word, packEntry(entryEvicted, 0, 0, w.word.generation()))
}

// maxCandidates is how many places one walk over the entries finds.
const maxCandidates = 64

// candidate is an entry which can be reserved, as it was when it was found. used is 0 if it has no block.
type candidate struct {
	entry int32
	word  entryWord
	used  uint64
}

// takePlace reserves an entry: one without a block, or that of the least recently used block.
func (p *View) takePlace(evicted []EvictedBlock) (int32, entryWord, []EvictedBlock, error) {
	for range 4 { // others may take what was found
		for len(p.candidates) > 0 {
			c := p.candidates[len(p.candidates)-1]
			p.candidates = p.candidates[:len(p.candidates)-1]
			if !p.evictCandidate(&c, &evicted) {
				continue
			}
			next := packEntry(entryInTransit, p.owner, uint16(p.life.epoch()), c.word.generation()+1)
			if !p.swapEntry(c.entry, c.word, next) {
				continue
			}
			if !p.IsOwner() {
				p.dropOrphan(c.entry, next)
				return 0, 0, evicted, ErrEnded
			}
			return c.entry, next, evicted, nil
		}
		p.findCandidates()
	}
	return 0, 0, evicted, ErrFull
}

// evictCandidate makes sure that an entry has no block and no pins, and reports whether it is so.
//
// A process which acquires a block sets its pin, and then looks at the state. Here the state is changed, and then the pins
// are looked at. So one of the two sees the other. With a late pin the block is evicted, but its memory stays as it is.
func (p *View) evictCandidate(c *candidate, evicted *[]EvictedBlock) bool {
	at := p.lay.entryAt(c.entry)
	if p.loadEntry(c.entry) != c.word || p.isPinned(c.entry) {
		return false
	}
	if c.word.state() != entryPooled {
		return true
	}
	if max(p.words.Load(at+wordUsed), 1) != c.used {
		return false
	}
	h, _, ok := p.loadContent(c.entry, c.word.generation())
	if ok {
		p.keepHistory(&h)
	}
	next := packEntry(entryEvicted, 0, 0, c.word.generation())
	if !p.swapEntry(c.entry, c.word, next) {
		return false
	}
	if ok || p.isIndexed(c.entry, h.name, c.word) { // of a damaged entry the name is right if the index leads to it
		*evicted = append(*evicted, EvictedBlock{h.name, h.mover})
	}
	c.word = next
	return !p.isPinned(c.entry)
}

// isPinned reports whether an owner pins an entry. Pins are set by live owners and cleared before the owner is free, so
// pins of a free owner are damage, or were cleared meanwhile.
func (p *View) isPinned(e int32) bool {
	pins := p.words.Load(p.lay.entryAt(e)+wordPins) & pinMask
	for ; pins != 0; pins &= pins - 1 {
		if p.loadLife(bits.TrailingZeros64(pins)).state() != lifeFree {
			return true
		}
	}
	return false
}

// findCandidates fills the list of candidates, the best one last.
func (p *View) findCandidates() {
	p.candidates = p.candidates[:0]
	for range p.lay.blocks {
		e := p.scanFrom
		if p.scanFrom++; int(p.scanFrom) >= p.lay.blocks {
			p.scanFrom = 0
		}
		c := candidate{entry: e, word: p.dropOrphan(e, p.loadEntry(e))}
		if c.word.state() == entryInTransit || p.isPinned(e) {
			continue
		}
		if c.word.state() == entryPooled {
			c.used = max(p.words.Load(p.lay.entryAt(e)+wordUsed), 1)
		}
		i, _ := slices.BinarySearchFunc(p.candidates, c, func(a, b candidate) int { // the latest use first
			if a.used > b.used {
				return -1
			}
			return 1
		})
		p.candidates = slices.Insert(p.candidates, i, c)
		if len(p.candidates) > maxCandidates {
			p.candidates = slices.Delete(p.candidates, 0, 1)
		}
		if len(p.candidates) == maxCandidates && p.candidates[0].used == 0 {
			return
		}
	}
}
