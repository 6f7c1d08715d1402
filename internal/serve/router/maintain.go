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
	// stuck is how long a worker's feed may stand still behind what the worker
	// says it has published before the rest counts as lost.
	stuck = 5 * time.Second
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
			r.checkLag(now, m)
			r.checkLead(now, m)
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

// checkLag compares what a worker says it has published with what has arrived.
// A feed that stands still behind it has lost its end, which no later event
// shows while the worker is idle: the tracker learns of it by a record without
// events.
func (r *Router) checkLag(now kv.Mono, m *member) {
	h, known := r.mu.tracker.Health(m.worker)
	if !known || !m.reported || m.load.Epoch != h.Epoch || h.State != feed.Live || m.load.KVNext <= h.LastSeq+1 {
		m.lagging = false
		return
	}
	if !m.lagging || m.at != h.LastSeq {
		if !m.lagging {
			m.behind = now
		}
		m.lagging, m.at, m.stillSince = true, h.LastSeq, now
		return
	}
	if now.Sub(m.stillSince) < stuck {
		return
	}
	m.lagging = false
	rec := feed.Record{Worker: m.worker, Epoch: h.Epoch, First: m.load.KVNext, BlockSize: uint32(m.card.BlockSize)}
	v := r.mu.tracker.Accept(now, &rec)
	r.obey(m.worker, nil, v)
	r.metrics.fed(&rec, v)
}

// checkLead is the mirror of checkLag. Reports are older than events, so the feed
// of a busy worker is ahead of them by a little all the time; but an event that
// the worker has still not published by a report of long after its arrival was
// never the worker's: somebody else used its name. Numbers up to that one would
// make the true events look like old ones, so all of it is dropped, and the
// worker's own count holds. (A forgery of the very next numbers is not found so:
// who may publish at all is the bus's affair.)
func (r *Router) checkLead(now kv.Mono, m *member) {
	h, known := r.mu.tracker.Health(m.worker)
	if !known || !m.reported || m.load.Epoch != h.Epoch || m.load.KVNext > h.LastSeq {
		m.leading = false
		return
	}
	if !m.leading || m.load.KVNext > m.top {
		m.leading, m.ahead, m.top = true, now, h.LastSeq
		return
	}
	if m.loadAt.Sub(m.ahead) < stuck {
		return
	}
	m.leading = false
	r.obey(m.worker, nil, r.mu.tracker.Disown(now, m.worker, m.load.KVNext))
	r.metrics.gaps.Inc()
	r.log.Warn("cache events are ahead of what their worker has published; does somebody else publish in its name?",
		"worker", uint64(m.worker.ID), "last", m.top, "next", m.load.KVNext)
}

// lag returns for how long the feed that is furthest behind has been so.
func (r *Router) lag() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var most time.Duration
	now := r.now()
	for _, m := range r.mu.members {
		if m.lagging {
			most = max(most, now.Sub(m.behind))
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
