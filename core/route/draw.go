package route

import "penstock/core/splitmix"

// drawCandidate draws one of the candidates by their probabilities. The draw depends only on the seed and the
// number of decisions made, so asking twice gives the same answer.
func (r *Router) drawCandidate(cands []scoredCandidate) int {
	u := uniformAt(r.cfg.Seed, r.decisions)
	sum, last := 0.0, 0
	for i := range cands {
		if cands[i].Probability == 0 {
			continue
		}
		sum, last = sum+cands[i].Probability, i
		if u < sum {
			return i
		}
	}
	return last // the sum may be a rounding error short of 1
}

// uniformAt returns the number in [0, 1) at position count of the stream of seed.
func uniformAt(seed, count uint64) float64 {
	z := splitmix.Mix(seed) + (count+1)*splitmix.Step
	return float64(splitmix.Mix(z)>>11) / (1 << 53)
}
