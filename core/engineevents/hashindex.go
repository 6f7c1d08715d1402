package engineevents

import (
	"math/bits"

	"penstock/core/kv"
)

// chunkedArray is a growing array whose elements never move: growing copies nothing and needs no second array.
type chunkedArray[T any] struct{ chunks []*[chunkLen]T }

const chunkLen = 1 << 10

// at returns element id, which must exist.
func (s *chunkedArray[T]) at(id uint32) *T { return &s.chunks[id/chunkLen][id%chunkLen] }

// ensure returns element id, which is at most one past the last, and allocates it if needed.
func (s *chunkedArray[T]) ensure(id uint32) *T {
	if int(id/chunkLen) == len(s.chunks) {
		s.chunks = append(s.chunks, new([chunkLen]T))
	}
	return s.at(id)
}

// hashIndex assigns small ids, from 1 on, to engine hashes. An id is reused once its hash is released. It
// is a hash table with linear probing, at most three quarters full. A slot has the id and half of the mixed
// hash, so that a lookup of an unknown hash reads no other memory.
type hashIndex struct {
	factor uint64 // odd
	slots  []indexSlot
	shift  uint // 32 less the bits of a position in slots
	hashes chunkedArray[kv.EngineHash]
	free   []uint32
	maxID  uint32 // the largest id assigned
	count  int
}

// indexSlot holds an id, and above it half of the mixed hash; 0 is empty.
type indexSlot uint64

func (s indexSlot) id() uint32   { return uint32(s) }
func (s indexSlot) hash() uint32 { return uint32(s >> 32) }

// mixHash mixes an engine hash: engines may send any values.
func (x *hashIndex) mixHash(name kv.EngineHash) uint32 {
	h := (uint64(name) ^ uint64(name)>>32) * x.factor
	h = (h ^ h>>32) * x.factor
	return uint32(h >> 32)
}

// findID returns the id of an engine hash, 0 if it has none.
func (x *hashIndex) findID(name kv.EngineHash) uint32 {
	if x.count == 0 {
		return 0
	}
	h, mask := x.mixHash(name), len(x.slots)-1
	for i := int(h >> x.shift); ; i = (i + 1) & mask {
		s := x.slots[i]
		if s == 0 || s.hash() == h && *x.hashes.at(s.id()) == name {
			return s.id()
		}
	}
}

// assignID assigns an id to a new engine hash.
func (x *hashIndex) assignID(name kv.EngineHash) uint32 {
	if 4*(x.count+1) > 3*len(x.slots) {
		x.growSlots()
	}
	var id uint32
	if k := len(x.free); k > 0 {
		id, x.free = x.free[k-1], x.free[:k-1]
	} else {
		x.maxID++
		id = x.maxID
		if id == 1 {
			x.hashes.ensure(0)
		}
	}
	*x.hashes.ensure(id) = name
	x.insertSlot(indexSlot(x.mixHash(name))<<32 | indexSlot(id))
	x.count++
	return id
}

func (x *hashIndex) insertSlot(s indexSlot) {
	mask := len(x.slots) - 1
	i := int(s.hash() >> x.shift)
	for x.slots[i] != 0 {
		i = (i + 1) & mask
	}
	x.slots[i] = s
}

func (x *hashIndex) growSlots() {
	old := x.slots
	size := max(64, 2*len(old))
	x.slots = make([]indexSlot, size)
	x.shift = uint(33 - bits.Len(uint(size)))
	for _, s := range old {
		if s != 0 {
			x.insertSlot(s)
		}
	}
}

// releaseID releases an id and its engine hash.
func (x *hashIndex) releaseID(id uint32) {
	mask := len(x.slots) - 1
	i := int(x.mixHash(*x.hashes.at(id)) >> x.shift)
	for x.slots[i].id() != id {
		i = (i + 1) & mask
	}
	// Later slots move up, except where that would put them before their home position.
	for j := i; ; {
		j = (j + 1) & mask
		next := x.slots[j]
		if next == 0 {
			break
		}
		if (j-int(next.hash()>>x.shift))&mask >= (j-i)&mask {
			x.slots[i] = next
			i = j
		}
	}
	x.slots[i] = 0
	x.free = append(x.free, id)
	x.count--
}

// clearIndex releases all ids and the memory.
func (x *hashIndex) clearIndex() { *x = hashIndex{factor: x.factor} }

// sizeBytes returns the memory of the index.
func (x *hashIndex) sizeBytes() int {
	return 8*cap(x.slots) + 4*cap(x.free) + 8*chunkLen*len(x.hashes.chunks)
}
