package holders

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/kvfeed/embfeed"
	"penstock/internal/backoff"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

// Run follows the events until ctx ends, then returns nil. It can be called once. While the event plane fails, what
// is known stays.
func (x *Directory) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { x.maintain(ctx) })
	s := &subscription{index: x}
	parts.Go(func() { x.runRepeatedly(ctx, s.follow) })
	if x.cfg.FollowReports {
		parts.Go(func() { x.runRepeatedly(ctx, x.followReports) })
	}
	parts.Wait()
	x.throttle.Flush(context.WithoutCancel(ctx))
	return nil
}

// runRepeatedly calls follow until ctx ends.
func (x *Directory) runRepeatedly(ctx context.Context, follow func(context.Context) error) {
	wait := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := follow(ctx)
		if ctx.Err() != nil {
			return
		}
		x.throttle.Log(ctx, slog.LevelWarn, "cannot follow embedding caches, trying again", "error", err)
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// followReports takes load reports until ctx ends or the plane fails.
func (x *Directory) followReports(ctx context.Context) error {
	return x.bus.Subscribe(ctx, bus.LoadTopic(x.cfg.Namespace), 0, func(m bus.Message) error {
		r, err := engine.DecodeLoadReport(m.Data)
		if err == nil && m.Key == engine.WorkerKey(kv.Worker{ID: r.WorkerID, Rank: r.Rank}) {
			x.RecordReport(&r)
		}
		return nil
	}, nil)
}

// subscription follows the stream of events.
type subscription struct {
	index *Directory
	rec   embfeed.EventRecord
	// incarnation and seq are the position of the last message; 0 before the first one.
	incarnation, seq uint64
}

// follow applies the stream from the first message which was not applied, until ctx ends or the plane fails.
func (s *subscription) follow(ctx context.Context) error {
	from := uint64(0)
	if s.incarnation != 0 {
		from = s.seq + 1
	}
	topic := bus.EmbeddingEventsTopic(s.index.cfg.Namespace, s.index.cfg.Component)
	return s.index.bus.Subscribe(ctx, topic, from, func(m bus.Message) error {
		s.applyMessage(ctx, &m)
		return nil
	}, s.index.markCaughtUp)
}

// applyMessage applies one message. One which cannot be read is skipped: if it held events, the next ones show the gap.
// Where the stream itself has lost messages it is not known whose, so all workers are asked.
func (s *subscription) applyMessage(ctx context.Context, m *bus.Message) {
	if s.incarnation != 0 && (m.Incarnation != s.incarnation || m.Seq > s.seq+1) {
		s.index.throttle.Log(ctx, slog.LevelWarn, "events of embedding caches were dropped before they were read, asking the workers what is missing", "after", s.seq, "before", m.Seq)
		s.index.suspectAll()
	}
	s.incarnation, s.seq = m.Incarnation, m.Seq
	var key [40]byte
	if err := embfeed.DecodeRecord(&s.rec, m.Data); err != nil || m.Key != string(engine.AppendWorkerKey(key[:0], s.rec.Worker)) {
		s.index.countMalformed()
		s.index.throttle.Log(ctx, slog.LevelWarn, "events of an embedding cache which cannot be read, or under the key of another worker", "key", m.Key, "error", err)
		return
	}
	s.index.acceptRecord(&s.rec)
}

func (x *Directory) countMalformed() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.malformed++
}

// maintain does the periodic work and asks workers for what is missing, until ctx ends.
func (x *Directory) maintain(ctx context.Context) {
	tick := time.NewTicker(upkeep)
	defer tick.Stop()
	again := time.NewTimer(upkeep)
	defer again.Stop()
	var ask []kvfeed.ResyncRequest
	for {
		select {
		case <-x.wake:
		case <-again.C:
		case <-tick.C:
			x.checkFeeds()
		case <-ctx.Done():
			return
		}
		var wait time.Duration
		ask, wait = x.dueRequests(ask[:0])
		again.Reset(wait)
		for _, q := range ask {
			err := x.bus.Publish(ctx, bus.EmbeddingResyncTopic(x.cfg.Namespace), engine.WorkerKey(q.Worker), kvfeed.AppendRequest(nil, q))
			if err != nil && ctx.Err() == nil { // the tracker finds it due again
				x.throttle.Log(ctx, slog.LevelWarn, "cannot ask a worker for its embedding cache", "worker", uint64(q.Worker.ID), "error", err)
			}
		}
	}
}
