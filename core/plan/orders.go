package plan

import (
	"fmt"
	"time"

	"penstock/core/kv"
)

// recordNeeds keeps what limits permit of what is needed at a rate, for as long as it delays scale-downs.
func (p *Planner) recordNeeds(now kv.Mono, rate float64) {
	needs := make([]int, len(p.roles))
	for i := range p.roles {
		needs[i] = max(p.roles[i].downNeed, p.roles[i].size.workers) + p.roles[i].extra
	}
	for i, n := range p.fitNeeds(needs) {
		r := &p.roles[i]
		first := 0
		for first < len(r.needs) && now.Sub(r.needs[first].at) >= p.cfg.DownAfter {
			first++
		}
		r.needs = append(r.needs[first:], pastNeed{now, n, rate})
	}
}

// recentNeed returns the most which was needed within DownAfter, and the most of that which still counts. A need no
// longer counts when the requests of as much time as it was forecast for, a start-up and an interval, came far slower than
// forecast, by the test which finds bursts: workers which stay beyond that cost more than to start them again. Of that
// time the last longIntervals are known. If workers which left so were soon needed again, traffic comes and goes, and
// all needs count.
func (p *Planner) recentNeed(now kv.Mono, r *roleState) (most, counts int) {
	// Intervals end early or late: a need may be younger by half of one.
	length := time.Duration(p.forecast.lead)*p.cfg.Interval - p.cfg.Interval/2
	n := min(p.forecast.lead, longIntervals)
	arrivals, known := p.forecast.recentSum(n)
	seconds := float64(n) * p.cfg.Interval.Seconds()
	if r.hasReturned && now.Sub(r.returned) < longIntervals*p.cfg.Interval {
		known = false
	}
	for _, need := range r.needs {
		most = max(most, need.n)
		if !known || now.Sub(need.at) < length || !isFarFewer(arrivals, float64(need.rate*seconds)) {
			counts = max(counts, need.n)
		}
	}
	return most, counts
}

// decideOrders sets the orders of all roles, and returns the reasons. Scale-downs come first. Their accelerators are
// free when their workers are gone: scale-ups share what is free now.
func (p *Planner) decideOrders(now kv.Mono, hold string, feasible []int) []string {
	reasons, wants := make([]string, len(p.roles)), make([]int, len(p.roles))
	over := p.exceedsBudget()
	for i := range p.roles {
		r := &p.roles[i]
		wants[i], reasons[i] = p.decideTarget(now, r, hold, feasible[i], over)
		if wants[i] < r.order {
			if most, _ := p.recentNeed(now, r); wants[i] < most && !over { // else the budget lowers it
				r.droppedAt, r.hasDropped = now, true
			}
			r.lowerOrder(now, wants[i], &p.cfg)
			r.dropPending()
			r.lastLow, r.hasLow = now, true
		}
	}
	p.grantWants(now, wants, reasons)
	for i := range p.roles {
		if r := &p.roles[i]; r.withdrawn > 0 {
			reasons[i] = fmt.Sprintf("withdrew %s: %s; %s", countWorkers(r.withdrawn), r.why, reasons[i])
		}
	}
	return reasons
}

// grantWants raises the orders as far as accelerators are free.
func (p *Planner) grantWants(now kv.Mono, wants []int, reasons []string) {
	from := make([]int, len(p.roles))
	for i := range p.roles {
		from[i] = p.roles[i].order
	}
	taken := p.takenAccelerators()
	for i, n := range p.fitWants(from, wants, p.cfg.Budget-taken) {
		r := &p.roles[i]
		rest := ""
		if n < wants[i] {
			rest = fmt.Sprintf("; %d must wait: %d of %d accelerators are taken", wants[i]-n, taken, p.cfg.Budget)
		}
		switch {
		case n > r.order:
			reasons[i] = fmt.Sprintf("start %d: %s%s", n-r.order, reasons[i], rest)
			if more := n - max(r.order, r.fleet.Ready); more > 0 {
				r.pending = append(r.pending, startOrder{now, more})
			}
			if r.held > 0 { // the connector may drain workers of the order before, and start these beside them
				r.held += n - r.order
			}
			if r.hasDropped && now.Sub(r.droppedAt) < p.cfg.DownAfter { // they would be there still
				r.returned, r.hasReturned = now, true
			}
			r.lastUp, r.hasUp = now, true
			r.order = n
		case rest != "":
			reasons[i] = "hold: " + reasons[i] + rest
		}
	}
}

// dropPending forgets the latest ordered workers, which a lower order no longer has.
func (r *roleState) dropPending() {
	missing := max(r.order-r.fleet.Ready, 0)
	for i := range r.pending {
		r.pending[i].n = min(r.pending[i].n, missing)
		missing -= r.pending[i].n
	}
	for len(r.pending) > 0 && r.pending[len(r.pending)-1].n == 0 {
		r.pending = r.pending[:len(r.pending)-1]
	}
}

// decideTarget returns the order which a role is to have, accelerators permitting, and why.
func (p *Planner) decideTarget(
	now kv.Mono, r *roleState, hold string, feasible int, over bool,
) (order int, reason string) {
	floor := r.cfg.least()
	want := max(min(feasible, r.machines()), floor)
	switch {
	case r.order > r.cfg.Ceiling:
		return r.cfg.Ceiling, fmt.Sprintf("stop %d: the ceiling is %d", r.order-r.cfg.Ceiling, r.cfg.Ceiling)
	case over && want < r.order:
		return want, fmt.Sprintf("stop %d: the budget of %d accelerators is exceeded", r.order-want, p.cfg.Budget)
	case r.order < floor && (hold != "" || want == floor):
		return floor, fmt.Sprintf("the floor is %d", floor)
	case hold != "":
		return r.order, "hold: " + hold
	case want > r.order && r.hasUp && now.Sub(r.lastUp) < p.cfg.UpEvery:
		return r.order, fmt.Sprintf("hold: %s, and the last ones were started less than %v ago",
			p.describeNeed(r, feasible), p.cfg.UpEvery)
	case want > r.order:
		return want, p.describeNeed(r, feasible)
	case want < r.order:
		return p.decideDown(now, r, want, feasible)
	}
	return r.order, "keep: " + p.describeNeed(r, feasible)
}

// decideDown returns the order of a role which could shrink to want.
func (p *Planner) decideDown(now kv.Mono, r *roleState, want, feasible int) (order int, reason string) {
	most, counts := p.recentNeed(now, r)
	to := min(max(counts, want), r.order)
	switch {
	case now.Sub(p.coveredFrom) < p.cfg.DownAfter:
		return r.order, fmt.Sprintf("hold: %d would do, and metrics are known for less than %v", want, p.cfg.DownAfter)
	case to == r.order:
		return r.order, fmt.Sprintf("hold: %d would do, and %d were needed within %v, with %.0f %% more traffic", want,
			r.order, p.cfg.DownAfter, 100*p.cfg.DownMargin)
	case r.hasLow && now.Sub(r.lastLow) < p.cfg.DownEvery-p.cfg.Interval/2: // as in recentNeed
		return r.order, fmt.Sprintf("hold: %d would do, and the last ones were stopped less than %v ago", want,
			p.cfg.DownEvery)
	}
	if to < min(most, r.order) {
		return to, fmt.Sprintf("stop %d: %s; the requests for which the others were ordered have ended", r.order-to,
			p.describeNeed(r, feasible))
	}
	return to, fmt.Sprintf("stop %d: %s", r.order-to, p.describeNeed(r, feasible))
}

// describeNeed says how many workers are needed, for what, and what limits them.
func (p *Planner) describeNeed(r *roleState, feasible int) string {
	need := r.size.workers + r.extra
	out := fmt.Sprintf("%s, by %s", needWorkers(need), r.size.bound)
	if r.size.most < leastAttainable && need > 0 {
		out = fmt.Sprintf("%s for the load; no number keeps the targets", needWorkers(need))
	}
	if r.extra > 0 {
		out += fmt.Sprintf(", %d of them because means miss the targets", r.extra)
	}
	switch machines := r.machines(); {
	case machines < min(feasible, need):
		out += fmt.Sprintf("; there are machines for %d", machines)
	case feasible < need && feasible == r.cfg.Ceiling:
		out += fmt.Sprintf("; the ceiling is %d", feasible)
	case feasible < need:
		out += fmt.Sprintf("; the budget of %d accelerators has %d", p.cfg.Budget, feasible)
	case feasible > need:
		out += fmt.Sprintf("; the floor is %d", feasible)
	}
	return out
}

func needWorkers(n int) string {
	if n == 1 {
		return "1 worker is needed"
	}
	return fmt.Sprintf("%d workers are needed", n)
}

func countWorkers(n int) string {
	if n == 1 {
		return "1 worker"
	}
	return fmt.Sprintf("%d workers", n)
}
