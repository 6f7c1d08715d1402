package replay

import (
	"math/bits"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// longestTime is the longest time of a histogram; longer ones count as it.
const longestTime = 30 * 24 * time.Hour

// timeHistogram collects times: percentiles to three significant digits, the rest exactly. Its memory does
// not depend on their number.
type timeHistogram struct {
	histogram       *hdrhistogram.Histogram // of nanoseconds
	count           int64
	high, low       uint64 // the sum, 128 bits
	lowest, highest int64
}

func newTimeHistogram() timeHistogram {
	return timeHistogram{histogram: hdrhistogram.New(1, int64(longestTime), 3)}
}

// addTimes adds d, n times. A negative d counts as 0: clocks of two machines disagree.
func (q *timeHistogram) addTimes(d time.Duration, n int) {
	if n <= 0 {
		return
	}
	v := int64(max(d, 0))
	if q.count == 0 || v < q.lowest {
		q.lowest = v
	}
	q.highest = max(q.highest, v)
	q.count += int64(n)
	high, low := bits.Mul64(uint64(v), uint64(n))
	var carry uint64
	q.low, carry = bits.Add64(q.low, low, 0)
	q.high += high + carry
	// It fails only for values out of its range.
	_ = q.histogram.RecordValues(min(v, int64(longestTime)), int64(n))
}

// meanNanoseconds returns the mean in nanoseconds, rounded down; 0 if there are no times.
func (q *timeHistogram) meanNanoseconds() int64 {
	if q.count == 0 {
		return 0
	}
	mean, _ := bits.Div64(q.high, q.low, uint64(q.count)) // the mean is below 2^63: high < count
	return int64(mean)
}

// toDistribution returns the distribution of the times.
func (q *timeHistogram) toDistribution() Distribution {
	d := Distribution{Count: q.count, Mean: toMilliseconds(q.meanNanoseconds()), Min: toMilliseconds(q.lowest), Max: toMilliseconds(q.highest)}
	if q.count == 0 {
		return d
	}
	// Ranks are integers, so that every machine chooses the same bar: the library's own ranks go through
	// float products, which some processors round once and some twice.
	wanted := [...]struct {
		perMille int64
		to       *float64
	}{{500, &d.P50}, {900, &d.P90}, {950, &d.P95}, {990, &d.P99}, {999, &d.P999}}
	var seen int64
	next := 0
	for _, bar := range q.histogram.Distribution() {
		seen += bar.Count
		for next < len(wanted) && seen >= nearestRank(q.count, wanted[next].perMille) {
			*wanted[next].to = toMilliseconds(max(q.lowest, min(bar.To, q.highest)))
			next++
		}
	}
	return d
}

// nearestRank returns the number of n values at or below the quantile.
func nearestRank(n, perMille int64) int64 {
	whole, rest := n/1000, n%1000
	return whole*perMille + (rest*perMille+999)/1000
}

// toHistogram returns the histogram for a report.
func (q *timeHistogram) toHistogram() Histogram {
	var h Histogram
	if q.count == 0 {
		return h
	}
	bounds := plotBounds()
	var counts [len(bounds)]int64
	first, last := len(bounds), 0
	at := 0
	for _, bar := range q.histogram.Distribution() {
		if bar.Count == 0 {
			continue
		}
		for at < len(bounds)-1 && bar.To > bounds[at] {
			at++
		}
		counts[at] += bar.Count
		first, last = min(first, at), at
	}
	for i := first; i <= last; i++ {
		h.Upper = append(h.Upper, toMilliseconds(bounds[i]))
		h.Count = append(h.Count, counts[i])
	}
	return h
}

const (
	plotLowest = 1000 // nanoseconds
	plotOctave = 8    // bounds per doubling: a bar is 9 % wide
	plotCount  = 42 * plotOctave
)

// plotBounds returns the bounds of all plots in nanoseconds, so that plots of several runs can be overlaid:
// 2^(i/8) microseconds, beyond the longest time.
func plotBounds() [plotCount]int64 {
	// 2^(i/8) as constants: math.Pow differs between processors.
	steps := [plotOctave]float64{
		1, 1.0905077326652577, 1.189207115002721, 1.2968395546510096,
		1.4142135623730951, 1.5422108254079407, 1.681792830507429, 1.8340080864093424,
	}
	var bounds [plotCount]int64
	for i := range bounds {
		bounds[i] = int64(steps[i%plotOctave] * float64(int64(plotLowest)<<(i/plotOctave)))
	}
	return bounds
}

// toMilliseconds converts nanoseconds to the unit of results.
func toMilliseconds(ns int64) float64 { return float64(ns) / 1e6 }

// Sample is the outcome of one request. Times count from the start of the run.
type Sample struct {
	Index int
	// Due is when the request should have been sent, Sent when it was: a late client distorts its
	// measurements.
	Due, Sent time.Duration
	// First and Last are when the first and the last token arrived; valid if Output is not 0.
	First, Last time.Duration
	// Predicted is when the first token was predicted to arrive, at the choice of the last worker; 0 if unknown.
	Predicted time.Duration
	// Done is when the request finished, with or without a response.
	Done time.Duration
	// Input is the number of prompt tokens, Cached how many of them came from a cache, Output the number of
	// response tokens.
	Input, Cached, Output int
	// Worker served the request; 0 if unknown.
	Worker uint64
	// Error is a word for why there is no complete response, such as "overloaded", "timeout", "status_500";
	// "" if there is one. There are few words, since errors are counted by them.
	Error string
}

// Times collects times for a [Distribution].
type Times struct{ histogram timeHistogram }

// NewTimes returns Times of none.
func NewTimes() *Times { return &Times{newTimeHistogram()} }

// Add adds a time. A negative one counts as 0.
func (t *Times) Add(d time.Duration) { t.histogram.addTimes(d, 1) }

// Distribution returns the distribution of the times.
func (t *Times) Distribution() Distribution { return t.histogram.toDistribution() }
