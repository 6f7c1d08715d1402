package router

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

// applyMessage applies one message. It skips a message that it cannot read: if that held events of a
// worker, the next ones show the gap.
func (r *Router) applyMessage(ctx context.Context, rec *kvfeed.Record, m bus.Message) {
	at := streamPosition{m.Incarnation, m.Seq}
	if err := kvfeed.DecodeRecord(rec, m.Data); err != nil {
		r.cache.skipTo(at)
		r.metrics.malformed.Inc()
		r.throttle.Log(ctx, slog.LevelWarn, "malformed cache events", "key", m.Key, "error", err)
		return
	}
	var key [40]byte
	if m.Key != string(engine.AppendWorkerKey(key[:0], rec.Worker)) {
		r.cache.skipTo(at)
		r.metrics.malformed.Inc()
		r.throttle.Log(ctx, slog.LevelWarn, "cache events under another worker's key", "key", m.Key)
		return
	}
	verdict, ok := r.cache.acceptRecord(at, rec)
	if !ok {
		r.metrics.countRefusedRecord(rec)
		r.throttle.Log(ctx, slog.LevelWarn, "cache events not used", "key", m.Key, "block_size", rec.BlockSize)
		r.broadcaster.publishRecord(rec, outcomeRefused, 0)
		return
	}
	r.predictions.applyEvents(rec.Worker, rec.Events, verdict)
	r.recordCacheUse(rec, verdict)
	r.metrics.countRecord(rec, verdict)
	r.broadcaster.publishRecord(rec, verdict.Outcome.String(), verdict.Skip)
	if verdict.Resync {
		r.wakeMaintainer()
	}
}

// The use of a worker's cache is recorded every cacheUseInterval, and sooner if it has changed by so many blocks and such
// a share: a cache may fill up within a second.
const (
	cacheUseInterval = time.Second
	cacheUseBlocks   = 64
	cacheUseShare    = 32 // a 32nd
)

// cacheUse is when the use of a worker's cache was recorded, how many blocks it had, whether it evicted some then, and how
// many it evicted since.
type cacheUse struct {
	at      kv.Mono
	blocks  int
	evicted bool
	since   int
}

// differsFrom reports whether a cache of so many blocks is to be recorded before the interval is over.
func (u *cacheUse) differsFrom(blocks int) bool {
	return max(blocks-u.blocks, u.blocks-blocks) >= cacheUseBlocks+u.blocks/cacheUseShare
}

// recordCacheUse tells the worker's pool how many blocks it has cached, and that it evicts some. Only the goroutine
// which follows the events calls it.
func (r *Router) recordCacheUse(rec *kvfeed.Record, v kvfeed.FeedVerdict) {
	if v.Outcome != kvfeed.Apply {
		return
	}
	evicted := 0
	for i := range rec.Events[v.Skip:] {
		if ev := &rec.Events[v.Skip+i]; ev.Kind == kv.Removed && ev.Tier == kv.TierDevice {
			evicted += len(ev.Seqs)
		}
	}
	now := r.now()
	isRecent := func(u cacheUse) bool { return now.Sub(u.at) < cacheUseInterval }
	blocks := r.cache.heldBlocks(rec.Worker)
	last, known := r.cacheUses[rec.Worker]
	recent := known && isRecent(last)
	evicted += last.since
	if recent && (last.evicted || evicted == 0) && !last.differsFrom(blocks) {
		last.since = evicted
		r.cacheUses[rec.Worker] = last
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !recent {
		maps.DeleteFunc(r.cacheUses, func(w kv.Worker, u cacheUse) bool {
			if isRecent(u) {
				return false
			}
			if w != rec.Worker {
				r.recordEvictionLocked(u.at.Add(cacheUseInterval), w, u.since)
			}
			return true
		})
	}
	r.cacheUses[rec.Worker] = cacheUse{now, blocks, evicted > 0 || recent && last.evicted, 0}
	for _, p := range r.mu.pools {
		p.router.RecordCached(rec.Worker, blocks)
	}
	r.recordEvictionLocked(now, rec.Worker, evicted)
}

func (r *Router) recordEvictionLocked(now kv.Mono, w kv.Worker, blocks int) {
	if blocks == 0 {
		return
	}
	for _, p := range r.mu.pools {
		p.router.RecordEviction(now, w, blocks)
	}
}

// outcomeRefused is the outcome of events from a worker whose block size is not its card's.
const outcomeRefused = "refused"

// suspectAllFeeds makes the maintainer ask all workers for missing events: some events were lost, and
// it is not known whose.
func (r *Router) suspectAllFeeds() {
	r.cache.suspectAll()
	r.wakeMaintainer()
}

// wakeMaintainer makes the maintainer look for workers to ask.
func (r *Router) wakeMaintainer() {
	select {
	case r.resyncWake <- struct{}{}:
	default:
	}
}
