// Package splitmix is the SplitMix64 generator of Steele, Lea and Flood ("Fast splittable pseudorandom number
// generators", OOPSLA 2014), for draws which depend on a seed and must be the same in every version of Go,
// which math/rand does not promise. Its state is one word, so that each consumer can have its own generator,
// and the order in which consumers draw does not matter. It is not cryptographically secure.
package splitmix

import "math/bits"

// Step is the difference between successive states: 2^64 divided by the golden ratio.
const Step = 0x9e3779b97f4a7c15

// Mix returns the output for a state: a bijection in which every output bit depends on every input bit, and
// which is therefore also a hash of one word.
func Mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Source is a generator: its state, which may have any value.
type Source uint64

// Next returns the next 64 random bits.
func (s *Source) Next() uint64 {
	*s += Step
	return Mix(uint64(*s))
}

// Below returns a number from 0 to below n, which must be positive. Its bias is n/2^64.
func (s *Source) Below(n int) int {
	high, _ := bits.Mul64(s.Next(), uint64(n))
	return int(high)
}
