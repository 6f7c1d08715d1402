// Package embregion shares the memory of embedding caches between the processes of a host: a worker which misses an
// object copies its rows out of the memory of another worker, without a message to it.
//
// An [Owner] has the memory of one embedding cache, and a table of its entries in front of it. [Readers] map the regions
// of other workers for reading. Neither waits for the other: the owner may change an entry at any time, and a reader which
// finds after its copy that the entry, its epoch or its digest is not what it was has a miss. While it copies, a reader
// has a lease, so that the owner prefers other entries for eviction; a lease ends after [MaxLease], or with its process.
//
// docs/format/embedding-region.md has the region in bytes.
package embregion

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"
	"unsafe"

	"penstock/core/kv"
	"penstock/internal/plane/xfer"
)

// Offsets of the words of a region's header.
const (
	wordMagic   = 0
	wordVersion = 8
	wordEpoch   = 16
	wordSlots   = 24
	wordDataAt  = 32
	wordData    = 40
	tableAt     = 4096
)

const (
	// regionMagic is "pensrows", little-endian.
	regionMagic   = 0x73776f72736e6570
	regionVersion = 1
)

// The table: a key belongs to one bucket, and its entry is in one of the bucket's slots.
const (
	slotSize    = 128
	bucketSlots = 8
	minSlots    = 64
	maxSlots    = 1 << 20
	// bytesPerSlot is how much memory of the cache has one slot: the table takes 1/64 of it.
	bytesPerSlot = 8 << 10
)

// Offsets of the words of a slot.
const (
	wordGeneration = 0 // odd while the slot changes
	wordKey        = 8 // four words
	wordOffset     = 40
	wordLength     = 48 // 0: the slot has no entry
	wordDigest     = 56
	wordKind       = 64 // kind, element type<<8, layers<<32
	wordShape      = 72 // rows, width<<32
	wordGrid       = 80 // the first two numbers, the second<<32
	wordGridLast   = 88
	wordUntil      = 96
)

// Leases are in a reader's notes.
const (
	leaseSize  = 64
	leaseCount = xfer.NotesSize / leaseSize
	// Offsets of the words of a lease.
	wordLeased          = 0 // 1 + index of the slot; 0 is no lease
	wordLeaseGeneration = 8
	wordLeaseUntil      = 16
)

// MaxLease is how long an owner respects the lease of a reader which does not end it.
const MaxLease = time.Second

// pageSize aligns the memory of the cache in its region.
const pageSize = 4096

// memory is a region, or the notes of a reader. Words are in the byte order of the machine, and accessed atomically.
type memory []byte

func (m memory) word(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&m[at])) }

func (m memory) load(at int) uint64 { return m.word(at).Load() }

// layout says where things are in a region.
type layout struct {
	slots  int // a power of two
	dataAt int
	data   int // bytes
}

// newLayout returns the layout of a region for a cache of a capacity.
func newLayout(capacity int) layout {
	slots := min(max(capacity/bytesPerSlot, minSlots), maxSlots)
	slots = 1 << bits.Len(uint(slots-1))
	return layout{slots: slots, dataAt: roundPage(tableAt + slots*slotSize), data: capacity}
}

func (l *layout) size() int { return roundPage(l.dataAt + l.data) }

func roundPage(n int) int { return (n + pageSize - 1) / pageSize * pageSize }

// writeHeader writes the header of a region, its magic last.
func (l *layout) writeHeader(m memory, epoch uint64) {
	m.word(wordVersion).Store(regionVersion)
	m.word(wordEpoch).Store(epoch)
	m.word(wordSlots).Store(uint64(l.slots))
	m.word(wordDataAt).Store(uint64(l.dataAt))
	m.word(wordData).Store(uint64(l.data))
	m.word(wordMagic).Store(regionMagic)
}

var (
	errNoRegion    = errors.New("the memory is no embedding cache of this version")
	errOwnerClosed = errors.New("the owner of the region has ended")
)

// readHeader reads the header of a region which may have any content. What it returns is within m.
func readHeader(m memory) (l layout, epoch uint64, err error) {
	if len(m) < tableAt || m.load(wordMagic) != regionMagic || m.load(wordVersion) != regionVersion {
		return l, 0, errNoRegion
	}
	epoch = m.load(wordEpoch)
	slots, dataAt, data := m.load(wordSlots), m.load(wordDataAt), m.load(wordData)
	switch {
	case epoch == 0:
		return l, 0, errOwnerClosed
	case slots < bucketSlots || slots > maxSlots || slots&(slots-1) != 0 || dataAt < tableAt+slots*slotSize ||
		dataAt%pageSize != 0 || dataAt > uint64(len(m)) || data > uint64(len(m))-dataAt:
		return l, 0, fmt.Errorf("a region of %d bytes with %d slots, and %d bytes at %d", len(m), slots, data, dataAt)
	}
	return layout{slots: int(slots), dataAt: int(dataAt), data: int(data)}, epoch, nil
}

// bucketOf returns the index of the first slot of a key's bucket.
func (l *layout) bucketOf(key *kv.Digest) int {
	return int(binary.LittleEndian.Uint64(key[:])&uint64(l.slots-1)) / bucketSlots * bucketSlots
}

// slotWords are the words of a slot after its generation.
type slotWords struct {
	key                    [4]uint64
	offset, length, digest uint64
	kind, shape            uint64
	grid, gridLast, until  uint64
}

// keyWords returns a key as it is in a slot.
func keyWords(key *kv.Digest) (w [4]uint64) {
	for i := range w {
		w[i] = binary.NativeEndian.Uint64(key[8*i:])
	}
	return w
}

func slotAt(index int) int { return tableAt + index*slotSize }

// store replaces the content of a slot, which only one goroutine does at a time. The generation is odd meanwhile.
func (w *slotWords) store(m memory, index int) (generation uint64) {
	at := slotAt(index)
	m.word(at + wordGeneration).Add(1)
	for i, v := range w.key {
		m.word(at + wordKey + 8*i).Store(v)
	}
	for _, f := range [...]struct {
		at int
		v  uint64
	}{
		{wordOffset, w.offset},
		{wordLength, w.length},
		{wordDigest, w.digest},
		{wordKind, w.kind},
		{wordShape, w.shape},
		{wordGrid, w.grid},
		{wordGridLast, w.gridLast},
		{wordUntil, w.until},
	} {
		m.word(at + f.at).Store(f.v)
	}
	return m.word(at + wordGeneration).Add(1)
}

// loadSlot returns the content of a slot and its generation; ok is false while it changes.
func loadSlot(m memory, index int) (w slotWords, generation uint64, ok bool) {
	at := slotAt(index)
	if generation = m.load(at + wordGeneration); generation&1 != 0 {
		return w, 0, false
	}
	for i := range w.key {
		w.key[i] = m.load(at + wordKey + 8*i)
	}
	w.offset, w.length, w.digest = m.load(at+wordOffset), m.load(at+wordLength), m.load(at+wordDigest)
	w.kind, w.shape = m.load(at+wordKind), m.load(at+wordShape)
	w.grid, w.gridLast, w.until = m.load(at+wordGrid), m.load(at+wordGridLast), m.load(at+wordUntil)
	return w, generation, m.load(at+wordGeneration) == generation
}

// packGrid returns a grid as it is in a slot.
func packGrid(grid [3]int) (first, last uint64) {
	return uint64(uint32(grid[0])) | uint64(uint32(grid[1]))<<32, uint64(uint32(grid[2]))
}

func (w *slotWords) unpackGrid() [3]int {
	return [3]int{int(uint32(w.grid)), int(w.grid >> 32), int(uint32(w.gridLast))}
}

func packPair(low, high int) uint64 { return uint64(uint32(low)) | uint64(uint32(high))<<32 }
