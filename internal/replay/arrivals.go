package replay

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// ArrivalProcess says when requests are sent.
type ArrivalProcess string

const (
	// AsWritten keeps the times of the workload.
	AsWritten ArrivalProcess = "trace"
	// Uniform sends at equal intervals.
	Uniform ArrivalProcess = "uniform"
	// Poisson sends at random, with exponential intervals.
	Poisson ArrivalProcess = "poisson"
	// Gamma draws intervals from a gamma distribution: burstier than Poisson if their coefficient of
	// variation is above 1, more even if it is below.
	Gamma ArrivalProcess = "gamma"
	// Closed leaves the times to the runner, which sends when a response has finished.
	Closed ArrivalProcess = "closed"
)

// maxRequestTime is the latest time in a workload.
const maxRequestTime = 100 * 365 * 24 * time.Hour

// Arrival says when the requests of a workload are sent, and which of them.
type Arrival struct {
	Process ArrivalProcess // "" is AsWritten
	// Rate is in requests a second, for the random and uniform processes.
	Rate float64
	// CV is the coefficient of variation of Gamma's intervals; 0 is 2.
	CV float64
	// Speedup divides the times and delays of AsWritten; 0 is 1. It does not change the speed of the workers.
	Speedup float64
	// Grid rounds the times of AsWritten down to multiples of it, after Speedup; 0 does not. Requests of one time
	// are then sent at once.
	Grid time.Duration
	// Limit is the number of requests; 0 is all.
	Limit int
	// From and Until select a window of the workload's own time, which then begins at From; Until 0 is its
	// end.
	From, Until time.Duration
	// Offset is the time of the first request in the run.
	Offset time.Duration
	Seed   uint64
}

// ParseArrival reads an arrival process from a flag: trace:speedup=2, trace:grid=3s, uniform:rate=10,
// poisson:rate=10, gamma:rate=10,cv=3 or closed.
func ParseArrival(s string) (Arrival, error) {
	a := Arrival{}
	sp, err := parseFlagSpec(s)
	if err != nil {
		return a, fmt.Errorf("arrival: %w", err)
	}
	a.Process = ArrivalProcess(sp.kind)
	rate := floatParameter("rate", &a.Rate, minRate, maxRate)
	var knobs []parameter
	switch a.Process {
	case AsWritten:
		knobs = []parameter{floatParameter("speedup", &a.Speedup, minRate, maxRate), durationParameter("grid", &a.Grid)}
	case Uniform, Poisson:
		knobs = []parameter{rate}
	case Gamma:
		knobs = []parameter{rate, floatParameter("cv", &a.CV, minCV, maxCV)}
	case Closed:
	default:
		return a, fmt.Errorf("arrival: %q is none of trace, uniform, poisson, gamma, closed", sp.kind)
	}
	if err := sp.applyParameters(knobs); err != nil {
		return a, fmt.Errorf("arrival: %w", err)
	}
	return a, nil
}

const (
	minRate, maxRate = 1e-6, 1e6
	minCV, maxCV     = 0.01, 10
)

// ApplyArrival returns source with other request times. Requests keep their order and are renumbered from 0.
// A process with a rate sets the time of every request; for later requests of a session it is the earliest
// time, since they also wait for the previous response and their delay. Closing the result closes source.
func ApplyArrival(source Source, a Arrival) (Source, error) {
	a.Process = cmp.Or(a.Process, AsWritten)
	a.CV = cmp.Or(a.CV, 2)
	a.Speedup = cmp.Or(a.Speedup, 1)
	draws := a.Process == Uniform || a.Process == Poisson || a.Process == Gamma
	switch {
	case draws && a.Rate == 0:
		return nil, fmt.Errorf("arrival: %s needs a rate in requests a second", a.Process)
	case draws && !(a.Rate >= minRate && a.Rate <= maxRate):
		return nil, fmt.Errorf("arrival: a rate of %v requests a second: must be from %v to %v", a.Rate, minRate, maxRate)
	case !(a.CV >= minCV && a.CV <= maxCV):
		return nil, fmt.Errorf("arrival: a coefficient of variation of %v: must be from %v to %v", a.CV, minCV, maxCV)
	case !(a.Speedup >= minRate && a.Speedup <= maxRate):
		return nil, fmt.Errorf("arrival: a speed-up of %v: must be from %v to %v", a.Speedup, minRate, maxRate)
	case a.Grid < 0:
		return nil, fmt.Errorf("arrival: a grid of %v: must not be negative", a.Grid)
	case a.From < 0 || a.Until < 0 || a.Until > 0 && a.Until <= a.From:
		return nil, fmt.Errorf("arrival: a window from %v until %v is empty", a.From, a.Until)
	case a.Offset < 0 || a.Limit < 0:
		return nil, errors.New("arrival: offset and limit must not be negative")
	}
	return &arrivalSource{Source: source, arrival: a, clock: newArrivalClock(a)}, nil
}

// The purposes of the random sources of a seed.
const (
	purposeArrival uint64 = 0xa1 + iota
	purposeShape
	purposeContent
	purposePictures
)

// arrivalSource is a Source whose request times are not the workload's.
type arrivalSource struct {
	Source
	arrival Arrival
	clock   arrivalClock
	count   int
}

// Next implements Source.
func (s *arrivalSource) Next(r *Request) error {
	if s.arrival.Limit > 0 && s.count >= s.arrival.Limit {
		return io.EOF
	}
	for {
		if err := s.Source.Next(r); err != nil {
			return err
		}
		if s.arrival.From == 0 && s.arrival.Until == 0 {
			break
		}
		if r.At < 0 {
			return fmt.Errorf("request %d%s has no time, so a window of time cannot be cut out", r.Index, lineSuffix(r))
		}
		if s.arrival.Until > 0 && r.At >= s.arrival.Until {
			return io.EOF
		}
		if r.At >= s.arrival.From {
			r.At -= s.arrival.From
			break
		}
	}
	r.Index = s.count
	if err := s.assignTime(r); err != nil {
		return err
	}
	s.count++
	return nil
}

// assignTime sets the time of r.
func (s *arrivalSource) assignTime(r *Request) error {
	switch s.arrival.Process {
	case Closed:
		r.At = -1
		return nil
	case AsWritten:
		if r.At < 0 {
			return fmt.Errorf("request %d%s has no time: give --rate with the requests a second", r.Index, lineSuffix(r))
		}
		if s.arrival.Speedup != 1 {
			r.At = clampDuration(float64(r.At) / s.arrival.Speedup)
			r.Delay = clampDuration(float64(r.Delay) / s.arrival.Speedup)
		}
		if s.arrival.Grid > 0 {
			r.At = r.At.Truncate(s.arrival.Grid)
		}
		r.At += s.arrival.Offset
		return nil
	}
	r.At = s.arrival.Offset + s.clock.nextTime()
	return nil
}

// arrivalClock draws the request times of a process.
type arrivalClock struct {
	process ArrivalProcess
	mean    float64 // interval in nanoseconds
	cv      float64
	random  randomSource
	count   int
	now     time.Duration
}

// newArrivalClock returns the clock of a process with a rate, at 0.
func newArrivalClock(a Arrival) arrivalClock {
	return arrivalClock{process: a.Process, mean: 1e9 / a.Rate, cv: a.CV, random: newRandomSource(a.Seed, purposeArrival)}
}

// nextTime returns the next request time.
func (c *arrivalClock) nextTime() time.Duration {
	switch c.process {
	case Poisson:
		c.now += clampDuration(c.mean * c.random.drawExponential())
	case Gamma:
		c.now += clampDuration(c.mean * c.random.drawGamma(1/float64(c.cv*c.cv)))
	default:
		// Computed from the count, so that rounding errors do not add up.
		c.now = clampDuration(c.mean * float64(c.count))
	}
	c.count++
	c.now = min(c.now, maxRequestTime)
	return c.now
}

// clampDuration returns ns nanoseconds, at most maxRequestTime.
func clampDuration(ns float64) time.Duration {
	return time.Duration(min(math.Floor(ns), float64(maxRequestTime)))
}

// lineSuffix says where in its file a request is.
func lineSuffix(r *Request) string {
	if r.Line == 0 {
		return ""
	}
	return fmt.Sprintf(" (line %d)", r.Line)
}
