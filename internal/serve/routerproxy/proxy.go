// Package routerproxy is the router process's proxy: it presents the workers of a model as one engine,
// whose Generate asks a router for a worker, calls it, and passes its tokens on. When the worker fails,
// it continues on another with the tokens that are already sent, so that the caller sees one answer,
// and no failure while any worker is alive. Served like every engine, it makes the process an instance
// of the model, like the workers behind it.
package routerproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/dispatch"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/rpc"
)

// Router is a dispatch.Router which also knows whether a model can be served.
type Router interface {
	dispatch.Router
	// Availability says whether a model can be served now, and if not why.
	Availability(model string) route.Availability
}

// WarningReporter is a Router that has warnings about workers which serve.
type WarningReporter interface {
	// Warnings returns the warnings by worker, without workers that have none.
	Warnings() map[kv.WorkerID][]engine.Warning
}

// Deps are the dependencies of a proxy. All but MediaResolver, Inspect and Tracer are
// required.
type Deps struct {
	Router Router
	Plane  rpc.Plane
	// Catalog has the workers and models of the component, which Router must know too before Catalog
	// shows them.
	Catalog *catalog.Catalog
	// Serve runs the engine of one model and serves it on the planes until ctx ends, and returns nil
	// then. It is called again, with a new engine, when the model returns after its last worker was
	// removed.
	Serve func(ctx context.Context, model engine.Engine) error
	// MediaResolver, if not nil, returns the resolver for the media of a model's conversations, nil if
	// there is none. It is called before the model is served, and may be slow.
	MediaResolver func(card engine.Card) MediaResolver
	// Inspect, if not nil, answers questions about the workers of a model, see engine.Inspector.
	Inspect func(ctx context.Context, q *engine.Inspection) ([]byte, error)
	Metrics *obs.Metrics
	Log     *slog.Logger
	// Tracer, if not nil, gets a span for each decision and each attempt.
	Tracer *obs.Tracer
}

// Proxy serves every model that workers of its component serve.
type Proxy struct {
	cfg        Config
	deps       Deps
	metrics    metrics
	throttled  *obs.Throttle
	dispatcher *dispatch.Dispatcher
	serving    atomic.Int64 // models being served
	ids        dispatch.RequestIDs
}

// New returns a proxy that does nothing until Run.
func New(cfg Config, deps Deps) (*Proxy, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Router == nil || deps.Plane == nil || deps.Catalog == nil || deps.Serve == nil || deps.Metrics == nil || deps.Log == nil {
		return nil, errors.New("new relay: a dependency is missing")
	}
	deps.Log = obs.Component(deps.Log, "routerproxy")
	r := &Proxy{cfg: cfg, deps: deps, metrics: newMetrics(deps.Metrics), throttled: obs.NewThrottle(deps.Log, 10*time.Second)}
	r.dispatcher = newDispatcher(r)
	return r, nil
}

// ModelCount returns the number of models being served.
func (r *Proxy) ModelCount() int { return int(r.serving.Load()) }

// NewEngine returns an engine that proxies requests for the model of a card. It knows the model's workers
// only while the proxy runs. It embeds and makes prompts if the card says so, and also makes prompts if
// resolver, which may be nil, does.
func (r *Proxy) NewEngine(card engine.Card, sight MediaResolver) engine.Engine {
	e := &proxyEngine{proxy: r, card: card, resolver: sight, running: make(chan struct{}), stopped: make(chan struct{})}
	prompts := card.Preprocess || sight != nil
	switch {
	case card.Embeddings && prompts:
		return struct {
			*proxyEngine
			embeddingEngine
			preprocessingEngine
		}{e, embeddingEngine{e}, preprocessingEngine{e}}
	case card.Embeddings:
		return struct {
			*proxyEngine
			embeddingEngine
		}{e, embeddingEngine{e}}
	case prompts:
		return struct {
			*proxyEngine
			preprocessingEngine
		}{e, preprocessingEngine{e}}
	}
	return e
}

// proxyEngine presents the workers of one model as one engine.
type proxyEngine struct {
	proxy     *Proxy
	card      engine.Card
	resolver  MediaResolver // nil if there is none
	inFlight  atomic.Int64
	startOnce sync.Once
	running   chan struct{} // closed when Run starts
	stopped   chan struct{} // closed when it ends
}

var (
	_ engine.Engine       = (*proxyEngine)(nil)
	_ engine.LoadSource   = (*proxyEngine)(nil)
	_ engine.Embedder     = embeddingEngine{}
	_ engine.Preprocessor = preprocessingEngine{}

	_ engine.PassthroughEngine = (*proxyEngine)(nil)
	_ engine.WarningSource     = (*proxyEngine)(nil)
	_ engine.AdapterWatcher    = (*proxyEngine)(nil)
	_ engine.MediaCountWatcher = (*proxyEngine)(nil)
	_ engine.Inspector         = (*proxyEngine)(nil)
)

// Card implements engine.Engine.
func (e *proxyEngine) Card() engine.Card { return e.card }

// Run implements engine.Engine: it accepts requests until ctx ends; running ones end as Unavailable
// then. It can be called once.
func (e *proxyEngine) Run(ctx context.Context) error {
	e.startOnce.Do(func() { close(e.running) })
	<-ctx.Done()
	close(e.stopped)
	return nil
}

// Load implements engine.LoadSource: the requests that pass through here, without the workers' other
// load.
func (e *proxyEngine) Load() engine.Load {
	l := engine.Load{Running: int(e.inFlight.Load())}
	for _, w := range e.proxy.currentModel(e.card.Name).Workers {
		l.TotalBlocks += w.Card.Blocks
	}
	return l
}

// Warnings implements engine.WarningSource: the warnings about the engines behind the proxy, if the
// router has any. The proxy is unreachable, and so not ready, while no worker behind it can take a
// request; a single unreachable engine does not make it so.
func (e *proxyEngine) Warnings() []engine.Warning {
	var own []engine.Warning
	if a := e.proxy.deps.Router.Availability(e.card.Name); a.Workers > 0 && a.Ready == 0 { // 0: it has not seen them yet
		own = append(own, engine.Warning{
			Code: engine.WarnUnreachable, Detail: "behind the router: " + a.Reason,
			Remedy: "look at the workers behind it: penstock workers",
		})
	}
	router, ok := e.proxy.deps.Router.(WarningReporter)
	if !ok {
		return own
	}
	all := router.Warnings()
	for _, w := range e.proxy.currentModel(e.card.Name).Workers {
		for _, warning := range all[w.ID] {
			if warning.Code == engine.WarnUnreachable {
				continue
			}
			warning.Detail = fmt.Sprintf("worker %d behind the router: %s", w.ID, warning.Detail)
			own = append(own, warning)
		}
	}
	return own
}

// Inspect implements engine.Inspector.
func (e *proxyEngine) Inspect(ctx context.Context, q *engine.Inspection) ([]byte, error) {
	if e.proxy.deps.Inspect == nil {
		return nil, fault.New(fault.Unimplemented, "this router does not tell what is behind it")
	}
	own := *q
	own.Model = e.modelName(q.Model)
	return e.proxy.deps.Inspect(ctx, &own)
}

// WatchAdapters implements engine.AdapterWatcher.
func (e *proxyEngine) WatchAdapters(ctx context.Context, sink func([]string)) error {
	return e.watchUnion(ctx, func(c *engine.Card) []string { return c.Adapters }, sink)
}

// WatchMediaCounts implements engine.CountWatcher.
func (e *proxyEngine) WatchMediaCounts(ctx context.Context, sink func([]string)) error {
	return e.watchUnion(ctx, func(c *engine.Card) []string { return c.MiscountedMedia }, sink)
}

// watchUnion calls sink with what any of the model's workers lists, now and whenever the set of workers
// or one of their cards changes, until ctx ends.
func (e *proxyEngine) watchUnion(ctx context.Context, list func(*engine.Card) []string, sink func([]string)) error {
	for {
		s := e.proxy.deps.Catalog.Current()
		if m := workersOf(s, e.card.Name); len(m.Workers) > 0 { // otherwise its last worker was removed, and this engine stops too
			sink(m.UnionOf(list))
		}
		select {
		case <-s.Superseded():
		case <-ctx.Done():
			return nil
		}
	}
}

// modelName returns the workers' name for the model of a request: the model's or an adapter's.
func (e *proxyEngine) modelName(model string) string {
	if model == "" || e.card.HasName(model) {
		return e.card.Name
	}
	return model
}

// errStopped is the cause of the end of requests that outlive Run.
var errStopped = errors.New("routerproxy: stopped")

// enterRequest waits for Run. The context it returns ends with ctx or with Run; leave ends it.
func (e *proxyEngine) enterRequest(ctx context.Context) (_ context.Context, leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	select {
	case <-e.running:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	e.inFlight.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-e.stopped:
			cancel(errStopped)
		case <-over:
		}
	})
	return ctx, func() {
		close(over)
		watch.Wait()
		cancel(nil)
		e.inFlight.Add(-1)
	}, nil
}

// contextError is the caller's error when its request's context has ended.
func contextError(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errStopped) {
		return fault.New(fault.Unavailable, "the router is shutting down")
	}
	return ctx.Err()
}
