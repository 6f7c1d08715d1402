package simcluster

import (
	"math/bits"
	"time"

	"penstock/core/kv"
)

// golden is the step of SplitMix64 (Steele, Lea, Flood 2014), mix its output
// function.
const golden = 0x9e3779b97f4a7c15

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// derive returns the seed of one use of another seed.
func derive(seed, use uint64) uint64 { return mix(mix(seed) + golden*(use+1)) }

// random is a SplitMix64 generator.
type random struct{ state uint64 }

func (r *random) next() uint64 {
	r.state += golden
	return mix(r.state)
}

// chance reports true with a probability.
func (r *random) chance(p float64) bool {
	return p > 0 && float64(r.next()>>11)/(1<<53) < p
}

// below returns a number from 0 to below n, which is positive.
func (r *random) below(n int) int {
	high, _ := bits.Mul64(r.next(), uint64(n))
	return int(high)
}

// within returns a duration from 1 ns to most; 0 if most is 0.
func (r *random) within(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	high, _ := bits.Mul64(r.next(), uint64(most))
	return time.Duration(high) + 1
}

// outputs is the least token that answers consist of: no prompt has it.
const outputs kv.Token = 1 << 31

// output is the token at a position of the answer to a request: whichever worker
// generates it.
func output(index, position int) kv.Token {
	return outputs | kv.Token(mix(uint64(index)<<24^uint64(position))>>33)
}
