package router

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"penstock/core/feed"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

const (
	// upkeep is the interval of the periodic work.
	upkeep = time.Second
	// settle is how long after a worker's registration its events may be missing.
	settle = 2 * time.Second
)

// runMaintenance asks workers in doubt for missing events or for their caches, frees leaked reservations and
// drops the state of removed workers, until ctx ends.
func (r *Router) maintain(ctx context.Context) {
	tick := time.NewTicker(upkeep)
	defer tick.Stop()
	again := time.NewTimer(upkeep)
	defer again.Stop()
	var ask []feed.Request
	for {
		select {
		case <-r.resync:
		case <-again.C:
		case <-tick.C:
			r.tidy()
			r.roster.flush(false)
		case <-ctx.Done():
			return
		}
		var wait time.Duration
		ask, wait = r.cache.due(ask[:0])
		again.Reset(wait)
		for _, q := range ask {
			r.ask(ctx, q)
		}
	}
}

// askWorker sends one request to a worker. A request that fails is repeated when the tracker finds it
// due again.
func (r *Router) ask(ctx context.Context, q feed.Request) {
	r.metrics.asked(q)
	err := r.planes.Bus.Publish(ctx, bus.KVResync(r.cfg.Namespace), engine.WorkerKey(q.Worker), feed.AppendRequest(nil, q))
	if err != nil && ctx.Err() == nil {
		r.throttle.Log(ctx, slog.LevelWarn, "cannot ask a worker for its cache", "worker", uint64(q.Worker.ID), "error", err)
	}
}

// runUpkeep does the periodic work.
func (r *Router) tidy() {
	claims := r.tidyLoad()
	r.predict.tidy(r.cfg.ReservationTTL)
	r.cache.tendPools()
	if !r.events || !r.caughtUp.Load() {
		return
	}
	for _, f := range r.cache.tend(claims) {
		r.predict.heed(f.worker, nil, feed.Verdict{Drop: true})
		if f.Finding == feed.Foreign {
			r.log.Warn("cache events are ahead of what their worker has published; does somebody else publish in its name?",
				"worker", uint64(f.worker.ID), "last", f.last, "next", f.Next)
		}
	}
}

// upkeepLoads frees leaked reservations, lets the workers' reports expire, and returns the reported
// feed positions.
func (r *Router) tidyLoad() []claim {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, p := range r.mu.pools {
		p.active.Expire(now)
		r.metrics.leaked.Add(float64(p.active.Expired() - p.leaked)) // decisions free some too
		p.leaked = p.active.Expired()
		r.admit(p) // also requests which ran out of time, or whose workers changed without a notice
	}
	r.tell()
	for _, m := range r.mu.members {
		r.settle(now, m) // a worker's report expires
		if p := r.mu.names[m.card.Name]; p != nil && p.active.Load(m.worker).Requests > 0 {
			r.mu.health.Expect(now, m.worker.ID)
		}
	}
	r.wakeProbe()
	return claimsOf(r.mu.members)
}

// handleLoad takes a worker's load report.
func (r *Router) takeLoad(m bus.Message) error {
	report, err := engine.DecodeLoadReport(m.Data)
	w := kv.Worker{ID: report.WorkerID, Rank: report.Rank}
	if err != nil || m.Key != engine.WorkerKey(w) {
		r.metrics.malformed.Inc()
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.mu.health.Heard(now, w.ID, report.Epoch)
	r.heed(now, report)
	return nil
}

// applyReportLocked takes over a worker's load report.
func (r *Router) heed(now kv.Mono, report engine.LoadReport) {
	m := r.member(kv.Worker{ID: report.WorkerID, Rank: report.Rank})
	if m == nil || m.in.Epoch != report.Epoch {
		return
	}
	news := !slices.Equal(m.load.Adapters, report.Adapters)
	m.load, m.loadAt, m.reported = report, now, true
	if p := r.mu.names[m.card.Name]; p != nil && news {
		p.router.SetLoaded(m.worker, m.loaded())
	}
	r.settle(now, m)
}
