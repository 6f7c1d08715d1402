package stall

import (
	"errors"
	"math/bits"
	"time"
)

// buckets suffice for MaxLimit: bucket i counts durations below 2^i ms.
const buckets = 20

// halveAt is the number of samples at which all counts are halved, so that old samples count less.
const halveAt = 1024

// histogram is a distribution of durations. The zero value is empty.
type histogram struct {
	counts [buckets]uint32
	total  uint32 // of counts
	seen   int    // durations represented by the samples, up to a bound
}

// addSample adds a duration, the longest of n.
func (h *histogram) addSample(d time.Duration, n int) {
	i := min(bits.Len64(uint64(max(d, 0)/time.Millisecond)), buckets-1)
	h.counts[i]++
	h.total++
	h.seen = min(h.seen+max(n, 1), 1<<20)
	if h.total < halveAt {
		return
	}
	h.total = 0
	for i := range h.counts {
		h.counts[i] /= 2
		h.total += h.counts[i]
	}
}

// percentile99 returns a bound for all but one in a hundred durations: a power of two ms.
func (h *histogram) percentile99() time.Duration {
	above := h.total / 100
	for i := buckets - 1; i > 0; i-- {
		if h.counts[i] > above {
			return time.Millisecond << i
		}
		above -= h.counts[i]
	}
	return time.Millisecond
}

func (h *histogram) checkCounts() error {
	var total uint32
	for _, n := range h.counts {
		total += n
	}
	if total != h.total || total >= halveAt || uint32(h.seen) < total && h.seen < 1<<20 && total < halveAt/2 {
		return errors.New("the counts of a histogram are not their sum")
	}
	return nil
}
