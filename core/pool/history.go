package pool

import (
	"encoding/binary"

	"penstock/core/kv"
)

// The history keeps the metadata of blocks which were evicted, until newer ones take their place. Each record is valid by
// its own checksum. A record which two processes wrote at once, or one did not finish, is lost.

// Offsets of the words of a record in the history.
const (
	wordHistoryCount = 0 // odd while the record changes; 0: it was never written
	wordHistoryTick  = 8
	wordHistoryHead  = 16 // as in an entry
	wordHistorySum   = wordHistoryHead + headBytes
)

func (p *View) historyAt(name kv.SeqHash, way int) int {
	home, _ := p.mixName(name)
	set := home & (p.lay.historySets - 1)
	return p.lay.historyAt + (set*historyWays+way)*historySize
}

// loadHistory reads a record; ok is false if it is not valid.
func (p *View) loadHistory(at int) (h entryHead, count, tick uint64, ok bool) {
	count = p.words.Load(at + wordHistoryCount)
	tick = p.words.Load(at + wordHistoryTick)
	var b [8 + headBytes]byte
	binary.LittleEndian.PutUint64(b[:], tick)
	for i := 0; i < headBytes; i += 8 {
		binary.LittleEndian.PutUint64(b[8+i:], p.words.Load(at+wordHistoryHead+i))
	}
	h.decodeHead(b[8:])
	return h, count, tick, count != 0 && count%2 == 0 && p.words.Load(at+wordHistorySum) == kv.ContentHash(count, b[:])
}

// keepHistory writes the metadata of a block which is about to be evicted, in the place of an older record.
func (p *View) keepHistory(h *entryHead) {
	at, oldest, count := 0, ^uint64(0), uint64(0)
	for way := range historyWays {
		place := p.historyAt(h.name, way)
		old, n, tick, ok := p.loadHistory(place)
		switch {
		case ok && old.name == h.name && old.identity == h.identity:
			tick = 0 // its own
		case !ok:
			tick = 1
		}
		if at == 0 || tick < oldest {
			at, oldest, count = place, tick, n
		}
	}
	writing := (count + 1) | 1
	if !p.words.CompareAndSwap(at+wordHistoryCount, count, writing) {
		return // another process keeps another block here
	}
	b := binary.LittleEndian.AppendUint64(p.have[:0], p.nextTick())
	b = h.appendHead(b)
	p.have = b
	for i := 0; i < len(b); i += 8 {
		p.words.Store(at+wordHistoryTick+i, binary.LittleEndian.Uint64(b[i:]))
	}
	p.words.Store(at+wordHistorySum, kv.ContentHash(writing+1, b))
	p.words.CompareAndSwap(at+wordHistoryCount, writing, writing+1) // otherwise the record is another process's
}

// findHistory returns the metadata of a block which was evicted.
func (p *View) findHistory(name kv.SeqHash, identity *kv.Digest) (h entryHead, ok bool) {
	for way := range historyWays {
		h, _, _, ok := p.loadHistory(p.historyAt(name, way))
		if ok && h.name == name && h.identity == *identity {
			return h, true
		}
	}
	return entryHead{}, false
}
