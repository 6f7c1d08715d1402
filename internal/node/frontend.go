package node

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"penstock/core/route"
	"penstock/internal/config"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/router"
)

// RunFrontend runs a frontend with an embedded router until ctx ends. It calls ready once, when it accepts
// requests; until a worker is available it answers 503. Logs go to stderr. When ctx ends it lets running
// requests finish, within the drain timeout, and returns nil.
func Frontend(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready func(Started)) error {
	return play(ctx, cfg, stderr, func(p *process) role { return &frontendRole{process: p, ready: ready} })
}

type frontendRole struct {
	*process
	ready func(Started)

	// Set by build.
	prompts  prompts
	router   *router.Router
	sight    *sight
	frontend *frontend.Frontend
}

func (f *frontendRole) build() error {
	f.planes.measure(f.metrics)
	var err error
	if f.router, err = f.newRouter(&f.prompts); err != nil {
		return err
	}
	if f.sight, err = newSight(f.process); err != nil {
		return err
	}
	f.frontend, err = f.newFrontend(f.router, f.sight)
	f.prompts.frontend = f.frontend
	return err
}

func (f *frontendRole) start(ctx context.Context, stages *stages) {
	stages.start(ctx, "router", f.router.Run)
	stages.start(ctx, "media", f.sight.run)
	stages.start(ctx, "frontend", after(f.router.Begun(), func(ctx context.Context) error { return f.frontend.Run(ctx, f.ln) }))
}

// awaitReady does not wait for workers: the listener accepts connections, and a frontend reports itself what
// it cannot serve yet.
func (f *frontendRole) await(ctx context.Context) error { return reached(ctx, f.router.Begun()) }

func (f *frontendRole) announce() { f.ready(f.started()) }

// newRouter makes the router of a frontend or of a router process.
func (p *process) newRouter(prompter router.Prompter) (*router.Router, error) {
	return router.New(router.Config{
		Namespace: p.cfg.Namespace, Component: p.cfg.Component,
		Route: p.cfg.Route(), Queue: p.cfg.Queue(),
		NoKVEvents: p.cfg.NoKVEvents, PredictedTTL: orOff(p.cfg.PredictedTTL),
		Sync:           p.cfg.RouterReplicaSync == config.On,
		TrackOutput:    p.cfg.RouterTrackOutput == config.On,
		ReservationTTL: time.Duration(p.cfg.ActiveRequestExpiry),
		MaxBodyBytes:   p.cfg.MaxBodyBytes,
		Snapshots:      router.Snapshots{Threshold: uint64(p.cfg.SnapshotThreshold), Reset: resetOf(p.cfg.ResetStates)},
	}, router.Planes{Bus: p.planes.events, Registry: p.planes.registry, RPC: p.planes.rpc, Archive: p.planes.archive}, prompter, p.metrics, p.log)
}

func resetOf(setting string) router.Reset {
	switch setting {
	case config.On:
		return router.Alone
	case config.Force:
		return router.Force
	}
	return router.Keep
}

func (p *process) newFrontend(r *router.Router, s *sight) (*frontend.Frontend, error) {
	limit := p.cfg.MigrationLimit
	if limit == 0 {
		limit = -1 // the frontend reads 0 as its default
	}
	var engines func() any
	if p.remotes != nil {
		engines = func() any { return p.remotes.status() }
	}
	return frontend.New(frontend.Config{
		Namespace: p.cfg.Namespace, Component: p.cfg.Component,
		MaxBodyBytes: p.cfg.MaxBodyBytes, MaxInflight: p.cfg.MaxInflight,
		MigrationLimit: limit, MigrationWait: orOff(p.cfg.MigrationWait),
		DrainGrace: time.Duration(p.cfg.DrainGrace), DrainTimeout: time.Duration(p.cfg.DrainTimeout),
		RequestTimeout: time.Duration(p.cfg.RequestTimeout), HeaderTimeout: time.Duration(p.cfg.HeaderTimeout),
		BodyTimeout: time.Duration(p.cfg.BodyTimeout), WriteTimeout: time.Duration(p.cfg.WriteTimeout),
		IdleTimeout: time.Duration(p.cfg.IdleTimeout), MaxHeaderBytes: p.cfg.MaxHeaderBytes,
		OpenMetrics: p.cfg.MetricsAccess == config.AccessOpen,
		KeepAlive:   time.Duration(p.cfg.SSEKeepAlive),
		Preprocess:  frontend.Preprocess(p.cfg.Preprocess),
		// Other modes use no cache state, whatever the workers report.
		IgnoresCaches: p.cfg.RouterMode != string(route.KV),
	}, frontend.Deps{
		Router: r, Plane: p.planes.rpc, Registry: p.planes.registry, Open: p.openTokenizer,
		Metrics: p.metrics, Log: p.log,
		Mount: map[string]http.Handler{
			"/v1/router/":     r.Handler(),
			"/busy_threshold": r.Handler(),
			"/v1/config":      configHandler(p.cfg),
		},
		Seen: r.Seen(), OnDrain: r.EndWatches,
		OnModel: r.Refer, Engines: engines, Media: s.resolver,
		Keys: p.door.keys, AccessLog: p.accessLog(), Tracer: p.tracer,
	})
}

// configHandler serves the effective configuration to "config show --server".
func configHandler(cfg *config.Loaded) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// The values are plain, so encoding cannot fail; a write error means that the client disconnected.
		_ = json.NewEncoder(w).Encode(map[string]any{"rows": cfg.Settings()})
	})
}
