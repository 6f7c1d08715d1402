package sample

import (
	"math"
	"math/bits"
	"slices"

	"penstock/core/exact"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// weightBits is the resolution of weights: the best token's is 1<<weightBits.
const weightBits = 44

// minExponent is below ln(2^-44): weights of tokens beneath it round down to zero.
const minExponent = -31

// drawToken picks one token of logits in proportion to its weight, steps 8 to 12 of the package's order. best
// is the best token; random is uniform over 64 bits.
func (s *Sampler) drawToken(logits []float32, best kv.Token, p *engine.Sampling, random uint64) kv.Token {
	s.computeWeights(logits, logits[best], p.Temperature)
	last := s.cutoffRank(logits, p)
	least := uint64(math.Ceil(p.MinP * (1 << weightBits)))

	var total uint64
	for i, w := range s.weights {
		if w == 0 || w < least || rankOf(logits, i) > last {
			s.weights[i] = 0
			continue
		}
		total += w
	}
	// floor(random × total / 2^64): every weight's share is exact to 2^-64 of the total.
	target, _ := bits.Mul64(random, total)
	for i, w := range s.weights {
		if target < w {
			return kv.Token(i)
		}
		target -= w
	}
	return best // not reached: target < total
}

// computeWeights fills s.weights for logits at a temperature above 0.
func (s *Sampler) computeWeights(logits []float32, largest float32, temperature float64) {
	for i, l := range logits {
		x := (float64(l) - float64(largest)) / temperature
		if !(x > minExponent) {
			s.weights[i] = 0
			continue
		}
		s.weights[i] = uint64(exact.Exp(x) * (1 << weightBits))
	}
}

// cutoffRank returns the last rank that top-k and top-p keep. Each of them keeps the first tokens of the
// ranking, so one bound suffices.
func (s *Sampler) cutoffRank(logits []float32, p *engine.Sampling) tokenRank {
	topK, topP := p.TopK > 0 && p.TopK < len(logits), p.TopP > 0 && p.TopP < 1
	if !topK && !topP {
		return lastRank
	}
	s.ranks = s.ranks[:0]
	for i, w := range s.weights {
		if w > 0 {
			s.ranks = append(s.ranks, rankOf(logits, i))
		}
	}
	last := lastRank
	if topK && p.TopK < len(s.ranks) {
		selectBest(s.ranks, p.TopK)
		s.ranks = s.ranks[:p.TopK]
		last = slices.Max(s.ranks)
	}
	if topP {
		last = s.nucleusRank(p.TopP)
	}
	return last
}

// nucleusRank returns the rank of the last token that top-p keeps of s.ranks. It sorts only as many of the
// best as are needed to reach the share.
func (s *Sampler) nucleusRank(share float64) tokenRank {
	var total uint64
	for _, r := range s.ranks {
		total += s.weights[r.tokenID()]
	}
	need := uint64(math.Ceil(share * float64(total)))
	rest, size := s.ranks, 64
	for {
		size = min(size, len(rest))
		sortBest(rest, size)
		for _, r := range rest[:size] {
			w := s.weights[r.tokenID()]
			if w >= need {
				return r
			}
			need -= w
		}
		if size == len(rest) {
			return rest[size-1] // rounding of need exceeded the total
		}
		rest, size = rest[size:], size*4
	}
}

// RandomBits returns the 64 uniform bits that decide the token at an output position of a choice: the first
// word of Philox2x64-10 with key seed and counter (position, choice). Philox is the counter-based generator
// of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). position counts
// the choice's output tokens from 0, including those generated elsewhere.
func RandomBits(seed uint64, choice, position int) uint64 {
	const (
		multiplier = 0xD2B74407B1CE6E93
		weyl       = 0x9E3779B97F4A7C15 // 2^64 over the golden ratio
	)
	a, b, key := uint64(position), uint64(choice), seed
	for range 10 {
		high, low := bits.Mul64(multiplier, a)
		a, b = high^key^b, low
		key += weyl
	}
	return a
}

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
