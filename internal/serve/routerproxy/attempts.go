package routerproxy

import (
	"context"

	"penstock/core/fault"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/dispatch"
)

// maxAttempts bounds the attempts made for one attempt of a caller. It is also the distance between the
// attempt numbers of two such, so that every attempt of a request has its own number, and a later one a
// higher.
const maxAttempts = 256

// maxCallerAttempt is the last attempt of a caller whose numbers fit.
const maxCallerAttempt = 1 << 23

// newDispatcher returns the dispatcher of the proxy's requests.
func newDispatcher(r *Proxy) *dispatch.Dispatcher {
	return &dispatch.Dispatcher{
		Limits: migrate.Config{
			MaxFailures: *r.cfg.MigrationLimit, MaxAttempts: maxAttempts,
			MaxWait: *r.cfg.MigrationWait, FirstWait: min(r.cfg.FirstWait, *r.cfg.MigrationWait),
		},
		Router: r.deps.Router, Plane: r.deps.Plane,
		StallTimeout: r.cfg.StallTimeout, PreprocessTimeout: r.cfg.PreprocessTimeout,
		View:         func() dispatch.WorkerView { return r.deps.Catalog.Current() },
		Place:        " behind the router",
		ContextError: contextError,
		Moves:        r.metrics.migrations, Waiting: r.metrics.waiting,
		Log: r.throttled, Tracer: r.deps.Tracer,
		Legs: dispatch.LegsConfig{Outcomes: r.metrics.legs},
	}
}

// latestWorkers returns the latest workers of the engine's model.
func (e *proxyEngine) latestWorkers() *catalog.Model {
	return e.proxy.currentModel(e.card.Name)
}

// callerRequest is one attempt of a caller.
type callerRequest struct {
	id      string
	attempt uint32
	model   string
	hints   []byte
}

// serveRequest calls serve for a valid request with what the router is asked, and the number of the first
// attempt made for the caller's.
func (e *proxyEngine) serveRequest(ctx context.Context, req callerRequest, serve func(ctx context.Context, ask route.Request, first uint32) error) error {
	if req.attempt > maxCallerAttempt {
		return fault.InvalidParam("attempt", "attempts are numbered from 1 to %d", maxCallerAttempt)
	}
	ctx, leave, err := e.enterRequest(ctx)
	if err != nil {
		return err
	}
	defer leave()
	ask := route.Request{ID: e.proxy.ids.Claim(req.id), Model: e.modelName(req.model)}
	defer e.proxy.ids.Release(ask.ID)
	if err := dispatch.ApplyHints(req.hints, &ask); err != nil {
		return err
	}
	err = serve(ctx, ask, (req.attempt-1)*maxAttempts+1)
	if err != nil && ctx.Err() == nil && fault.CodeOf(err) == fault.EngineError {
		// What the workers here say about the request is the answer: another router would be asked in vain.
		return &fault.Error{Code: fault.Internal, Message: err.Error(), Err: err}
	}
	return err
}
