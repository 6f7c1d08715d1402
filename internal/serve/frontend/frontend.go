// Package frontend serves the OpenAI API: it decodes a request, turns it into
// tokens, asks the router for a worker, calls the worker over the request plane
// and turns its tokens back into text, as a stream or as a whole.
//
// A request is a fixed conversation with one worker at a time. When the worker
// fails, the next attempt starts on another with the tokens that are already
// out, so that the client sees one answer. Everything an attempt holds (its
// reservation at the router, its call) is released on every way out of it.
package frontend

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/attempt"
	"penstock/internal/bounded"
	"penstock/internal/edge/keys"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/readiness"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
)

// Router decides which worker serves a prompt and keeps account of it.
// Implementations are safe for concurrent use.
type Router interface {
	// Route chooses a worker and reserves the request's load there under the
	// request's ID and Attempt. The error is a *fault.Error, and nothing is
	// reserved then. It keeps nothing of req.
	Route(ctx context.Context, req *route.Request) (route.Decision, error)
	// Prefilled says that the attempt's first token has come, and that its worker had
	// cached tokens of the prompt in its cache. If that is engine.CachedUnknown, it is
	// called again if the worker tells later.
	Prefilled(id string, attempt uint32, cached int)
	// Grown says that the attempt has generated more tokens. It is called about once
	// for each block of them.
	Grown(id string, attempt uint32, tokens int)
	attempt.Reservations
	// Failed says that a call to a worker ended in err, which is the worker's
	// failure or its refusal and not the request's: [fault.Class] says Retryable.
	Failed(w kv.Worker, err error)
	// Explain answers as Route would and changes nothing.
	Explain(ctx context.Context, req *route.Request) (route.Explanation, error)
	// Availability says whether a model, or a LoRA adapter, can be served now, and if not why.
	Availability(model string) route.Availability
	// Instances returns the workers that the router knows, as requests see them.
	Instances() []readiness.Instance
}

// Deps are what a frontend works with. All but Mount, Seen, OnDrain, OnModel, Engines, Media, Keys,
// AccessLog and Tracer are required.
type Deps struct {
	Router   Router
	Plane    rpc.Plane
	Registry disco.Registry
	// Open returns the pipeline of a model's tokenizer. It is called once for
	// each distinct reference, and again later if it failed.
	Open    func(engine.TokenizerRef) (*prep.Pipeline, error)
	Metrics *obs.Metrics
	Log     *slog.Logger
	// Mount are further handlers by their ServeMux pattern, such as the router's
	// API. BodyTimeout and WriteTimeout hold for them, from the arrival of the
	// request: one that takes longer sets write deadlines of its own.
	Mount map[string]http.Handler
	// Seen, if not nil, is closed when the router knows who is registered: no
	// connection is taken before.
	Seen <-chan struct{}
	// OnDrain, if not nil, is called once when Run takes no new requests: to end the
	// responses of Mount that end by nothing else. It must not wait for them.
	OnDrain func()
	// OnModel, if not nil, is told by which card a model is served here whenever
	// the set of workers changed: its checksum, see [engine.Card.Checksum]. A router
	// beside the frontend has to measure workers by the same.
	OnModel func(model, checksum string)
	// Engines, if not nil, returns what is known of engines that other programs run and that
	// this process follows, those included that have no worker yet; /health shows it.
	Engines func() any
	// Media, if not nil, finds out what the media of requests are. Without it nothing is known of
	// them, and engines that cannot fetch by themselves are not asked.
	Media Media
	// Keys, if not nil, are in force: who has none gets no further than /health and
	// /live, and Mount is for administrators. The owner runs the ring.
	Keys *keys.Ring
	// AccessLog, if not nil, gets a line for each request that is over.
	AccessLog *slog.Logger
	// Tracer, if not nil, gets the spans of each request.
	Tracer *obs.Tracer
}

// Frontend is one HTTP frontend.
type Frontend struct {
	cfg     Config
	deps    Deps
	decides attempt.Router // deps.Router, traced
	catalog *catalog
	metrics *metrics
	runner  attempt.Runner
	// throttled is for what a bad hour repeats.
	throttled *obs.Throttle
	ids       ids
	turn      atomic.Uint64   // of the workers that make prompts
	bodies    *bounded.Memory // memory of the bodies being read and decoded
	prompts   *bounded.Memory // memory of the prompts being made
	inflight  atomic.Int64
	leaving   atomic.Bool // it was told to stop
	draining  atomic.Bool // and takes nothing new
	handler   http.Handler
}

// New returns a frontend that does nothing yet.
func New(cfg Config, deps Deps) (*Frontend, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Router == nil || deps.Plane == nil || deps.Registry == nil || deps.Open == nil ||
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
		decides:   attempt.Traced(deps.Router, deps.Tracer),
		metrics:   newMetrics(deps.Metrics, deps.Keys),
		throttled: obs.NewThrottle(deps.Log, 10*time.Second),
	}
	f.catalog = newCatalog(cfg.takes, deps.Open, f.encoder, f.metrics, deps.Log)
	f.catalog.refer = deps.OnModel
	f.runner = newRunner(f)
	f.bodies, f.prompts = bounded.NewMemory(cfg.BodyMemory), bounded.NewMemory(cfg.BodyMemory)
	f.ids.init()
	f.handler = f.routes()
	return f, nil
}

// Handler serves the frontend's whole HTTP surface. It knows models only while
// Run is running.
func (f *Frontend) Handler() http.Handler { return f.handler }
