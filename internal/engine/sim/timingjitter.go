package sim

import "penstock/core/splitmix"

// MaxJitter is the largest relative standard deviation that a Timing may have.
// (llm-d-inference-sim has the same bound, and the same limit to one draw.)
const MaxJitter = 0.3

// maxDeviation is the largest deviation of one pass, as a share of its mean.
const maxDeviation = 0.7

// jitterFactor returns the factor of a pass, of mean 1: a function of the seed and the pass's number alone,
// so that it is independent of earlier passes.
//
// The sum of twelve uniform numbers is close to a normal one (Irwin and Hall) and needs neither logarithm nor
// cosine, whose last bits differ between processors. It is symmetric, and so are the bounds, hence the mean
// is exactly 1. At MaxJitter the bounds are at 2.3 deviations and reduce the standard deviation by 2 %.
func (t *Timing) jitterFactor(number uint64) float64 {
	if t.Jitter == 0 {
		return 1
	}
	off := float64(t.Jitter * normalDraw(t.Seed, number))
	return 1 + max(-maxDeviation, min(maxDeviation, off))
}

// normalDraw returns a draw of mean 0 and standard deviation 1.
func normalDraw(seed, number uint64) float64 {
	key := splitmix.Mix(splitmix.Mix(seed+splitmix.Step) + number*splitmix.Step)
	sum := 0
	for i := range uint64(3) {
		for r := splitmix.Mix(key + (i+1)*splitmix.Step); r != 0; r >>= 16 {
			sum += int(r & 0xffff)
		}
	}
	// Each of the twelve is uniform over 0..65535: mean 65535/2, variance 65536²/12.
	return float64(sum-6*65535) / 65536
}
