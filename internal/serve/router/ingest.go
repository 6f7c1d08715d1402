package router

import (
	"context"
	"log/slog"

	"penstock/core/feed"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

// applyMessage applies one message. It skips a message that it cannot read: if that held events of a
// worker, the next ones show the gap.
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

// outcomeRefused is the outcome of events from a worker whose block size is not its card's.
const outcomeRefused = "refused"

// suspectAllFeeds makes the maintainer ask all workers for missing events: some events were lost, and
// it is not known whose.
func (r *Router) askAll() {
	r.cache.suspect()
	r.wake()
}

// wakeMaintainer makes the maintainer look for workers to ask.
func (r *Router) wake() {
	select {
	case r.resync <- struct{}{}:
	default:
	}
}
