package plan

import (
	"math"

	"penstock/core/kv"
)

// IntervalCounts are what the metrics of a fleet counted in one interval: differences of counters, and gauges at its end.
type IntervalCounts struct {
	// At is when the metrics were measured, as in Traffic.
	At kv.Mono
	// Intervals is the time since the counts before which were not frozen, in intervals: more than 1 after a gap. 0 is 1.
	Intervals float64
	// FirstTokens counts the requests which got their first token, and Failed the ones which got none.
	FirstTokens, Failed float64
	// FirstTokenSeconds is the sum of the times to these first tokens. Gaps counts the times between tokens, and GapSeconds
	// is their sum.
	FirstTokenSeconds, Gaps, GapSeconds float64
	// Ended counts the requests which ended with an answer. PromptTokens, CachedTokens and OutputTokens are the sums over
	// them.
	Ended, PromptTokens, CachedTokens, OutputTokens float64
	// Waiting and Running are the requests which wait for a worker of a role, and the sequences of its workers.
	Waiting, Running [workerRoles]float64
}

// Meter turns counts into traffic. The zero value has measured nothing.
type Meter struct {
	waiting  float64 // when metrics were measured last
	at       kv.Mono // of that
	measured bool
	means    Traffic // the latest ones
	known    bool
}

// assumedSpread is the spread of lengths which no metric tells: the one of exponential lengths.
const assumedSpread = 1

// MeasureTraffic returns the traffic of an interval. Arrivals are the requests which got a first token, the ones which
// failed, and by how many more of them wait: after a gap its share of one interval. Means without a request which ended
// are the ones before. The reason is "" unless the traffic is not known: requests came, and none has ended yet which
// tells what they are like.
func (m *Meter) MeasureTraffic(c *IntervalCounts) (t *Traffic, reason string) {
	waiting := 0.0
	for _, n := range c.Waiting {
		waiting += n
	}
	arrivals := c.FirstTokens + c.Failed
	if m.measured {
		growth := (waiting - m.waiting) / math.Max(c.Intervals, 1) // of a short time little is known
		arrivals = math.Max(arrivals+growth, 0)
	}
	if !m.measured || c.At > m.at { // what waits grows also while metrics are frozen
		m.waiting, m.at, m.measured = waiting, c.At, true
	}
	if c.Ended > 0 && c.PromptTokens > 0 {
		m.known = true
		m.means.InputTokens = c.PromptTokens / c.Ended
		m.means.CachedShare = math.Min(c.CachedTokens/c.PromptTokens, 1)
		m.means.OutputTokens = c.OutputTokens / c.Ended
	}
	if arrivals > 0 && !m.known {
		return nil, "no request has ended yet: what requests are like is not known"
	}
	out := m.means
	out.At, out.Arrivals, out.Queued, out.Running = c.At, arrivals, c.Waiting, c.Running
	out.InputSpread, out.OutputSpread = assumedSpread, assumedSpread
	if c.FirstTokens > 0 {
		out.TTFT = 1000 * c.FirstTokenSeconds / c.FirstTokens
	}
	if c.Gaps > 0 {
		out.ITL = 1000 * c.GapSeconds / c.Gaps
	}
	return &out, ""
}
