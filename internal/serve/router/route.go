package router

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/slots"
	"penstock/internal/engine"
)

// Route chooses a worker for one attempt of a request and counts the request as active there until
// FreeReservation. It fails as [route.Router.Pick] does, with NotFound for an unknown model, and with
// Canceled or Deadline when ctx has ended.
func (r *Router) Route(ctx context.Context, req *route.Request) (route.Decision, error) {
	if err := live(ctx); err != nil {
		return route.Decision{}, err
	}
	sc := r.scratch.Get().(*scratch)
	defer r.scratch.Put(sc)
	d, err := r.choose(ctx, sc, req)
	r.decisions.routed(req, &d, err, time.Now())
	if err != nil {
		r.metrics.failed(err)
		return route.Decision{}, err
	}
	r.metrics.decided(&d)
	r.predict.note(slots.Key{ID: req.ID, Attempt: req.Attempt}, &d, len(req.Tokens), sc)
	r.log.LogAttrs(ctx, slog.LevelDebug, "routed",
		slog.String("request", req.ID), slog.Uint64("attempt", uint64(req.Attempt)),
		slog.Uint64("worker", uint64(d.Worker.ID)), slog.Int("overlap_blocks", d.OverlapBlocks), slog.Float64("cost", d.Cost))
	return d, nil
}

// chooseWorker picks a worker, waiting for one with less load if necessary.
func (r *Router) choose(ctx context.Context, sc *scratch, req *route.Request) (d route.Decision, err error) {
	for again := true; again; {
		var p *pool
		var w *waiter
		err = r.decide(sc, req, func(in *pool, q *route.Query) (err error) {
			p = in
			d, w, err = r.place(in, q, req)
			return err
		})
		if err != nil || w == nil {
			return d, err
		}
		again, d, err = r.await(ctx, p, w)
	}
	return d, err
}

// Explain returns the decision that Route would make now, and its inputs; it changes nothing. When no
// worker can be chosen the error comes with the exclusions.
func (r *Router) Explain(ctx context.Context, req *route.Request) (route.Explanation, error) {
	ac, err := r.account(ctx, req)
	return ac.Explanation, err
}

// contextFault returns a *fault.Error if ctx has ended.
func live(ctx context.Context) error {
	switch err := ctx.Err(); {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Deadline, "the request's time ran out before a worker was chosen")
	}
	return fault.New(fault.Canceled, "the request ended before a worker was chosen")
}

// MarkPrefilled records that the worker has computed an attempt's prompt, and that cached tokens of it
// were in its cache. If cached is engine.CachedUnknown it is not recorded; the method is called again
// if the worker reports it later.
func (r *Router) Prefilled(id string, attempt uint32, cached int) {
	key := slots.Key{ID: id, Attempt: attempt}
	reported, at := unsaid, time.Time{}
	if r.each(func(p *pool) bool { return p.active.Prefilled(key) }) {
		at = time.Now()
	}
	if cached != engine.CachedUnknown {
		reported = r.reported(key, cached)
	}
	r.decisions.prefilled(id, attempt, reported, at)
}

// recordReport compares the number of cached tokens that a worker reported with the predicted one, and
// returns it; tokensUnknown if the attempt is not, or no longer, known.
func (r *Router) reported(key slots.Key, cached int) int {
	out, ok := r.predict.report(key, cached)
	if !ok {
		return unsaid
	}
	r.metrics.reported(out.predicted, out.reported)
	if out.changed {
		r.judged(out.worker)
	}
	return out.reported
}

// RecordOutput records that an attempt has generated more tokens. Callers report whole blocks, because
// fewer tokens change little.
func (r *Router) Grown(id string, attempt uint32, tokens int) {
	if r.cfg.TrackOutput {
		r.each(func(p *pool) bool { return p.active.Grow(slots.Key{ID: id, Attempt: attempt}, tokens) })
	}
}

// RenewReservation says that an attempt still runs: its reservation does not expire for another
// ReservationTTL.
func (r *Router) Renew(id string, attempt uint32) {
	key := slots.Key{ID: id, Attempt: attempt}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, p := range r.mu.pools {
		if p.active.Renew(now, key) {
			return
		}
	}
}

// FreeReservation ends an attempt's reservation. A missing one is no error: the worker may have been
// removed.
func (r *Router) Free(id string, attempt uint32) {
	key := slots.Key{ID: id, Attempt: attempt}
	r.each(func(p *pool) bool { return p.active.Free(key) })
	r.predict.forget(key)
	r.decisions.freed(id, attempt, time.Now())
}

// tryPools calls f with one pool after another until it returns true.
func (r *Router) each(f func(*pool) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.tell()
	for _, p := range r.mu.pools {
		if f(p) {
			r.admit(p)
			return true
		}
	}
	return false
}

// withQuery hashes the request's prompt, looks it up, and calls f under mu. Between the lookup and f a
// worker may evict what was found; the decision is then as good as one made a moment earlier.
func (r *Router) decide(sc *scratch, req *route.Request, f func(*pool, *route.Query) error) error {
	if m := req.Override.Mode; m != nil && *m == route.KV && !r.matches {
		return fault.Param("router_config_override.router_mode", "this router does not look at what is cached, so it cannot route by it: start it with --router-mode kv and a kv-overlap-score-weight above 0")
	}
	q := route.Query{
		Key:          slots.Key{ID: req.ID, Attempt: req.Attempt},
		PromptTokens: len(req.Tokens), ExpectedOutput: max(0, req.ExpectedOutput),
		Override: req.Override, Pin: req.Pin, Allowed: req.Allowed, Exclude: req.Exclude, Session: req.Session,
		Moving: req.Attempt > 1,
	}
	moe, asks := req.Override.Labels()
	if asks && !moe.Fallback && !r.events {
		return fault.Param("router_config_override.moe_query.fallback_to_unlabeled", "this router does not follow cache events, so it knows no labelled blocks: start it with --router-mode kv and a kv-overlap-score-weight above 0")
	}
	for {
		p, salt, match, err := r.begin(req)
		if err != nil {
			return err
		}
		q.Adapter = salt.LoRA
		start := time.Now()
		hasher, err := kv.NewHasher(p.blockSize, salt)
		if err != nil {
			return fault.New(fault.Internal, "hash the prompt for %s: %w", p.model, err)
		}
		sc.blocks = hasher.Blocks(sc.blocks[:0], req.Tokens, req.Media)
		sc.chain = kv.AppendChain(sc.chain[:0], sc.blocks)
		q.Chain = sc.chain
		hashed := time.Now()
		r.metrics.stage(stageHash, hashed.Sub(start))
		sc.lookup.clear()
		q.Overlaps = nil
		if sc.looked = match; match {
			q.Overlaps = r.lookUp(&sc.lookup, q.Chain, &moe, asks)
		}
		r.metrics.stage(stageMatch, time.Since(hashed))
		if done, err := r.locked(p, &q, f); done {
			return err
		}
		// The model was replaced with another block size meanwhile; hash again.
	}
}

// resolveModel returns the pool that serves the request's model, the salt of its block hashes, and
// whether the choice of a worker depends on what is cached. A request that names an adapter gets the
// salt of its blocks.
func (r *Router) begin(req *route.Request) (p *pool, salt kv.Salt, match bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, salt = r.mu.names[req.Model], req.Salt
	if p == nil {
		return nil, salt, false, unknownModel(req.Model)
	}
	if r.mu.adapters[req.Model] {
		salt.LoRA = req.Model
	}
	return p, salt, r.needsOverlaps(p, &req.Override), nil
}

// needsOverlapsLocked reports whether the choice of a worker depends on what is cached.
func (r *Router) needsOverlaps(p *pool, o *route.Override) bool {
	return r.matches && p.router.NeedsOverlaps(o)
}

// runWithLock takes mu and calls f, unless p is no longer the model's pool.
func (r *Router) locked(p *pool, q *route.Query, f func(*pool, *route.Query) error) (done bool, err error) {
	start := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.gone {
		return false, nil
	}
	defer r.tell()
	locked := time.Now()
	err = f(p, q)
	r.metrics.stage(stageLock, locked.Sub(start))
	r.metrics.stage(stagePick, time.Since(locked))
	return true, err
}
