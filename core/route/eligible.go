package route

import (
	"fmt"
	"slices"
	"strings"

	"penstock/core/fault"
	"penstock/core/kv"
)

// refusal is why a worker cannot be picked for a request.
type refusal uint8

const (
	eligible refusal = iota
	notPinned
	excluded
	unfit
	draining
	notReady
	otherBlockSize
	refusals
)

// refuse returns why t cannot be picked for q, or eligible. What the request
// itself rules out comes before the worker's own state.
func (r *Router) refuse(t *Target, q *Query) refusal {
	switch {
	case q.Pin.ID != 0 && q.Pin != t.Worker:
		return notPinned
	case slices.Contains(q.Exclude, t.Worker.ID):
		return excluded
	case t.Unfit != "":
		return unfit
	case t.State == Draining:
		return draining
	case t.State != Ready:
		return notReady
	case t.BlockSize != r.active.BlockSize():
		return otherBlockSize
	}
	return eligible
}

// reason says in words why t was refused.
func (r *Router) reason(why refusal, t *Target, q *Query) string {
	switch why {
	case notPinned:
		return fmt.Sprintf("the request is pinned to worker %s", name(q.Pin))
	case unfit:
		return t.Unfit
	case otherBlockSize:
		return fmt.Sprintf("its blocks are of %d tokens, the router's of %d", t.BlockSize, r.active.BlockSize())
	}
	return refusalNames[why]
}

var refusalNames = [refusals]string{
	excluded:       "excluded by the request",
	unfit:          "with another model card",
	draining:       "draining",
	notReady:       "not ready",
	otherBlockSize: "other block size",
}

// unavailable is the error when no worker is eligible for q.
func (r *Router) unavailable(q *Query) error {
	if q.Pin.ID != 0 {
		at, found := find(r.targets, q.Pin)
		if !found {
			return fault.New(fault.NotFound, "worker %s does not serve this model; `penstock workers` lists those that do", name(q.Pin))
		}
		t := &r.targets[at]
		return fault.New(fault.Unavailable, "worker %s cannot take the request: %s; leave the choice to the router or try again", name(q.Pin), r.reason(r.refuse(t, q), t, q))
	}
	if len(r.targets) == 0 {
		return fault.New(fault.Unavailable, "no worker serves this model now; start one or try again")
	}
	var counts [refusals]int
	for i := range r.targets {
		counts[r.refuse(&r.targets[i], q)]++
	}
	var reasons []string
	for why, n := range counts {
		if n > 0 {
			reasons = append(reasons, fmt.Sprintf("%d %s", n, refusalNames[why]))
		}
	}
	return fault.New(fault.Unavailable, "none of %d workers can take the request (%s); try again", len(r.targets), strings.Join(reasons, ", "))
}

// assess returns the eligible workers, ordered, with their costs and the
// probability of each. The slice is valid until the next call.
func (r *Router) assess(p *policy, q *Query) ([]candidate, error) {
	cands, overlaps := r.candidates[:0], q.Overlaps
	for i := range r.targets {
		t := &r.targets[i]
		for len(overlaps) > 0 && overlaps[0].Worker.Compare(t.Worker) < 0 {
			overlaps = overlaps[1:]
		}
		if r.refuse(t, q) != eligible {
			continue
		}
		var have [kv.Tiers]int
		if len(overlaps) > 0 && overlaps[0].Worker == t.Worker {
			have = overlaps[0].Blocks
		}
		cands = append(cands, r.cost(p, q, t, have))
	}
	r.candidates = cands
	if len(cands) == 0 {
		return nil, r.unavailable(q)
	}
	r.odds(p, cands)
	return cands, nil
}
