package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"penstock/internal/node/engines"

	"penstock/internal/backoff"
	"penstock/internal/catalog"
	"penstock/internal/config"
	"penstock/internal/serve/worker"
)

// RunUp runs all roles in this process until ctx ends: embedded NATS, workers, the router and a frontend. It
// calls ready once, when requests can be served. Logs go to stderr. When ctx ends it lets running requests
// finish, within the drain timeout, and returns nil.
func RunUp(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready func(Ready)) error {
	return runRole(ctx, cfg, stderr, func(p *process) role { return newUpRole(p, ready) })
}

// upRole is all roles in one process.
type upRole struct {
	frontendRole
	ready   func(Ready)
	workers []*worker.Worker // of local engines; set by buildServices
	// planning is the planner of this fleet, nil without one. It begins when isReady is closed.
	planning *plannerRole
	isReady  chan struct{}
}

func newUpRole(p *process, ready func(Ready)) *upRole {
	return &upRole{frontendRole: frontendRole{process: p}, ready: ready, isReady: make(chan struct{})}
}

func (u *upRole) buildServices() (err error) {
	if u.cfg.HasRemoteEngines() {
		u.remoteEngines, err = u.newSupervisor(nil)
	} else {
		// The workers run after the router is made.
		u.exchange = u.newBlockExchange(func() *catalog.Snapshot { return u.router.Catalog().Current() })
		u.workers, err = u.newWorkers()
	}
	if err != nil {
		return err
	}
	u.metrics.RegisterCollector(engines.NewCollector(u.remoteEngines))
	if u.cfg.Planner.Enabled {
		u.planning = &plannerRole{process: u.process, environ: os.Environ()}
		u.plans = http.HandlerFunc(u.planning.servePlan)
	}
	if err := u.frontendRole.buildServices(); err != nil || u.planning == nil {
		return err
	}
	server := http.NewServeMux()
	server.Handle("/metrics", u.metrics.Handler())
	server.Handle("/v1/router/", u.router.Handler())
	u.planning.server = server
	return u.planning.buildServices()
}

// createTokens makes the token of the planes on which up and the processes of its planner reach each other, if no others
// are to reach them: without one each user of this machine could call the workers. It is a file for these processes.
func createTokens(cfg *config.Loaded) (remove func(), err error) {
	if cfg.Command != config.Up || cfg.IsOneProcess() || cfg.NATS.URLs != "" || cfg.NATS.Listen != "" {
		return func() {}, nil
	}
	dir, err := os.MkdirTemp("", "penstock-up-")
	if err != nil {
		return nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) } // what cannot be removed stays
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(rand.Text()), 0o600); err != nil {
		remove()
		return nil, err
	}
	cfg.NATS.TokenFile, cfg.RPC.TokenFile = cmp.Or(cfg.NATS.TokenFile, file), cmp.Or(cfg.RPC.TokenFile, file)
	return remove, nil
}

// startServices starts the router first, because others report to it, then the workers, then the frontend, so
// that they stop in the order in which requests pass through them. The workers of the planner stop as the others do.
func (u *upRole) startServices(ctx context.Context, stages *stages) {
	stages.startStage(ctx, "router", u.router.Run)
	if u.remoteEngines != nil {
		stages.startStage(ctx, "engine", u.remoteEngines.Runners()...)
	} else {
		stages.startStage(ctx, "worker", workerRunners(u.workers)...)
	}
	if u.planning != nil {
		stages.startStage(ctx, "planner", runAfter(u.isReady, u.planning.planner.Run))
	}
	u.startFrontend(ctx, stages)
}

// awaitReady returns when every worker can serve requests; with remote engines, when every engine that
// answers can.
func (u *upRole) awaitReady(ctx context.Context) error {
	if u.remoteEngines != nil {
		return u.remoteEngines.AwaitServing(ctx, func(model string, workers int) bool {
			return u.frontend.WorkerCount(model) >= workers
		})
	}
	limit := startTimeout(u.cfg)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, config.ErrNotReady)
	defer cancel()
	model := u.model.Card().Name
	err := backoff.Poll(ctx, time.Millisecond, func() bool {
		return u.frontend.WorkerCount(model) >= u.cfg.Engine.Workers && len(u.router.Catalog().Current().Workers) >= len(u.workers) && u.areEncodersKnown()
	})
	if err == config.ErrNotReady {
		return fmt.Errorf("%w: of %d workers the frontend sees %d after %v; the log says more with --log-level debug",
			config.ErrNotReady, u.cfg.Engine.Workers, u.frontend.WorkerCount(model), limit)
	}
	return err
}

// areEncodersKnown reports whether the workers can ask the encode workers of this process: they watch discovery themselves.
func (u *upRole) areEncodersKnown() bool {
	return u.cfg.Engine.EncodeWorkers == 0 || u.encoders == nil || u.encoders.HasEncoders()
}

// startTimeout bounds the start: simulated engines have their simulated startup in addition.
func startTimeout(cfg *config.Loaded) time.Duration {
	if cfg.EngineKind() == config.EngineSim {
		return readyTimeout + time.Duration(cfg.Simulation.Startup)
	}
	return readyTimeout
}

func (u *upRole) announceReady() {
	r := Ready{URL: u.httpURL(), RouterMode: u.cfg.Router.Mode, NATS: u.planes.NATSURL(), Keys: u.endpoint.keys != nil, Access: u.clientAccess(), Took: time.Since(u.startedAt)}
	if u.remoteEngines != nil {
		u.describeRemotes(&r)
	} else {
		card := u.model.Card()
		r.Model, r.Engine, r.Blocks, r.BlockSize, r.Chat, r.Media = card.Name, card.Engine, card.Blocks, card.BlockSize, u.model.Pipe.Template != nil, card.Media
		r.Workers, r.PrefillWorkers, r.EncodeWorkers = u.cfg.Engine.Workers, u.cfg.Engine.PrefillWorkers, u.cfg.Engine.EncodeWorkers
	}
	if u.cfg.EngineKind() == config.EngineSim {
		r.Simulation = u.cfg.DescribeSimulation()
	}
	r.Planner = u.planning != nil
	close(u.isReady)
	u.ready(r)
}

// describeRemotes adds the remote engines, and ends their start.
func (u *upRole) describeRemotes(r *Ready) {
	u.remoteEngines.AnnounceReady()
	r.Engines = u.remoteEngines.Statuses()
	for i := range r.Engines {
		s := &r.Engines[i]
		if s.State != engines.StateServing {
			continue
		}
		if s.Role != "" {
			r.EncodeWorkers += len(s.Workers)
			continue
		}
		r.Workers += len(s.Workers)
		if r.Model == "" {
			r.Model, r.Engine, r.Blocks, r.BlockSize, r.Chat, r.Media = s.Model, s.Kind, s.Blocks, s.BlockSize, s.Chat, s.Media
		}
	}
}
