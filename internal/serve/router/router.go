// Package router is the shell around the routing core: it feeds the index from
// the event plane and the set of workers from discovery, answers the frontend's
// question where a request should go, and shows what it knows over HTTP.
package router

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/health"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/slots/replica"
	"penstock/internal/backoff"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
)

// Planes are what a router reaches the world through. RPC is used for pings and by
// the generate call of the HTTP API; without it that call is not offered, and a worker
// is taken to answer as long as discovery knows it.
type Planes struct {
	Bus      bus.Bus
	Registry disco.Registry
	RPC      rpc.Plane
	// Archive keeps snapshots of what is known of caches. Nil keeps none.
	Archive bus.Archive
}

// Router routes the requests of all models. It is safe for concurrent use.
//
// Its state has three owners. Whoever holds mu owns what decisions are made of: who the
// workers are, how they are, and what is active on them. Whoever holds the cache's lock
// owns what events say of their caches, see cache, and whoever holds that of predictions
// what is believed without events. Prompts are looked up under none of the three: before mu
// is taken, or, for one that waited, while it is held. Every hold is short: a decision, or
// the events of one record, whose number workers bound. Nothing is waited for under any of
// them, and none is taken under another.
type Router struct {
	cfg      Config
	planes   Planes
	prompter Prompter
	metrics  routerMetrics
	log      *slog.Logger
	throttle *obs.Throttle
	started  time.Time // zero of Mono
	matches  bool      // whether decisions use overlaps
	events   bool      // whether events are consumed for them
	// begun is closed when the states may be used, enlisted, by enlist, when discovery shows
	// others that they are.
	begun, enlisted chan struct{}
	enlist          func()
	// seen is closed, by saw, when workers are known for the first time.
	seen chan struct{}
	saw  func()
	// caughtUp is set once the event plane has delivered what it kept.
	caughtUp atomic.Bool
	// resync wakes the one who asks workers for their caches, probe the one who
	// pings them.
	resync    chan struct{}
	probe     chan struct{}
	changed   chan struct{} // wakes the one who tells other routers
	scratch   sync.Pool     // of *scratch
	decisions decisions
	roster    roster
	hub       hub
	calls     atomic.Int64 // of the API, with bodies, in progress

	self      disco.Instance // this router, as others see it
	lease     disco.Lease    // of self, where resetting took it; only Run uses it
	snapshots snapshots
	// stale says that what is known of caches is to be begun anew; only follow uses it.
	stale bool

	cache   cache
	predict predictions
	mu      struct {
		sync.Mutex
		members []*member // ascending by worker
		broken  []brokenInstance
		pools   []*pool // ascending by model
		names   map[string]*pool
		// adapters are those of the names that are LoRA adapters.
		adapters map[string]bool
		health   *health.Machine
		pinging  int // pings that are out
		// replica is the exchange with other routers; nil if there is none.
		replica *replica.Replica
		lookup  lookup // scratch for requests that waited
		// referred has, by model, what Refer was told last.
		referred map[string]string
	}
}

// scratch is what one decision needs beside the shared state.
type scratch struct {
	blocks []kv.BlockHash
	chain  []kv.SeqHash
	lookup lookup
	looked bool // the prompt was looked up
}

// New returns a router that knows no worker until Run. prompter may be nil: then
// the HTTP API takes token ids only.
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
		started:  time.Now(),
		matches:  cfg.Route.Mode == route.KV && *cfg.Route.OverlapWeight > 0,
		resync:   make(chan struct{}, 1),
		probe:    make(chan struct{}, 1),
		changed:  make(chan struct{}, 1),
		begun:    make(chan struct{}),
		enlisted: make(chan struct{}),
		seen:     make(chan struct{}),
		stale:    true,
	}
	r.roster.log = log
	r.events = r.matches && !cfg.NoKVEvents
	r.self = newSelf(&r.cfg)
	if err := r.predict.open(&r.cfg, r.predictedTTL(), r.now); err != nil {
		return nil, err
	}
	if err := r.cache.open(&r.cfg, r.now); err != nil {
		return nil, err
	}
	r.saw = sync.OnceFunc(func() { close(r.seen) })
	r.enlist = sync.OnceFunc(func() { close(r.enlisted) })
	r.scratch.New = func() any { return new(scratch) }
	r.decisions.init(cfg.Decisions)
	r.mu.health = checks
	if cfg.Sync {
		if r.mu.replica, err = r.newReplica(); err != nil {
			return nil, err
		}
	}
	r.mu.names, r.mu.adapters = map[string]*pool{}, map[string]bool{}
	r.mu.referred = map[string]string{}
	r.metrics = newMetrics(metrics, r)
	collectPools(metrics, &r.cache)
	return r, nil
}

// predictedTTL is for how long prompts are believed to be cached where they were sent.
func (r *Router) predictedTTL() time.Duration {
	switch {
	case !r.matches:
		return 0
	case r.cfg.NoKVEvents:
		return approxTTL
	}
	return max(r.cfg.PredictedTTL, 0)
}

// Run follows discovery, loads and events until ctx ends; it returns nil then. An error
// means that it did not start, since the states that it was to reset are in use or out of
// reach. It can be called once. A router serves whatever it knows at any time: before the
// first catch-up with few overlaps, without discovery with the last known workers.
func (r *Router) Run(ctx context.Context) error {
	durable := r.events && r.planes.Archive != nil
	if durable && r.cfg.Snapshots.Reset != Keep {
		if err := r.resetStates(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
	var parts sync.WaitGroup
	part := func(op string, f func() error) {
		parts.Go(func() { r.keep(ctx, op, f) })
	}
	parts.Go(func() { r.announce(ctx, durable) })
	part("watch workers", func() error { return r.planes.Registry.Watch(ctx, disco.Worker, r.setInstances) })
	part("follow loads", func() error {
		return r.planes.Bus.Subscribe(ctx, bus.Load(r.cfg.Namespace), 0, r.takeLoad, nil)
	})
	if r.events {
		part("follow cache events", func() error { return r.follow(ctx) })
	}
	if durable {
		part("register router", func() error { return r.presence(ctx) })
		if r.cfg.Snapshots.Threshold > 0 {
			parts.Go(func() { r.keepSnapshots(ctx) })
		}
	}
	if r.planes.RPC != nil {
		parts.Go(func() { r.checkHealth(ctx) })
	}
	if r.cfg.Sync {
		part("follow other routers", func() error {
			return r.planes.Bus.Subscribe(ctx, bus.Slots(r.cfg.Namespace, r.cfg.Component), 0, r.takeSlots, nil)
		})
		parts.Go(func() { r.syncReplicas(ctx) })
	}
	parts.Go(func() { r.maintain(ctx) })
	parts.Wait()
	r.EndWatches()
	r.roster.flush(true)
	r.throttle.Flush(context.WithoutCancel(ctx))
	return nil
}

// announce has the router begin once others can see that its states are in use, or cannot
// be told so for a while: requests do not wait for discovery.
func (r *Router) announce(ctx context.Context, durable bool) {
	defer close(r.begun)
	if !durable {
		return
	}
	late := time.NewTimer(enlistTime)
	defer late.Stop()
	select {
	case <-r.enlisted:
	case <-late.C:
	case <-ctx.Done():
	}
}

// Begun returns a channel that is closed when Run has made sure that the router may work on
// the states that there are: before, it may still end with an error, and nobody should be
// told that it serves.
func (r *Router) Begun() <-chan struct{} { return r.begun }

// Seen returns a channel that is closed when the router has heard for the first time
// which workers there are.
func (r *Router) Seen() <-chan struct{} { return r.seen }

// keep repeats f until ctx ends: a plane that fails is no reason to stop serving.
func (r *Router) keep(ctx context.Context, op string, f func() error) {
	wait := backoff.Backoff{Least: 100 * time.Millisecond, Most: 5 * time.Second}
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

// now is the time for the core. Callers that pass it on to more than one call take it
// under the lock of whom they call, so that it does not go backwards.
func (r *Router) now() kv.Mono { return kv.Mono(time.Since(r.started)) }
