package router

import (
	"context"
	"log/slog"
	"time"

	"penstock/core/feed"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

const (
	// upkeep is how often what has no event of its own is looked at.
	upkeep = time.Second
	// settle is how long a worker may be known to discovery before its events
	// are missed.
	settle = 2 * time.Second
)

// maintain asks workers in doubt for their caches, frees what leaked and forgets
// who is gone, until ctx ends.
func (r *Router) maintain(ctx context.Context) {
	tick := time.NewTicker(upkeep)
	defer tick.Stop()
	var ask []kv.Worker
	for {
		select {
		case <-r.resync:
		case <-tick.C:
			r.tidy()
		case <-ctx.Done():
			return
		}
		ask = r.due(ask[:0])
		for _, w := range ask {
			r.ask(ctx, w)
		}
	}
}

// ask tells one worker to describe its cache. A request that fails is repeated
// when the tracker finds it due again.
func (r *Router) ask(ctx context.Context, w kv.Worker) {
	r.metrics.resyncs.Inc()
	err := r.planes.Bus.Publish(ctx, bus.KVResync(r.cfg.Namespace), engine.WorkerKey(w), nil)
	if err != nil && ctx.Err() == nil {
		r.throttle.Log(ctx, slog.LevelWarn, "cannot ask a worker for its cache", "worker", uint64(w.ID), "error", err)
	}
}

// due appends to dst the members that must be asked now. Workers that discovery
// does not know are not asked: they may be long gone.
func (r *Router) due(dst []kv.Worker) []kv.Worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.mu.tracker.Due(r.now(), r.mu.asked)
	for _, w := range all {
		if m := r.member(w); m != nil && m.card.KVEvents {
			dst = append(dst, w)
		}
	}
	r.mu.asked = all[:0]
	return dst
}

// tidy does what time alone brings about.
func (r *Router) tidy() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, p := range r.mu.pools {
		p.active.Expire(now)
		r.metrics.leaked.Add(float64(p.active.Expired() - p.leaked)) // decisions free some too
		p.leaked = p.active.Expired()
	}
	for _, m := range r.mu.members {
		r.settle(now, m) // what a worker said of itself has its time
	}
	if !r.events || !r.caughtUp.Load() {
		return
	}
	r.dropStrangers(now)
	for _, m := range r.mu.members {
		if m.card.KVEvents && m.mismatch(r.mu.sources) == 0 && now.Sub(m.since) >= settle {
			if r.mu.tracker.Expect(now, m.worker, m.in.Epoch) {
				r.mu.index.Drop(m.worker)
			}
			r.compare(now, m)
		}
	}
}

// dropStrangers forgets the workers, and the later lives of workers, whose events
// came and whom discovery did not get to know within the grace. Of a worker that
// discovery knows by an earlier life, that life is then asked for its cache: the
// later one may be older, from before the clock was set back.
func (r *Router) dropStrangers(now kv.Mono) {
	var gone []kv.Worker
	for w, s := range r.mu.sources {
		if m := r.member(w); (m == nil || m.in.Epoch < s.epoch) && now.Sub(s.since) >= r.cfg.Grace {
			gone = append(gone, w)
		}
	}
	for _, w := range gone { // their order does not matter: each is its own affair
		r.mu.tracker.Forget(w)
		r.mu.index.Drop(w)
		delete(r.mu.sources, w)
	}
}

// compare holds what a worker says it has published against what has arrived.
func (r *Router) compare(now kv.Mono, m *member) {
	var claim feed.Claim
	if m.reported {
		claim = feed.Claim{Epoch: m.load.Epoch, Next: m.load.KVNext, At: m.loadAt}
	}
	h, _ := r.mu.tracker.Health(m.worker)
	finding, v := r.mu.tracker.Compare(now, m.worker, claim)
	if finding == feed.Agrees {
		return
	}
	r.obey(m.worker, nil, v)
	r.metrics.gaps.Inc()
	if finding == feed.Foreign {
		r.log.Warn("cache events are ahead of what their worker has published; does somebody else publish in its name?",
			"worker", uint64(m.worker.ID), "last", h.LastSeq, "next", claim.Next)
	}
}

// lag returns for how long the feed that is furthest behind has been so.
func (r *Router) lag() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var most time.Duration
	now := r.now()
	for _, m := range r.mu.members {
		if h, _ := r.mu.tracker.Health(m.worker); h.Lagging {
			most = max(most, now.Sub(h.Behind))
		}
	}
	return most
}

// takeLoad notes a worker's report about itself.
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

// heed takes over what a worker says of itself. The caller holds mu.
func (r *Router) heed(now kv.Mono, report engine.LoadReport) {
	m := r.member(kv.Worker{ID: report.WorkerID, Rank: report.Rank})
	if m == nil || m.in.Epoch != report.Epoch {
		return
	}
	m.load, m.loadAt, m.reported = report, now, true
	r.settle(now, m)
}
