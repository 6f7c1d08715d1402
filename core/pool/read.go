package pool

import (
	"bytes"

	"penstock/core/fault"
	"penstock/core/kv"
)

// noEntry is the index of no entry.
const noEntry = int32(-1)

// pinMask has one bit for each owner, in the pins of an entry. The bits above it are a number which changes when the pins
// of an owner are taken back.
const pinMask = 1<<maxOwners - 1

// Found is what a pool knows of a block.
type Found struct {
	// State is LocalGPU if the pool knows nothing of the block.
	State kv.PoolState
	// Ref is valid if the block was acquired.
	Ref      BlockRef
	Identity kv.Digest // of the content which was wanted
	Label    kv.MoELabel
	Mover    kv.Worker // which has put it into the pool, or is about to
}

// place is where a block is: the state is vacant if it is nowhere.
type place struct {
	entry int32
	word  entryWord
	state entryState
	head  entryHead
}

// locate finds the entry of the block in p.want, but not the entry except. It evicts damaged entries on its way. Of an
// entry in transit only name, identity and mover are read.
func (p *View) locate(want *entryHead, except int32) (found place) {
	home, tag := p.mixName(want.name)
	for i := range indexWindow {
		w := indexWord(p.words.Load(p.indexWordAt(home, i)))
		if w.tag() != packIndex(tag, 0, 0).tag() {
			continue
		}
		e, word, ok := p.resolveIndex(w)
		if !ok || e == except {
			continue
		}
		h, record, valid := p.loadContent(e, word.generation())
		if p.loadEntry(e) != word {
			continue
		}
		same := h.name == want.name && h.identity == want.identity
		switch {
		case word.state() == entryInTransit:
			if same && (found.state == entryVacant || e < found.entry) {
				found = place{e, word, entryInTransit, h}
			}
		case !valid:
			block := EvictedBlock{h.name, h.mover}
			if !p.isIndexed(e, h.name, word) { // the name is damaged, too, and the index leads here by the wanted one
				block.Name = want.name
			}
			p.evictDamaged(e, word.generation(), block)
		case same && bytes.Equal(record, p.wantedRecord()):
			return place{e, word, entryPooled, h}
		}
	}
	return found
}

// maxDamaged is how many evicted blocks wait for TakeDamaged. No damaged block is evicted while there are as many.
const maxDamaged = 1024

// evictDamaged evicts a block which is not what was published.
func (p *View) evictDamaged(e int32, generation uint32, block EvictedBlock) {
	if len(p.damaged) < maxDamaged && p.swapEntry(e, packEntry(entryPooled, 0, 0, generation), packEntry(entryEvicted, 0, 0, generation)) {
		p.damaged = append(p.damaged, block)
	}
}

// TakeDamaged appends the blocks which this view has evicted since the last call because they were damaged: by any method
// which looks blocks up or reads them. The mover of such a block is a guess. It allocates nothing if there are none.
func (p *View) TakeDamaged(dst []EvictedBlock) []EvictedBlock {
	dst = append(dst, p.damaged...)
	p.damaged = p.damaged[:0]
	return dst
}

// HasDamaged reports whether TakeDamaged appends blocks.
func (p *View) HasDamaged() bool { return len(p.damaged) > 0 }

// Find returns what the pool knows of a block, and acquires nothing.
func (p *View) Find(c *Content) (Found, error) {
	if err := p.checkContent(c); err != nil {
		return Found{}, err
	}
	return p.findContent(c, nil), nil
}

// findContent returns what the pool knows of a block, and marks it as used by use, unless that is nil.
func (p *View) findContent(c *Content, use *Use) Found {
	want := entryHead{name: c.Name, identity: p.prepareRecord(c)}
	f := Found{State: kv.LocalGPU, Identity: want.identity}
	if at := p.locate(&want, noEntry); at.state != entryVacant {
		f.State, f.Label, f.Mover = kv.PoolState(at.state), at.head.label, at.head.mover
		if use != nil && at.state == entryPooled {
			if use.tick == 0 {
				use.tick = p.nextTick()
			}
			p.touchEntry(at.entry, use.tick, c.Index)
		}
	} else if h, ok := p.findHistory(c.Name, &want.identity); ok {
		f.State, f.Label, f.Mover = kv.Evicted, h.label, h.mover
	}
	return f
}

// Use is one use of the blocks of one sequence, whose last one is evicted first. The zero value is a new use.
type Use struct {
	tick uint64 // 0 before the first block
}

// FindUsed is Find, and a block in the pool counts as used by use, as of the first block which use found.
func (p *View) FindUsed(c *Content, use *Use) (Found, error) {
	if err := p.checkContent(c); err != nil {
		return Found{}, err
	}
	return p.findContent(c, use), nil
}

// Acquire finds a pooled block and pins it: its memory stays as it is until Release, unless the lease of this owner ends.
// It reports whether the block is there. It allocates no memory.
func (p *View) Acquire(c *Content) (Found, bool) {
	if !p.IsOwner() || p.checkContent(c) != nil {
		return Found{}, false
	}
	want := entryHead{name: c.Name, identity: p.prepareRecord(c)}
	at := p.locate(&want, noEntry)
	if at.state != entryPooled || p.holds[at.entry] == 0 && !p.setPin(at.entry) {
		return Found{}, false
	}
	p.holds[at.entry]++
	f := Found{
		State: kv.Pooled, Identity: want.identity, Label: at.head.label, Mover: at.head.mover,
		Ref: BlockRef{at.entry, at.word.generation(), at.head.dataSum, p.joins, EvictedBlock{c.Name, at.head.mover}},
	}
	if p.loadEntry(at.entry) != at.word {
		p.dropHold(at.entry)
		return Found{}, false
	}
	return f, true
}

// Release gives an acquired block back. The blocks of a sequence are released last to first, because the block which was
// released first is evicted first.
func (p *View) Release(ref BlockRef) {
	if p.isHeld(ref) {
		p.touchEntry(ref.Entry, p.nextTick(), 0)
		p.dropHold(ref.Entry)
	}
}

func (p *View) isHeld(ref BlockRef) bool {
	return p.life != 0 && ref.joins == p.joins && ref.Entry >= 0 && int(ref.Entry) < p.lay.blocks && p.holds[ref.Entry] > 0
}

func (p *View) dropHold(e int32) {
	if p.holds[e]--; p.holds[e] == 0 {
		p.changePins(e, func(pins uint64) uint64 { return unpinBit(pins, p.owner) })
	}
}

func (p *View) setPin(e int32) bool {
	return p.changePins(e, func(pins uint64) uint64 { return pins | 1<<p.owner })
}

// changePins changes the pins of an entry if this process still is an owner. See finishOwner.
func (p *View) changePins(e int32, change func(uint64) uint64) bool {
	at := p.lay.entryAt(e) + wordPins
	for {
		pins := p.words.Load(at)
		if !p.IsOwner() {
			return false
		}
		if p.words.CompareAndSwap(at, pins, change(pins)) {
			return true
		}
	}
}

// Read copies an acquired block, and verifies the copy. It is ErrGone if the block was not acquired, or the lease of this
// owner was ended and the memory has another block; ErrDamaged if it is not what was published. The content of dst, which
// has BlockBytes, is undefined after an error.
func (p *View) Read(ref BlockRef, dst []byte) error {
	if len(dst) != p.lay.blockBytes {
		return fault.New(fault.Invalid, "pool: %d bytes for a block of %d", len(dst), p.lay.blockBytes)
	}
	return p.checkData(ref, dst)
}

// Verify computes the checksum of an acquired block in place. What was computed with the block before is right if it
// returns nil. It has the errors of Read.
func (p *View) Verify(ref BlockRef) error { return p.checkData(ref, nil) }

// checkData computes the checksum of a block, whose bytes are copied to dst unless it is nil.
//
// A processor may read bytes after it read the state of the entry below, so the state alone proves nothing.
func (p *View) checkData(ref BlockRef, dst []byte) error {
	if !p.isHeld(ref) {
		return ErrGone
	}
	sum, err := p.sumData(ref.Entry, ref.Generation, dst)
	word := p.loadEntry(ref.Entry)
	switch {
	case word.generation() != ref.Generation || word.state() == entryInTransit:
		return ErrGone
	case err != nil:
		p.evictDamaged(ref.Entry, ref.Generation, ref.block)
		return fault.New(fault.PoolLost, "pool: a block cannot be read: %w", err)
	case sum != ref.sum:
		p.evictDamaged(ref.Entry, ref.Generation, ref.block)
		return ErrDamaged
	}
	return nil
}

// sumData returns the checksum of a block: XXH3-64 of each chunk, with that of the chunk before it as the seed, and the
// generation of the entry as the first one.
func (p *View) sumData(e int32, generation uint32, dst []byte) (uint64, error) {
	sum := uint64(generation)
	for done := 0; done < p.lay.blockBytes; {
		chunk := p.chunk[:min(ChunkBytes, p.lay.blockBytes-done)]
		if dst != nil {
			chunk = dst[done : done+len(chunk)]
		}
		if err := p.data.CopyOut(chunk, p.lay.blockAt(e)+done); err != nil {
			return 0, err
		}
		sum = kv.ContentHash(sum, chunk)
		done += len(chunk)
	}
	return sum, nil
}
