package replay

import "penstock/core/splitmix"

// random is a generator of a part of a workload.
type random struct{ splitmix.Source }

// newRandom returns the generator of a purpose under a seed.
func newRandom(seed, purpose uint64) random {
	return random{splitmix.Source(splitmix.Mix(splitmix.Mix(seed+splitmix.Step) ^ purpose))}
}

// unit returns a number in (0, 1]: a multiple of 2^-53, whose logarithm exists.
func (r *random) unit() float64 {
	return float64(float64(r.Next()>>11+1) / (1 << 53))
}
