package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/config"
	"penstock/internal/obs"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/router"
	"penstock/internal/serve/worker"
)

// readyTimeout bounds the time from start to the first request that could be
// served. Loading a checkpoint is not part of it.
const readyTimeout = 30 * time.Second

// Up runs all roles in this process until ctx ends: embedded NATS, workers, the
// router and a frontend. It calls ready once, when requests can be served. Logs
// go to stderr. When ctx ends it lets running requests finish, within the drain
// timeout, and returns nil.
func Up(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready func(Ready)) (err error) {
	began := time.Now()
	log, err := newLogger(cfg, stderr)
	if err != nil {
		return err
	}
	ln, err := listen(cfg.HTTPAddr, log)
	if err != nil {
		return err
	}
	defer ln.Close() // the frontend closes it too, once it runs

	// The model and the server do not need each other: make them at once.
	models := make(chan modelResult, 1)
	go func() { models <- openModel(ctx, &cfg.Config) }()
	nats, err := startNATS(ctx, &cfg.Config, log)
	model := <-models
	if ctx.Err() != nil {
		return nats.Close() // stopped before it was ready
	}
	if err = errors.Join(err, model.err); err != nil {
		return errors.Join(err, nats.Close())
	}
	defer func() { err = errors.Join(err, nats.Close()) }()

	u := up{cfg: cfg, log: log, metrics: obs.NewMetrics(), nats: nats, model: model, rpc: rpc.NewMem()}
	if err := u.build(); err != nil {
		return err
	}
	stages, life := newStages(ctx)
	defer func() { err = errors.Join(err, stages.stop()) }()
	u.start(life, stages, ln)
	if err := u.await(life); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it was ready
		}
		return err
	}
	card := model.card()
	ready(Ready{
		URL: "http://" + reachable(ln.Addr()), Model: card.Name, Chat: model.pipe.Template != nil, Engine: card.Engine, Workers: cfg.Workers,
		Blocks: card.Blocks, BlockSize: card.BlockSize, RouterMode: cfg.RouterMode, NATS: nats.server.URL(), Took: time.Since(began),
	})
	<-life.Done()
	log.Info("stopping", "running_requests_may_take", cfg.DrainTimeout.String())
	return nil
}

// up is what Up builds services from.
type up struct {
	cfg     *config.Loaded
	log     *slog.Logger
	metrics *obs.Metrics
	nats    *natsPlanes
	model   modelResult
	rpc     rpc.Plane

	// What build makes.
	prompts  prompts
	router   *router.Router
	workers  []func(context.Context) error
	frontend *frontend.Frontend
}

// build makes all services, and with them all metrics.
func (u *up) build() error {
	u.nats.measure(u.metrics)
	var err error
	if u.router, err = u.newRouter(); err != nil {
		return err
	}
	u.workers, err = u.newWorkers(worker.Planes{RPC: u.rpc, Bus: u.nats.events, Registry: u.nats.registry})
	if err != nil {
		return err
	}
	u.frontend, err = u.newFrontend()
	u.prompts.frontend = u.frontend
	return err
}

// start starts the services: the router, which others report to, then the
// workers, then the frontend, so that they stop in the order in which requests
// pass through them.
func (u *up) start(ctx context.Context, stages *stages, ln net.Listener) {
	stages.start(ctx, "router", u.router.Run)
	stages.start(ctx, "worker", u.workers...)
	stages.start(ctx, "frontend", func(ctx context.Context) error { return u.frontend.Run(ctx, ln) })
}

func (u *up) newRouter() (*router.Router, error) {
	return router.New(router.Config{
		Namespace: u.cfg.Namespace,
		Route: route.Config{
			Mode: route.Mode(u.cfg.RouterMode), OverlapWeight: &u.cfg.OverlapScoreWeight,
			Temperature: u.cfg.RouterTemperature, Seed: u.cfg.RouterSeed,
		},
		ReservationTTL: time.Duration(u.cfg.ActiveRequestExpiry),
		MaxBodyBytes:   u.cfg.MaxBodyBytes,
	}, router.Planes{Bus: u.nats.events, Registry: u.nats.registry, RPC: u.rpc}, &u.prompts, u.metrics, u.log)
}

func (u *up) newWorkers(planes worker.Planes) ([]func(context.Context) error, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	epoch, err := nextEpoch(u.cfg.DataDir, time.Now())
	if err != nil {
		return nil, err
	}
	metrics := worker.NewMetrics(u.metrics)
	var runs []func(context.Context) error
	for i, eng := range u.model.engines {
		w, err := worker.New(worker.Config{
			// Small numbers: the workers of one process need to be told apart from
			// each other only. A restart on the same data is a higher epoch.
			ID: kv.WorkerID(i + 1), Epoch: epoch,
			Namespace: u.cfg.Namespace, Component: u.cfg.Component, Endpoint: u.cfg.Endpoint,
			Host: host, PID: os.Getpid(),
			ToolParser: named(u.cfg.ToolCallParser), ReasoningParser: named(u.cfg.ReasoningParser),
			MaxCalls:     u.cfg.MaxNumSeqs + u.cfg.MaxWaiting,
			DrainTimeout: time.Duration(u.cfg.DrainTimeout), CanaryInterval: orOff(u.cfg.CanaryInterval),
		}, withPrompts(eng, u.model.pipe), planes, metrics, u.log)
		if err != nil {
			return nil, err
		}
		runs = append(runs, w.Run)
	}
	return runs, nil
}

// orOff is a setting whose 0 turns off what services do at intervals: they read 0
// as their default.
func orOff(s config.Seconds) time.Duration {
	if s == 0 {
		return -1
	}
	return time.Duration(s)
}

// named is what a card says of a parser: nothing if it is found out.
func named(parser string) string {
	if parser == "auto" {
		return ""
	}
	return parser
}

func (u *up) newFrontend() (*frontend.Frontend, error) {
	limit := u.cfg.MigrationLimit
	if limit == 0 {
		limit = -1 // the frontend reads 0 as its default
	}
	return frontend.New(frontend.Config{
		MaxBodyBytes: u.cfg.MaxBodyBytes, MaxInflight: u.cfg.MaxInflight,
		MigrationLimit: limit, MigrationWait: orOff(u.cfg.MigrationWait),
		DrainGrace: time.Duration(u.cfg.DrainGrace), DrainTimeout: time.Duration(u.cfg.DrainTimeout),
		KeepAlive:  time.Duration(u.cfg.SSEKeepAlive),
		Preprocess: frontend.Preprocess(u.cfg.Preprocess),
	}, frontend.Deps{
		Router: u.router, Plane: u.rpc, Registry: u.nats.registry, Open: u.model.open,
		Metrics: u.metrics, Log: u.log,
		Mount: map[string]http.Handler{
			"/v1/router/": u.router.Handler(),
			"/v1/config":  configHandler(u.cfg),
		},
		OnDrain: u.router.EndWatches,
	})
}

// await returns when requests can be served by every worker.
func (u *up) await(ctx context.Context) error {
	late := time.NewTimer(readyTimeout)
	defer late.Stop()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for model := u.model.card().Name; ; {
		if min(u.router.Workers(model), u.frontend.Workers(model)) >= u.cfg.Workers {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late.C:
			return fmt.Errorf("%w: of %d workers the router sees %d and the frontend %d after %v; the log says more with --log-level debug",
				ErrNotReady, u.cfg.Workers, u.router.Workers(model), u.frontend.Workers(model), readyTimeout)
		}
	}
}

// configHandler shows the effective configuration to "config show --server".
func configHandler(cfg *config.Loaded) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// Plain values: encoding cannot fail, and a client that is gone is gone.
		_ = json.NewEncoder(w).Encode(map[string]any{"rows": cfg.Settings()})
	})
}

func newLogger(cfg *config.Loaded, w io.Writer) (*slog.Logger, error) {
	levels, err := cfg.Levels()
	if err != nil {
		return nil, err
	}
	return obs.NewLogger(w, obs.Format(cfg.LogFormat), levels)
}

// listen opens the HTTP address. It says what to do if somebody else has it, and
// warns if others than this machine can reach it.
func listen(addr string, log *slog.Logger) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("http-addr %s is in use by another process; stop it or choose another with --http-addr, for example 127.0.0.1:0 for a free port", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("http-addr: %w", err)
	}
	if !loopback(ln.Addr().String()) {
		log.Warn("the HTTP API listens beyond this machine without TLS and without keys", "addr", ln.Addr().String())
	}
	return ln, nil
}

// loopback reports whether only this machine can reach a host and port; a name
// other than localhost is taken for one that others can reach.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// reachable returns the host and port at which this machine reaches a listener:
// one that listens on every address has none of its own.
func reachable(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}
	return net.JoinHostPort("localhost", strconv.Itoa(tcp.Port))
}
