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
type waiter struct {
	query route.Query // with a chain of its own
	match bool        // the choice depends on what is cached
	since time.Time
	entry *queue.Entry
	done  chan struct{}
	// The outcome. mustRetry says that the pool is no longer the model's, and that the request must be
	// decided again.
	decision route.Decision
	err      error
	moved    bool
}

// placeLocked picks a worker for q, or queues it if all eligible workers have enough load. A migrated
// request does not wait. A new request does not overtake queued ones for the same workers.
func (r *Router) place(p *pool, q *route.Query, req *route.Request) (route.Decision, *waiter, error) {
	now := r.now()
	if q.Moving || !p.waits(now, q) {
		d, err := p.router.Pick(now, q)
		return d, nil, err
	}
	w := &waiter{query: *q, match: r.needsOverlaps(p, &q.Override), since: time.Now(), done: make(chan struct{})}
	w.query.Chain = slices.Clone(q.Chain)
	entry, err := p.queue.Push(now, queue.Item{
		Priority: req.Priority, Lane: p.router.Lane(q), Tokens: q.PromptTokens, Cached: typical(q.Overlaps) * p.blockSize,
	}, w)
	if err != nil {
		return route.Decision{}, nil, err
	}
	w.query.Overlaps = nil // looked up again before it is placed
	w.entry = entry
	r.admit(p) // it may be the first queued request that can be placed
	return route.Decision{}, w, nil
}

// mustWaitLocked reports whether q would wait if it arrived now.
func (p *pool) waits(now kv.Mono, q *route.Query) bool {
	return p.queue.Waits(p.router.Lane(q)) || p.router.Full(now, q)
}

// typicalOverlap is the number of the prompt's blocks on a typical worker.
func typical(overlaps []kv.Overlap) int {
	depths := make([]int, 0, len(overlaps))
	for i := range overlaps {
		depths = append(depths, overlaps[i].Depth())
	}
	return queue.Typical(depths)
}

// awaitPlacement waits until w, which waits in p, is placed or refused. If ctx ends first it removes w
// from the queue and frees its reservation.
func (r *Router) await(ctx context.Context, p *pool, w *waiter) (again bool, d route.Decision, err error) {
	select {
	case <-w.done:
	case <-ctx.Done():
		r.abandon(p, w)
		r.metrics.waited(waitAbandoned, w.since)
		return false, route.Decision{}, live(ctx)
	}
	switch {
	case w.moved:
		return true, route.Decision{}, nil
	case w.err != nil:
		r.metrics.waited(waitRefused, w.since)
	default:
		r.metrics.waited(waitPlaced, w.since)
	}
	return false, w.decision, w.err
}

// abandonWait undoes a wait.
func (r *Router) abandon(p *pool, w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case p.queue.Remove(w.entry):
	case w.err == nil && !w.moved: // placed at this moment
		p.active.Free(w.query.Key)
	}
	r.admit(p) // the requests after it, or one that takes its place
	r.tell()
}

// admitLocked places the requests waiting in p that can be placed.
func (r *Router) admit(p *pool) {
	if p.queue.Len() == 0 {
		return
	}
	now := r.now()
	if p.queue.Offer(now, func(e *queue.Entry) bool { return r.offer(now, p, e.Value.(*waiter)) }) > 0 {
		r.tell()
	}
}

// tryPlaceLocked places w if possible, and reports whether it waits no more.
func (r *Router) offer(now kv.Mono, p *pool, w *waiter) bool {
	if !w.query.Override.Strict() && p.router.Full(now, &w.query) {
		return false // full, whatever is cached
	}
	if w.match {
		moe, asks := w.query.Override.Labels()
		w.query.Overlaps = r.lookUp(&r.mu.lookup, w.query.Chain, &moe, asks)
	}
	if p.router.Full(now, &w.query) {
		return false
	}
	w.decision, w.err = p.router.Pick(now, &w.query)
	w.query.Overlaps = nil // the memory is shared
	if fault.Of(w.err) == fault.Overloaded && w.err != nil {
		w.err = nil // it arrived before the requests that are refused now
		return false
	}
	close(w.done)
	return true
}

// dispersePoolLocked makes all requests that wait in p start over: p is no longer the pool of its
// model.
func (r *Router) disperse(p *pool) {
	p.queue.Offer(r.now(), func(e *queue.Entry) bool {
		w := e.Value.(*waiter)
		w.moved = true
		close(w.done)
		return true
	})
}

// queueTotals returns the number of waiting requests, and their prompt tokens.
func (r *Router) waiting() (requests, tokens int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.mu.pools {
		requests += p.queue.Len()
		tokens += p.queue.Tokens()
	}
	return requests, tokens
}
