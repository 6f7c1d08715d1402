package replay

import "penstock/core/splitmix"

// randomSource is the random source of one part of a workload.
type randomSource struct{ splitmix.Source }

// newRandomSource returns the random source of a purpose under a seed.
func newRandomSource(seed, purpose uint64) randomSource {
	return randomSource{splitmix.Source(splitmix.Mix(splitmix.Mix(seed+splitmix.Step) ^ purpose))}
}

// drawUnit returns a number in (0, 1]: a multiple of 2^-53, whose logarithm exists.
func (r *randomSource) drawUnit() float64 {
	return float64(float64(r.Next()>>11+1) / (1 << 53))
}
