package router

import (
	"context"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
)

// queuedRequest is a request that waits in its pool's queue until a worker has less load. The router's
// mu guards it until done is closed; then it belongs to the waiting goroutine.
type queuedRequest struct {
	query        route.Query // with a chain of its own
	client       uint64
	namespace    string // of its cache salt
	usesOverlaps bool   // the choice depends on what is cached
	since        time.Time
	hold         time.Duration // time until the turn of this router in a burst; see route.Router.HoldUntil
	entry        *queue.Entry
	done         chan struct{}
	// The outcome. mustRetry says that the pool is no longer the model's, and that the request must be
	// decided again.
	decision  route.Decision
	err       error
	mustRetry bool
}

// placeLocked picks a worker for q, or queues it if all eligible workers have enough load, if it waits for a
// worker which meets its targets, or for the router's turn in a burst. A migrated request does not wait. A new request
// does not overtake queued ones for the same workers.
func (r *Router) placeLocked(p *modelPool, q *route.Query, req *route.Request) (route.Decision, *queuedRequest, error) {
	now := r.now()
	holders := r.describePrefillLocked(p, q)
	check := route.TargetCheck{}
	if !q.Moving {
		check = p.router.CheckTargets(now, q)
	}
	if err := check.Refusal(); err != nil {
		return route.Decision{}, nil, err
	}
	pick := func() (route.Decision, *queuedRequest, error) {
		d, err := p.pickLocked(now, q, req)
		r.addPrefillLocked(&d, holders)
		return d, nil, err
	}
	if q.Moving {
		return pick()
	}
	hold := p.router.HoldUntil(now, now, q).Sub(now)
	if hold <= 0 && !p.mustWaitLocked(now, q, &check) {
		return pick()
	}
	w := &queuedRequest{query: *q, hold: hold, client: req.Client, namespace: req.Salt.Namespace, usesOverlaps: r.needsOverlapsLocked(p, &q.Override), since: time.Now(), done: make(chan struct{})}
	w.query.Chain = slices.Clone(q.Chain)
	entry, err := p.queue.Push(now, queue.QueuedRequest{
		Priority: req.Priority, Lane: p.router.QueueLane(q), Client: req.Client, LatestStart: check.LatestStart, Missed: check.Late, Tokens: q.PromptTokens, Cached: typicalOverlap(q.Overlaps) * p.blockSize,
	}, w)
	if err != nil && hold > 0 && !check.ShouldWait() && !p.router.ShouldQueue(now, q) { // it was only held
		return pick()
	}
	if err != nil {
		return route.Decision{}, nil, err
	}
	w.query.Overlaps, w.query.Held, w.query.Near = nil, nil, nil // looked up again before it is placed
	w.entry = entry
	r.admitLocked(p) // it may be the first queued request that can be placed
	return route.Decision{}, w, nil
}

// pickLocked picks a worker for a request which does not wait.
func (p *modelPool) pickLocked(now kv.Mono, q *route.Query, req *route.Request) (route.Decision, error) {
	d, err := p.router.Pick(now, q)
	if err == nil {
		p.queue.ChargeClient(req.Client, d.Work)
	}
	return d, err
}

// mustWaitLocked reports whether q, whose targets were checked, would wait if it arrived now.
func (p *modelPool) mustWaitLocked(now kv.Mono, q *route.Query, check *route.TargetCheck) bool {
	return check.ShouldWait() || p.queue.MustFollow(p.router.QueueLane(q)) || p.router.ShouldQueue(now, q)
}

// typicalOverlap is the number of the prompt's blocks on a typical worker.
func typicalOverlap(overlaps []kv.Overlap) int {
	depths := make([]int, 0, len(overlaps))
	for i := range overlaps {
		depths = append(depths, overlaps[i].Depth())
	}
	return queue.TypicalDepth(depths)
}

// awaitPlacement waits until w, which waits in p, is placed or refused. If ctx ends first it removes w
// from the queue and frees its reservation.
func (r *Router) awaitPlacement(ctx context.Context, p *modelPool, w *queuedRequest) (again bool, d route.Decision, err error) {
	var turn <-chan time.Time
	if w.hold > 0 {
		t := time.NewTimer(w.hold)
		defer t.Stop()
		turn = t.C
	}
	for waits := true; waits; {
		select {
		case <-w.done:
			waits = false
		case <-turn:
			r.admitPool(p)
		case <-ctx.Done():
			r.abandonWait(p, w)
			r.metrics.observeWait(waitAbandoned, w.since)
			return false, route.Decision{}, contextFault(ctx)
		}
	}
	switch {
	case w.mustRetry:
		return true, route.Decision{}, nil
	case w.err != nil:
		r.metrics.observeWait(waitRefused, w.since)
	default:
		r.metrics.observeWait(waitPlaced, w.since)
	}
	return false, w.decision, w.err
}

// abandonWait undoes a wait.
func (r *Router) abandonWait(p *modelPool, w *queuedRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case p.queue.Remove(w.entry):
	case w.err == nil && !w.mustRetry: // placed at this moment
		p.active.Free(w.query.Key)
	}
	r.admitLocked(p) // the requests after it, or one that takes its place
	r.wakeSyncLocked()
}

// admitPool places the requests waiting in p that can be placed.
func (r *Router) admitPool(p *modelPool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.admitLocked(p)
}

// admitLocked places the requests waiting in p that can be placed.
func (r *Router) admitLocked(p *modelPool) {
	if p.queue.Len() == 0 {
		return
	}
	now := r.now()
	if p.queue.OfferHeads(now, func(e *queue.Entry) (float64, bool) { return r.tryPlaceLocked(now, p, e) }) > 0 {
		r.wakeSyncLocked()
	}
}

// tryPlaceLocked places a queued request if possible. It reports whether it waits no more, and what it uses.
func (r *Router) tryPlaceLocked(now kv.Mono, p *modelPool, e *queue.Entry) (work float64, done bool) {
	w := e.Value.(*queuedRequest)
	if !w.query.Override.RequiresLabels() && p.router.ShouldQueue(now, &w.query) {
		return 0, false // full, whatever is cached
	}
	if w.usesOverlaps {
		moe, asks := w.query.Override.LabelQuery()
		w.query.Overlaps = r.lookUpPrefix(&r.mu.lookup, w.query.Chain, &moe, asks)
		w.query.Held = r.lookUpMedia(&r.mu.held, p.encoders, w.namespace, w.query.Media)
	}
	holders := r.describePrefillLocked(p, &w.query)
	done = p.placeQueuedLocked(now, e, w)
	r.addPrefillLocked(&w.decision, holders)
	w.query.Overlaps, w.query.Held = nil, nil // the memory is shared
	if done {
		close(w.done)
	}
	return w.decision.Work, done
}

// placeQueuedLocked places w, the request of e, if possible, or refuses it, and reports whether it waits no more.
func (p *modelPool) placeQueuedLocked(now kv.Mono, e *queue.Entry, w *queuedRequest) bool {
	if p.router.ShouldQueue(now, &w.query) || p.router.HoldUntil(now, e.Arrival, &w.query) > now {
		return false
	}
	w.query.Waited = now.Sub(e.Arrival)
	check := p.router.CheckTargets(now, &w.query)
	if check.ShouldWait() && !e.IsOverdue(now) {
		return false
	}
	if w.err = check.Refusal(); w.err == nil {
		w.decision, w.err = p.router.Pick(now, &w.query)
		if fault.CodeOf(w.err) == fault.Overloaded && w.err != nil {
			w.err = nil // it arrived before the requests that are refused now
			return false
		}
	}
	return true
}

// dispersePoolLocked makes all requests that wait in p start over: p is no longer the pool of its
// model.
func (r *Router) dispersePoolLocked(p *modelPool) {
	p.queue.OfferHeads(r.now(), func(e *queue.Entry) (float64, bool) {
		w := e.Value.(*queuedRequest)
		w.mustRetry = true
		close(w.done)
		return 0, true
	})
}

// queueTotals returns the number of waiting requests, and their prompt tokens.
func (r *Router) queueTotals() (requests, tokens int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.mu.pools {
		requests += p.queue.Len()
		tokens += p.queue.Tokens()
	}
	return requests, tokens
}
