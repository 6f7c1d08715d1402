package pool

import (
	"encoding/binary"

	"penstock/core/kv"
)

// Offsets of the words of an entry. The record of its content follows.
const (
	wordState        = 0
	wordPins         = 8
	wordUsed         = 16
	wordName         = 24 // the first word which the checksum of the entry covers
	wordEntryID      = 32 // identity, four words
	wordMover        = 64
	wordMoverRank    = 72
	wordLabel        = 80 // fields, layer<<32
	wordLabelExpert  = 88 // expert, group<<32
	wordDataSum      = 96
	wordRecordLength = 104
	wordEntrySum     = 112
	recordAt         = 128
)

// entryState is the state of an entry.
type entryState uint8

// The states. The generation of an entry is one more each time it is reserved.
//
//	vacant, evicted, without pins  Reserve                      in transit
//	in transit                     Publish                      pooled
//	in transit                     Abort; its owner is dead     evicted
//	pooled                         its place is wanted, damage  evicted
//
// Each change is one compare-and-swap. So an owner which was paused cannot publish what was taken from it.
const (
	entryVacant    = entryState(0) // it never had a block
	entryInTransit = entryState(kv.InTransit)
	entryPooled    = entryState(kv.Pooled)
	entryEvicted   = entryState(kv.Evicted)
)

// entryWord is the state of an entry and its generation; of one in transit also the owner which reserved it, and the
// epoch of that owner.
type entryWord uint64

func packEntry(s entryState, owner int, epoch uint16, generation uint32) entryWord {
	return entryWord(s) | entryWord(owner)<<8 | entryWord(epoch)<<16 | entryWord(generation)<<32
}

func (w entryWord) state() entryState { return entryState(w) }

func (w entryWord) owner() int { return int(w >> 8 & 0xff) }

func (w entryWord) epoch() uint16 { return uint16(w >> 16) }

func (w entryWord) generation() uint32 { return uint32(w >> 32) }

func (p *View) loadEntry(e int32) entryWord {
	return entryWord(p.words.Load(p.lay.entryAt(e) + wordState))
}

func (p *View) swapEntry(e int32, old, next entryWord) bool {
	return p.words.CompareAndSwap(p.lay.entryAt(e)+wordState, uint64(old), uint64(next))
}

// entryHead is what an entry has beside its record.
type entryHead struct {
	name     kv.SeqHash
	identity kv.Digest
	mover    kv.Worker
	label    kv.MoELabel
	dataSum  uint64
}

// headBytes is how many bytes of an entry's head its checksum covers, beside that of the data.
const headBytes = wordDataSum - wordName

// appendHead appends the words of a head to dst, without the checksum of the data.
func (h *entryHead) appendHead(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.name))
	dst = append(dst, h.identity[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.mover.ID))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.mover.Rank))
	dst = appendPair(dst, uint32(h.label.Has), h.label.Layer)
	return appendPair(dst, h.label.Expert, h.label.Group)
}

// decodeHead decodes headBytes bytes.
func (h *entryHead) decodeHead(b []byte) {
	h.name = kv.SeqHash(binary.LittleEndian.Uint64(b))
	copy(h.identity[:], b[wordEntryID-wordName:])
	h.mover.ID = kv.WorkerID(binary.LittleEndian.Uint64(b[wordMover-wordName:]))
	h.mover.Rank = uint32(binary.LittleEndian.Uint64(b[wordMoverRank-wordName:]))
	h.label.Has = kv.MoEFields(b[wordLabel-wordName])
	h.label.Layer = binary.LittleEndian.Uint32(b[wordLabel-wordName+4:])
	h.label.Expert = binary.LittleEndian.Uint32(b[wordLabelExpert-wordName:])
	h.label.Group = binary.LittleEndian.Uint32(b[wordLabelExpert-wordName+4:])
}

func appendPair(dst []byte, low, high uint32) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, low)
	return binary.LittleEndian.AppendUint32(dst, high)
}

// storeContent writes head and record of an entry which this owner has reserved, and returns the checksum of both. Only
// storeSums makes them valid.
func (p *View) storeContent(e int32, generation uint32, h *entryHead, record []byte) uint64 {
	b := append(h.appendHead(p.have[:0]), record...)
	p.have = b
	at := p.lay.entryAt(e)
	for i := 0; i < headBytes; i += 8 {
		p.words.Store(at+wordName+i, binary.LittleEndian.Uint64(b[i:]))
	}
	p.words.Store(at+wordRecordLength, uint64(len(record)))
	for i := headBytes; i < len(b); i += 8 {
		p.words.Store(at+recordAt-headBytes+i, binary.LittleEndian.Uint64(b[i:]))
	}
	return kv.ContentHash(uint64(generation), b)
}

// sumEntry returns the checksum of an entry, which covers the checksums of its content and of its data.
func sumEntry(contentSum, dataSum uint64) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], dataSum)
	return kv.ContentHash(contentSum, b[:])
}

// loadContent reads head and record of an entry, and reports whether their checksum is right for a generation. The record
// is valid until the next method of p.
func (p *View) loadContent(e int32, generation uint32) (h entryHead, record []byte, ok bool) {
	at := p.lay.entryAt(e)
	length := p.words.Load(at + wordRecordLength)
	b := p.have[:0]
	for i := 0; i < headBytes; i += 8 {
		b = binary.LittleEndian.AppendUint64(b, p.words.Load(at+wordName+i))
	}
	h.decodeHead(b)
	if length > maxRecord(uint64(p.lay.tokens)) || length%8 != 0 {
		return h, nil, false
	}
	for i := 0; i < int(length); i += 8 {
		b = binary.LittleEndian.AppendUint64(b, p.words.Load(at+recordAt+i))
	}
	p.have = b
	h.dataSum = p.words.Load(at + wordDataSum)
	return h, b[headBytes:], p.words.Load(at+wordEntrySum) == sumEntry(kv.ContentHash(uint64(generation), b), h.dataSum)
}
