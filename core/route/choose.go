package route

// choose draws one of the candidates by their probabilities. The draw depends on
// the seed and the number of decisions made, on nothing else, so that asking
// twice gives the same answer.
func (r *Router) choose(cands []candidate) int {
	u := uniform(r.cfg.Seed, r.decisions)
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

// uniform returns a number in [0, 1) that is a function of seed and count:
// SplitMix64 (Steele, Lea, Flood 2014) at position count of the seed's stream.
func uniform(seed, count uint64) float64 {
	z := mix(seed) + (count+1)*0x9e3779b97f4a7c15
	return float64(mix(z)>>11) / (1 << 53)
}

// mix is SplitMix64's finaliser, a bijection.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
