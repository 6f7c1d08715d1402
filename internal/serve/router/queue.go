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

// waiter is a request that waits in its pool's queue until a worker has less to do. It
// is guarded by the router's mu until done is closed, and then belongs to who waits.
type waiter struct {
	query route.Query // with a chain of its own
	match bool        // whether what is cached has a part in the choice
	since time.Time
	entry *queue.Entry
	done  chan struct{}
	// What came of it. moved says that the pool is not that of the model any more, and that
	// the request is to be begun anew.
	decision route.Decision
	err      error
	moved    bool
}

// place picks a worker for q, or has it wait if those that could be picked have enough
// to do. A request that was let in before, and who comes when others wait already for
// the same workers, do not overtake: the first since it does not wait, the second since it
// does. The caller holds mu.
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
	w.query.Overlaps = nil // looked up again when its turn comes
	w.entry = entry
	r.admit(p) // it may be the first of those that wait who can be placed
	return route.Decision{}, w, nil
}

// waits reports whether q, were it to come now, would wait. The caller holds the router's mu.
func (p *pool) waits(now kv.Mono, q *route.Query) bool {
	return p.queue.Waits(p.router.Lane(q)) || p.router.Full(now, q)
}

// typical is how many blocks of a prompt a typical worker has.
func typical(overlaps []kv.Overlap) int {
	depths := make([]int, 0, len(overlaps))
	for i := range overlaps {
		depths = append(depths, overlaps[i].Depth())
	}
	return queue.Typical(depths)
}

// await waits for what comes of w, whose pool is p. If ctx ends first nothing is left of
// it: neither a place in the queue nor a reservation.
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

// abandon undoes a wait.
func (r *Router) abandon(p *pool, w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case p.queue.Remove(w.entry):
	case w.err == nil && !w.moved: // placed at this moment
		p.active.Free(w.query.Key)
	}
	r.admit(p) // whoever stood behind it, or gets its place
	r.tell()
}

// admit places whom it can of those that wait for p. The caller holds mu.
func (r *Router) admit(p *pool) {
	if p.queue.Len() == 0 {
		return
	}
	now := r.now()
	if p.queue.Offer(now, func(e *queue.Entry) bool { return r.offer(now, p, e.Value.(*waiter)) }) > 0 {
		r.tell()
	}
}

// offer places w if it can, and reports whether it waits no more.
func (r *Router) offer(now kv.Mono, p *pool, w *waiter) bool {
	if !w.query.Override.Strict() && p.router.Full(now, &w.query) {
		return false // whatever is cached
	}
	if w.match {
		moe, asks := w.query.Override.Labels()
		w.query.Overlaps = r.lookUp(&r.mu.lookup, w.query.Chain, &moe, asks)
	}
	if p.router.Full(now, &w.query) {
		return false
	}
	w.decision, w.err = p.router.Pick(now, &w.query)
	w.query.Overlaps = nil // is shared
	if fault.Of(w.err) == fault.Overloaded && w.err != nil {
		w.err = nil // it came before those that are refused now
		return false
	}
	close(w.done)
	return true
}

// disperse has all that wait for p begin anew: it is not the pool of its model any more.
// The caller holds mu.
func (r *Router) disperse(p *pool) {
	p.queue.Offer(r.now(), func(e *queue.Entry) bool {
		w := e.Value.(*waiter)
		w.moved = true
		close(w.done)
		return true
	})
}

// waiting returns how many requests wait for a worker, and the prompt tokens they have.
func (r *Router) waiting() (requests, tokens int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.mu.pools {
		requests += p.queue.Len()
		tokens += p.queue.Tokens()
	}
	return requests, tokens
}
