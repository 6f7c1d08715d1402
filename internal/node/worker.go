package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"penstock/internal/node/engines"

	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/catalog"
	"penstock/internal/config"
	"penstock/internal/edge/readiness"
	"penstock/internal/engine"
	"penstock/internal/engine/launch"
	"penstock/internal/serve/worker"
	"penstock/internal/zmtp"
)

// RunWorker runs one worker until ctx ends. It calls ready once, when the worker is registered and can be
// called. Logs go to stderr. When ctx ends the worker deregisters, finishes its requests, within the drain
// timeout, and Worker returns nil.
//
// If the settings have a command of an engine, the worker starts that, and stops it last. The error is an
// [*EngineExitError] if the engine ended by itself, or with another exit code than 0 when it was stopped.
func RunWorker(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready func(Started)) (err error) {
	child, cfg, err := prepareEngine(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, child.close()) }()
	if child != nil {
		var stop context.CancelFunc
		ctx, stop = launch.WithHangup(ctx)
		defer stop()
	}
	err = runRole(ctx, cfg, stderr, func(p *process) role {
		return &workerRole{process: p, ready: ready, child: child, stderr: stderr}
	})
	if err == nil {
		err = child.stopError()
	}
	return err
}

type workerRole struct {
	*process
	ready func(Started)
	id    kv.WorkerID
	// child is the engine which this worker starts; nil if it starts none.
	child  *engineProcess
	stderr io.Writer
	// worker is the worker of a local engine; nil if the engine is remote.
	worker *worker.Worker
	// catalog has the workers with which this one exchanges KV blocks; nil if there are none.
	catalog *catalog.Catalog
}

func (w *workerRole) buildServices() error {
	w.planes.RegisterMetrics(w.metrics)
	var err error
	if w.id, err = workerID(w.cfg); err != nil {
		return err
	}
	if w.cfg.HasRemoteEngines() {
		if w.child != nil {
			w.child.newProcess(w.cfg, w.stderr, func() bool { return isEngineServing(w.remoteEngines) }, w.log)
			w.supervision.LastLine = w.child.process.LastLine
		}
		w.remoteEngines, err = w.newSupervisor(func(_, rank int) kv.WorkerID { return rankID(w.id, rank) })
		w.metrics.RegisterCollector(engines.NewCollector(w.remoteEngines))
		return err
	}
	w.registerEncoders()
	if w.encoders != nil {
		w.encoders.ExcludeWorker(w.id)
	}
	epoch, err := nextEpoch(w.cfg.DataDir, time.Now())
	if err != nil {
		return err
	}
	if w.cfg.ExchangesBlocks() {
		w.catalog = catalog.New(catalog.Selection{Namespace: w.cfg.Fleet.Namespace, Component: w.cfg.Fleet.Component}, w.planes.Registry, w.log)
		w.exchange = w.newBlockExchange(w.catalog.Current)
	}
	cfg := w.workerConfig(w.id, epoch, w.cfg.Fleet.Component)
	if len(w.model.Engines) > 0 {
		if err := w.usePool(w.id, w.model.Engines[0]); err != nil {
			return err
		}
		cfg.OpenExchange = w.exchange.opener(&cfg, w.model.Engines[0])
	}
	w.worker, err = worker.New(cfg, w.model.OfWorkers()[0], w.workerPlanes(), worker.NewMetrics(w.metrics), w.log)
	return err
}

func (w *workerRole) startServices(ctx context.Context, stages *stages) {
	if w.listener != nil {
		stages.startStage(ctx, "http", func(ctx context.Context) error {
			return serveHTTP(ctx, w.listener, w.newHandler(http.HandlerFunc(w.serveHealth), http.HandlerFunc(w.serveHealth), nil), w.log)
		})
	}
	if w.remoteEngines != nil {
		if w.child != nil {
			stages.startStage(ctx, "exec", w.child.run) // it ends after the workers, whose requests it finishes
		}
		stages.startStage(ctx, "engine", w.remoteEngines.Runners()...)
		return
	}
	if w.catalog != nil {
		stages.startStage(ctx, "catalog", func(ctx context.Context) error {
			w.catalog.Run(ctx, func(*catalog.Snapshot) {})
			return nil
		})
	}
	stages.startStage(ctx, "worker", w.worker.Run)
}

func (w *workerRole) awaitReady(ctx context.Context) error {
	if w.remoteEngines != nil {
		return w.remoteEngines.AwaitServing(ctx, func(string, int) bool { return true })
	}
	return backoff.Poll(ctx, time.Millisecond, func() bool { _, ok := w.worker.RegisteredAddr(); return ok })
}

func (w *workerRole) announceReady() {
	s := w.startedStatus()
	s.WorkerID = w.id
	if w.remoteEngines == nil {
		s.Model = w.model.Card().Name
		s.Addr, _ = w.worker.RegisteredAddr()
		w.ready(s)
		return
	}
	w.remoteEngines.AnnounceReady()
	if w.child != nil {
		w.child.process.MarkServed()
	}
	s.Engines = w.remoteEngines.Statuses()
	s.Model = s.Engines[0].Model
	if of := w.remoteEngines.Workers(); len(of) > 0 {
		s.Addr, _ = of[0].RegisteredAddr()
	}
	w.ready(s)
}

// workerHealth is the body of a worker's GET /health.
type workerHealth struct {
	Status   string      `json:"status"` // starting, or what the worker reports: ready, not_ready, draining
	Model    string      `json:"model"`
	WorkerID kv.WorkerID `json:"worker_id"`
	Role     string      `json:"role"` // of its card
	Addr     string      `json:"addr,omitempty"`
	// Engine is the remote engine.
	Engine *engines.Status `json:"engine,omitempty"`
}

// healthStatus is the response to GET /health: 200 while requests are accepted; for an engine with several
// ranks, by any of them.
func (w *workerRole) healthStatus() (status int, body any) {
	h := workerHealth{Status: "starting", WorkerID: w.id, Role: w.cfg.Engine.Role}
	all := []*worker.Worker{w.worker}
	if w.remoteEngines != nil {
		engine := w.remoteEngines.Statuses()[0]
		h.Model, h.Engine, all = engine.Model, &engine, w.remoteEngines.Workers()
	} else {
		h.Model = w.model.Card().Name
	}
	for _, of := range all {
		addr, ok := of.RegisteredAddr()
		if !ok {
			continue
		}
		if h.Addr == "" || h.Status != engine.StateReady {
			h.Status, h.Addr = of.Health().State, addr
		}
	}
	if h.Status == engine.StateReady {
		return http.StatusOK, h
	}
	return http.StatusServiceUnavailable, h
}

// serveHealth answers GET /health and GET /ready.
func (w *workerRole) serveHealth(out http.ResponseWriter, _ *http.Request) {
	status, body := w.healthStatus()
	readiness.WriteJSON(out, status, body)
}

// registerEncoders registers the metrics of the local engines' media encoders, if they have any.
func (p *process) registerEncoders() {
	if p.model != nil {
		p.metrics.RegisterCollector(newEmbeddingMetrics(p.model.EncoderStats, p.tiers.stats, p.regions))
		p.metrics.RegisterCollector(newEncodeMetrics(p.model.EncodeStats))
		if p.cfg.SharedPool() != nil {
			p.metrics.RegisterCollector(newPoolMetrics(p.poolStats))
		}
	}
}

// newWorkers makes the workers of up, which share one model.
func (p *process) newWorkers() ([]*worker.Worker, error) {
	epoch, err := nextEpoch(p.cfg.DataDir, time.Now())
	if err != nil {
		return nil, err
	}
	p.registerEncoders()
	metrics := worker.NewMetrics(p.metrics)
	var all []*worker.Worker
	roles := p.cfg.WorkerRoles()
	for i, eng := range p.model.OfWorkers() {
		// Small numbers: the workers of one process only need to differ from each other. A restart on the
		// same data has a higher epoch.
		cfg := p.workerConfig(kv.WorkerID(i+1), epoch, p.cfg.Fleet.Component)
		cfg.Role, cfg.Embeddings = roles[i], p.model.EmbeddingSource(i)
		if i < len(p.model.Engines) {
			if err := p.usePool(cfg.ID, p.model.Engines[i]); err != nil {
				return nil, err
			}
			cfg.OpenExchange = p.exchange.opener(&cfg, p.model.Engines[i])
		}
		if i > 0 {
			cfg.EmbeddingEvents = zmtp.Endpoint{} // the first one publishes what those which serve requests share
		}
		w, err := worker.New(cfg, eng, p.workerPlanes(), metrics, p.log)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

// lingerTime is how long a deregistered worker still answers callers which have not heard of it, with a
// redirect elsewhere.
const lingerTime = 200 * time.Millisecond

// quietReadyWorkers is the number of workers in one process above which they do not each log that they are
// ready.
const quietReadyWorkers = 8

// newWorker serves an engine on the planes.
func (p *process) newWorker(id kv.WorkerID, epoch uint64, component string, eng engine.Engine, metrics *worker.Metrics) (*worker.Worker, error) {
	return worker.New(p.workerConfig(id, epoch, component), eng, p.workerPlanes(), metrics, p.log)
}

// workerConfig is a worker's configuration from the settings.
func (p *process) workerConfig(id kv.WorkerID, epoch uint64, component string) worker.Config {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	cfg := worker.Config{
		ID: id, Epoch: epoch,
		Namespace: p.cfg.Fleet.Namespace, Component: component, Endpoint: p.cfg.Fleet.Endpoint,
		Addr: p.planes.Addr, Host: host, PID: os.Getpid(), Name: p.cfg.Fleet.WorkerName,
		DrainTimeout: time.Duration(p.cfg.Drain.Timeout),
		// A router's engines are workers, which check their own engines.
		MaxCalls: p.cfg.HTTP.MaxInflight, CanaryInterval: new(time.Duration(0)), StallTimeout: -1,
	}
	if p.cfg.Command == config.Up && engines.Count(p.cfg) > quietReadyWorkers {
		cfg.ReadyLevel = slog.LevelDebug
	}
	if !p.cfg.IsOneProcess() {
		// Others learn of the deregistration over a network: until then their requests are sent elsewhere.
		cfg.Linger = lingerTime
	}
	// Routers of earlier builds register only where snapshots can be written.
	cfg.EventsOnDemand = p.planes.Archive != nil
	if p.cfg.Command == config.Worker {
		cfg.Role = p.cfg.WorkerRoles()[0]
	}
	if p.model != nil {
		cfg.Embeddings, cfg.Holder = p.model.EmbeddingSource(0), p.model.RowHolder()
		cfg.EmbeddingEvents, _ = p.cfg.EmbeddingEndpoint() // it is valid
		if o := p.ownRegion(); o != nil {
			cfg.Region = o.Addr()
		}
	}
	if p.cfg.Command.HasEngines() {
		cfg.CanaryInterval, cfg.StallTimeout = (*time.Duration)(&p.cfg.Engine.CanaryInterval), time.Duration(p.cfg.Engine.StallTimeout)
		cfg.ToolParser, cfg.ReasoningParser = parserName(p.cfg.Engine.ToolCallParser), parserName(p.cfg.Engine.ReasoningParser)
		cfg.MaxCalls = p.cfg.Engine.MaxNumSeqs + p.cfg.Engine.MaxWaiting
		cfg.Experts = p.cfg.ParseHostedExperts()
		cfg.MediaDecoder = mediaDecoder(p.cfg)
		cfg.KeepFeatures = keepsFeatures(p.cfg)
	}
	return cfg
}

// newSupervisor makes the supervisor of this process's remote engines. id may be nil.
func (p *process) newSupervisor(id func(of, rank int) kv.WorkerID) (*engines.Supervisor, error) {
	epochs, err := newEpochCounter(p.cfg.DataDir)
	if err != nil {
		return nil, err
	}
	metrics := worker.NewMetrics(p.metrics)
	cfg := p.supervision
	cfg.Settings, cfg.NextEpoch, cfg.WorkerID, cfg.Log = p.cfg, epochs.next, id, p.log
	cfg.NewWorker = func(of engines.RankConfig) (*worker.Worker, error) { return p.newRankWorker(of, metrics) }
	return engines.NewSupervisor(cfg), nil
}

// newRankWorker serves one data-parallel rank of a remote engine on the planes. Each rank of a process serves
// at its own port.
func (p *process) newRankWorker(of engines.RankConfig, metrics *worker.Metrics) (*worker.Worker, error) {
	addr := p.planes.Addr
	if host, port, err := net.SplitHostPort(addr); err == nil && of.Rank > 0 && port != "0" {
		n, err := strconv.Atoi(port)
		if err != nil || n+of.Rank > 65535 {
			return nil, fmt.Errorf("rpc-addr %s: rank %d of the engine needs the port plus %d; choose a lower number, or port 0", addr, of.Rank, of.Rank)
		}
		addr = net.JoinHostPort(host, strconv.Itoa(n+of.Rank))
	}
	if _, _, err := net.SplitHostPort(p.cfg.RPC.Advertise); err == nil && of.Ranks > 1 {
		return nil, fmt.Errorf("rpc-advertise %s: the engine has %d data-parallel ranks, each at a port of its own; name the host alone", p.cfg.RPC.Advertise, of.Ranks)
	}
	cfg := p.workerConfig(of.ID, of.Epoch, p.cfg.Fleet.Component)
	cfg.Addr, cfg.Check, cfg.Aliases = addr, of.Check, of.Aliases
	if card := of.Engine.Card(); card.Role == engine.RoleEncode {
		cfg.Role = card.Role
	}
	p.useEncoders(of.Engine)
	return worker.New(cfg, of.Engine, p.workerPlanes(), metrics, p.log)
}

func (p *process) workerPlanes() worker.Planes {
	all := worker.Planes{RPC: p.planes.RPC, Bus: p.planes.Events, Registry: p.planes.Registry, Tracer: p.tracer}
	if p.borrower != nil {
		all.Fetch = p.borrower.Fetch
	}
	if p.lender != nil {
		all.Lender = p.lender
	}
	return all
}

func workerRunners(workers []*worker.Worker) []func(context.Context) error {
	var all []func(context.Context) error
	for _, w := range workers {
		all = append(all, w.Run)
	}
	return all
}

// parserName is a parser's name for a card: "" for automatic detection.
func parserName(parser string) string {
	if parser == "auto" {
		return ""
	}
	return parser
}
