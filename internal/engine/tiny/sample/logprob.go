package sample

import (
	"slices"

	"penstock/core/exact"
	"penstock/internal/engine"
)

// fillLogprobs fills in the log-probability of out.Token under the softmax of logits and the n most likely
// tokens.
func (s *Sampler) fillLogprobs(out *engine.Logprob, logits []float32, n int) {
	best, _ := argmax(logits)
	largest := float64(logits[best])
	var sum float64
	for _, l := range logits {
		sum += exact.Exp(float64(l) - largest)
	}
	norm := exact.Ln(sum)
	of := func(l float32) float32 { return float32(float64(l) - largest - norm) }

	out.Logprob = of(logits[out.Token])
	if n == 0 {
		return
	}
	s.mostLikely(logits, n)
	out.Top = make([]engine.TokenLogprob, len(s.top))
	for i, r := range s.top {
		out.Top[i] = engine.TokenLogprob{Token: r.tokenID(), Logprob: of(logits[r.tokenID()])}
	}
}

// mostLikely fills s.top with the n best tokens that have a probability, best
// first. n is small: it inserts into a sorted list.
func (s *Sampler) mostLikely(logits []float32, n int) {
	s.top = s.top[:0]
	for i := range logits {
		r := rankOf(logits, i)
		full := len(s.top) == n
		if full && r > s.top[n-1] || r >= firstImpossible {
			continue
		}
		if full {
			s.top = s.top[:n-1]
		}
		at, _ := slices.BinarySearch(s.top, r)
		s.top = slices.Insert(s.top, at, r)
	}
}

// firstImpossible is the rank of token 0 at a logit of -Inf.
const firstImpossible = tokenRank(0xff800000) << 32
