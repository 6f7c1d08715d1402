package router

import (
	"context"
	"log/slog"

	"penstock/core/feed"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

// maxSources bounds the workers whose events are followed. Those beyond it route
// without overlaps.
const maxSources = 16384

// follow applies cache events until ctx ends or the plane fails. It begins with
// the oldest record kept: what was applied before is dropped by its numbers.
func (r *Router) follow(ctx context.Context) error {
	var rec feed.Record // only this subscription's calls use it
	return r.planes.Bus.Subscribe(ctx, bus.KVEvents(r.cfg.Namespace, r.cfg.Component), 0, func(m bus.Message) error {
		r.take(ctx, &rec, m)
		return nil
	}, func() {
		r.caughtUp.Store(true)
		r.wake()
	})
}

// take applies one message. What cannot be read is left out: if it held events
// of a worker, the next ones show the gap.
func (r *Router) take(ctx context.Context, rec *feed.Record, m bus.Message) {
	if err := feed.DecodeRecord(rec, m.Data); err != nil {
		r.metrics.malformed.Inc()
		r.throttle.Log(ctx, slog.LevelWarn, "malformed cache events", "key", m.Key, "error", err)
		return
	}
	var key [40]byte
	if m.Key != string(engine.AppendWorkerKey(key[:0], rec.Worker)) {
		r.metrics.malformed.Inc()
		r.throttle.Log(ctx, slog.LevelWarn, "cache events under another worker's key", "key", m.Key)
		return
	}
	verdict, ok := r.apply(rec)
	if !ok {
		r.metrics.unfed(rec)
		r.throttle.Log(ctx, slog.LevelWarn, "cache events not used", "key", m.Key, "block_size", rec.BlockSize)
		r.hub.publish(rec, outcomeRefused, 0)
		return
	}
	r.metrics.fed(rec, verdict)
	r.hub.publish(rec, verdict.Outcome.String(), verdict.Skip)
	if verdict.Resync {
		r.wake()
	}
}

// outcomeRefused is what becomes of the events of a worker whose block size is
// not that of its card.
const outcomeRefused = "refused"

// apply judges a record and changes the index accordingly. ok is false if the
// worker's events are not used at all.
func (r *Router) apply(rec *feed.Record) (v feed.Verdict, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, w := r.now(), rec.Worker
	m := r.member(w)
	if m != nil && rec.Epoch < m.in.Epoch {
		// Discovery knows of a newer life, of which the tracker may not.
		return feed.Verdict{Outcome: feed.Stale}, true
	}
	s := r.mu.sources[w]
	if s == nil {
		if len(r.mu.sources) == maxSources {
			return v, false
		}
		s = &source{epoch: rec.Epoch, since: now}
		r.mu.sources[w] = s
	}
	if rec.Epoch > s.epoch {
		s.epoch, s.since = rec.Epoch, now
	}
	s.blockSize = int(rec.BlockSize)
	if m != nil && m.mismatch(r.mu.sources) != 0 {
		r.mu.tracker.Forget(w)
		r.mu.index.Drop(w)
		return v, false
	}
	v = r.mu.tracker.Accept(now, rec)
	r.obey(w, rec.Events, v)
	return v, true
}

// obey does what the tracker asks for. The caller holds mu.
func (r *Router) obey(w kv.Worker, events []kv.Event, v feed.Verdict) {
	if v.Drop {
		r.mu.index.Drop(w)
	}
	if v.Outcome == feed.Apply {
		for _, ev := range events[v.Skip:] {
			r.mu.index.Apply(w, ev)
		}
	}
	if v.Resync {
		r.mu.asked = append(r.mu.asked, w)
	}
}

// wake has the maintainer look for workers to ask.
func (r *Router) wake() {
	select {
	case r.resync <- struct{}{}:
	default:
	}
}
