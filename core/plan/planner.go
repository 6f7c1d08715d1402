package plan

import (
	"fmt"
	"math"
	"slices"
	"time"

	"penstock/core/kv"
)

// Plan is what a Planner decides for one interval.
type Plan struct {
	At       kv.Mono  `json:"-"`
	Forecast Forecast `json:"forecast"`
	// Hold says why the metrics cannot be used, "" if they can. Nothing shrinks or grows then, except what limits force.
	Hold string `json:"hold,omitempty"`
	// Accelerators are what the workers of all roles take at most until the next interval: the ones which exist, drain or
	// are ordered.
	Accelerators int `json:"accelerators"`
	// Roles is empty until the workers were known once: there are no orders then.
	Roles []RolePlan `json:"roles"`
}

// RolePlan is the part of a plan for one role.
type RolePlan struct {
	Role WorkerRole `json:"role"`
	// Desired is how many workers the targets need. Feasible is how many of them the floor, the ceiling, the budget and
	// the machines permit. Actual is how many serve.
	Desired  int `json:"desired"`
	Feasible int `json:"feasible"`
	Actual   int `json:"actual"`
	// Order is how many workers are to exist: ready or starting, and not draining. Change is its difference from the last
	// plan, and Withdrawn counts the ordered workers which are no longer awaited.
	Order     int `json:"order"`
	Change    int `json:"change"`
	Withdrawn int `json:"withdrawn,omitempty"`
	// Attainment is the share of requests which the model lets keep the targets with Desired workers, and Attainable the
	// one with any number.
	Attainment float64 `json:"attainment"`
	Attainable float64 `json:"attainable"`
	// Model is the model of the engine.
	Model string `json:"model,omitempty"`
	// Reason says in words why Order is what it is.
	Reason string `json:"reason"`
}

// Planner sizes a fleet. Its methods must not run concurrently.
//
// Each role is in one of these states:
//
//	state    means                                         leaves it
//	settled  ready workers are what was ordered            a plan with another order
//	growing  ordered workers are not ready                 they are, or StartTimeout passed: limited
//	limited  no machine was there: no more are ordered     RetryAfter passed, or a worker more is ready
type Planner struct {
	cfg      Config
	forecast *forecaster
	burst    burstDetector
	check    trafficCheck
	usage    usage
	traffic  Traffic // the last good one
	roles    []roleState
	started  bool
	// fleetKnown says whether the last interval told the workers.
	fleetKnown bool
	// coveredFrom is since when metrics have no long gap.
	coveredFrom kv.Mono
	covered     bool
}

// roleState is the state of a role.
type roleState struct {
	cfg   RoleConfig
	fleet RoleFleet
	order int
	// held is for how many workers accelerators were taken when the order was lowered last. The connector may still be
	// carrying out the order before, until settledAt.
	held      int
	settledAt kv.Mono
	pending   []startOrder
	withdrawn int
	why       string // of the withdrawal

	// limit is how many workers there are machines for, until limitUntil; retry is the time after the next timeout.
	limit      int
	limited    bool
	limitUntil kv.Mono
	retry      time.Duration

	size     sizing
	sized    bool
	downNeed int // with DownMargin more traffic
	model    string
	// extra are workers beyond the model's, because targets are missed: extraShare of the model's number. missed counts
	// the intervals in which they are, and settled the ones in which the fleet has what the model asks for.
	extra           int
	extraShare      float64
	missed, settled int
	calmFrom        kv.Mono
	calm            bool

	needs           []pastNeed
	lastUp, lastLow kv.Mono
	hasUp, hasLow   bool
	// droppedAt is when workers left which were needed within DownAfter, and returned when more were needed again within
	// DownAfter of that: see recentNeed.
	droppedAt, returned     kv.Mono
	hasDropped, hasReturned bool
}

// startOrder is a number of workers which were ordered at a time and are not ready.
type startOrder struct {
	at kv.Mono
	n  int
}

// pastNeed is what limits permitted of what was needed at a time, with DownMargin more traffic than a forecast of so many
// requests a second.
type pastNeed struct {
	at   kv.Mono
	n    int
	rate float64
}

// New returns a planner which has decided nothing.
func New(cfg Config) (*Planner, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	lead := int((cfg.StartUp+cfg.Interval-1)/cfg.Interval) + 1
	p := &Planner{cfg: cfg, forecast: newForecaster(lead, max(int(cfg.Season/cfg.Interval), 0))}
	for i := range cfg.Roles {
		p.roles = append(p.roles, roleState{cfg: cfg.Roles[i], retry: cfg.RetryAfter})
	}
	return p, nil
}

// HandleInterval takes what was observed in the interval which ends now, and decides. Times must not go back.
func (p *Planner) HandleInterval(now kv.Mono, o Observation) Plan {
	fleetProblem := p.acceptFleet(now, o.Fleet)
	p.fleetKnown = fleetProblem == ""
	hold := p.acceptTraffic(now, o.Traffic)
	if hold == "" {
		hold = fleetProblem
	}
	plan := Plan{At: now, Hold: hold, Forecast: p.describeForecast()}
	if hold == "" {
		p.raiseForBurst(&plan.Forecast)
		p.sizeRoles(&plan.Forecast)
		p.adjustExtras(now)
	}
	if !p.started {
		return plan
	}
	feasible := p.fitNeeds(p.desiredWorkers())
	if hold == "" {
		p.recordNeeds(now, plan.Forecast.Expected)
	}
	before := p.currentOrders()
	reasons := slices.Repeat([]string{"hold: " + fleetProblem}, len(p.roles))
	if fleetProblem == "" {
		reasons = p.decideOrders(now, hold, feasible)
	}
	p.fillPlan(&plan, feasible, before, reasons)
	return plan
}

// describeForecast returns the forecast of the arrivals while ordered workers start.
func (p *Planner) describeForecast() Forecast {
	return p.forecast.describeForecast(p.cfg.Deviations, p.cfg.Interval.Seconds())
}

// currentOrders returns the order of each role.
func (p *Planner) currentOrders() []int {
	out := make([]int, len(p.roles))
	for i := range p.roles {
		out[i] = p.roles[i].order
	}
	return out
}

// fillPlan writes what was decided for the roles into a plan; before are the orders before it.
func (p *Planner) fillPlan(plan *Plan, feasible, before []int, reasons []string) {
	for i, desired := range p.desiredWorkers() {
		r := &p.roles[i]
		plan.Roles = append(plan.Roles, RolePlan{
			Role: r.cfg.Role, Desired: desired, Feasible: min(feasible[i], r.machines()), Actual: r.fleet.Ready,
			Order: r.order, Change: r.order - before[i], Withdrawn: r.withdrawn,
			Attainment: r.size.attainment, Attainable: r.size.most, Model: r.model, Reason: reasons[i],
		})
	}
	plan.Accelerators = p.takenAccelerators()
}

// acceptTraffic learns from an interval, and returns why it cannot, "" if it can.
func (p *Planner) acceptTraffic(now kv.Mono, t *Traffic) string {
	if problem := p.check.checkTraffic(now, t); problem != "" {
		p.forecast.skipInterval()
		p.burst.skipInterval(now)
		if p.check.badIntervals >= gapIntervals {
			p.covered = false
		}
		return problem
	}
	if !p.covered {
		p.covered, p.coveredFrom = true, now
	}
	p.traffic = *t
	p.usage.addTraffic(t)
	p.forecast.addArrivals(t.Arrivals)
	p.burst.endInterval(now, t.Arrivals, t.Stale)
	return ""
}

// acceptFleet learns which workers there are, and withdraws orders for which there is no machine. It returns why the
// workers are not known, "" if they are.
func (p *Planner) acceptFleet(now kv.Mono, fleet []RoleFleet) string {
	for i := range p.roles {
		p.roles[i].withdrawn = 0
	}
	if len(fleet) != len(p.roles) {
		return "the workers are not known"
	}
	for i := range fleet {
		if f := &fleet[i]; min(f.Ready, f.Starting, f.Draining, f.Refused) < 0 ||
			max(f.Ready, f.Starting, f.Draining, f.Refused) > maxWorkers {
			return fmt.Sprintf("the workers are not valid: %v has %+v", p.roles[i].cfg.Role, *f)
		}
	}
	for i := range p.roles {
		r := &p.roles[i]
		r.fleet = fleet[i]
		if !p.started {
			r.order = r.fleet.existing()
		}
		if now >= r.settledAt {
			r.held = 0
		}
		r.trackPending(now)
		r.withdrawOrders(now, &p.cfg)
	}
	p.started = true
	return ""
}

// trackPending keeps the ordered workers which are not ready, by the time of their order. A worker which is lost is
// ordered anew, since it is the connector's to replace it.
func (r *roleState) trackPending(now kv.Mono) {
	awaited := 0
	for _, s := range r.pending {
		awaited += s.n
	}
	missing := max(r.order-r.fleet.Ready, 0)
	if missing > awaited {
		r.pending = append(r.pending, startOrder{now, missing - awaited})
	}
	for drop := awaited - missing; drop > 0; {
		n := min(drop, r.pending[0].n)
		r.pending[0].n -= n
		drop -= n
		if r.pending[0].n == 0 {
			r.pending = r.pending[1:]
		}
	}
	if r.fleet.Ready > r.limit {
		r.retry = 0 // there are machines again
	}
	r.limited = r.limited && now < r.limitUntil && r.fleet.Ready <= r.limit
}

// withdrawOrders withdraws the orders of workers which are not ready in time, or which the connector refused.
func (r *roleState) withdrawOrders(now kv.Mono, c *Config) {
	lost, awaited := 0, 0
	for _, s := range r.pending {
		awaited += s.n
		if now.Sub(s.at) >= c.StartTimeout {
			lost += s.n
		}
	}
	r.why = fmt.Sprintf("not ready %v after the order", c.StartTimeout)
	if refused := min(r.fleet.Refused, awaited); refused > lost {
		lost, r.why = refused, "there is no machine"
	}
	if lost == 0 {
		return
	}
	r.withdrawn = lost
	r.limit, r.limited = max(r.order-lost, r.fleet.Ready), true
	r.retry = min(max(r.retry, c.RetryAfter), maxRetry)
	r.limitUntil = now.Add(r.retry)
	r.retry *= 2
	r.lowerOrder(now, max(r.limit, r.cfg.least()), c)
	r.pending = nil
	if missing := r.order - r.fleet.Ready; missing > 0 {
		r.pending = []startOrder{{now, missing}}
	}
}

// lowerOrder lowers the order. The accelerators of the difference are taken until the connector had time to see it.
func (r *roleState) lowerOrder(now kv.Mono, to int, c *Config) {
	if to >= r.order {
		return
	}
	r.held = r.heldWorkers()
	r.settledAt = now.Add(c.Settle)
	r.order = to
}

// machines returns the number of workers for which there are machines, as far as is known.
func (r *roleState) machines() int {
	if !r.limited {
		return maxWorkers
	}
	return r.limit
}

// desiredWorkers returns what each role needs; what is ordered, before anything is known.
func (p *Planner) desiredWorkers() []int {
	out := make([]int, len(p.roles))
	for i := range p.roles {
		r := &p.roles[i]
		if out[i] = r.order; r.sized {
			out[i] = min(r.size.workers+r.extra, maxWorkers)
		}
	}
	return out
}

// sizeRoles finds the sizes for the forecast, and writes the raised rate into it.
func (p *Planner) sizeRoles(f *Forecast) {
	if !p.usage.known {
		for i := range p.roles { // no request came yet
			r := &p.roles[i]
			r.size, r.sized, r.downNeed = sizing{attainment: 1, most: 1, bound: boundByLoad}, true, 0
		}
		return
	}
	waiting := 0.0
	for i := range p.roles {
		waiting = max(waiting, p.traffic.Queued[p.roles[i].cfg.Role])
	}
	f.Raised += waiting / p.cfg.ClearWithin.Seconds()
	load := p.cfg.makeWorkload(&p.usage, f.Raised)
	more := p.cfg.makeWorkload(&p.usage, f.Raised*(1+p.cfg.DownMargin))
	for i := range p.roles {
		r := &p.roles[i]
		s := p.makeStation(r, &load)
		if s.model != nil {
			r.model = s.model.String()
		}
		floor := s.runningFloor(p.traffic.Running[r.cfg.Role])
		r.size, r.sized = s.findSize(p.cfg.Targets.Chance), true
		if floor > r.size.workers {
			r.size.workers, r.size.bound = floor, boundByRunning
		}
		s.load = &more
		r.downNeed = max(s.findSize(p.cfg.Targets.Chance).workers, floor)
		r.extra = int(math.Ceil(float64(r.extraShare*float64(r.size.workers)) - 1e-9))
	}
}

// makeStation returns the workers of a role.
func (p *Planner) makeStation(r *roleState, load *workload) station {
	s := station{
		role: r.cfg.Role, coder: r.cfg.Encoder, load: load,
		seqs: float64(r.cfg.MaxSequences), budget: float64(r.cfg.TokenBudget), cache: float64(r.cfg.CacheTokens),
		encodeTarget: float64(load.ttft * p.cfg.EncodeShare),
	}
	if r.cfg.Role != Encode {
		s.model = firstReady(r.cfg.Models)
	}
	if r.cfg.Role == Prefill {
		for i := range p.roles {
			if other := &p.roles[i].cfg; other.Role == Decode {
				s.first = firstReady(other.Models).StepMs(1, load.context)
			}
		}
	}
	return s
}

const (
	// missedIntervals is the number of intervals in which means miss a target before a role gets more workers than its
	// model asks for, settledIntervals the number for which it had these before, so that no request of a shortage is left,
	// and surelyAttainable the share of requests which the model must let keep the targets.
	missedIntervals  = 2
	settledIntervals = 4
	surelyAttainable = 0.9
)

// adjustExtras corrects the models of all roles, once requests came.
func (p *Planner) adjustExtras(now kv.Mono) {
	for i := range p.roles {
		if p.usage.known {
			p.adjustExtra(now, &p.roles[i])
		}
	}
}

// adjustExtra corrects a model which is too fast: while all ordered workers are ready and as many as it asks for, and
// the means of requests miss the targets all the same, the role gets one worker more than it has, up to twice the
// model's number. The share by which it has more stays when the load changes. A worker leaves again after DownAfter in
// which the means, with the work of one worker spread over the others, kept the targets.
func (p *Planner) adjustExtra(now kv.Mono, r *roleState) {
	size := r.size.workers
	ratio, n := p.missRatio(r.cfg.Role), r.fleet.Ready
	if n != r.order || r.fleet.Starting > 0 || n < size+r.extra || p.traffic.Arrivals == 0 {
		r.settled, r.missed = 0, 0
	} else {
		r.settled++
	}
	switch {
	case ratio > 1 && r.settled > settledIntervals && r.size.most >= surelyAttainable:
		r.calm = false
		if r.missed++; r.missed >= missedIntervals {
			r.setExtra(n + 1 - size)
		}
	case ratio > 1 || n > 1 && float64(ratio*float64(n)) > float64(n-1):
		r.calm, r.missed = false, 0
	case !r.calm:
		r.calm, r.calmFrom, r.missed = true, now, 0
	case now.Sub(r.calmFrom) >= p.cfg.DownAfter && r.extra > 0:
		r.setExtra(r.extra - 1)
		r.calmFrom = now
	}
}

// setExtra sets the number of workers beyond the model's, at most the model's.
func (r *roleState) setExtra(n int) {
	r.extra, r.missed = max(min(n, r.size.workers), 0), 0
	r.extraShare = float64(r.extra) / float64(max(r.size.workers, 1))
}

// missRatio returns the largest of the role's means over its target.
func (p *Planner) missRatio(role WorkerRole) float64 {
	ratio := 0.0
	if role == Aggregated || role == Prefill {
		ratio = p.traffic.TTFT / toMs(p.cfg.Targets.TTFT)
	}
	if role == Aggregated || role == Decode {
		ratio = max(ratio, p.traffic.ITL/toMs(p.cfg.Targets.ITL))
	}
	return ratio
}

// SizeFor returns how many workers of each role the targets need at a rate in requests a second, if it does not change:
// the size of a fleet which knows its traffic. Requests are like the ones of t; if t is nil, like the ones which p has
// learned of, of which there must be some. Floors, ceilings and the budget hold.
func (p *Planner) SizeFor(t *Traffic, rate float64) []int {
	u := p.usage
	if t != nil {
		u = usage{}
		u.addTraffic(t)
	}
	load := p.cfg.makeWorkload(&u, rate)
	needs := make([]int, len(p.roles))
	for i := range p.roles {
		s := p.makeStation(&p.roles[i], &load)
		needs[i] = s.findSize(p.cfg.Targets.Chance).workers
	}
	return p.fitNeeds(needs)
}
