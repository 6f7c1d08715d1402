package router

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"penstock/core/activeseq"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
)

// Route chooses a worker for one attempt of a request and counts the request as active there until
// FreeReservation. It fails as [route.Router.Pick] does, with NotFound for an unknown model, and with
// Canceled or Deadline when ctx has ended.
func (r *Router) Route(ctx context.Context, req *route.Request) (route.Decision, error) {
	if err := contextFault(ctx); err != nil {
		return route.Decision{}, err
	}
	sc := r.scratch.Get().(*decisionScratch)
	defer r.scratch.Put(sc)
	d, err := r.chooseWorker(ctx, sc, req)
	r.decisions.recordDecision(req, &d, r.workerRole(d.Worker.ID), err, time.Now())
	if err != nil {
		r.metrics.countFailure(err)
		return route.Decision{}, err
	}
	r.metrics.countDecision(&d)
	r.predictions.recordSent(activeseq.AttemptKey{ID: req.ID, Attempt: req.Attempt}, &d, len(req.Tokens), sc)
	r.log.LogAttrs(ctx, slog.LevelDebug, "routed",
		slog.String("request", req.ID), slog.Uint64("attempt", uint64(req.Attempt)),
		slog.Uint64("worker", uint64(d.Worker.ID)), slog.Int("overlap_blocks", d.OverlapBlocks), slog.Float64("cost", d.Cost))
	return d, nil
}

// chooseWorker picks a worker, waiting for one with less load if necessary.
func (r *Router) chooseWorker(ctx context.Context, sc *decisionScratch, req *route.Request) (d route.Decision, err error) {
	for again := true; again; {
		var p *modelPool
		var w *queuedRequest
		err = r.withQuery(sc, req, func(in *modelPool, q *route.Query) (err error) {
			p = in
			d, w, err = r.placeLocked(in, q, req)
			return err
		})
		if err != nil || w == nil {
			return d, err
		}
		again, d, err = r.awaitPlacement(ctx, p, w)
	}
	return d, err
}

// Explain returns the decision that Route would make now, and its inputs; it changes nothing. When no
// worker can be chosen the error comes with the exclusions.
func (r *Router) Explain(ctx context.Context, req *route.Request) (route.Explanation, error) {
	ac, err := r.explainRequest(ctx, req)
	return ac.Explanation, err
}

// contextFault returns a *fault.Error if ctx has ended.
func contextFault(ctx context.Context) error {
	switch err := ctx.Err(); {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Deadline, "the request's time ran out before a worker was chosen")
	}
	return fault.New(fault.Canceled, "the request ended before a worker was chosen")
}

// RecordFirstToken records the first token of an attempt: its worker has computed the prompt, of which cached
// tokens were in its cache. If cached is engine.CachedUnknown it is not recorded; the method is called
// again if the worker reports it later. The router learns from it how fast the worker is.
func (r *Router) RecordFirstToken(id string, attempt uint32, cached int) {
	key := activeseq.AttemptKey{ID: id, Attempt: attempt}
	observed := time.Duration(0)
	r.recordPrefill(key, cached, func(p *modelPool) bool {
		observed = max(observed, r.recordTTFTLocked(p, key))
		return p.router.RecordFirstToken(r.now(), key, cached)
	})
	if observed > 0 {
		r.decisions.recordTTFT(id, attempt, observed)
	}
}

// MarkPrefilled is RecordFirstToken for an answer which arrives whole, at its end: it does not say how
// long the prefill took.
func (r *Router) MarkPrefilled(id string, attempt uint32, cached int) {
	key := activeseq.AttemptKey{ID: id, Attempt: attempt}
	r.recordPrefill(key, cached, func(p *modelPool) bool {
		p.active.AdvanceTime(r.now())
		return p.active.MarkPrefilled(key)
	})
}

// recordPrefill records that an attempt's prompt is computed, by mark in the pool which knows the attempt.
func (r *Router) recordPrefill(key activeseq.AttemptKey, cached int, mark func(*modelPool) bool) {
	reported, at := tokensUnknown, time.Time{}
	if r.tryPools(mark) {
		at = time.Now()
	}
	if cached != engine.CachedUnknown {
		reported = r.recordReport(key, cached)
	}
	r.decisions.recordPrefill(key.ID, key.Attempt, reported, at)
}

// recordReport compares the number of cached tokens that a worker reported with the predicted one, and
// returns it; tokensUnknown if the attempt is not, or no longer, known.
func (r *Router) recordReport(key activeseq.AttemptKey, cached int) int {
	out, ok := r.predictions.recordReport(key, cached)
	if !ok {
		return tokensUnknown
	}
	r.metrics.countReport(out.predicted, out.reported)
	if out.verdictChanged {
		r.logVerdict(out.worker)
	}
	return out.reported
}

// RecordOutput records that an attempt has generated more tokens. Callers report whole blocks, because
// fewer tokens change little.
func (r *Router) RecordOutput(id string, attempt uint32, tokens int) {
	if r.cfg.TrackOutput {
		r.tryPools(func(p *modelPool) bool {
			return p.active.AddOutput(activeseq.AttemptKey{ID: id, Attempt: attempt}, tokens)
		})
	}
}

// RenewReservation says that an attempt still runs: its reservation does not expire for another
// ReservationTTL.
func (r *Router) RenewReservation(id string, attempt uint32) {
	key := activeseq.AttemptKey{ID: id, Attempt: attempt}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, p := range r.mu.pools {
		if p.active.RenewReservation(now, key) {
			return
		}
	}
}

// FreeReservation ends an attempt's reservation. A missing one is no error: the worker may have been
// removed. If the attempt ended well, answer is the number of tokens of its answer, otherwise 0: the router learns
// from it how long steps and answers are.
func (r *Router) FreeReservation(id string, attempt uint32, answer int) {
	key := activeseq.AttemptKey{ID: id, Attempt: attempt}
	sc := r.scratch.Get().(*decisionScratch)
	defer r.scratch.Put(sc)
	var worker kv.Worker
	computed := false
	r.tryPools(func(p *modelPool) bool {
		if r.usesEvents && r.predictions.isEnabled() {
			sc.chain, worker, computed = p.active.AppendComputedChain(sc.chain[:0], key)
		}
		p.active.AdvanceTime(r.now())
		if answer > 0 {
			p.router.RecordAnswer(p.active.Now(), key, answer)
		}
		return p.active.Free(key)
	})
	r.predictions.forgetAttempt(key)
	if computed {
		r.predictions.recordComputed(worker, sc.chain)
	}
	r.decisions.recordFree(id, attempt, time.Now())
}

// tryPools calls f with one pool after another until it returns true.
func (r *Router) tryPools(f func(*modelPool) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.wakeSyncLocked()
	for _, p := range r.mu.pools {
		if f(p) {
			r.admitLocked(p)
			return true
		}
	}
	return false
}

// withQuery hashes the request's prompt, looks it up, and calls f under mu. Between the lookup and f a
// worker may evict what was found; the decision is then as good as one made a moment earlier.
func (r *Router) withQuery(sc *decisionScratch, req *route.Request, f func(*modelPool, *route.Query) error) error {
	if m := req.Override.Mode; m != nil && m.UsesCaches() && !r.usesOverlaps {
		return fault.InvalidParam("router_config_override.router_mode", "this router does not look at what is cached, so it cannot route by it: start it with --router-mode time, or kv and a kv-overlap-score-weight above 0")
	}
	if _, err := parseSplit("router_config_override.", &req.Override.SplitOverride); err != nil {
		return err
	}
	q := route.Query{
		Key:          activeseq.AttemptKey{ID: req.ID, Attempt: req.Attempt},
		PromptTokens: len(req.Tokens), Media: req.Media, ExpectedOutput: max(0, req.ExpectedOutput),
		Override: req.Override, Pin: req.Pin, Allowed: req.Allowed, Exclude: req.Exclude, Session: req.Session,
		Moving: req.Attempt > 1,
	}
	moe, asks := req.Override.LabelQuery()
	if asks && !moe.Fallback && !r.usesEvents {
		return fault.InvalidParam("router_config_override.moe_query.fallback_to_unlabeled", "this router does not follow cache events, so it knows no labelled blocks: start it with --router-mode time, or kv and a kv-overlap-score-weight above 0")
	}
	for {
		m, err := r.resolveModel(req)
		if err != nil {
			return err
		}
		p := m.pool
		q.Adapter = m.salt.LoRA
		start := time.Now()
		hasher, err := kv.NewHasher(p.blockSize, m.salt)
		if err != nil {
			return fault.New(fault.Internal, "hash the prompt for %s: %w", p.model, err)
		}
		sc.blocks = hasher.AppendBlockHashes(sc.blocks[:0], req.Tokens, req.Media)
		sc.chain = kv.AppendChain(sc.chain[:0], sc.blocks)
		q.Chain = sc.chain
		hashed := time.Now()
		r.metrics.observeStage(stageHash, hashed.Sub(start))
		sc.lookup.reset()
		q.Overlaps = nil
		q.Held = nil
		if sc.lookedUp = m.usesCaches; m.usesCaches {
			q.Overlaps = r.lookUpPrefix(&sc.lookup, q.Chain, &moe, asks)
			q.Held = r.lookUpMedia(&sc.held, m.encoders, m.salt.Namespace, req.Media)
		}
		r.metrics.observeStage(stageMatch, time.Since(hashed))
		if done, err := r.runWithLock(p, &q, f); done {
			return err
		}
		// The model was replaced with another block size meanwhile; hash again.
	}
}

// resolvedModel is what a request's model says about its look-ups.
type resolvedModel struct {
	pool *modelPool // which serves it
	// salt is that of the request's block hashes, with the adapter that it names.
	salt kv.Salt
	// encoders are the pool's.
	encoders []string
	// usesCaches says that the choice of a worker depends on what is cached.
	usesCaches bool
}

// resolveModel resolves the model of a request.
func (r *Router) resolveModel(req *route.Request) (m resolvedModel, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, adapter := r.rolePoolLocked(req.Model, req.Role)
	switch {
	case p == nil && req.Role == route.PrefillWorkers:
		return m, fault.New(fault.Unavailable, "the model %.100q has no prefill worker", req.Model)
	case p == nil:
		return m, unknownModel(req.Model)
	}
	m = resolvedModel{pool: p, salt: req.Salt, encoders: p.encoders, usesCaches: r.needsOverlapsLocked(p, &req.Override)}
	m.salt.LoRA = cmp.Or(adapter, m.salt.LoRA)
	return m, nil
}

// needsOverlapsLocked reports whether the choice of a worker depends on what is cached.
func (r *Router) needsOverlapsLocked(p *modelPool, o *route.Override) bool {
	return r.usesOverlaps && p.router.NeedsOverlaps(o)
}

// runWithLock takes mu and calls f, unless p is no longer the model's pool.
func (r *Router) runWithLock(p *modelPool, q *route.Query, f func(*modelPool, *route.Query) error) (done bool, err error) {
	start := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.retired {
		return false, nil
	}
	defer r.wakeSyncLocked()
	locked := time.Now()
	err = f(p, q)
	r.metrics.observeStage(stageLock, locked.Sub(start))
	r.metrics.observeStage(stagePick, time.Since(locked))
	return true, err
}
