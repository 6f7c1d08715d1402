package pool

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	"penstock/core/kv"
)

// Stats are figures of a pool at one moment, by a walk over all entries.
type Stats struct {
	Owners             int // live ones
	InTransit, Pooled  int // blocks
	Pinned             int // entries with pins, whatever their state
	Vacant, EvictedNow int // places without a block; EvictedNow had one
}

// Stats returns the figures of now.
func (p *View) Stats() (s Stats) {
	for i := range maxOwners {
		if p.loadLife(i).state() == lifeLive {
			s.Owners++
		}
	}
	for e := range int32(p.lay.blocks) {
		switch p.loadEntry(e).state() {
		case entryInTransit:
			s.InTransit++
		case entryPooled:
			s.Pooled++
		case entryEvicted:
			s.EvictedNow++
		default:
			s.Vacant++
		}
		if p.words.Load(p.lay.entryAt(e)+wordPins)&pinMask != 0 {
			s.Pinned++
		}
	}
	return s
}

// Check walks the pool, with all K and V in it, and reports each inconsistency; nil if there is none. No process may
// change the pool meanwhile. An entry in transit whose owner is gone is none: it counts as evicted.
func (p *View) Check() error {
	var all []error
	report := func(format string, args ...any) { all = append(all, fmt.Errorf("pool: "+format, args...)) }
	var live uint64
	for i := range maxOwners {
		switch life := p.loadLife(i); life.state() {
		case lifeFree:
		case lifeLive, lifeJoining:
			live |= 1 << i
		case lifeEnding:
			report("owner %d of epoch %d has ended, and not all which was its own is taken back", i, life.epoch())
		default:
			report("owner %d has state %d", i, life.state())
		}
	}
	for e := range int32(p.lay.blocks) {
		if pins := p.words.Load(p.lay.entryAt(e)+wordPins) & pinMask; pins&^live != 0 {
			report("entry %d has pins %x, and only %x are live owners", e, pins, live)
		}
		word := p.loadEntry(e)
		switch word.state() {
		case entryVacant, entryInTransit, entryEvicted:
		case entryPooled:
			if err := p.checkEntry(e, word); err != nil {
				report("entry %d: %w", e, err)
			}
		default:
			report("entry %d has state %d", e, word.state())
		}
	}
	for i := range p.lay.indexWords {
		if e := indexWord(p.words.Load(indexAt+8*i)) & (1<<24 - 1); int(e) > p.lay.blocks {
			report("word %d of the index leads to entry %d of %d", i, e-1, p.lay.blocks)
		}
	}
	return errors.Join(all...)
}

// checkEntry returns what is wrong with a pooled entry.
func (p *View) checkEntry(e int32, word entryWord) error {
	h, record, ok := p.loadContent(e, word.generation())
	if !ok {
		return errors.New("its checksum is wrong")
	}
	if !bytes.HasPrefix(record, p.identity[:]) {
		return errors.New("it is of another model")
	}
	if kv.Digest(sha256.Sum256(append([]byte(recordDomain), record...))) != h.identity {
		return errors.New("its identity is not that of its record")
	}
	if !p.isIndexed(e, h.name, word) {
		return errors.New("the index does not lead to it")
	}
	sum, err := p.sumData(e, word.generation(), nil)
	if err == nil && sum != h.dataSum {
		err = errors.New("the checksum of its block is wrong")
	}
	return err
}

// isIndexed reports whether the index leads to an entry by its name.
func (p *View) isIndexed(e int32, name kv.SeqHash, word entryWord) bool {
	home, tag := p.mixName(name)
	for i := range indexWindow {
		if indexWord(p.words.Load(p.indexWordAt(home, i))) == packIndex(tag, word.generation(), e) {
			return true
		}
	}
	return false
}
