package plan

import (
	"math"
	"testing"
	"time"

	"penstock/core/kv"
)

// TestBurstRate: the rate of a burst is the one since it began, whatever came before it in the interval, and also if no
// sample was taken.
func TestBurstRate(t *testing.T) {
	const calm, burst = 10.0, 40.0 // arrivals of five seconds
	for _, c := range []struct {
		name     string
		parts    []float64 // the last one ends the interval
		want     float64
		isSample bool
	}{
		{"calm", []float64{calm, calm + 3, calm, calm, calm - 3, calm}, 0, true},
		{"in the last sample", []float64{calm, calm, calm, calm, calm, burst}, 8, true},
		{"in the last three", []float64{calm, calm, calm, burst, burst, burst}, 8, true},
		{"at once", []float64{burst, burst, burst, burst, burst, burst}, 8, true},
		{"without samples", []float64{calm, calm, calm, burst, burst, burst}, 5, false},
		{"is over", []float64{burst, 0, 0, 0, 0, 0}, 0, true},
	} {
		var b burstDetector
		now, all := kv.Mono(time.Hour), 0.0
		b.endInterval(now, 60, false)
		for i, n := range c.parts {
			now, all = now.Add(5*time.Second), all+n
			if last := i == len(c.parts)-1; last {
				b.endInterval(now, all, false)
			} else if c.isSample {
				b.addSample(now, n)
			}
		}
		if rate, found := b.findRate(2, time.Minute); math.Abs(rate-c.want) > 1e-9 || found != (c.want > 0) {
			t.Errorf("%s: the rate is %g, want %g", c.name, rate, c.want)
		}
	}
}

// TestBurstWindow: what came long ago is no burst, nor what came before an interval without metrics.
func TestBurstWindow(t *testing.T) {
	var b burstDetector
	now := kv.Mono(time.Hour)
	b.skipInterval(now)
	for range 2 * burstParts {
		now = now.Add(time.Second)
		b.addSample(now, 3)
	}
	if rate, found := b.findRate(2, 20*time.Second); found {
		t.Errorf("60 requests where 40 are expected are a burst of %g", rate)
	}
	if rate, found := b.findRate(2, time.Minute); !found || rate != 3 {
		t.Errorf("180 requests where 120 are expected are no burst, or one of %g", rate)
	}
	b.skipInterval(now)
	if rate, found := b.findRate(2, time.Minute); found {
		t.Errorf("a burst of %g was found without metrics", rate)
	}
}

// TestFewAfterNone: some requests after hours without any are no burst.
func TestFewAfterNone(t *testing.T) {
	var b burstDetector
	b.addSample(0, 0)
	b.addSample(kv.Mono(5*time.Second), 5)
	if rate, found := b.findRate(0, time.Minute); found {
		t.Errorf("5 requests after none are a burst of %g", rate)
	}
	b.addSample(kv.Mono(10*time.Second), 50)
	if rate, found := b.findRate(0, time.Minute); !found || rate != 5.5 {
		t.Errorf("55 requests in 10 s after none are no burst, or one of %g", rate)
	}
}

// TestStaleInterval: what came until the last sample is not taken to have gone on since. An interval in which no sample
// had anything counts as a whole.
func TestStaleInterval(t *testing.T) {
	var b burstDetector
	now := kv.Mono(time.Hour)
	b.endInterval(now, 60, false)
	b.addSample(now.Add(10*time.Second), 31)
	b.endInterval(now.Add(30*time.Second), 93, true)
	if rate, found := b.findRate(2, time.Minute); found {
		t.Errorf("31 requests where 20 are expected are a burst of %g", rate)
	}
	b.endInterval(now.Add(time.Minute), 240, true)
	if rate, found := b.findRate(2, 30*time.Second); !found || rate != 8 {
		t.Errorf("240 requests in 30 s are no burst, or one of %g", rate)
	}
}
