package router

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
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
func (r *Router) runMaintenance(ctx context.Context) {
	tick := time.NewTicker(upkeep)
	defer tick.Stop()
	again := time.NewTimer(upkeep)
	defer again.Stop()
	var ask []kvfeed.ResyncRequest
	for {
		select {
		case <-r.resyncWake:
		case <-again.C:
		case <-tick.C:
			r.runUpkeep()
			r.membership.flushCounts(false)
		case <-ctx.Done():
			return
		}
		var wait time.Duration
		ask, wait = r.cache.dueRequests(ask[:0])
		again.Reset(wait)
		for _, q := range ask {
			r.askWorker(ctx, q)
		}
	}
}

// askWorker sends one request to a worker. A request that fails is repeated when the tracker finds it
// due again.
func (r *Router) askWorker(ctx context.Context, q kvfeed.ResyncRequest) {
	r.metrics.countRequest(q)
	err := r.planes.Bus.Publish(ctx, bus.KVResyncTopic(r.cfg.Namespace), engine.WorkerKey(q.Worker), kvfeed.AppendRequest(nil, q))
	if err != nil && ctx.Err() == nil {
		r.throttle.Log(ctx, slog.LevelWarn, "cannot ask a worker for its cache", "worker", uint64(q.Worker.ID), "error", err)
	}
}

// runUpkeep does the periodic work.
func (r *Router) runUpkeep() {
	claims := r.upkeepLoads()
	r.predictions.expireOld(r.cfg.ReservationTTL)
	r.cache.tickPools()
	if !r.usesEvents || !r.caughtUp.Load() {
		return
	}
	for _, f := range r.cache.checkFeeds(claims) {
		r.predictions.applyEvents(f.worker, nil, kvfeed.FeedVerdict{Drop: true})
		if f.Finding == kvfeed.ForeignEvents {
			r.log.Warn("cache events are ahead of what their worker has published; does another process publish in its name?",
				"worker", uint64(f.worker.ID), "last", f.last, "next", f.Next)
		}
	}
}

// upkeepLoads frees leaked reservations, lets the workers' reports expire, and returns the reported
// feed positions.
func (r *Router) upkeepLoads() []feedClaim {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, p := range r.mu.pools {
		p.active.ExpireOld(now)
		r.metrics.leaked.Add(float64(p.active.ExpiredCount() - p.expiredCounted)) // decisions free some too
		p.expiredCounted = p.active.ExpiredCount()
		r.admitLocked(p) // also requests which ran out of time, or whose workers changed without a notice
	}
	r.wakeSyncLocked()
	for _, m := range r.mu.members {
		r.updateStateLocked(now, m) // a worker's report expires
		if p := r.memberPoolLocked(m); p != nil && p.active.LoadOf(m.worker).Requests > 0 {
			r.mu.health.ExpectReports(now, m.worker.ID)
		}
	}
	r.wakeProber()
	return claimsOf(r.mu.members)
}

// handleLoad takes a worker's load report.
func (r *Router) handleLoad(m bus.Message) error {
	report, err := engine.DecodeLoadReport(m.Data)
	w := kv.Worker{ID: report.WorkerID, Rank: report.Rank}
	if err != nil || m.Key != engine.WorkerKey(w) {
		r.metrics.malformed.Inc()
		return nil
	}
	if r.embeddings != nil {
		r.embeddings.RecordReport(&report)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.mu.health.RecordHeard(now, w.ID, report.Epoch)
	r.applyReportLocked(now, report)
	return nil
}

// applyReportLocked takes over a worker's load report.
func (r *Router) applyReportLocked(now kv.Mono, report engine.LoadReport) {
	m := r.memberLocked(kv.Worker{ID: report.WorkerID, Rank: report.Rank})
	if m == nil || m.in.Epoch != report.Epoch {
		return
	}
	news := !slices.Equal(m.load.Adapters, report.Adapters)
	m.load, m.loadAt, m.reported = report, now, true
	if p := r.memberPoolLocked(m); p != nil && news {
		p.router.SetLoaded(m.worker, m.loadedAdapters())
	}
	r.updateStateLocked(now, m)
}
