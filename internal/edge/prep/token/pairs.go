package token

import "penstock/core/kv"

// merge is what two neighbouring tokens become.
type merge struct {
	rank uint32 // position in the list of merges; lower goes first
	id   kv.Token
}

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

func (p *pairs) get(left, right kv.Token) (merge, bool) {
	slot := p.slot(left, right)
	return slot.merge, slot.used
}

// slot returns where the pair is, or the free slot where it would be.
func (p *pairs) slot(left, right kv.Token) *pairSlot {
	const golden = 0x9E3779B97F4A7C15 // Fibonacci hashing: 2^64 over the golden ratio
	key := uint64(left)<<32 | uint64(right)
	mask := len(p.slots) - 1
	for i := int(key * golden >> p.shift); ; i = (i + 1) & mask {
		slot := &p.slots[i]
		if !slot.used || slot.left == left && slot.right == right {
			return slot
		}
	}
}
