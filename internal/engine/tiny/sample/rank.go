package sample

import (
	"math"
	"slices"

	"penstock/core/kv"
)

// tokenRank is a token's place in the order "larger logit, then lower id" as one integer: the smaller, the
// better. The upper half is the logit's bit pattern made monotone and inverted, the lower half is the id.
type tokenRank uint64

const lastRank tokenRank = math.MaxUint64

func rankOf(logits []float32, token int) tokenRank {
	b := math.Float32bits(logits[token] + 0) // + 0 makes -0 equal to 0
	if b>>31 == 0 {
		b ^= 1<<31 - 1 // positive: larger first, in the lower half of the range
	}
	return tokenRank(b)<<32 | tokenRank(token)
}

func (r tokenRank) tokenID() kv.Token { return kv.Token(uint32(r)) }

// worstRank returns the largest of ranks, which is not empty.
func worstRank(ranks []tokenRank) tokenRank { return slices.Max(ranks) }

// sortBest moves the k best of ranks to its front, in order.
func sortBest(ranks []tokenRank, k int) {
	if k < len(ranks) {
		selectBest(ranks, k)
	}
	slices.Sort(ranks[:k])
}

// selectBest moves the k best of ranks to its front, in no order: Hoare's
// selection with the median of three as pivot, O(len(ranks)) as a rule. Ranks
// are distinct. k is in [1, len(ranks)].
func selectBest(ranks []tokenRank, k int) {
	low, high := 0, len(ranks)-1
	for low < high {
		pivot := medianRank(ranks[low], ranks[low+(high-low)/2], ranks[high])
		i, j := low, high
		for i <= j {
			for ranks[i] < pivot {
				i++
			}
			for ranks[j] > pivot {
				j--
			}
			if i <= j {
				ranks[i], ranks[j] = ranks[j], ranks[i]
				i++
				j--
			}
		}
		switch {
		case k-1 <= j:
			high = j
		case k-1 >= i:
			low = i
		default:
			return
		}
	}
}

func medianRank(a, b, c tokenRank) tokenRank {
	return max(min(a, b), min(max(a, b), c))
}
