package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Durations is a sample of durations: all of them up to a bound, beyond it a uniform choice.
type Durations struct {
	kept []time.Duration
	seen int
	max  time.Duration
	r    *rand.Rand
}

// maxKept bounds a sample's memory.
const maxKept = 1 << 16

// Add adds a duration.
func (d *Durations) Add(v time.Duration) {
	d.seen++
	d.max = max(d.max, v)
	if len(d.kept) < maxKept {
		d.kept = append(d.kept, v)
		return
	}
	if d.r == nil {
		d.r = rand.New(rand.NewPCG(1, 1))
	}
	if at := d.r.IntN(d.seen); at < maxKept {
		d.kept[at] = v
	}
}

// Merge adds another sample.
func (d *Durations) Merge(o *Durations) {
	for _, v := range o.kept {
		d.Add(v)
	}
	d.max = max(d.max, o.max)
}

// Count returns how many were added.
func (d *Durations) Count() int { return d.seen }

// Max returns the longest, 0 without any.
func (d *Durations) Max() time.Duration { return d.max }

// Percentile returns the smallest duration which p percent do not exceed (nearest rank), 0 without any.
func (d *Durations) Percentile(p float64) time.Duration {
	if len(d.kept) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d.kept))
	rank := int(p/100*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// String summarizes the sample.
func (d *Durations) String() string {
	return fmt.Sprintf("p50 %v p99 %v max %v of %d", d.Percentile(50).Round(10*time.Microsecond), d.Percentile(99).Round(10*time.Microsecond), d.max.Round(10*time.Microsecond), d.seen)
}
