package simcluster

import (
	"math/bits"
	"time"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// deriveSeed returns the seed for one use of another seed.
func deriveSeed(seed, use uint64) uint64 {
	return splitmix.Mix(splitmix.Mix(seed) + splitmix.Step*(use+1))
}

// randomSource draws faults.
type randomSource struct{ splitmix.Source }

// drawChance returns true with probability p.
func (r *randomSource) drawChance(p float64) bool {
	return p > 0 && float64(r.Next()>>11)/(1<<53) < p
}

// drawUpTo returns a duration from 1 ns to most; 0 if most is 0.
func (r *randomSource) drawUpTo(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	high, _ := bits.Mul64(r.Next(), uint64(most))
	return time.Duration(high) + 1
}

// firstOutputToken is the smallest response token: no prompt has it.
const firstOutputToken kv.Token = 1 << 31

// outputToken is the token at a position of the response to a request, on any worker.
func outputToken(index, position int) kv.Token {
	return firstOutputToken | kv.Token(splitmix.Mix(uint64(index)<<24^uint64(position))>>33)
}
