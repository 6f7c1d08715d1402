package plan

import (
	"time"

	"penstock/core/exact"
	"penstock/core/kv"
)

// IntervalSample is what a planner is told between two intervals.
type IntervalSample struct {
	// Arrivals counts the requests which arrived since the last call of HandleInterval or HandleSample.
	Arrivals float64
	// Queued counts the requests which wait for a worker of a role.
	Queued [workerRoles]float64
}

// isValid reports whether s can be used.
func (s *IntervalSample) isValid() bool {
	t := Traffic{Queued: s.Queued}
	return t.findProblem() == "" && s.Arrivals >= 0 && s.Arrivals <= maxArrivals
}

// burstDetector finds out that requests come faster than a forecast says, and how fast, by the latest parts of time.
// For n arrivals where the forecast says m, the logarithm of the likelihood ratio of two Poisson processes is
//
//	n·ln(n/m) - (n - m)
//
// The parts since which it is largest are the ones since the change: the generalized likelihood ratio for a change at
// an unknown time (Lorden, Annals of Mathematical Statistics 42, 1971).
type burstDetector struct {
	parts []burstPart // the latest one last
	end   kv.Mono     // of the latest part
	known bool        // whether end is
	// sampled are the arrivals since the end of the last interval which are in parts.
	sampled float64
}

type burstPart struct {
	length   time.Duration
	arrivals float64
}

const (
	// burstEvidence is the likelihood ratio of surprisingDeviations for many arrivals, whose distribution is normal.
	burstEvidence = surprisingDeviations * surprisingDeviations / 2
	// burstIntervals bounds the time since a change which counts as a burst, and burstParts its parts. Forecasts know
	// older changes.
	burstIntervals = 2
	burstParts     = 64
)

// addSample adds the arrivals since the last part.
func (b *burstDetector) addSample(now kv.Mono, arrivals float64) {
	if b.known && now > b.end {
		if len(b.parts) == burstParts {
			b.parts = append(b.parts[:0], b.parts[1:]...)
		}
		b.parts = append(b.parts, burstPart{now.Sub(b.end), arrivals})
		b.sampled += arrivals
	}
	b.end, b.known = now, true
}

// endInterval adds what no sample had of the arrivals of an interval. Stale ones are known until a sample: the time
// since is no part then.
func (b *burstDetector) endInterval(now kv.Mono, arrivals float64, stale bool) {
	if stale && b.sampled > 0 {
		b.end = now
	} else {
		b.addSample(now, max(arrivals-b.sampled, 0))
	}
	b.sampled = 0
}

// skipInterval forgets all parts, because the interval which ends has no metrics.
func (b *burstDetector) skipInterval(now kv.Mono) {
	*b = burstDetector{parts: b.parts[:0], end: now, known: true}
}

// findRate returns the rate since a change, in requests a second, if requests come much faster than expected. At least
// one is expected, so that a few requests after none are no burst.
func (b *burstDetector) findRate(expected float64, longest time.Duration) (rate float64, found bool) {
	n, length, most := 0.0, time.Duration(0), float64(burstEvidence)
	for i := len(b.parts) - 1; i >= 0 && length+b.parts[i].length <= longest; i-- {
		n, length = n+b.parts[i].arrivals, length+b.parts[i].length
		mean := max(float64(expected*length.Seconds()), 1)
		if n <= mean {
			continue
		}
		if evidence := computeEvidence(n, mean); evidence > most {
			rate, found, most = n/length.Seconds(), true, evidence
		}
	}
	return rate, found
}

// isFarFewer reports whether n arrivals are so few where m are expected that the forecast no longer holds.
func isFarFewer(n, m float64) bool { return n < m && computeEvidence(n, m) > burstEvidence }

// computeEvidence returns the logarithm of the likelihood ratio for n arrivals where m are expected.
func computeEvidence(n, m float64) float64 {
	if n <= 0 {
		return m
	}
	return float64(n*exact.Ln(n/m)) - (n - m)
}

// HandleSample takes what was observed since the last interval or sample. If requests come so much faster than the
// forecast that it no longer holds, it raises orders, and returns the plan; else raised is false. So the workers for a
// burst are ordered before the interval ends, for the rate since it began, and not for the mean of the interval. A
// sample lowers no order, and says nothing about the workers: the ones of the last interval are assumed, and no order is
// raised if that did not tell them. Times must not go back.
func (p *Planner) HandleSample(now kv.Mono, s IntervalSample) (plan Plan, raised bool) {
	if !p.fleetKnown || !p.usage.known || p.check.badIntervals > 0 || !s.isValid() {
		return Plan{}, false
	}
	p.burst.addSample(now, s.Arrivals)
	plan = Plan{At: now, Forecast: p.describeForecast()}
	if !p.raiseForBurst(&plan.Forecast) {
		return Plan{}, false
	}
	p.traffic.Queued = s.Queued
	p.sizeRoles(&plan.Forecast)
	feasible := p.fitNeeds(p.desiredWorkers())
	p.recordNeeds(now, plan.Forecast.Expected)
	before := p.currentOrders()
	reasons, wants := make([]string, len(p.roles)), p.currentOrders()
	for i := range p.roles {
		r := &p.roles[i]
		r.withdrawn = 0
		if want, reason := p.decideTarget(now, r, "", feasible[i], false); want > r.order {
			wants[i], reasons[i] = want, reason
		} else {
			reasons[i] = "keep: " + p.describeNeed(r, feasible[i])
		}
	}
	p.grantWants(now, wants, reasons)
	p.fillPlan(&plan, feasible, before, reasons)
	for i := range plan.Roles {
		raised = raised || plan.Roles[i].Change > 0
	}
	return plan, raised
}

// raiseForBurst has the rate of a burst take the place of a forecast, and reports whether there is one.
func (p *Planner) raiseForBurst(f *Forecast) bool {
	rate, found := p.burst.findRate(f.Raised, burstIntervals*p.cfg.Interval)
	if found {
		f.Expected, f.Raised, f.Surprise = rate, rate, true
	}
	return found
}
