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

// cacheFeed is what the feeds of the caches differ in. E is an event of a cache.
type cacheFeed[E any] interface {
	// Reset sets the events to split, and Next returns the next of them which fit a record, until the next call;
	// none at the end.
	Reset(events []E)
	Next() []E
	// encodeRecord returns the record of the events, which span names.
	encodeRecord(span kvfeed.Span, events []E) []byte
	// clearedEvent returns the event which says that nothing of before is known.
	clearedEvent() E
	// kindOf returns the kind of an event, for metrics.
	kindOf(*E) string
}

// feedRecord is an encoded record, whose first event has the number first.
type feedRecord struct {
	first uint64
	data  []byte
}

// recordSink publishes the records of a feed.
type recordSink interface {
	// sendRecord publishes one record. After an error it is called again with the same one.
	sendRecord(ctx context.Context, r feedRecord) error
}

// watchFunc reports the content of a cache to sink, as [engine.KVSource] says.
type watchFunc[E any] func(ctx context.Context, sink func([]E) error) error

// feedPublisher turns the events of a cache into numbered records, and answers readers that miss some:
// from the latest records, or by a description of the whole cache.
//
// It has no queue of its own. While its sink fails, as the bus may, the cache's watcher blocks in it, and the engine,
// whose queue is bounded, restarts that watcher with a description of the cache when its queue
// overflows.
//
// Only run publishes, so that a repeated record never separates two parts of a new one.
type feedPublisher[E any] struct {
	w       *Worker
	feed    cacheFeed[E]
	sink    recordSink
	metrics *feedMetrics // nil counts nothing
	worker  kv.Worker
	started time.Time     // start of its monotonic time
	asked   chan struct{} // of capacity 1: requests have arrived
	// interest pauses the publisher while no router wants its events.
	interest *eventInterest

	first uint64       // number of the next event
	again []feedRecord // scratch of repeatRecords
	// next is the number after the last event which the sink acknowledged, attempted the number after
	// the last one passed to it. attempted is stored first.
	next, attempted atomic.Uint64

	mu struct {
		sync.Mutex
		log *kvfeed.EventLog[feedRecord]
	}
}

func newFeedPublisher[E any](w *Worker, feed cacheFeed[E], sink recordSink) (*feedPublisher[E], error) {
	p := &feedPublisher[E]{
		w: w, feed: feed, sink: sink, worker: kv.Worker{ID: w.cfg.ID}, started: time.Now(), asked: make(chan struct{}, 1), interest: newEventInterest(), first: 1,
	}
	log, err := kvfeed.NewEventLog[feedRecord](kvfeed.LogConfig{}, w.cfg.Epoch)
	if err != nil {
		return nil, err
	}
	p.mu.log = log
	p.next.Store(p.first)
	return p, nil
}

func (p *feedPublisher[E]) now() kv.Mono { return kv.Mono(time.Since(p.started)) }

// position returns the numbers of load reports: next, and attempted if it is larger, else 0.
func (p *feedPublisher[E]) position() (next, attempted uint64) {
	next = p.next.Load()
	if attempted = p.attempted.Load(); attempted <= next {
		attempted = 0
	}
	return next, attempted
}

// listenRequests records the requests of routers on a topic, until ctx ends.
func (p *feedPublisher[E]) listenRequests(ctx context.Context, topic bus.Topic) error {
	key := engine.WorkerKey(p.worker)
	return p.w.planes.Bus.Subscribe(ctx, topic, 0, func(m bus.Message) error {
		if m.Key != key {
			return nil
		}
		q, err := kvfeed.DecodeRequest(p.worker, m.Data)
		if err != nil { // of a later version: a description answers any request
			p.w.throttle.Log(ctx, slog.LevelWarn, "a router asks in a form that is not known", "error", err)
		}
		p.addRequest(q)
		return nil
	}, nil)
}

// addRequest records a request; run answers it.
func (p *feedPublisher[E]) addRequest(q kvfeed.ResyncRequest) {
	p.mu.Lock()
	p.mu.log.AddRequest(q)
	p.mu.Unlock()
	select {
	case p.asked <- struct{}{}:
	default:
	}
}

var (
	errResync   = errors.New("a router asked for the whole cache")
	errUnwanted = errors.New("no router wants events")
)

// run publishes until ctx ends. Each watch of the engine starts with a description of the whole cache,
// so starting a new one answers a request for that, and recovers from any failure of the last one.
func (p *feedPublisher[E]) run(ctx context.Context, watch watchFunc[E]) error {
	wait := newBackoff()
	for {
		err := p.watchCache(ctx, watch)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errUnwanted):
			p.pause(ctx)
			p.metrics.countWatch("wanted")
			wait.Reset()
			continue
		case errors.Is(err, errResync):
			p.metrics.countWatch("resync")
			wait.Reset()
			continue
		}
		p.metrics.countWatch("error")
		p.w.throttle.Log(ctx, slog.LevelWarn, "cache watch ended, starting over", "error", err)
		if wait.Wait(ctx) != nil {
			return nil
		}
	}
}

// watchCache runs one watch of the engine, and answers requests which the latest records can answer,
// until the watch fails, ctx ends, a description is requested (errResync), or no router wants events
// (errUnwanted).
func (p *feedPublisher[E]) watchCache(ctx context.Context, watch watchFunc[E]) error {
	watching, stop := context.WithCancel(ctx)
	p.mu.Lock()
	p.mu.log.StartDescription(p.now())
	p.mu.Unlock()
	batches, done, ended := make(chan []E), make(chan error), make(chan error, 1)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		ended <- watch(watching, func(events []E) error {
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
	var ready <-chan []E // batches, unless events are being gathered
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

func (p *feedPublisher[E]) untilNextAnswer() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.mu.log.Deadline()
	if !ok {
		return idleAnswer
	}
	return max(0, at.Sub(p.now()))
}

// answerRequests answers the requests which are due, or returns errResync for a new watch to answer.
func (p *feedPublisher[E]) answerRequests(ctx context.Context) error {
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
func (p *feedPublisher[E]) repeatRecords(ctx context.Context) error {
	defer clear(p.again)
	if len(p.again) == 0 {
		p.again = append(p.again, p.encodeRecord(nil))
	}
	for _, r := range p.again {
		if err := p.publishRecord(ctx, r); err != nil {
			return err
		}
		p.metrics.countRepeat()
	}
	return nil
}

// encodeRecord returns the record of the next events.
func (p *feedPublisher[E]) encodeRecord(events []E) feedRecord {
	return feedRecord{p.first, p.feed.encodeRecord(kvfeed.Span{Worker: p.worker, Epoch: p.w.cfg.Epoch, First: p.first, Count: len(events)}, events)}
}

// publishEvents numbers events and publishes them in records of bounded size. It returns when the sink
// has taken all of them, or with ctx's error.
func (p *feedPublisher[E]) publishEvents(ctx context.Context, events []E) error {
	p.feed.Reset(events)
	for {
		part := p.feed.Next()
		n := len(part)
		if n == 0 {
			return nil
		}
		r := p.encodeRecord(part)
		// These numbers are used up whether or not the record arrives.
		p.first += uint64(n)
		p.attempted.Store(p.first)
		p.mu.Lock()
		p.mu.log.AddRecord(n, len(r.data), r)
		p.mu.Unlock()
		if err := p.publishRecord(ctx, r); err != nil {
			return err
		}
		p.next.Store(p.first)
		p.countRecord(part)
	}
}

// countRecord counts the record of so many events.
func (p *feedPublisher[E]) countRecord(events []E) {
	if p.metrics == nil {
		return
	}
	p.metrics.records.Inc()
	for len(events) > 0 {
		kind, n := p.feed.kindOf(&events[0]), 1
		for n < len(events) && p.feed.kindOf(&events[n]) == kind {
			n++
		}
		p.metrics.events.WithLabelValues(kind).Add(float64(n))
		events = events[n:]
	}
}

// publishRecord publishes an encoded record until the sink has it. A failed attempt may have arrived;
// receivers drop duplicates by number.
func (p *feedPublisher[E]) publishRecord(ctx context.Context, r feedRecord) error {
	for wait := newBackoff(); ; {
		err := p.sink.sendRecord(ctx, r)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.metrics.countFailure()
		p.w.throttle.Log(ctx, slog.LevelWarn, "cannot publish cache events, trying again", "error", err)
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}
