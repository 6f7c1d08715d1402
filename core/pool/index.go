package pool

import "penstock/core/kv"

// The index finds the entry of a name. It is only a hint: what it leads to is compared, and a word which leads to an
// entry of another generation, or to one which is evicted, counts as empty. So nothing must be removed from it.

// indexWord is a part of a name's hash, a part of an entry's generation, and 1 + the entry; 0 is empty.
type indexWord uint64

func packIndex(tag uint64, generation uint32, e int32) indexWord {
	return indexWord(tag>>40<<40) | indexWord(uint16(generation))<<24 | indexWord(e+1)
}

func (w indexWord) tag() uint64 { return uint64(w) >> 40 << 40 }

// mixName returns a name's place in the index, and its tag. The generation of the pool is random, so that a sender of
// requests cannot choose names which meet in one place (multiply-shift hashing).
func (p *View) mixName(name kv.SeqHash) (home int, tag uint64) {
	mixed := uint64(name) * (p.generation | 1)
	return int(mixed >> 32 & uint64(p.lay.indexWords-1)), mixed
}

func (p *View) indexWordAt(home, i int) int { return indexAt + 8*((home+i)&(p.lay.indexWords-1)) }

// resolveIndex returns the entry to which an index word leads; ok is false if the word counts as empty.
func (p *View) resolveIndex(w indexWord) (e int32, word entryWord, ok bool) {
	e = int32(w&(1<<24-1)) - 1
	if e < 0 || int(e) >= p.lay.blocks {
		return 0, 0, false
	}
	word = p.loadEntry(e)
	if uint16(word.generation()) != uint16(w>>24) {
		return 0, 0, false
	}
	switch word.state() {
	case entryPooled:
		return e, word, true
	case entryInTransit:
		return e, word, word.owner() < maxOwners && p.loadLife(word.owner()).owns(word.epoch())
	}
	return 0, 0, false
}

// putIndex makes the index lead to an entry, and reports whether there was room.
func (p *View) putIndex(name kv.SeqHash, e int32, generation uint32) bool {
	home, tag := p.mixName(name)
	next := packIndex(tag, generation, e)
	for i := range indexWindow {
		at := p.indexWordAt(home, i)
		w := indexWord(p.words.Load(at))
		if _, _, taken := p.resolveIndex(w); !taken && p.words.CompareAndSwap(at, uint64(w), uint64(next)) {
			return true
		}
	}
	return false
}
