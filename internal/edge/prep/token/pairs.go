package token

import "penstock/core/kv"

// merge is what two neighbouring tokens become.
type merge struct {
	rank uint32 // position in the list of merges; lower goes first
	id   kv.Token
}

// noMerge is the rank of two tokens that do not merge.
const noMerge = ^uint32(0)

// golden is 2^64 over the golden ratio, for Fibonacci hashing: the upper bits of
// a product with it are spread well.
const golden = 0x9E3779B97F4A7C15

// pairs is the merge table: open addressing over a power of two of slots, at
// most half full, because this lookup is where encoding spends its time.
type pairs struct {
	slots []pairSlot
	shift uint8 // 64 minus the binary logarithm of len(slots)
}

type pairSlot struct {
	left, right kv.Token
	merge
	used bool
}

func newPairs(n int) *pairs {
	bits := uint8(4)
	for 1<<bits < 2*n {
		bits++
	}
	return &pairs{slots: make([]pairSlot, 1<<bits), shift: 64 - bits}
}

// add stores a merge. The last one of a pair counts, as in the reference.
func (p *pairs) add(left, right kv.Token, m merge) {
	*p.slot(left, right) = pairSlot{left: left, right: right, merge: m, used: true}
}

// lookup returns what two tokens become, of the rank noMerge if nothing.
func (p *pairs) lookup(left, right kv.Token) merge {
	if slot := p.slot(left, right); slot.used {
		return slot.merge
	}
	return merge{rank: noMerge}
}

// slot returns where the pair is, or the free slot where it would be.
func (p *pairs) slot(left, right kv.Token) *pairSlot {
	key := uint64(left)<<32 | uint64(right)
	mask := len(p.slots) - 1
	for i := int(key * golden >> p.shift); ; i = (i + 1) & mask {
		slot := &p.slots[i]
		if !slot.used || slot.left == left && slot.right == right {
			return slot
		}
	}
}
