// Package plan decides how many workers of each role a fleet has: metrics in, replicas out.
//
// A [Planner] is a machine without a clock, a goroutine and I/O. [Planner.HandleInterval] takes the traffic of one
// interval and the workers which exist, and returns a [Plan]: for each role how many workers the targets need
// (desired), how many of them the limits and the machines permit (feasible), how many serve (actual), how many are to
// exist (order), and the reason in words. The caller has a connector start and drain workers until the orders hold.
//
// A plan comes about in four steps:
//
//  1. A forecast of the arrivals while ordered workers start, by the method with the least error so far (forecast.go),
//     or the rate of a burst (burst.go), which [Planner.HandleSample] also finds between two intervals.
//  2. Sizes: the least number of workers which keeps the targets at a chance, by a model of the engine ([EngineModel])
//     and a queueing model (size.go, queue.go).
//  3. Limits: floors, ceilings, the budget of accelerators, and machines which could not be had (budget.go).
//  4. Orders: scale-downs wait for a window in which no more was needed, and scale-ups for accelerators which are free
//     (orders.go).
//
// Equal calls give equal plans on all architectures.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// WorkerRole is the part of a request which a worker does.
type WorkerRole uint8

// The roles. A fleet has aggregated workers, or prefill and decode workers; either may have encode workers.
const (
	Aggregated WorkerRole = iota
	Prefill
	Decode
	Encode

	workerRoles = iota
)

var roleNames = [workerRoles]string{"aggregated", "prefill", "decode", "encode"}

// String returns the name of the role.
func (r WorkerRole) String() string {
	if int(r) >= workerRoles {
		return "unknown role"
	}
	return roleNames[r]
}

// MarshalText returns the name of the role.
func (r WorkerRole) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the name of a role.
func (r *WorkerRole) UnmarshalText(text []byte) error {
	role, known := ParseRole(string(text))
	if !known {
		return fmt.Errorf("plan: %.40q is no role of workers", text)
	}
	*r = role
	return nil
}

// ParseRole returns the role with a name, and false if there is none.
func ParseRole(name string) (WorkerRole, bool) {
	at := slices.Index(roleNames[:], name)
	return WorkerRole(max(at, 0)), at >= 0
}

// Targets are what requests are to keep.
type Targets struct {
	// TTFT bounds the time to the first token, ITL the mean time between the tokens of an answer.
	TTFT, ITL time.Duration
	// Chance is the share of requests which are to keep both, 0.99 if 0.
	Chance float64
}

// RoleConfig configures the workers of a role.
type RoleConfig struct {
	Role WorkerRole
	// Floor is the least number of workers, Ceiling the largest one: 1 and 64 if 0. A role whose Floor is -1 may have
	// no worker.
	Floor, Ceiling int
	// Accelerators is how many accelerators a worker occupies, 1 if 0.
	Accelerators int
	// Models predict the times of an engine. The first one which is ready is used.
	Models []EngineModel
	// Encoder predicts the times of encoders; of encode workers alone.
	Encoder EncoderModel
	// MaxSequences bounds the sequences which a worker has in a pass, TokenBudget the prompt tokens of a pass, and
	// CacheTokens the tokens of all sequences: 256, 8192 and 2^20 if 0.
	MaxSequences, TokenBudget, CacheTokens int
}

// Config configures a Planner. The zero values of all times and counts are the defaults.
type Config struct {
	Roles   []RoleConfig
	Targets Targets
	// Budget bounds the accelerators of all roles at every moment; 0 is no bound.
	Budget int
	// Interval is the time between two calls of HandleInterval, 30 s if 0. StartUp is what a worker takes from its order
	// to its first request, 60 s if 0.
	Interval, StartUp time.Duration
	// StartTimeout is the time after which a worker which is not ready is taken for one without a machine: ten minutes, or
	// three times StartUp if that is more. RetryAfter is how long no further one is ordered then, ten minutes; it doubles
	// with each timeout, up to an hour.
	StartTimeout, RetryAfter time.Duration
	// DownAfter is the time in which no more workers were needed before a role shrinks, 5 minutes, as for the
	// Horizontal Pod Autoscaler. DownEvery is the least time between two scale-downs of a role, Interval if 0; UpEvery the
	// one between two scale-ups.
	DownAfter, DownEvery, UpEvery time.Duration
	// DownMargin is the share of traffic by which fewer workers must be able to do more before a role shrinks, 0.1 if 0.
	DownMargin float64
	// Settle is how long a connector may take to begin what was ordered: two intervals.
	Settle time.Duration
	// Season is the time after which traffic repeats, 24 h if 0, and negative for no season.
	Season time.Duration
	// Deviations is by how many standard deviations of its error the forecast is raised, 1 if 0.
	Deviations float64
	// ClearWithin is the time in which requests which wait are to be served beside new ones, StartUp if 0.
	ClearWithin time.Duration
	// TransferMs is what the blocks of a prompt take from a prefill worker to a decode worker, in ms.
	TransferMs float64
	// EncodeShare is the share of the target of TTFT which the encoding of media may take, 0.5 if 0.
	EncodeShare float64
}

const (
	maxWorkers = 1 << 16
	// maxTime bounds every time of a Config.
	maxTime = 31 * 24 * time.Hour
	// gapIntervals is the number of intervals without metrics after which what was needed before them no longer counts.
	gapIntervals = 3
	// frozenIntervals is the number of equal intervals with traffic which no fleet has.
	frozenIntervals = 4
	// maxRetry bounds RetryAfter after many timeouts.
	maxRetry = time.Hour
)

// EnsureDefaults fills in the fields which are not set. It changes a copy of Roles: callers may share that.
func (c *Config) EnsureDefaults() {
	c.Targets.Chance = cmp.Or(c.Targets.Chance, 0.99)
	c.Interval = cmp.Or(c.Interval, 30*time.Second)
	c.StartUp = cmp.Or(c.StartUp, time.Minute)
	c.StartTimeout = cmp.Or(c.StartTimeout, max(10*time.Minute, 3*c.StartUp))
	c.RetryAfter = cmp.Or(c.RetryAfter, 10*time.Minute)
	c.DownAfter = cmp.Or(c.DownAfter, 5*time.Minute)
	c.DownEvery = cmp.Or(c.DownEvery, c.Interval)
	c.DownMargin = cmp.Or(c.DownMargin, 0.1)
	c.Settle = cmp.Or(c.Settle, 2*c.Interval)
	c.Season = cmp.Or(c.Season, 24*time.Hour)
	c.Deviations = cmp.Or(c.Deviations, 1)
	c.ClearWithin = cmp.Or(c.ClearWithin, c.StartUp)
	c.EncodeShare = cmp.Or(c.EncodeShare, 0.5)
	c.Roles = slices.Clone(c.Roles)
	for i := range c.Roles {
		c.Roles[i].ensureDefaults()
	}
}

func (r *RoleConfig) ensureDefaults() {
	r.Floor = cmp.Or(r.Floor, 1)
	r.Ceiling = cmp.Or(r.Ceiling, 64)
	r.Accelerators = cmp.Or(r.Accelerators, 1)
	r.MaxSequences = cmp.Or(r.MaxSequences, 256)
	r.TokenBudget = cmp.Or(r.TokenBudget, 8192)
	r.CacheTokens = cmp.Or(r.CacheTokens, 1<<20)
}

// least returns the floor as a number of workers.
func (r *RoleConfig) least() int { return max(r.Floor, 0) }

// Validate reports every problem of c at once, nil if there is none. Call EnsureDefaults first.
func (c *Config) Validate() error {
	var errs []error
	report := func(format string, args ...any) { errs = append(errs, fmt.Errorf("plan: "+format, args...)) }
	if t := c.Targets; t.TTFT <= 0 || t.ITL <= 0 || !(t.Chance > 0 && t.Chance < 1) {
		report("the targets %v and %v must be above 0, and their chance %g between 0 and 1", t.TTFT, t.ITL, t.Chance)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"interval", c.Interval},
		{"start-up", c.StartUp},
		{"start timeout", c.StartTimeout},
		{"retry", c.RetryAfter},
		{"window of scale-downs", c.DownAfter},
		{"time between scale-downs", c.DownEvery},
		{"settling time", c.Settle},
		{"time in which waiting requests are served", c.ClearWithin},
		{"time between scale-ups", c.UpEvery + 1},
	} {
		if d.value <= 0 || d.value > maxTime {
			report("the %s must be above 0 and at most %v, not %v", d.name, maxTime, d.value)
		}
	}
	if c.Interval > 0 && (c.StartUp > 1000*c.Interval || c.DownAfter > 10_000*c.Interval || c.Season > 1<<20*c.Interval) {
		report("start-up, window and season may be 1,000, 10,000 and 1,048,576 intervals of %v", c.Interval)
	}
	if !(c.DownMargin >= 0 && c.DownMargin <= 10 && c.Deviations >= 0 && c.Deviations <= 10) {
		report("the margin %g of scale-downs and the %g deviations must be between 0 and 10", c.DownMargin, c.Deviations)
	}
	if !(c.TransferMs >= 0 && c.TransferMs <= 1e9) || !(c.EncodeShare > 0 && c.EncodeShare < 1) {
		report("transfers take %g ms and encoders may take %g of TTFT: must be from 0, and between 0 and 1", c.TransferMs,
			c.EncodeShare)
	}
	seen, floors := [workerRoles]bool{}, 0
	for i := range c.Roles {
		r := &c.Roles[i]
		if int(r.Role) >= workerRoles || seen[r.Role] {
			report("role %d is unknown, or there twice", r.Role)
			continue
		}
		seen[r.Role] = true
		r.reportProblems(report)
		floors += r.least() * r.Accelerators
	}
	if seen[Aggregated] == (seen[Prefill] || seen[Decode]) || seen[Prefill] != seen[Decode] {
		report("a fleet has aggregated workers, or prefill and decode workers")
	}
	if c.Budget < 0 || c.Budget > 0 && floors > c.Budget {
		report("the floors take %d accelerators, and the budget is %d", floors, c.Budget)
	}
	return errors.Join(errs...)
}

func (r *RoleConfig) reportProblems(report func(format string, args ...any)) {
	if r.Floor < -1 || r.Ceiling < max(r.Floor, 1) || r.Ceiling > maxWorkers {
		report("%v: the floor %d and the ceiling %d must ascend, up to %d", r.Role, r.Floor, r.Ceiling, maxWorkers)
	}
	if r.Accelerators < 1 || r.Accelerators > maxWorkers {
		report("%v: a worker occupies %d accelerators: must be from 1 to %d", r.Role, r.Accelerators, maxWorkers)
	}
	if min(r.MaxSequences, r.TokenBudget, r.CacheTokens) < 1 || max(r.MaxSequences, r.TokenBudget, r.CacheTokens) > 1<<30 {
		report("%v: %d sequences, %d tokens of a pass and %d of a cache must be from 1 to 2^30", r.Role, r.MaxSequences,
			r.TokenBudget, r.CacheTokens)
	}
	if r.Role == Encode {
		if r.Encoder == nil {
			report("%v: there is no model of the encoder", r.Role)
		}
		return
	}
	if len(r.Models) == 0 || !isReady(r.Models[len(r.Models)-1]) {
		report("%v: there is no model of the engine, or the last one is not ready from the start", r.Role)
	}
}
