package replay

import (
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// ArrivalProcess says when requests are sent.
type Process string

const (
	// AsWritten keeps the times of the workload.
	AsWritten Process = "trace"
	// Uniform sends at equal intervals.
	Uniform Process = "uniform"
	// Poisson sends at random, with exponential intervals.
	Poisson Process = "poisson"
	// Gamma draws intervals from a gamma distribution: burstier than Poisson if their coefficient of
	// variation is above 1, more even if it is below.
	Gamma Process = "gamma"
	// Closed leaves the times to the runner, which sends when a response has finished.
	Closed Process = "closed"
)

// maxRequestTime is the latest time in a workload.
const maxAt = 100 * 365 * 24 * time.Hour

// Arrival says when the requests of a workload are sent, and which of them.
type Arrival struct {
	Process Process // "" is AsWritten
	// Rate is in requests a second, for the random and uniform processes.
	Rate float64
	// CV is the coefficient of variation of Gamma's intervals; 0 is 2.
	CV float64
	// Speedup divides the times and delays of AsWritten; 0 is 1. It does not change the speed of the workers.
	Speedup float64
	// Limit is the number of requests; 0 is all.
	Limit int
	// From and Until select a window of the workload's own time, which then begins at From; Until 0 is its
	// end.
	From, Until time.Duration
	// Offset is the time of the first request in the run.
	Offset time.Duration
	Seed   uint64
}

// ParseArrival reads an arrival process from a flag: trace:speedup=2, uniform:rate=10, poisson:rate=10,
// gamma:rate=10,cv=3 or closed.
func ParseArrival(s string) (Arrival, error) {
	a := Arrival{}
	sp, err := parseSpec(s)
	if err != nil {
		return a, fmt.Errorf("arrival: %w", err)
	}
	a.Process = Process(sp.kind)
	rate := number("rate", &a.Rate, leastRate, mostRate)
	var knobs []knob
	switch a.Process {
	case AsWritten:
		knobs = []knob{number("speedup", &a.Speedup, leastRate, mostRate)}
	case Uniform, Poisson:
		knobs = []knob{rate}
	case Gamma:
		knobs = []knob{rate, number("cv", &a.CV, leastCV, mostCV)}
	case Closed:
	default:
		return a, fmt.Errorf("arrival: %q is none of trace, uniform, poisson, gamma, closed", sp.kind)
	}
	if err := sp.turn(knobs); err != nil {
		return a, fmt.Errorf("arrival: %w", err)
	}
	return a, nil
}

const (
	leastRate, mostRate = 1e-6, 1e6
	leastCV, mostCV     = 0.01, 10
)

// ApplyArrival returns source with other request times. Requests keep their order and are renumbered from 0.
// A process with a rate sets the time of every request; for later requests of a session it is the earliest
// time, since they also wait for the previous response and their delay. Closing the result closes source.
func Arrive(source Source, a Arrival) (Source, error) {
	if a.Process == "" {
		a.Process = AsWritten
	}
	if a.CV == 0 {
		a.CV = 2
	}
	if a.Speedup == 0 {
		a.Speedup = 1
	}
	draws := a.Process == Uniform || a.Process == Poisson || a.Process == Gamma
	switch {
	case draws && a.Rate == 0:
		return nil, fmt.Errorf("arrival: %s needs a rate in requests a second", a.Process)
	case draws && !(a.Rate >= leastRate && a.Rate <= mostRate):
		return nil, fmt.Errorf("arrival: a rate of %v requests a second: must be from %v to %v", a.Rate, leastRate, mostRate)
	case !(a.CV >= leastCV && a.CV <= mostCV):
		return nil, fmt.Errorf("arrival: a coefficient of variation of %v: must be from %v to %v", a.CV, leastCV, mostCV)
	case !(a.Speedup >= leastRate && a.Speedup <= mostRate):
		return nil, fmt.Errorf("arrival: a speed-up of %v: must be from %v to %v", a.Speedup, leastRate, mostRate)
	case a.From < 0 || a.Until < 0 || a.Until > 0 && a.Until <= a.From:
		return nil, fmt.Errorf("arrival: a window from %v until %v is empty", a.From, a.Until)
	case a.Offset < 0 || a.Limit < 0:
		return nil, errors.New("arrival: offset and limit must not be negative")
	}
	return &arrivals{Source: source, a: a, clock: newClock(a)}, nil
}

// The purposes of the random sources of a seed.
const (
	purposeArrival uint64 = 0xa1 + iota
	purposeShape
	purposeContent
	purposePictures
)

// arrivalSource is a Source whose request times are not the workload's.
type arrivals struct {
	Source
	a     Arrival
	clock clock
	count int
}

// Next implements Source.
func (s *arrivals) Next(r *Request) error {
	if s.a.Limit > 0 && s.count >= s.a.Limit {
		return io.EOF
	}
	for {
		if err := s.Source.Next(r); err != nil {
			return err
		}
		if s.a.From == 0 && s.a.Until == 0 {
			break
		}
		if r.At < 0 {
			return fmt.Errorf("request %d%s has no time, so a window of time cannot be cut out", r.Index, onLine(r))
		}
		if s.a.Until > 0 && r.At >= s.a.Until {
			return io.EOF
		}
		if r.At >= s.a.From {
			r.At -= s.a.From
			break
		}
	}
	r.Index = s.count
	if err := s.place(r); err != nil {
		return err
	}
	s.count++
	return nil
}

// assignTime sets the time of r.
func (s *arrivals) place(r *Request) error {
	switch s.a.Process {
	case Closed:
		r.At = -1
		return nil
	case AsWritten:
		if r.At < 0 {
			return fmt.Errorf("request %d%s has no time: give --rate with the requests a second", r.Index, onLine(r))
		}
		if s.a.Speedup != 1 {
			r.At = duration(float64(r.At) / s.a.Speedup)
			r.Delay = duration(float64(r.Delay) / s.a.Speedup)
		}
		r.At += s.a.Offset
		return nil
	}
	r.At = s.a.Offset + s.clock.next()
	return nil
}

// arrivalClock draws the request times of a process.
type clock struct {
	process Process
	mean    float64 // interval in nanoseconds
	cv      float64
	draw    random
	count   int
	now     time.Duration
}

// newArrivalClock returns the clock of a process with a rate, at 0.
func newClock(a Arrival) clock {
	return clock{process: a.Process, mean: 1e9 / a.Rate, cv: a.CV, draw: newRandom(a.Seed, purposeArrival)}
}

// nextTime returns the next request time.
func (c *clock) next() time.Duration {
	switch c.process {
	case Poisson:
		c.now += duration(c.mean * c.draw.exponential())
	case Gamma:
		c.now += duration(c.mean * c.draw.gamma(1/float64(c.cv*c.cv)))
	default:
		// Computed from the count, so that rounding errors do not add up.
		c.now = duration(c.mean * float64(c.count))
	}
	c.count++
	c.now = min(c.now, maxAt)
	return c.now
}

// clampDuration returns ns nanoseconds, at most maxRequestTime.
func duration(ns float64) time.Duration {
	return time.Duration(min(math.Floor(ns), float64(maxAt)))
}

// lineSuffix says where in its file a request is.
func onLine(r *Request) string {
	if r.Line == 0 {
		return ""
	}
	return fmt.Sprintf(" (line %d)", r.Line)
}
