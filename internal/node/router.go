package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"time"

	"penstock/core/kv"
	"penstock/internal/config"
	"penstock/internal/edge/readiness"
	"penstock/internal/engine"
	"penstock/internal/serve/router"
	"penstock/internal/serve/routerproxy"
	"penstock/internal/serve/worker"
)

// RunRouter runs a router process until ctx ends: to frontends it is an instance of every model which the
// workers of its component serve. It calls ready once, when it follows the workers; it registers as soon as
// one is available. Logs go to stderr. When ctx ends it deregisters, lets requests in flight finish, within
// the drain timeout, and returns nil.
func RunRouter(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready func(Started)) error {
	return runRole(ctx, cfg, stderr, func(p *process) role { return &routerRole{process: p, ready: ready, replaced: make(chan error, 1)} })
}

type routerRole struct {
	*process
	ready         func(Started)
	id            kv.WorkerID
	router        *router.Router
	proxy         *routerproxy.Proxy
	workerMetrics *worker.Metrics
	mediaResolver *mediaResolver // nil unless this process resolves media
	encodeSem     chan struct{}  // semaphore of concurrent prompt encodings
	epochs        *epochCounter
	// replaced receives the error with which the router ends when another process has registered with its id;
	// its capacity is one.
	replaced chan error
}

func (r *routerRole) buildServices() error {
	r.planes.RegisterMetrics(r.metrics)
	if r.cfg.Fleet.RouterComponent == r.cfg.Fleet.Component {
		return fmt.Errorf("router-component %s is that of the workers: the router would send requests to itself; choose another", r.cfg.Fleet.RouterComponent)
	}
	var err error
	if r.id, err = workerID(r.cfg); err != nil {
		return err
	}
	if r.epochs, err = newEpochCounter(r.cfg.DataDir); err != nil {
		return err
	}
	if r.router, err = r.newRouter(&routerPrompts{role: r}); err != nil {
		return err
	}
	r.workerMetrics = worker.NewMetrics(r.metrics)
	deps := routerproxy.Deps{
		Router: r.router, Plane: r.planes.RPC, Catalog: r.router.Catalog(), Serve: r.serveModel,
		Metrics: r.metrics, Log: r.log, Tracer: r.tracer,
		Inspect: r.router.Inspect,
	}
	if r.cfg.Media.Multimodal {
		if r.mediaResolver, err = newMediaResolver(r.process); err != nil {
			return err
		}
		r.encodeSem = make(chan struct{}, runtime.GOMAXPROCS(0))
		deps.MediaResolver = r.newModelMediaResolver
	}
	r.proxy, err = routerproxy.New(routerproxy.Config{
		MigrationLimit: &r.cfg.Router.MigrationLimit,
		// It is shorter than that of frontends, so that a request is not lost at both.
		MigrationWait: new(time.Duration(r.cfg.Router.MigrationWait) * 4 / 5),
	}, deps)
	return err
}

// serveModel runs an instance of one model until ctx ends.
func (r *routerRole) serveModel(ctx context.Context, model engine.Engine) error {
	w, err := r.newWorker(modelID(r.id, model.Card().Name), r.epochs.next(), r.cfg.Fleet.RouterComponent, model, r.workerMetrics)
	if err != nil {
		return err
	}
	err = w.Run(ctx)
	if ctx.Err() == nil && errors.Is(err, worker.ErrReplaced) {
		select {
		case r.replaced <- err:
		default: // another model's error came first
		}
		<-ctx.Done() // so that it is not restarted
	}
	return err
}

// awaitReplaced returns the error of the first model whose registration another process has taken, or nil
// when ctx ends.
func (r *routerRole) awaitReplaced(ctx context.Context) error {
	select {
	case err := <-r.replaced:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (r *routerRole) startServices(ctx context.Context, stages *stages) {
	if r.listener != nil {
		stages.startStage(ctx, "http", func(ctx context.Context) error {
			// Only their clients end event streams.
			defer context.AfterFunc(ctx, r.router.EndWatches)()
			return serveHTTP(ctx, r.listener, r.newHandler(http.HandlerFunc(r.serveHealth), http.HandlerFunc(r.serveReady), map[string]http.Handler{"/v1/router/": r.router.Handler(), "/busy_threshold": r.router.Handler()}), r.log)
		})
	}
	stages.startStage(ctx, "router", r.router.Run)
	stages.startStage(ctx, "registration", r.awaitReplaced)
	if r.mediaResolver != nil {
		stages.startStage(ctx, "media", r.mediaResolver.lender.Run)
	}
	stages.startStage(ctx, "router proxy", runAfter(r.router.StatesReady(), r.proxy.Run))
}

// awaitReady does not wait for workers: a router without workers waits for them while it serves.
func (r *routerRole) awaitReady(ctx context.Context) error {
	return awaitClosed(ctx, r.router.StatesReady())
}

func (r *routerRole) announceReady() {
	s := r.startedStatus()
	s.WorkerID = r.id
	r.ready(s)
}

// serveReady answers GET /ready: 200 while any model can be served.
func (r *routerRole) serveReady(w http.ResponseWriter, req *http.Request) {
	body := readiness.NewReport(req, r.router.Models())
	readiness.WriteJSON(w, body.StatusCode(), body)
}

// serveHealth answers GET /health: the same report, with the workers.
func (r *routerRole) serveHealth(w http.ResponseWriter, req *http.Request) {
	body := readiness.NewHealthReport(readiness.NewReport(req, r.router.Models()), r.router.Instances())
	readiness.WriteJSON(w, body.StatusCode(), body)
}
