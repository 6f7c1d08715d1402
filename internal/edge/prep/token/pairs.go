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
// most two thirds full, because this lookup is where encoding spends its time, and
// most of that waiting for memory: so a slot is one number. What a merge makes is
// asked for only when it is done, and is apart.
type pairs struct {
	slots []pairSlot
	shift uint8      // 64 minus the binary logarithm of len(slots)
	ids   []kv.Token // what is made, by rank
}

// pairSlot is the left token and the right one, of 21 bits each as [maxID] has it, and the rank.
type pairSlot uint64

const (
	pairIDBits   = 21
	pairRankBits = 22
	// noPair is a slot with none: maxMerges is less than its rank.
	noPair = ^pairSlot(0)
	// maxMerges bounds ranks: six times those of the largest vocabularies in use.
	maxMerges = 1<<pairRankBits - 1
)

// pairKey is the slot of a pair without the rank.
func pairKey(left, right kv.Token) pairSlot {
	return pairSlot(left)<<(pairIDBits+pairRankBits) | pairSlot(right)<<pairRankBits
}

// rank is that of a slot in use.
func (s pairSlot) rank() uint32 { return uint32(s) & (1<<pairRankBits - 1) }

func newPairs(n int) *pairs {
	bits := uint8(4)
	for 1<<bits < n+n/2 {
		bits++
	}
	p := &pairs{slots: make([]pairSlot, 1<<bits), shift: 64 - bits, ids: make([]kv.Token, 0, n)}
	for i := range p.slots {
		p.slots[i] = noPair
	}
	return p
}

// add stores a merge of tokens below maxID, of a rank below maxMerges. The last one of a
// pair counts, as in the reference.
func (p *pairs) add(left, right kv.Token, m merge) {
	*p.slot(pairKey(left, right)) = pairKey(left, right) | pairSlot(m.rank)
	for int(m.rank) >= len(p.ids) {
		p.ids = append(p.ids, 0)
	}
	p.ids[m.rank] = m.id
}

// rank returns that at which two tokens merge, noMerge if they do not.
func (p *pairs) rank(left, right kv.Token) uint32 {
	if slot := *p.slot(pairKey(left, right)); slot != noPair {
		return slot.rank()
	}
	return noMerge
}

// id returns what the merge of a rank makes.
func (p *pairs) id(rank uint32) kv.Token { return p.ids[rank] }

// slot returns where the pair is, or the free slot where it would be.
func (p *pairs) slot(key pairSlot) *pairSlot {
	mask := len(p.slots) - 1
	for i := int(uint64(key) * golden >> p.shift); ; i++ {
		slot := &p.slots[i&mask]
		if *slot == noPair || *slot>>pairRankBits == key>>pairRankBits {
			return slot
		}
	}
}
