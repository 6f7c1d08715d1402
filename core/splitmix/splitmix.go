// Package splitmix is the SplitMix64 generator of Steele, Lea and Flood ("Fast
// splittable pseudorandom number generators", OOPSLA 2014): for what is drawn by a seed
// and must be the same in every version of Go, which math/rand does not promise. Its
// state is one word, so that everything that draws can have a generator of its own, and
// the order in which they draw does not matter. It is no secret.
package splitmix

import "math/bits"

// Step is the distance of two states: 2^64 over the golden ratio.
const Step = 0x9e3779b97f4a7c15

// Mix returns the output of a state: a bijection of which every output bit depends on
// every input bit, and which so is a hash of one word too.
func Mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Source is a generator: its state, which can be any.
type Source uint64

// Next returns the next 64 random bits.
func (s *Source) Next() uint64 {
	*s += Step
	return Mix(uint64(*s))
}

// Below returns a number from 0 to below n, which is positive. Its bias is n/2^64.
func (s *Source) Below(n int) int {
	high, _ := bits.Mul64(s.Next(), uint64(n))
	return int(high)
}
