// Package router is the shell around the routing core: it feeds the index from the event plane and the
// set of workers from discovery, answers the frontend's question where a request should go, and shows
// its state over HTTP.
package router

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/activeseq/replica"
	"penstock/core/health"
	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/catalog"
	"penstock/internal/holders"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
)

// Planes are the planes that a router uses. RPC carries pings and the generate call of the HTTP API;
// without it that call is not offered, and a worker counts as answering as long as discovery lists it.
type Planes struct {
	Bus      bus.Bus
	Registry disco.Registry
	RPC      rpc.Plane
	// Archive keeps snapshots of the cache state. Nil keeps none.
	Archive bus.Archive
}

// Router routes the requests of all models. It is safe for concurrent use.
//
// Its state has three locks. mu guards what decisions are made from: the set of workers, their health,
// and what is active on them. The lock of cacheIndex guards what events report about the workers'
// caches. The lock of predictions guards the cache contents which are predicted without events. Prompt
// lookups take none of the three: they run before mu is taken, or, for a request that waited, while it
// is held. The index of embeddings has a lock of its own, under which none of these is taken; its
// lookups, for reading, run where lookups of prompts do. Each hold is short: one decision, or the events of
// one record, whose number workers bound.
// Code never waits for anything under these locks and never takes one under another.
type Router struct {
	cfg          Config
	planes       Planes
	workers      *catalog.Catalog
	prompter     Prompter
	metrics      routerMetrics
	log          *slog.Logger
	throttle     *obs.Throttle
	started      time.Time // start of the router's monotonic time
	usesOverlaps bool      // decisions use overlaps
	usesEvents   bool      // events are consumed to compute overlaps
	// statesReady is closed when the router may use the stored states. registered is closed, by
	// markRegistered, when discovery shows other routers that the states are in use.
	statesReady, registered chan struct{}
	markRegistered          func()
	// caughtUp is set once the event plane has delivered its backlog.
	caughtUp atomic.Bool
	// resyncWake wakes the goroutine which asks workers for their caches, probeWake the one which pings
	// them.
	resyncWake  chan struct{}
	probeWake   chan struct{}
	syncWake    chan struct{} // wakes the goroutine which publishes to other routers
	scratch     sync.Pool     // of *decisionScratch
	decisions   decisionLog
	membership  membershipLog
	broadcaster eventBroadcaster
	calls       atomic.Int64 // API calls with bodies in progress

	self      disco.Instance // this router's registration
	lease     disco.Lease    // lease of self if resetStates registered it; only Run uses it
	snapshots snapshotState
	// mustRestore makes followEvents start over from a snapshot; only followEvents uses it.
	mustRestore bool

	cache       cacheIndex
	predictions predictions
	// embeddings says which workers hold what their encoders made of media; nil if decisions do not depend on it.
	embeddings *holders.Directory
	cacheUses  map[kv.Worker]cacheUse // what was recorded last; see recordCacheUse
	mu         struct {
		sync.Mutex
		snapshot *catalog.Snapshot // what applySnapshot has applied
		members  []*member         // of it, ascending by worker
		pools    []*modelPool      // of it, ascending by model
		health   *health.Monitor
		pinging  int // pings in flight
		// replica exchanges active requests with other routers; nil if Sync is off.
		replica *replica.Replica
		lookup  prefixLookup // scratch for requests that waited
		held    heldMedia    // the same
	}
}

// decisionScratch is the memory of one decision.
type decisionScratch struct {
	blocks   []kv.BlockHash
	chain    []kv.SeqHash
	lookup   prefixLookup
	lookedUp bool // the prompt was looked up
	held     heldMedia
}

// New returns a router that knows no worker until Run. prompter may be nil: then the HTTP API takes
// token ids only.
func New(cfg Config, planes Planes, prompter Prompter, metrics *obs.Metrics, log *slog.Logger) (*Router, error) {
	cfg.EnsureDefaults()
	if cfg.Index.Seed == 0 {
		cfg.Index.Seed = rand.Uint64()
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	checks, err := health.New(cfg.Health)
	if err != nil {
		return nil, err
	}
	log = obs.Component(log, "router")
	r := &Router{
		cfg: cfg, planes: planes, prompter: prompter, log: log, throttle: obs.NewThrottle(log, 10*time.Second),
		started:      time.Now(),
		usesOverlaps: cfg.Route.UsesOverlaps(),
		cacheUses:    map[kv.Worker]cacheUse{},
		resyncWake:   make(chan struct{}, 1),
		probeWake:    make(chan struct{}, 1),
		syncWake:     make(chan struct{}, 1),
		statesReady:  make(chan struct{}),
		registered:   make(chan struct{}),
		mustRestore:  true,
	}
	r.membership.log = log
	r.usesEvents = r.usesOverlaps && !cfg.NoKVEvents
	r.self = newSelf(&r.cfg, r.usesEvents)
	if err := r.predictions.initialize(&r.cfg, r.predictedTTL(), r.now); err != nil {
		return nil, err
	}
	if err := r.cache.initialize(&r.cfg, r.now); err != nil {
		return nil, err
	}
	if r.embeddings, err = r.newEmbeddingIndex(); err != nil {
		return nil, err
	}
	r.markRegistered = sync.OnceFunc(func() { close(r.registered) })
	r.scratch.New = func() any { return new(decisionScratch) }
	r.decisions.initialize(cfg.Decisions)
	r.mu.health = checks
	if cfg.Sync {
		if r.mu.replica, err = r.newReplica(); err != nil {
			return nil, err
		}
	}
	r.workers = catalog.New(catalog.Selection{Namespace: cfg.Namespace, Component: cfg.Component}, planes.Registry, log)
	r.mu.snapshot = r.workers.Current()
	r.metrics = newMetrics(metrics, r)
	collectPools(metrics, &r.cache)
	return r, nil
}

// predictedTTL is how long a prompt is predicted to stay cached on the worker which it was sent to; 0
// predicts nothing.
func (r *Router) predictedTTL() time.Duration {
	switch {
	case !r.usesOverlaps:
		return 0
	case r.cfg.NoKVEvents:
		return approxTTL
	}
	return *r.cfg.PredictedTTL
}

// Run follows discovery, loads and events until ctx ends, then returns nil. It can be called once. It
// returns an error if it did not start because the states to be reset are in use or unreachable. A
// router serves at any time with what it knows: few overlaps before the event backlog is read, the last
// known workers without discovery.
func (r *Router) Run(ctx context.Context) error {
	durable := r.usesEvents && r.planes.Archive != nil
	if durable && r.cfg.Snapshots.Reset != ResetNever {
		if err := r.resetStates(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
	var parts sync.WaitGroup
	part := func(op string, f func() error) {
		parts.Go(func() { r.runRepeatedly(ctx, op, f) })
	}
	parts.Go(func() { r.awaitRegistration(ctx, durable) })
	parts.Go(func() { r.workers.Run(ctx, r.applySnapshot) })
	part("follow loads", func() error {
		return r.planes.Bus.Subscribe(ctx, bus.LoadTopic(r.cfg.Namespace), 0, r.handleLoad, nil)
	})
	if r.usesEvents {
		part("follow cache events", func() error { return r.followEvents(ctx) })
	}
	if r.embeddings != nil {
		part("follow embedding caches", func() error { return r.embeddings.Run(ctx) })
	}
	if r.planes.Archive != nil { // also if it uses no events: workers need not publish any then
		part("register router", func() error { return r.keepRegistered(ctx) })
	}
	if durable && r.cfg.Snapshots.Threshold > 0 {
		parts.Go(func() { r.runSnapshots(ctx) })
	}
	if r.planes.RPC != nil {
		parts.Go(func() { r.checkHealth(ctx) })
	}
	if r.cfg.Sync {
		part("follow other routers", func() error {
			return r.planes.Bus.Subscribe(ctx, bus.ActiveSequencesTopic(r.cfg.Namespace, r.cfg.Component), 0, r.handlePeerMessage, nil)
		})
		parts.Go(func() { r.syncReplicas(ctx) })
	}
	parts.Go(func() { r.runMaintenance(ctx) })
	parts.Wait()
	r.EndWatches()
	r.membership.flushCounts(true)
	r.throttle.Flush(context.WithoutCancel(ctx))
	return nil
}

// awaitRegistration closes statesReady once other routers can see that the states are in use, or after
// enlistTime: requests do not wait for discovery.
func (r *Router) awaitRegistration(ctx context.Context, durable bool) {
	defer close(r.statesReady)
	if !durable {
		return
	}
	late := time.NewTimer(enlistTime)
	defer late.Stop()
	select {
	case <-r.registered:
	case <-late.C:
	case <-ctx.Done():
	}
}

// StatesReady returns a channel that is closed when Run has made sure that the router may use the
// existing states. Until then Run may still return an error, so the process should not report itself as
// serving.
func (r *Router) StatesReady() <-chan struct{} { return r.statesReady }

// Catalog returns the catalog of the workers and their models, which Run keeps current. The router knows
// at least what the catalog shows.
func (r *Router) Catalog() *catalog.Catalog { return r.workers }

// runRepeatedly calls f until ctx ends: a plane that fails is no reason to stop serving.
func (r *Router) runRepeatedly(ctx context.Context, op string, f func() error) {
	wait := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := f()
		if ctx.Err() != nil {
			return
		}
		r.throttle.Log(ctx, slog.LevelWarn, "a plane failed, trying again", "op", op, "error", err)
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// now is the time for the core. A caller that passes it to more than one call of the same part reads it
// under that part's lock, so that it does not go backwards.
func (r *Router) now() kv.Mono { return kv.Mono(time.Since(r.started)) }
