// Package frontend serves the OpenAI API: it decodes a request, turns it into tokens, asks the router
// for a worker, calls the worker over the request plane and turns its tokens back into text, as a
// stream or as a whole.
//
// A request talks to one worker at a time. When the worker fails, the next attempt starts on another
// with the tokens that are already sent, so that the client sees one answer. Everything an attempt
// holds (its reservation at the router, its call) is released on every path out of it.
package frontend

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"penstock/core/route"
	"penstock/internal/bounded"
	"penstock/internal/catalog"
	"penstock/internal/dispatch"
	"penstock/internal/edge/keys"
	"penstock/internal/edge/prep"
	resolve "penstock/internal/edge/prep/media"
	"penstock/internal/edge/readiness"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/rpc"
)

// Router is a dispatch.Router which also answers questions.
type Router interface {
	dispatch.Router
	// Explain answers as Route would and changes nothing.
	Explain(ctx context.Context, req *route.Request) (route.Explanation, error)
	// Availability says whether a model, or a LoRA adapter, can be served now, and if not why.
	Availability(model string) route.Availability
	// Instances returns the workers that the router knows, in their routing state.
	Instances() []readiness.InstanceStatus
}

// Deps are the dependencies of a frontend. All but Mount, OnDrain, Engines, Media, Keys,
// AccessLog and Tracer are required.
type Deps struct {
	Router Router
	Plane  rpc.Plane
	// Catalog has the workers and models to serve, which Router must know too before Catalog shows them.
	// No connection is accepted before it is loaded.
	Catalog *catalog.Catalog
	// OpenTokenizer returns the pipeline of a model's tokenizer. It is called once for each distinct
	// reference, and again later if it failed.
	OpenTokenizer func(engine.TokenizerRef) (*prep.Pipeline, error)
	Metrics       *obs.Metrics
	Log           *slog.Logger
	// Mount holds further handlers by their ServeMux pattern, such as the router's API. BodyTimeout and
	// WriteTimeout apply to them from the arrival of the request: a slower one sets its own write
	// deadlines.
	Mount map[string]http.Handler
	// OnDrain, if not nil, is called once when Run stops taking new requests, to end the endless
	// responses of Mount. It must not wait for them.
	OnDrain func()
	// Engines, if not nil, returns the state of the engines that other programs run and this process
	// follows, including engines without a worker; /health shows it.
	Engines func() any
	// Media, if not nil, resolves the media of requests. Without it media are unknown, and engines that
	// cannot fetch them are not asked.
	Media MediaSource
	// Lender, if not nil, lends workers what is too large to be sent with each attempt.
	Lender resolve.Lender
	// Keys, if not nil, are in force: requests without a key reach only /health and /live, and Mount
	// needs an admin key. The owner runs the ring.
	Keys *keys.Keyring
	// AccessLog, if not nil, gets a line for each finished request.
	AccessLog *slog.Logger
	// Tracer, if not nil, gets the spans of each request.
	Tracer *obs.Tracer
}

// Frontend is one HTTP frontend.
type Frontend struct {
	cfg        Config
	deps       Deps
	catalog    *modelCatalog
	metrics    *metrics
	dispatcher *dispatch.Dispatcher
	// throttled logs messages which may repeat often.
	throttled  *obs.Throttle
	ids        dispatch.RequestIDs
	bodies     *bounded.MemoryBudget // memory of the bodies being read and decoded
	prompts    *bounded.MemoryBudget // memory of the prompts being made
	inflight   atomic.Int64
	isLeaving  atomic.Bool // it was told to stop
	isDraining atomic.Bool // it takes no new requests
	handler    http.Handler
}

// New returns a frontend that does nothing yet.
func New(cfg Config, deps Deps) (*Frontend, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Router == nil || deps.Plane == nil || deps.Catalog == nil || deps.OpenTokenizer == nil ||
		deps.Metrics == nil || deps.Log == nil {
		return nil, errors.New("new frontend: a dependency is missing")
	}
	deps.Log = obs.Component(deps.Log, "frontend")
	if deps.AccessLog != nil {
		deps.AccessLog = obs.Component(deps.AccessLog, "access")
	}
	f := &Frontend{
		cfg:       cfg,
		deps:      deps,
		metrics:   newMetrics(deps.Metrics, deps.Keys),
		throttled: obs.NewThrottle(deps.Log, 10*time.Second),
	}
	f.catalog = newModelCatalog(deps.Catalog, deps.OpenTokenizer, f.newEncoder, f.metrics, deps.Log)
	f.dispatcher = newDispatcher(f)
	f.bodies, f.prompts = bounded.NewMemoryBudget(cfg.BodyMemory), bounded.NewMemoryBudget(cfg.BodyMemory)
	f.handler = f.routes()
	return f, nil
}

// Handler serves the frontend's whole HTTP API. It knows models only while Run is running.
func (f *Frontend) Handler() http.Handler { return f.handler }
