package replay

import "math/bits"

// golden is 2^64 over the golden ratio, the step of SplitMix64 (Steele, Lea and
// Flood, "Fast splittable pseudorandom number generators", 2014).
const golden = 0x9e3779b97f4a7c15

// mix is SplitMix64's output function, a bijection whose every output bit depends
// on every input bit.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// random is a SplitMix64 generator. Its state is one word, so that every part of
// a workload can have one of its own at no cost and the order in which the parts
// draw does not matter. math/rand promises no sequence across versions of Go.
type random struct{ state uint64 }

// newRandom returns the generator of a purpose under a seed.
func newRandom(seed, purpose uint64) random {
	return random{mix(mix(seed+golden) ^ purpose)}
}

func (r *random) next() uint64 {
	r.state += golden
	return mix(r.state)
}

// below returns a number in [0, n). Its bias is n / 2^64.
func (r *random) below(n int) int {
	high, _ := bits.Mul64(r.next(), uint64(n))
	return int(high)
}

// unit returns a number in (0, 1]: a multiple of 2^-53, whose logarithm exists.
func (r *random) unit() float64 {
	return float64(float64(r.next()>>11+1) / (1 << 53))
}
