package plan

import (
	"fmt"

	"penstock/core/kv"
)

// Traffic has the metrics of one interval. Means are over the requests of the interval, and have no meaning if there
// were none: zero traffic is a measurement, not a lack of one.
type Traffic struct {
	// At is when the metrics were measured, by the clock of their source. Metrics whose At does not advance are frozen.
	At kv.Mono
	// Arrivals counts the requests which arrived.
	Arrivals float64
	// InputTokens and OutputTokens are the mean lengths of prompts and answers, and CachedShare is the share of prompt
	// tokens which caches had. InputSpread is the standard deviation of the prompt tokens which caches had not, divided
	// by their mean, and OutputSpread the same of answers.
	InputTokens, InputSpread, OutputTokens, OutputSpread, CachedShare float64
	// MediaShare is the share of requests with media, MediaTokens the mean tokens of one which are to be encoded, and
	// MediaSpread their standard deviation, divided by the mean.
	MediaShare, MediaTokens, MediaSpread float64
	// TTFT is the mean time to the first token, and ITL the mean time between tokens, in ms; 0 if there were none.
	TTFT, ITL float64
	// Queued counts the requests which wait for a worker of a role at the end of the interval, and Running the sequences
	// of workers which do not drain. Both are indexed by role.
	Queued, Running [workerRoles]float64
	// Stale says that the metrics are the ones of the last sample, so that they tell nothing of the time since.
	Stale bool
}

// maxArrivals bounds the arrivals of an interval.
const maxArrivals = 1e12

// findProblem says what is wrong with t, "" if nothing is.
func (t *Traffic) findProblem() string {
	type number struct {
		name      string
		value, to float64
	}
	numbers := []number{{"arrivals", t.Arrivals, maxArrivals}}
	for r := range WorkerRole(workerRoles) {
		numbers = append(numbers, number{"queue of " + r.String(), t.Queued[r], 1e12},
			number{"running in " + r.String(), t.Running[r], 1e12})
	}
	if t.Arrivals > 0 {
		numbers = append(numbers, number{"input tokens", t.InputTokens, 1e9}, number{"spread of input", t.InputSpread, 1e3},
			number{"output tokens", t.OutputTokens, 1e9}, number{"spread of output", t.OutputSpread, 1e3},
			number{"cached share", t.CachedShare, 1}, number{"share of media", t.MediaShare, 1},
			number{"tokens of media", t.MediaTokens, 1e9}, number{"spread of media", t.MediaSpread, 1e3},
			number{"TTFT", t.TTFT, 1e12}, number{"ITL", t.ITL, 1e12})
	}
	for _, n := range numbers {
		if !(n.value >= 0 && n.value <= n.to) {
			return fmt.Sprintf("the metrics are not valid: %s is %g", n.name, n.value)
		}
	}
	return ""
}

// RoleFleet has the workers of a role.
type RoleFleet struct {
	// Ready workers serve, Starting ones will, and Draining ones finish their requests. All occupy their accelerators.
	Ready, Starting, Draining int
	// Refused counts workers which were ordered and for which the connector has found no machine.
	Refused int
}

// existing returns the workers which serve or will serve.
func (f *RoleFleet) existing() int { return f.Ready + f.Starting }

// Observation is what a planner is told at the end of an interval.
type Observation struct {
	// Traffic is nil if the metrics could not be read.
	Traffic *Traffic
	// Fleet has the workers of each role, in the order of Config.Roles. It is nil if they are not known: the last known
	// ones are assumed then, and no order is changed.
	Fleet []RoleFleet
}

// usage is what the latest requests were like. It outlives intervals without requests.
type usage struct {
	known                                            bool
	requests                                         float64 // so far
	input, output, cached, inputSpread, outputSpread float64
	mediaShare, mediaTokens, mediaSpread             float64
}

// An interval moves the means of usage by its share of itself and usageRequests, at most by usageWeight. The first
// intervals count alike. Lengths differ by their mean or more: of fewer requests their mean and spread are off by so
// much that the largest size of some minutes, which stays, is far beyond the need.
const (
	usageWeight   = 0.15
	usageRequests = 300
)

// addTraffic moves the means towards an interval with requests.
func (u *usage) addTraffic(t *Traffic) {
	if t.Arrivals <= 0 {
		return
	}
	u.known, u.requests = true, u.requests+t.Arrivals
	w := max(min(usageWeight, t.Arrivals/(t.Arrivals+usageRequests)), t.Arrivals/u.requests)
	move := func(to *float64, value float64) { *to += float64(w * (value - *to)) }
	move(&u.input, t.InputTokens)
	move(&u.output, t.OutputTokens)
	move(&u.cached, t.CachedShare)
	move(&u.inputSpread, t.InputSpread)
	move(&u.outputSpread, t.OutputSpread)
	move(&u.mediaShare, t.MediaShare)
	if t.MediaShare > 0 {
		move(&u.mediaTokens, t.MediaTokens)
		move(&u.mediaSpread, t.MediaSpread)
	}
}

// trafficCheck finds out whether metrics can be used.
type trafficCheck struct {
	last    Traffic
	hasLast bool
	equal   int // intervals which were equal to the one before, with traffic
	goodAt  kv.Mono
	hasGood bool
	// badIntervals counts the intervals since the last one with metrics.
	badIntervals int
}

// checkTraffic returns why t cannot be used, "" if it can.
func (c *trafficCheck) checkTraffic(now kv.Mono, t *Traffic) string {
	problem := c.findProblem(t)
	if problem == "" {
		c.goodAt, c.hasGood, c.badIntervals = now, true, 0
		return ""
	}
	c.badIntervals++
	if c.hasGood {
		problem += fmt.Sprintf(", the last good ones are %v old", now.Sub(c.goodAt))
	}
	return problem
}

func (c *trafficCheck) findProblem(t *Traffic) string {
	if t == nil {
		return "there are no metrics"
	}
	if problem := t.findProblem(); problem != "" {
		return problem
	}
	last, had := c.last, c.hasLast
	c.last, c.hasLast = *t, true
	if !had {
		return ""
	}
	if t.At == last.At {
		return "the metrics are frozen: they were not measured again"
	}
	last.At, last.Stale = t.At, t.Stale
	if last != *t || t.Arrivals == 0 || t.TTFT == 0 {
		c.equal = 0
		return ""
	}
	if c.equal++; c.equal < frozenIntervals {
		return ""
	}
	return fmt.Sprintf("the metrics are frozen: %d intervals have the same figures", c.equal+1)
}
