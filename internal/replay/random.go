package replay

import "penstock/core/splitmix"

// randomSource is the random source of one part of a workload.
type random struct{ splitmix.Source }

// newRandomSource returns the random source of a purpose under a seed.
func newRandom(seed, purpose uint64) random {
	return random{splitmix.Source(splitmix.Mix(splitmix.Mix(seed+splitmix.Step) ^ purpose))}
}

// drawUnit returns a number in (0, 1]: a multiple of 2^-53, whose logarithm exists.
func (r *random) unit() float64 {
	return float64(float64(r.Next()>>11+1) / (1 << 53))
}
