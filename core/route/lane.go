package route

import (
	"math"

	"penstock/core/kv"
	"penstock/core/splitmix"
)

// ShouldQueue reports whether q should wait: on every worker which could be picked for it, more prompt tokens
// wait than the queue threshold allows. It is false without a threshold, and if no worker could be picked at
// all: Pick then returns the reason. A worker whose BatchTokens are unknown is never above the threshold.
func (r *Router) ShouldQueue(now kv.Mono, q *Query) bool {
	if r.cfg.QueueThreshold == nil {
		return false
	}
	p, err := r.resolvePolicy(now, q)
	if err != nil {
		return false
	}
	some := false
	for i := range r.targets {
		t := &r.targets[i]
		if r.checkEligible(&p, i, q) != eligible {
			continue
		}
		if t.BatchTokens == 0 || float64(r.active.LoadAt(r.refs[i].load).PrefillTokens) <= *r.cfg.QueueThreshold*float64(t.BatchTokens) {
			return false
		}
		some = true
	}
	return some
}

// sharedLanes is the number of lanes which requests with constraints of their own share.
const sharedLanes = 64

// QueueLane returns the lane of q in a queue: equal for requests whose own constraints allow the same
// workers. It is 0 for requests without constraints. Each worker has a lane for the requests pinned to it.
// The rest share 64, so that looking through them takes a bounded time; two requests which share a lane by
// chance wait for each other.
func (r *Router) QueueLane(q *Query) uint64 {
	switch {
	case q.Pin.ID != 0:
		return 1 + sharedLanes + foldHash(uint64(q.Pin.ID), uint64(q.Pin.Rank))%(1<<63)
	case q.Override.RequiresLabels() || q.Session.ID != "" && r.cfg.Sessions.Stickiness == Hard:
		return 1 + fnv1a(q.Key.ID)%sharedLanes
	case len(q.Allowed) == 0 && len(q.Exclude) == 0 && q.Override.ITLTarget == nil:
		return 0
	}
	h := uint64(0)
	if t := q.Override.ITLTarget; t != nil { // it may wait where others need not
		h = math.Float64bits(*t)
	}
	for _, id := range q.Allowed {
		h = foldHash(h, uint64(id))
	}
	h = foldHash(h, 0) // no worker
	for _, id := range q.Exclude {
		h = foldHash(h, uint64(id))
	}
	return 1 + h%sharedLanes
}

// foldHash adds a word to a hash.
func foldHash(h, word uint64) uint64 { return splitmix.Mix(h*splitmix.Step ^ word) }
