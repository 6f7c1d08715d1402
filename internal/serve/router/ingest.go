package router

import (
	"context"
	"log/slog"

	"penstock/core/feed"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

// take applies one message. What cannot be read is left out: if it held events
// of a worker, the next ones show the gap.
func (r *Router) take(ctx context.Context, rec *feed.Record, m bus.Message) {
	at := place{m.Life, m.Seq}
	if err := feed.DecodeRecord(rec, m.Data); err != nil {
		r.cache.pass(at)
		r.metrics.malformed.Inc()
		r.throttle.Log(ctx, slog.LevelWarn, "malformed cache events", "key", m.Key, "error", err)
		return
	}
	var key [40]byte
	if m.Key != string(engine.AppendWorkerKey(key[:0], rec.Worker)) {
		r.cache.pass(at)
		r.metrics.malformed.Inc()
		r.throttle.Log(ctx, slog.LevelWarn, "cache events under another worker's key", "key", m.Key)
		return
	}
	verdict, ok := r.cache.accept(at, rec)
	if !ok {
		r.metrics.unfed(rec)
		r.throttle.Log(ctx, slog.LevelWarn, "cache events not used", "key", m.Key, "block_size", rec.BlockSize)
		r.hub.publish(rec, outcomeRefused, 0)
		return
	}
	r.predict.heed(rec.Worker, rec.Events, verdict)
	r.metrics.fed(rec, verdict)
	r.hub.publish(rec, verdict.Outcome.String(), verdict.Skip)
	if verdict.Resync {
		r.wake()
	}
}

// outcomeRefused is what becomes of the events of a worker whose block size is
// not that of its card.
const outcomeRefused = "refused"

// askAll has all workers asked whether events of theirs are missing: some of somebody's
// are.
func (r *Router) askAll() {
	r.cache.suspect()
	r.wake()
}

// wake has the maintainer look for workers to ask.
func (r *Router) wake() {
	select {
	case r.resync <- struct{}{}:
	default:
	}
}
