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
func Up(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready func(Ready)) error {
	return play(ctx, cfg, stderr, func(p *process) role { return &up{process: p, ready: ready} })
}

// upRole is all roles in one process.
type up struct {
	*process
	ready func(Ready)

	// Set by build.
	prompts  prompts
	router   *router.Router
	workers  []*worker.Worker
	sight    *sight
	frontend *frontend.Frontend
}

func (u *up) build() error {
	u.planes.measure(u.metrics)
	var err error
	if u.router, err = u.newRouter(&u.prompts); err != nil {
		return err
	}
	if u.cfg.Remote() {
		u.remotes, err = u.newRemotes(nil)
	} else {
		u.workers, err = u.newWorkers()
	}
	if err != nil {
		return err
	}
	u.metrics.Collect(newEngineMetrics(u.remotes))
	if u.sight, err = newSight(u.process); err != nil {
		return err
	}
	u.frontend, err = u.newFrontend(u.router, u.sight)
	u.prompts.frontend = u.frontend
	return err
}

// startServices starts the router first, because others report to it, then the workers, then the frontend, so
// that they stop in the order in which requests pass through them.
func (u *up) start(ctx context.Context, stages *stages) {
	stages.start(ctx, "router", u.router.Run)
	if u.remotes != nil {
		stages.start(ctx, "engine", u.remotes.runs()...)
	} else {
		stages.start(ctx, "worker", runs(u.workers)...)
	}
	stages.start(ctx, "media", u.sight.run)
	stages.start(ctx, "frontend", after(u.router.Begun(), func(ctx context.Context) error { return u.frontend.Run(ctx, u.ln) }))
}

// awaitReady returns when every worker can serve requests; with remote engines, when every engine that
// answers can.
func (u *up) await(ctx context.Context) error {
	if u.remotes != nil {
		return u.remotes.await(ctx, func(model string, workers int) bool {
			return min(u.router.Workers(model), u.frontend.Workers(model)) >= workers
		})
	}
	limit := readyWithin(u.cfg)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrNotReady)
	defer cancel()
	model := u.model.card().Name
	err := until(ctx, func() bool { return min(u.router.Workers(model), u.frontend.Workers(model)) >= u.cfg.Workers })
	if err == ErrNotReady {
		return fmt.Errorf("%w: of %d workers the router sees %d and the frontend %d after %v; the log says more with --log-level debug",
			ErrNotReady, u.cfg.Workers, u.router.Workers(model), u.frontend.Workers(model), limit)
	}
	return err
}

// startTimeout bounds the start: simulated engines have their simulated startup in addition.
func readyWithin(cfg *config.Loaded) time.Duration {
	if cfg.Engine() == config.EngineSim {
		return readyTimeout + time.Duration(cfg.SimStartup)
	}
	return readyTimeout
}

func (u *up) announce() {
	if u.remotes != nil {
		u.announceRemotes()
		return
	}
	card := u.model.card()
	r := Ready{
		URL: u.url(), Model: card.Name, Chat: u.model.pipe.Template != nil, Engine: card.Engine, Workers: u.cfg.Workers,
		Blocks: card.Blocks, BlockSize: card.BlockSize, Media: card.Media, RouterMode: u.cfg.RouterMode, NATS: u.planes.url(), Keys: u.door.keys != nil, Access: u.access(), Took: time.Since(u.began),
	}
	if u.cfg.Engine() == config.EngineSim {
		r.Simulation = u.cfg.SimulationText()
	}
	u.ready(r)
}

func (u *up) announceRemotes() {
	u.remotes.settled.Store(true)
	r := Ready{URL: u.url(), RouterMode: u.cfg.RouterMode, NATS: u.planes.url(), Keys: u.door.keys != nil, Access: u.access(), Took: time.Since(u.began), Engines: u.remotes.status()}
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
