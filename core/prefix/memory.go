package prefix

import (
	"math/bits"
	"unsafe"

	"penstock/core/kv"
)

// memoryBytes returns the memory of v with everything it refers to.
func (v *pageVersion) memoryBytes() int {
	n := allocBytes(int(unsafe.Sizeof(pageVersion{}))) + allocBytes(int(unsafe.Sizeof(kv.SeqHash(0)))*cap(v.hashes))
	if v.more != nil {
		n += allocBytes(int(unsafe.Sizeof(extraHolders{}))) +
			allocPointerBytes(int(unsafe.Sizeof(holderGroup{}))*cap(v.more.groups)) +
			allocPointerBytes(int(unsafe.Sizeof(pooledBlocks{}))*cap(v.more.pools))
		for _, p := range v.more.pools {
			n += allocBytes(int(unsafe.Sizeof(blockLabels{})) * cap(p.labels))
		}
	}
	if v.lasts != nil {
		n += allocBytes(int(unsafe.Sizeof(lastHashes{})))
	}
	v.eachGroup(func(g *holderGroup) {
		n += allocBytes(8 * cap(g.set.rest))
		if g.ext != nil {
			n += allocBytes(int(unsafe.Sizeof(groupExt{}))) + allocBytes(int(unsafe.Sizeof(blockLabels{}))*cap(g.ext.labels))
		}
	})
	return n
}

// allocBytes returns the size of an allocation of n bytes: Go's size classes are steps of at most an eighth,
// or of 8 and 16 bytes where that is more.
func allocBytes(n int) int {
	switch {
	case n <= 8:
		return (n + 7) &^ 7
	case n <= 128:
		return (n + 15) &^ 15
	case n > 32<<10:
		return (n + 8<<10 - 1) &^ (8<<10 - 1)
	}
	step := 1 << (bits.Len(uint(n-1)) - 4)
	return (n + step - 1) &^ (step - 1)
}

// allocPointerBytes is allocBytes for memory with pointers: larger allocations have a header word.
func allocPointerBytes(n int) int {
	if n > 512 && n <= 32<<10-8 {
		n += 8
	}
	return allocBytes(n)
}
