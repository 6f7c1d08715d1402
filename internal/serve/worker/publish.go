package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/feed"
	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

// minDescribe is the least time between two descriptions of the cache that
// routers asked for: those who ask at once, as after the bus was away, share one.
const minDescribe = time.Second

// publisher turns the engine's cache events into numbered records on the bus.
//
// It has no queue of its own. While the bus fails the engine's watcher waits in
// it, and the engine, whose queue is bounded, starts that watcher over with a
// description of the cache when too much has passed.
type publisher struct {
	w      *Worker
	worker kv.Worker
	key    string
	resync chan struct{} // of capacity 1: a request while one waits is the same request

	record feed.Record // First is the number of the next event
	cut    feed.Cutter
	buf    []byte
	next   atomic.Uint64 // number after the last event that the bus has kept
}

func newPublisher(w *Worker) *publisher {
	worker := kv.Worker{ID: w.cfg.ID}
	p := &publisher{
		w: w, worker: worker, key: engine.WorkerKey(worker), resync: make(chan struct{}, 1),
		record: feed.Record{Worker: worker, Epoch: w.cfg.Epoch, First: 1, BlockSize: uint32(w.card.BlockSize)},
	}
	p.next.Store(p.record.First)
	return p
}

// listen notes the requests to describe the cache again, until ctx ends.
func (p *publisher) listen(ctx context.Context) error {
	return p.w.planes.Bus.Subscribe(ctx, bus.KVResync(p.w.cfg.Namespace), 0, func(m bus.Message) error {
		if m.Key == p.key {
			select {
			case p.resync <- struct{}{}:
			default:
			}
		}
		return nil
	}, nil)
}

var errResync = errors.New("a router asked for the whole cache")

// run publishes until ctx ends. Each watch of the engine begins with a
// description of the whole cache, so beginning a new one answers a resync, and
// repairs whatever made the last one fail.
func (p *publisher) run(ctx context.Context, src engine.KVSource) error {
	wait := newBackoff()
	for {
		err := p.watch(ctx, src)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errResync):
			p.w.metrics.watches.WithLabelValues("resync").Inc()
			wait.Reset()
			continue
		}
		p.w.metrics.watches.WithLabelValues("error").Inc()
		p.w.throttle.Log(ctx, slog.LevelWarn, "cache watch ended, starting over", "error", err)
		if wait.Wait(ctx) != nil {
			return nil
		}
	}
}

// watch runs one watch of the engine, until it fails, ctx ends, or a resync is
// asked for (errResync).
func (p *publisher) watch(ctx context.Context, src engine.KVSource) error {
	watching, stop := context.WithCancelCause(ctx)
	var listener sync.WaitGroup
	listener.Go(func() {
		if backoff.Pause(watching, minDescribe) != nil {
			return
		}
		select {
		case <-p.resync:
			stop(errResync)
		case <-watching.Done():
		}
	})
	// Publishing goes by ctx: a record under way when the watch ends is finished.
	err := src.WatchKV(watching, func(events []kv.Event) error { return p.publish(ctx, events) })
	if watching.Err() != nil {
		err = context.Cause(watching)
	}
	stop(nil)
	listener.Wait()
	return err
}

// publish numbers events and publishes them in records of bounded size. It
// returns when the bus has kept all of them, or with ctx's error.
func (p *publisher) publish(ctx context.Context, events []kv.Event) error {
	p.cut.Reset(events)
	for {
		p.record.Events = p.cut.Next()
		if len(p.record.Events) == 0 {
			return nil
		}
		p.buf = feed.AppendRecord(p.buf[:0], &p.record)
		// Whether or not it arrives, these numbers are used up.
		p.record.First += uint64(len(p.record.Events))
		if err := p.keep(ctx); err != nil {
			return err
		}
		p.next.Store(p.record.First)
		p.w.metrics.records.Inc()
		for _, ev := range p.record.Events {
			p.w.metrics.events.WithLabelValues(ev.Kind.String()).Inc()
		}
	}
}

// keep publishes the encoded record until the bus has it. A failed attempt may
// have arrived; receivers drop what they see twice by its number.
func (p *publisher) keep(ctx context.Context) error {
	topic := bus.KVEvents(p.w.cfg.Namespace, p.w.cfg.Component)
	for wait := newBackoff(); ; {
		err := p.w.planes.Bus.Publish(ctx, topic, p.key, p.buf)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.w.metrics.bad.Inc()
		p.w.throttle.Log(ctx, slog.LevelWarn, "cannot publish cache events, trying again", "error", err)
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}
