package main

import (
	"math/bits"
	"time"
)

// latencyHistogram counts durations in steps of 1.6 %: 64 between consecutive powers of two of nanoseconds.
type latencyHistogram struct {
	counts [64 * 64]uint64
	total  uint64
}

const stepBits = 6

func (h *latencyHistogram) addDuration(d time.Duration) {
	n := uint64(max(d, 0))
	at := n
	if over := bits.Len64(n) - stepBits - 1; over > 0 {
		at = uint64(over)<<stepBits + n>>over
	}
	h.counts[at]++
	h.total++
}

func (h *latencyHistogram) mergeCounts(o *latencyHistogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.total += o.total
}

// durationAt returns the duration which a share of all does not exceed, 0 without any.
func (h *latencyHistogram) durationAt(share float64) time.Duration {
	want := uint64(share * float64(h.total))
	sum := uint64(0)
	for i, n := range h.counts {
		if sum += n; n > 0 && sum >= max(want, 1) {
			return bucketCeiling(uint64(i))
		}
	}
	return 0
}

// bucketCeiling returns the longest duration counted at i.
func bucketCeiling(i uint64) time.Duration {
	over := i >> stepBits
	if over <= 1 {
		return time.Duration(i)
	}
	over--
	return time.Duration((i-over<<stepBits+1)<<over - 1)
}
