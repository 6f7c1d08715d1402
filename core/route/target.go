package route

import (
	"errors"
	"fmt"
	"math"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// Targets are the times which requests shall not exceed; 0 is no target. Mode Time chooses, among the workers for
// which it predicts that they meet them, the one of least cost.
type Targets struct {
	TTFT time.Duration // from the request's arrival at the router to its first token
	ITL  time.Duration // between two tokens of an answer, in the mean
}

// MaxTarget bounds targets.
const MaxTarget = time.Hour

// MissPolicy says what happens to a request for which no worker meets its targets.
type MissPolicy string

// The policies.
const (
	// MissWaits makes the request wait in the router: for a target of ITL until a worker meets it; for a target of
	// TTFT, which waiting cannot save, until a worker has no prefill queued, behind all which can meet theirs.
	MissWaits MissPolicy = "wait"
	// MissRefuses refuses the request at once.
	MissRefuses MissPolicy = "refuse"
)

func (c *Config) validateTargets() error {
	var errs []error
	if min(c.Targets.TTFT, c.Targets.ITL) < 0 || max(c.Targets.TTFT, c.Targets.ITL) > MaxTarget {
		errs = append(errs, fmt.Errorf("route: targets must be between 0 and %v", MaxTarget))
	}
	if c.Targets != (Targets{}) && c.Mode != Time {
		errs = append(errs, fmt.Errorf("route: targets need mode time, not %.100q", string(c.Mode)))
	}
	if c.OnMiss != MissWaits && c.OnMiss != MissRefuses {
		errs = append(errs, fmt.Errorf("route: what happens to a request which misses its target is %s or %s, not %.100q", MissWaits, MissRefuses, string(c.OnMiss)))
	}
	return errors.Join(errs...)
}

// resolveTargets returns the targets in force for a request in a mode.
func (r *Router) resolveTargets(mode Mode, o *Override) (t Targets, err error) {
	t = r.cfg.Targets
	if o.TTFTTarget != nil {
		t.TTFT, err = readTarget("ttft_target_ms", *o.TTFTTarget, mode)
	}
	if o.ITLTarget != nil && err == nil {
		t.ITL, err = readTarget("itl_target_ms", *o.ITLTarget, mode)
	}
	return t, err
}

func readTarget(name string, ms float64, mode Mode) (time.Duration, error) {
	switch {
	case !isInRange(ms, toMs(MaxTarget)):
		return 0, fault.InvalidParam("router_config_override."+name, "%s must be between 0, which is no target, and %g", name, toMs(MaxTarget))
	case ms > 0 && mode != Time:
		return 0, fault.InvalidParam("router_config_override."+name, "targets need router mode time: give router_mode too, or leave the target out")
	}
	return toDuration(ms), nil
}

// hasTargets reports whether targets matter to the choice.
func (p *requestPolicy) hasTargets() bool { return p.mode == Time && p.targets != Targets{} }

// setProbabilitiesByTarget sets the probabilities of the candidates: if some of them meet the request's targets and
// others do not, only of candidates which do.
func (r *Router) setProbabilitiesByTarget(p *requestPolicy, q *Query, cands []scoredCandidate) {
	if !p.hasTargets() {
		r.setProbabilities(p, cands)
		return
	}
	meet := r.meeting[:0]
	for i := range cands {
		c := &cands[i]
		if c.misses = r.misses(p, q, c); !c.misses {
			meet = append(meet, *c)
		}
	}
	r.meeting = meet
	if len(meet) == 0 {
		r.setProbabilities(p, cands)
		return
	}
	r.setProbabilities(p, meet)
	for i := range cands {
		if !cands[i].misses {
			cands[i].Probability, cands[i].Near = meet[0].Probability, meet[0].Near
			meet = meet[1:]
		}
	}
}

// misses reports whether a request would miss a target at a worker. A router process has workers of its own, and
// applies targets itself.
func (r *Router) misses(p *requestPolicy, q *Query, c *scoredCandidate) bool {
	return !r.targets[c.target].Router && (r.missesTTFT(p, q, c) || p.targets.ITL > 0 && c.itl > toMs(p.targets.ITL))
}

func (r *Router) missesTTFT(p *requestPolicy, q *Query, c *scoredCandidate) bool {
	return p.targets.TTFT > 0 && toMs(q.Waited)+float64(c.ttft*(1+r.margin.share)) > toMs(p.targets.TTFT)
}

// TargetCheck says whether a request can meet its targets.
type TargetCheck struct {
	// Targets are those in force; the rest is zero without any.
	Targets Targets
	OnMiss  MissPolicy
	// Met says that a worker meets them. Late says that none meets the one of TTFT, so that waiting does not help.
	Met, Late bool
	// HasIdle says that a worker has no prefill queued: no later time is better for the first token. HasUnused says
	// that a worker runs no request at all: no later time is better for anything.
	HasIdle, HasUnused bool
	// LatestStart is until when the request must be placed to meet the target of TTFT; 0 without one.
	LatestStart kv.Mono
	// TTFT is the least predicted time to the first token, with what the request has waited, and the margin by which
	// predictions are increased. ITL is the least predicted time between two tokens.
	TTFT, ITL time.Duration
}

// ShouldWait reports whether the request should wait in the router rather than be placed now.
func (c *TargetCheck) ShouldWait() bool {
	return c.Targets != Targets{} && c.OnMiss == MissWaits && !c.Met && c.canImprove()
}

// canImprove reports whether the prediction may be better later: not if a worker is free of what delays the request.
func (c *TargetCheck) canImprove() bool { return !c.HasUnused && !(c.Late && c.HasIdle) }

// Refusal returns the error for a request which is refused because it would miss its targets; nil if it is not. If no
// later time is better, the request is sent: a prediction which is too high would else refuse all requests for ever,
// since only requests which are sent correct it.
func (c *TargetCheck) Refusal() error {
	if c.Targets == (Targets{}) || c.OnMiss != MissRefuses || c.Met || !c.canImprove() {
		return nil
	}
	f := fault.New(fault.Overloaded, "no worker meets the target of %v between two tokens now: at least %v are predicted; try again", c.Targets.ITL, roundPrediction(c.ITL))
	f.RetryAfter = retrySoon
	if c.Late {
		f = fault.New(fault.Overloaded, "no worker meets the target of %v to the first token now: at least %v are predicted; try again", c.Targets.TTFT, roundPrediction(c.TTFT))
		seconds := math.Ceil((c.TTFT - c.Targets.TTFT).Seconds())
		f.RetryAfter = min(max(time.Duration(seconds)*time.Second, retrySoon), maxRetry)
	}
	return f
}

// roundPrediction rounds a predicted time for messages to two digits, so that it is never 0.
func roundPrediction(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 100 {
		unit *= 10
	}
	return max(d.Round(unit), time.Microsecond)
}

// maxRetry bounds the time after which a refused request is told to try again.
const maxRetry = time.Minute

// CheckTargets returns whether q can meet its targets; it changes nothing. It is zero for a request without targets,
// and if no worker can be picked at all: Pick then returns the reason.
func (r *Router) CheckTargets(now kv.Mono, q *Query) TargetCheck {
	if (r.cfg.Targets == Targets{} && q.Override.TTFTTarget == nil && q.Override.ITLTarget == nil) {
		return TargetCheck{}
	}
	p, err := r.resolvePolicy(now, q)
	if err != nil || !p.hasTargets() {
		return TargetCheck{}
	}
	cands, err := r.assessCandidates(now, &p, q, nil)
	if err != nil {
		return TargetCheck{}
	}
	c := TargetCheck{Targets: p.targets, OnMiss: r.cfg.OnMiss, Late: true}
	least, own, itl := math.Inf(1), math.Inf(1), math.Inf(1)
	for i := range cands {
		m := &cands[i]
		c.Met = c.Met || !m.misses
		c.Late = c.Late && r.missesTTFT(&p, q, m)
		c.HasIdle = c.HasIdle || m.prefills == 0
		c.HasUnused = c.HasUnused || m.rank.requests == 0
		least, own, itl = min(least, m.ttft), min(own, m.own), min(itl, m.itl)
	}
	c.TTFT, c.ITL = q.Waited+toDuration(least*(1+r.margin.share)), toDuration(itl)
	if p.targets.TTFT > 0 {
		c.LatestStart = now.Add(p.targets.TTFT - q.Waited - toDuration(own*(1+r.margin.share)))
		c.LatestStart = max(c.LatestStart, 1) // 0 is none
	}
	return c
}
