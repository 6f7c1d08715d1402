package token

import "penstock/core/kv"

// mergeResult is the result of merging two neighbouring tokens.
type mergeResult struct {
	rank uint32 // position in the list of merges; lower goes first
	id   kv.Token
}

// noMerge is the rank of two tokens which do not merge.
const noMerge = ^uint32(0)

// golden is 2^64 over the golden ratio, for Fibonacci hashing: the upper bits of a product with it are well
// distributed.
const golden = 0x9E3779B97F4A7C15

// pairTable is the merge table: open addressing over a power of two of slots, at most two thirds full.
// Encoding spends its time in this lookup, mostly waiting for memory, so a slot is one number. The merge
// results are stored apart, since they are needed only when a merge is done.
type pairTable struct {
	slots []pairSlot
	shift uint8      // 64 minus the binary logarithm of len(slots)
	ids   []kv.Token // results, by rank
}

// pairSlot is the left token and the right one, of 21 bits each as in [maxID], and the rank.
type pairSlot uint64

const (
	pairIDBits   = 21
	pairRankBits = 22
	// noPair is an empty slot: its rank is above maxMerges.
	noPair = ^pairSlot(0)
	// maxMerges bounds ranks: six times the ranks of the largest vocabularies in use.
	maxMerges = 1<<pairRankBits - 1
)

// pairKey is the slot of a pair without the rank.
func pairKey(left, right kv.Token) pairSlot {
	return pairSlot(left)<<(pairIDBits+pairRankBits) | pairSlot(right)<<pairRankBits
}

// rank is the rank of a slot in use.
func (s pairSlot) rank() uint32 { return uint32(s) & (1<<pairRankBits - 1) }

func newPairTable(n int) *pairTable {
	bits := uint8(4)
	for 1<<bits < n+n/2 {
		bits++
	}
	p := &pairTable{slots: make([]pairSlot, 1<<bits), shift: 64 - bits, ids: make([]kv.Token, 0, n)}
	for i := range p.slots {
		p.slots[i] = noPair
	}
	return p
}

// addMerge stores a merge of tokens below maxID, with a rank below maxMerges. The last one of a pair wins, as
// in the reference.
func (p *pairTable) addMerge(left, right kv.Token, m mergeResult) {
	*p.findSlot(pairKey(left, right)) = pairKey(left, right) | pairSlot(m.rank)
	for int(m.rank) >= len(p.ids) {
		p.ids = append(p.ids, 0)
	}
	p.ids[m.rank] = m.id
}

// lookupRank returns the rank at which two tokens merge, noMerge if they do not.
func (p *pairTable) lookupRank(left, right kv.Token) uint32 {
	if slot := *p.findSlot(pairKey(left, right)); slot != noPair {
		return slot.rank()
	}
	return noMerge
}

// mergedID returns the result of the merge of a rank.
func (p *pairTable) mergedID(rank uint32) kv.Token { return p.ids[rank] }

// findSlot returns the slot of the pair, or the free slot where it belongs.
func (p *pairTable) findSlot(key pairSlot) *pairSlot {
	mask := len(p.slots) - 1
	for i := int(uint64(key) * golden >> p.shift); ; i++ {
		slot := &p.slots[i&mask]
		if *slot == noPair || *slot>>pairRankBits == key>>pairRankBits {
			return slot
		}
	}
}
