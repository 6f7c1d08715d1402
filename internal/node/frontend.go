package node

import (
	"context"
	"io"
	"net/http"
	"time"

	"penstock/core/route"
	"penstock/internal/config"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/router"
)

// RunFrontend runs a frontend with an embedded router until ctx ends. It calls ready once, when it accepts
// requests; until a worker is available it answers 503. Logs go to stderr. When ctx ends it lets running
// requests finish, within the drain timeout, and returns nil.
func RunFrontend(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready func(Started)) error {
	return runRole(ctx, cfg, stderr, func(p *process) role { return &frontendRole{process: p, ready: ready} })
}

type frontendRole struct {
	*process
	ready func(Started)

	// Set by build.
	prompter      frontendPrompter
	router        *router.Router
	mediaResolver *mediaResolver
	frontend      *frontend.Frontend
}

func (f *frontendRole) buildServices() error {
	f.planes.RegisterMetrics(f.metrics)
	var err error
	if f.router, err = f.newRouter(&f.prompter); err != nil {
		return err
	}
	if f.mediaResolver, err = newMediaResolver(f.process); err != nil {
		return err
	}
	f.frontend, err = f.newFrontend(f.router, f.mediaResolver)
	f.prompter.frontend = f.frontend
	return err
}

func (f *frontendRole) startServices(ctx context.Context, stages *stages) {
	stages.startStage(ctx, "router", f.router.Run)
	f.startFrontend(ctx, stages)
}

// startFrontend starts the frontend, which serves once the router is ready.
func (f *frontendRole) startFrontend(ctx context.Context, stages *stages) {
	stages.startStage(ctx, "media", f.mediaResolver.lender.Run)
	stages.startStage(ctx, "frontend", runAfter(f.router.StatesReady(), func(ctx context.Context) error { return f.frontend.Run(ctx, f.listener) }))
}

// awaitReady does not wait for workers: the listener accepts connections, and a frontend reports itself what
// it cannot serve yet.
func (f *frontendRole) awaitReady(ctx context.Context) error {
	return awaitClosed(ctx, f.router.StatesReady())
}

func (f *frontendRole) announceReady() { f.ready(f.startedStatus()) }

// newRouter makes the router of a frontend or of a router process.
func (p *process) newRouter(prompter router.Prompter) (*router.Router, error) {
	return router.New(router.Config{
		Namespace: p.cfg.Fleet.Namespace, Component: p.cfg.Fleet.Component,
		Route: p.cfg.RouteConfig(), Queue: p.cfg.QueueConfig(), Split: p.cfg.SplitSettings(),
		NoKVEvents: p.cfg.Router.NoKVEvents, PredictedTTL: (*time.Duration)(&p.cfg.Router.PredictedTTL),
		Sync:           p.cfg.Router.ReplicaSync == config.On,
		TrackOutput:    p.cfg.Router.TrackOutput == config.On,
		ReservationTTL: time.Duration(p.cfg.Router.ActiveRequestExpiry),
		MaxBodyBytes:   p.cfg.HTTP.MaxBodyBytes,
		Snapshots:      router.SnapshotPolicy{Threshold: uint64(p.cfg.Router.SnapshotThreshold), Reset: snapshotReset(p.cfg.Router.ResetStates)},
	}, router.Planes{Bus: p.planes.Events, Registry: p.planes.Registry, RPC: p.planes.RPC, Archive: p.planes.Archive}, prompter, p.metrics, p.log)
}

func snapshotReset(setting string) router.ResetMode {
	switch setting {
	case config.On:
		return router.ResetIfAlone
	case config.ResetForce:
		return router.ResetForce
	}
	return router.ResetNever
}

func (p *process) newFrontend(r *router.Router, s *mediaResolver) (*frontend.Frontend, error) {
	var engines func() any
	if p.remoteEngines != nil {
		engines = func() any { return p.remoteEngines.Statuses() }
	}
	mount := map[string]http.Handler{
		"/v1/router/":     r.Handler(),
		"/busy_threshold": r.Handler(),
		"/v1/config":      configHandler(p.cfg),
	}
	if p.plans != nil {
		mount["/v1/plan"] = p.plans
	}
	return frontend.New(frontend.Config{
		MaxBodyBytes: p.cfg.HTTP.MaxBodyBytes, MaxInflight: p.cfg.HTTP.MaxInflight,
		MigrationLimit: &p.cfg.Router.MigrationLimit, MigrationWait: (*time.Duration)(&p.cfg.Router.MigrationWait),
		DrainGrace: time.Duration(p.cfg.Drain.Grace), DrainTimeout: time.Duration(p.cfg.Drain.Timeout),
		RequestTimeout: time.Duration(p.cfg.HTTP.RequestTimeout), HeaderTimeout: time.Duration(p.cfg.HTTP.HeaderTimeout),
		BodyTimeout: time.Duration(p.cfg.HTTP.BodyTimeout), WriteTimeout: time.Duration(p.cfg.HTTP.WriteTimeout),
		IdleTimeout: time.Duration(p.cfg.HTTP.IdleTimeout), MaxHeaderBytes: p.cfg.HTTP.MaxHeaderBytes,
		OpenMetrics: p.cfg.HTTP.MetricsAccess == config.AccessOpen,
		KeepAlive:   time.Duration(p.cfg.HTTP.SSEKeepAlive),
		Preprocess:  frontend.Preprocess(p.cfg.Engine.Preprocess), PromptWait: time.Duration(p.cfg.Router.PromptWait),
		// Other modes use no cache state, whatever the workers report.
		IgnoresCaches: !route.Mode(p.cfg.Router.Mode).UsesCaches(),
	}, frontend.Deps{
		Router: r, Plane: p.planes.RPC, Catalog: r.Catalog(), OpenTokenizer: p.openTokenizer,
		Metrics: p.metrics, Log: p.log, Mount: mount,
		OnDrain: r.EndWatches, Engines: engines, Media: s.resolver, Lender: s.lender,
		Keys: p.endpoint.keys, AccessLog: p.accessLog(), Tracer: p.tracer,
	})
}

// frontendPrompter makes the router's prompts with the frontend, which is built after the router. No request
// comes before both are built.
type frontendPrompter struct{ frontend *frontend.Frontend }

// MakePrompt implements router.Prompter.
func (p *frontendPrompter) MakePrompt(ctx context.Context, q *api.Request) (prep.Prompt, error) {
	return p.frontend.MakePrompt(ctx, q)
}
