package node

import (
	"context"
	"fmt"
	"io"
	"time"

	"penstock/internal/config"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/router"
	"penstock/internal/serve/worker"
)

// RunUp runs all roles in this process until ctx ends: embedded NATS, workers, the router and a frontend. It
// calls ready once, when requests can be served. Logs go to stderr. When ctx ends it lets running requests
// finish, within the drain timeout, and returns nil.
func RunUp(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready func(Ready)) error {
	return runRole(ctx, cfg, stderr, func(p *process) role { return &upRole{process: p, ready: ready} })
}

// upRole is all roles in one process.
type upRole struct {
	*process
	ready func(Ready)

	// Set by build.
	prompter      frontendPrompter
	router        *router.Router
	workers       []*worker.Worker
	mediaResolver *mediaResolver
	frontend      *frontend.Frontend
}

func (u *upRole) buildServices() error {
	u.planes.registerMetrics(u.metrics)
	var err error
	if u.router, err = u.newRouter(&u.prompter); err != nil {
		return err
	}
	if u.cfg.HasRemoteEngines() {
		u.remoteEngines, err = u.newRemoteEngines(nil)
	} else {
		u.workers, err = u.newWorkers()
	}
	if err != nil {
		return err
	}
	u.metrics.RegisterCollector(newEngineMetrics(u.remoteEngines))
	if u.mediaResolver, err = newMediaResolver(u.process); err != nil {
		return err
	}
	u.frontend, err = u.newFrontend(u.router, u.mediaResolver)
	u.prompter.frontend = u.frontend
	return err
}

// startServices starts the router first, because others report to it, then the workers, then the frontend, so
// that they stop in the order in which requests pass through them.
func (u *upRole) startServices(ctx context.Context, stages *stages) {
	stages.startStage(ctx, "router", u.router.Run)
	if u.remoteEngines != nil {
		stages.startStage(ctx, "engine", u.remoteEngines.runners()...)
	} else {
		stages.startStage(ctx, "worker", workerRunners(u.workers)...)
	}
	stages.startStage(ctx, "media", u.mediaResolver.run)
	stages.startStage(ctx, "frontend", runAfter(u.router.StatesReady(), func(ctx context.Context) error { return u.frontend.Run(ctx, u.listener) }))
}

// awaitReady returns when every worker can serve requests; with remote engines, when every engine that
// answers can.
func (u *upRole) awaitReady(ctx context.Context) error {
	if u.remoteEngines != nil {
		return u.remoteEngines.awaitServing(ctx, func(model string, workers int) bool {
			return u.frontend.WorkerCount(model) >= workers
		})
	}
	limit := startTimeout(u.cfg)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrNotReady)
	defer cancel()
	model := u.model.modelCard().Name
	err := waitUntil(ctx, func() bool { return u.frontend.WorkerCount(model) >= u.cfg.Engine.Workers })
	if err == ErrNotReady {
		return fmt.Errorf("%w: of %d workers the frontend sees %d after %v; the log says more with --log-level debug",
			ErrNotReady, u.cfg.Engine.Workers, u.frontend.WorkerCount(model), limit)
	}
	return err
}

// startTimeout bounds the start: simulated engines have their simulated startup in addition.
func startTimeout(cfg *config.Loaded) time.Duration {
	if cfg.EngineKind() == config.EngineSim {
		return readyTimeout + time.Duration(cfg.Simulation.Startup)
	}
	return readyTimeout
}

func (u *upRole) announceReady() {
	if u.remoteEngines != nil {
		u.announceRemotes()
		return
	}
	card := u.model.modelCard()
	r := Ready{
		URL: u.httpURL(), Model: card.Name, Chat: u.model.pipe.Template != nil, Engine: card.Engine, Workers: u.cfg.Engine.Workers,
		Blocks: card.Blocks, BlockSize: card.BlockSize, Media: card.Media, RouterMode: u.cfg.Router.Mode, NATS: u.planes.natsURL(), Keys: u.endpoint.keys != nil, Access: u.clientAccess(), Took: time.Since(u.startedAt),
	}
	if u.cfg.EngineKind() == config.EngineSim {
		r.Simulation = u.cfg.DescribeSimulation()
	}
	u.ready(r)
}

func (u *upRole) announceRemotes() {
	u.remoteEngines.announced.Store(true)
	r := Ready{URL: u.httpURL(), RouterMode: u.cfg.Router.Mode, NATS: u.planes.natsURL(), Keys: u.endpoint.keys != nil, Access: u.clientAccess(), Took: time.Since(u.startedAt), Engines: u.remoteEngines.engineStatuses()}
	for i := range r.Engines {
		s := &r.Engines[i]
		if s.State != EngineServing {
			continue
		}
		r.Workers += len(s.Workers)
		if r.Model == "" {
			r.Model, r.Engine, r.Blocks, r.BlockSize, r.Chat, r.Media = s.Model, s.Kind, s.Blocks, s.BlockSize, s.Chat, s.Media
		}
	}
	u.ready(r)
}
