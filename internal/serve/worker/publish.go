package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

// eventPublisher turns the engine's cache events into numbered records on the bus, and answers routers
// that miss some: from the latest records, or by a description of the whole cache.
//
// It has no queue of its own. While the bus fails the engine's watcher blocks in it, and the engine,
// whose queue is bounded, restarts that watcher with a description of the cache when its queue
// overflows.
//
// Only run publishes, so that a repeated record never separates two parts of a new one.
type eventPublisher struct {
	w       *Worker
	worker  kv.Worker
	key     string
	started time.Time     // start of its monotonic time
	asked   chan struct{} // of capacity 1: requests have arrived
	// interest pauses the publisher while no router wants its events.
	interest *eventInterest

	record kvfeed.Record // First is the number of the next event
	cut    kvfeed.RecordSplitter
	again  [][]byte // scratch of repeatRecords
	// next is the number after the last event which the bus acknowledged, attempted the number after
	// the last one passed to it. attempted is stored first.
	next, attempted atomic.Uint64

	mu struct {
		sync.Mutex
		log *kvfeed.EventLog[[]byte]
	}
}

func newEventPublisher(w *Worker) (*eventPublisher, error) {
	worker := kv.Worker{ID: w.cfg.ID}
	p := &eventPublisher{
		w: w, worker: worker, key: engine.WorkerKey(worker), started: time.Now(), asked: make(chan struct{}, 1), interest: newEventInterest(),
		record: kvfeed.Record{Worker: worker, Epoch: w.cfg.Epoch, First: 1, BlockSize: uint32(w.card.BlockSize)},
	}
	log, err := kvfeed.NewEventLog[[]byte](kvfeed.LogConfig{}, w.cfg.Epoch)
	if err != nil {
		return nil, err
	}
	p.mu.log = log
	p.next.Store(p.record.First)
	return p, nil
}

func (p *eventPublisher) now() kv.Mono { return kv.Mono(time.Since(p.started)) }

// listenRequests records the requests of routers, until ctx ends.
func (p *eventPublisher) listenRequests(ctx context.Context) error {
	return p.w.planes.Bus.Subscribe(ctx, bus.KVResyncTopic(p.w.cfg.Namespace), 0, func(m bus.Message) error {
		if m.Key != p.key {
			return nil
		}
		q, err := kvfeed.DecodeRequest(p.worker, m.Data)
		if err != nil { // of a later version: a description answers any request
			p.w.throttle.Log(ctx, slog.LevelWarn, "a router asks in a form that is not known", "error", err)
		}
		p.mu.Lock()
		p.mu.log.AddRequest(q)
		p.mu.Unlock()
		select {
		case p.asked <- struct{}{}:
		default:
		}
		return nil
	}, nil)
}

var (
	errResync   = errors.New("a router asked for the whole cache")
	errUnwanted = errors.New("no router wants events")
)

// run publishes until ctx ends. Each watch of the engine starts with a description of the whole cache,
// so starting a new one answers a request for that, and recovers from any failure of the last one.
func (p *eventPublisher) run(ctx context.Context, src engine.KVSource) error {
	wait := newBackoff()
	for {
		err := p.watchCache(ctx, src)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errUnwanted):
			p.pause(ctx)
			p.w.metrics.watches.WithLabelValues("wanted").Inc()
			wait.Reset()
			continue
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

// watchCache runs one watch of the engine, and answers requests which the latest records can answer,
// until the watch fails, ctx ends, a description is requested (errResync), or no router wants events
// (errUnwanted).
func (p *eventPublisher) watchCache(ctx context.Context, src engine.KVSource) error {
	watching, stop := context.WithCancel(ctx)
	p.mu.Lock()
	p.mu.log.StartDescription(p.now())
	p.mu.Unlock()
	batches, done, ended := make(chan []kv.Event), make(chan error), make(chan error, 1)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		ended <- src.WatchKV(watching, func(events []kv.Event) error {
			select {
			case batches <- events:
				return <-done // the receiver reports the result
			case <-watching.Done():
				return watching.Err()
			}
		})
	})
	defer watcher.Wait()
	defer stop()
	answer := time.NewTimer(0)
	defer answer.Stop()
	gathered := time.NewTimer(0)
	defer gathered.Stop()
	var ready <-chan []kv.Event // batches, unless events are being gathered
	for {
		select {
		case <-gathered.C:
			ready = batches
		case events := <-ready:
			// Publishing uses ctx, so that a record being published when the watch ends is completed.
			done <- p.publishEvents(ctx, events)
			ready = nil
			gathered.Reset(gatherDelay)
		case err := <-ended:
			return err
		case <-p.interest.changed:
			if !p.interest.isWanted() {
				return errUnwanted
			}
		case <-p.asked:
			answer.Reset(p.untilNextAnswer())
		case <-answer.C:
			if err := p.answerRequests(ctx); err != nil {
				return err
			}
			answer.Reset(p.untilNextAnswer())
		}
	}
}

// gatherDelay is how long the events after a record are gathered for the next one. A record costs the
// bus, and every router, more than most of its contents. The delay of some milliseconds does no harm:
// routers predict what they sent for longer than that.
const gatherDelay = 10 * time.Millisecond

// idleAnswer is the wait without pending requests: the next request wakes the publisher.
const idleAnswer = time.Hour

func (p *eventPublisher) untilNextAnswer() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.mu.log.Deadline()
	if !ok {
		return idleAnswer
	}
	return max(0, at.Sub(p.now()))
}

// answerRequests answers the requests which are due, or returns errResync for a new watch to answer.
func (p *eventPublisher) answerRequests(ctx context.Context) error {
	p.mu.Lock()
	a := p.mu.log.NextAnswer(p.now())
	if a.Repeat {
		p.again = p.mu.log.AppendRecords(p.again[:0], a.From)
	}
	p.mu.Unlock()
	switch {
	case a.Describe:
		return errResync
	case a.Repeat:
		return p.repeatRecords(ctx)
	}
	return nil
}

// repeatRecords publishes the records in again once more, or if there are none an empty record, which
// says that nothing is missing.
func (p *eventPublisher) repeatRecords(ctx context.Context) error {
	defer clear(p.again)
	if len(p.again) == 0 {
		p.record.Events = nil
		p.again = append(p.again, kvfeed.AppendRecord(nil, &p.record))
	}
	for _, data := range p.again {
		if err := p.publishRecord(ctx, data); err != nil {
			return err
		}
		p.w.metrics.repeats.Inc()
	}
	return nil
}

// publishEvents numbers events and publishes them in records of bounded size. It returns when the bus
// has stored all of them, or with ctx's error.
func (p *eventPublisher) publishEvents(ctx context.Context, events []kv.Event) error {
	p.cut.Reset(events)
	for {
		p.record.Events = p.cut.Next()
		n := len(p.record.Events)
		if n == 0 {
			return nil
		}
		data := kvfeed.AppendRecord(nil, &p.record)
		// These numbers are used up whether or not the record arrives.
		p.record.First += uint64(n)
		p.attempted.Store(p.record.First)
		p.mu.Lock()
		p.mu.log.AddRecord(n, len(data), data)
		p.mu.Unlock()
		if err := p.publishRecord(ctx, data); err != nil {
			return err
		}
		p.next.Store(p.record.First)
		p.w.metrics.records.Inc()
		p.w.metrics.countEvents(p.record.Events)
	}
}

// publishRecord publishes an encoded record until the bus has it. A failed attempt may have arrived;
// receivers drop duplicates by number.
func (p *eventPublisher) publishRecord(ctx context.Context, data []byte) error {
	topic := bus.KVEventsTopic(p.w.cfg.Namespace, p.w.cfg.Component)
	for wait := newBackoff(); ; {
		err := p.w.planes.Bus.Publish(ctx, topic, p.key, data)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.w.metrics.failedPublishes.Inc()
		p.w.throttle.Log(ctx, slog.LevelWarn, "cannot publish cache events, trying again", "error", err)
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}
