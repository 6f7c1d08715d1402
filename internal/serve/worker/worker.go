// Package worker serves an engine on the planes: it answers calls, registers in discovery, and
// publishes the engine's cache events and load.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/internal/backoff"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
)

// releaseTimeout bounds the wait for discovery when a worker deregisters; after it the lease expires.
const releaseTimeout = 3 * time.Second

// Planes are the planes that a worker uses.
type Planes struct {
	RPC      rpc.Plane
	Bus      bus.Bus
	Registry disco.Registry
	// Fetch, if not nil, returns the size bytes which a process lends at place.
	Fetch func(ctx context.Context, place string, size int) ([]byte, error)
	// Lender, if not nil, lends the rows of encoded objects to the callers that asked for them.
	Lender RowLender
	// Tracer, if not nil, gets the spans of calls.
	Tracer *obs.Tracer
}

// Worker serves one engine. It serves one data-parallel rank, rank 0.
type Worker struct {
	cfg      Config
	eng      engine.Engine
	card     engine.Card // without its adapters and miscounted media
	liveCard *liveCard   // its adapters and miscounted media, and the whole card's JSON
	planes   Planes
	server   *callServer
	metrics  workerMetrics
	shared   *Metrics // of all workers of the process
	log      *slog.Logger
	throttle *obs.Throttle
	// updatingCard is held while the card changes, so that changes are made one after another.
	updatingCard sync.Mutex
	// registered is the worker's address, once it is registered.
	registered atomic.Pointer[string]
	// stated is how the worker exchanges KV blocks, as its card says; nil if it does not.
	stated atomic.Pointer[disagg.Metadata]
}

// New returns a worker that does nothing until Run. metrics may be shared by the workers of a process.
func New(cfg Config, eng engine.Engine, planes Planes, metrics *Metrics, log *slog.Logger) (*Worker, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if _, ok := eng.(engine.MediaEncoder); ok { // it cannot be asked for a token
		cfg.CanaryInterval, cfg.StallTimeout = new(time.Duration(0)), -1
	}
	card := eng.Card()
	card.Role = cfg.Role
	_, card.KVEvents = eng.(engine.KVSource)
	if card.EmbeddingEvents = cfg.Embeddings != nil; card.EmbeddingEvents {
		card.EmbeddingRegion = cfg.Region
	}
	_, card.Embeddings = eng.(engine.Embedder)
	_, card.Preprocess = eng.(engine.Preprocessor)
	if cfg.ToolParser != "" {
		card.ToolParser = cfg.ToolParser
	}
	if cfg.ReasoningParser != "" {
		card.ReasoningParser = cfg.ReasoningParser
	}
	if cfg.Aliases != nil {
		card.Aliases = cfg.Aliases
	}
	if cfg.Experts != nil {
		card.Experts = cfg.Experts
	}
	card.Features = card.Features && !cfg.KeepFeatures
	if !card.Router { // a router's says what its workers do
		card.Fetches = card.Features && planes.Fetch != nil
	}
	if cfg.MediaDecoder != nil && len(card.Media) > 0 {
		card.MediaDecoder = cfg.MediaDecoder
	}
	if card.Ranks != 1 {
		return nil, fmt.Errorf("worker: the engine has %d data-parallel ranks and a worker serves one; run a worker for each", card.Ranks)
	}
	if p, ok := eng.(engine.PassthroughEngine); ok {
		card.PassthroughPaths = p.PassthroughPaths()
	}
	log = obs.Component(log, "worker").With(slog.Uint64("worker", uint64(cfg.ID)))
	w := &Worker{
		cfg: cfg, eng: eng, card: card, liveCard: newLiveCard(), planes: planes,
		shared: metrics, log: log, throttle: obs.NewThrottle(log, 10*time.Second),
	}
	if err := w.setLists(card.Adapters, card.MiscountedMedia); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	var err error
	if w.server, err = newCallServer(w); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	w.metrics = metrics.addWorker(cfg.ID)
	w.metrics.ready.Set(1)
	w.server.kvFeed.metrics = w.metrics.kvFeed
	if card.KVEvents {
		w.metrics.kvFeed.setPublishing(1)
	}
	if card.EmbeddingEvents {
		w.server.embeddingFeed.metrics = w.metrics.embeddingFeed.instruments()
		w.server.embeddingFeed.metrics.setPublishing(1)
	}
	return w, nil
}

// Health is the worker's answer to a ping: its state, its load, and how many calls it serves.
func (w *Worker) Health() engine.Pong { return w.server.health() }

// errEnded is the cause of the end of a run without errors.
var errEnded = errors.New("worker: ended")

// Run runs the engine and serves it until ctx ends. Then it drains: it refuses new calls as Draining,
// says so in its load report, deregisters, lets the running calls finish within the drain timeout, ends
// the rest as Draining too, so that other workers continue them, and returns nil. It returns early with
// an error if the engine or the request plane fails, or if another worker has its id, or serves its
// model's name with a different card. If another process registers with its id later, it drains too and
// returns an error that is ErrReplaced. It can be called once.
func (w *Worker) Run(ctx context.Context) error {
	// The worker's parts outlive ctx until the drain ends.
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(errEnded)
	defer w.throttle.Flush(life)
	defer w.shared.removeWorker(w.cfg.ID)

	var parts sync.WaitGroup
	part := func(op string, f func() error) {
		parts.Go(func() {
			if err := f(); err != nil {
				end(fmt.Errorf("worker %d: %s: %w", w.cfg.ID, op, err))
			}
		})
	}
	part("engine", func() error {
		if err := w.eng.Run(life); err != nil || life.Err() != nil {
			return err
		}
		return errors.New("stopped by itself")
	})

	s := w.server
	serving, refuse := context.WithCancel(life)
	defer refuse()
	addr := make(chan string, 1)
	part("serve", func() error {
		return w.planes.RPC.Serve(serving, w.cfg.Addr, traceCalls(w.planes.Tracer, w, s.handleCall), func(a string) { addr <- a })
	})
	if src, ok := w.eng.(engine.KVSource); ok {
		part("publish cache events", func() error { return s.kvFeed.run(life, src.WatchKV) })
		part("listen for resyncs", func() error { return s.kvFeed.listenRequests(life, bus.KVResyncTopic(w.cfg.Namespace)) })
		if w.cfg.EventsOnDemand {
			part("follow routers", func() error { return s.kvFeed.interest.follow(life, w) })
		}
	}
	if src := w.cfg.Embeddings; src != nil {
		part("publish events of the embedding cache", func() error { return s.embeddingFeed.run(life, src.WatchEmbeddings) })
		part("listen for resyncs of the embedding cache", func() error {
			return s.embeddingFeed.listenRequests(life, bus.EmbeddingResyncTopic(w.cfg.Namespace))
		})
		if ep := w.cfg.EmbeddingEvents; !ep.IsZero() {
			part("publish events of the embedding cache over ZeroMQ", func() error { return w.publishOverZMQ(life, ep, src) })
		}
	}
	if src, ok := w.eng.(engine.AdapterWatcher); ok {
		part("watch adapters", func() error { return src.WatchAdapters(life, w.updateAdapters) })
	}
	if src, ok := w.eng.(engine.MediaCountWatcher); ok {
		part("watch the counts of media", func() error { return src.WatchMediaCounts(life, w.updateMiscounted) })
	}
	part("publish load", func() error { return w.publishLoad(life, s) })
	if src, ok := w.eng.(engine.HealthWatcher); ok {
		part("watch the engine's signs", func() error { src.WatchHealth(life, s.wakeLoadPublisher); return nil })
	}
	part("monitor the engine", func() error { return newEngineMonitor(s).run(life) })

	// Registration must not delay the end: it stops when either context ends.
	starting, started := mergeDone(ctx, life)
	in, lease, err := w.registerWorker(starting, addr, func(x *Exchange) {
		part("exchange blocks", func() error { return x.Run(life) })
	})
	started()
	if err != nil {
		end(fmt.Errorf("worker %d: register: %w", w.cfg.ID, err))
	}
	// keepCardRegistered must not update a registration that is being released.
	registered, leave := context.WithCancel(life)
	defer leave()
	var updates sync.WaitGroup
	var lost <-chan struct{}
	if lease != nil {
		lost = lease.Lost()
		updates.Go(func() { w.keepCardRegistered(registered, lease, in) })
	}
	var replaced error
	select {
	case <-ctx.Done():
	case <-life.Done(): // a part failed: no call can finish
	case <-lost:
		if ctx.Err() == nil { // otherwise a restart of this worker may have replaced it
			replaced = w.replacedError()
		}
	}

	s.limiter.closeAdmission()
	s.publishLoadNow(life)
	leave()
	updates.Wait()
	w.releaseLease(life, lease)
	s.abortCalls(w.drainCalls(life, s, s.drainExchange(life)))
	refuse()
	end(errEnded)
	parts.Wait()
	s.running.Wait()
	if err := context.Cause(life); !errors.Is(err, errEnded) {
		return err
	}
	return replaced
}

// drainCalls waits until the running calls are done, which drained says, the drain timeout passes, or the worker fails, but
// at least for Linger. It returns the error for the remaining calls.
func (w *Worker) drainCalls(life context.Context, s *callServer, drained <-chan struct{}) error {
	late := time.NewTimer(w.cfg.DrainTimeout)
	defer late.Stop()
	lingered := time.NewTimer(w.cfg.Linger)
	defer lingered.Stop()
	if n, _ := s.limiter.callCount(); n > 0 {
		w.log.Info("draining", "calls", n, "timeout", w.cfg.DrainTimeout)
	}
	select {
	case <-drained:
		select {
		case <-lingered.C:
		case <-life.Done():
		}
	case <-life.Done():
	case <-late.C:
	}
	if life.Err() != nil {
		return fault.New(fault.Unavailable, "worker %d has failed", w.cfg.ID)
	}
	if n, _ := s.limiter.callCount(); n > 0 {
		w.log.Warn("drain timeout, calls go to other workers", "calls", n)
	}
	return fault.New(fault.Draining, "worker %d has left: another goes on with the call", w.cfg.ID)
}

// registerWorker registers the worker in discovery once it can be called and its engine has started. It
// tries until it succeeds, ctx ends (nil, nil), or the id, or the model's name with a different card,
// is taken. If the worker exchanges KV blocks, opened is called first.
func (w *Worker) registerWorker(ctx context.Context, addr <-chan string, opened func(*Exchange)) (in disco.Instance, lease disco.Lease, err error) {
	in = disco.Instance{
		Kind: catalog.KindOf(w.card.Role), ID: w.cfg.ID, Epoch: w.cfg.Epoch,
		Namespace: w.cfg.Namespace, Component: w.cfg.Component, Endpoint: w.cfg.Endpoint,
		Host: w.cfg.Host, PID: w.cfg.PID, Name: w.cfg.Name,
	}
	select {
	case in.Addr = <-addr:
	case <-ctx.Done():
		return in, nil, nil
	}
	if !w.awaitStarted(ctx) {
		return in, nil, nil
	}
	if w.cfg.Check != nil {
		if err := w.cfg.Check(ctx); err != nil && ctx.Err() == nil {
			return in, nil, err
		}
	}
	if err := w.checkNameConflict(ctx); err != nil {
		return in, nil, err
	}
	if x := w.openExchange(ctx, in.Addr); x != nil {
		opened(x)
	}
	for wait := newBackoff(); ; {
		in.Meta = w.liveCard.encodedCard()
		lease, err := w.planes.Registry.Register(ctx, in)
		switch {
		case err == nil:
			w.registered.Store(&in.Addr)
			w.log.Log(ctx, w.cfg.ReadyLevel, "ready", "model", w.card.Name, "engine", w.card.Engine, "addr", in.Addr)
			return in, lease, nil
		case ctx.Err() != nil:
			return in, nil, nil
		case fault.CodeOf(err) == fault.Conflict || fault.CodeOf(err) == fault.Invalid:
			return in, nil, err
		}
		w.throttle.Log(ctx, slog.LevelWarn, "cannot register, trying again", "error", err)
		if wait.Wait(ctx) != nil {
			return in, nil, nil
		}
	}
}

// releaseLease deregisters the worker, within releaseTimeout.
func (w *Worker) releaseLease(life context.Context, lease disco.Lease) {
	if lease == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(life), releaseTimeout)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		w.log.Warn("cannot leave discovery, the lease will run out", "error", err)
	}
}

// newBackoff spaces out attempts at a plane that fails.
func newBackoff() *backoff.Backoff {
	return &backoff.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}
}

// mergeDone returns a context that ends when either of two does.
func mergeDone(a, b context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(a)
	stop := context.AfterFunc(b, cancel)
	return ctx, func() { stop(); cancel() }
}

// ErrReplaced is the error of Run when another process has registered with the worker's id. A caller
// that restarted the worker would replace the other process in turn, without end.
var ErrReplaced = errors.New("another process has registered with the same id and replaced it")

// replacedError returns the error of a worker whose registration another process has replaced.
func (w *Worker) replacedError() error {
	return fault.New(fault.Conflict, "worker %d: %w; two processes cannot share an id: start this one with another --worker-id, or without one, and not on the --data-dir of the other", w.cfg.ID, ErrReplaced)
}

// RegisteredAddr returns the address that the worker has registered in discovery; false before that. It
// remains until the worker drains.
func (w *Worker) RegisteredAddr() (addr string, ok bool) {
	at := w.registered.Load()
	if at == nil {
		return "", false
	}
	return *at, true
}
