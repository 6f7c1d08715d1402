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
	"os/signal"
	"sync"
	"syscall"
	"time"

	"penstock/internal/doctor"
	"penstock/internal/node/engines"
	"penstock/internal/node/planes"

	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/embregion"
	"penstock/internal/engine"
	"penstock/internal/holders"
	"penstock/internal/media/fetch"
	"penstock/internal/obs"
	"penstock/internal/obs/otlp"
	"penstock/internal/serve/bulk"
	"penstock/internal/serve/encoder"
)

// readyTimeout bounds the time from start to readiness. Loading a checkpoint is not part of it.
const readyTimeout = 30 * time.Second

// process is what the roles of one process share and are built from.
type process struct {
	cfg           *config.Loaded
	log           *slog.Logger
	metrics       *obs.Metrics
	startedAt     time.Time
	listener      net.Listener // of HTTP; nil if there is none
	endpoint      httpEndpoint // of ln
	tracer        *obs.Tracer  // nil unless the environment enables traces
	planes        *planes.Set
	fetcher       *fetch.Fetcher           // of media; nil if this process resolves none
	borrower      *bulk.Fetcher            // of what other processes lend; nil if engines take nothing from them
	lender        *bulk.Handles            // of the rows of encoded media; nil if no worker here encodes for others
	encoders      *encoder.Coordinator     // asks encode workers; nil if no engine here shows media to a model
	holders       *holders.Directory       // what encode workers have; nil if none are asked
	regions       *embregion.Readers       // read embedding caches of other workers of the host; nil if none are read
	exchange      *blockExchange           // of KV blocks with other workers; nil if there is none
	tiers         *embeddingTiers          // of the embedding cache, below memory; nil if there are none
	pools         []*poolUse               // of KV blocks, one for each worker; nil without a pool
	model         *engines.LocalModel      // nil unless engines run here
	remoteEngines *engines.Supervisor      // nil unless this process follows remote engines
	plans         http.Handler             // of GET /v1/plan, beside a frontend; nil without a planner
	supervision   engines.SupervisorConfig // for tests: replaces defaults of the supervisor
}

// role is what a process does.
type role interface {
	// buildServices makes all services, and with them all metrics.
	buildServices() error
	// startServices starts the services in dependency order.
	startServices(ctx context.Context, stages *stages)
	// awaitReady returns when the role is ready.
	awaitReady(ctx context.Context) error
	// announceReady tells the caller that it is ready.
	announceReady()
}

// runRole runs a process with the role that newRole makes, until ctx ends. Then it lets running requests
// finish, within the drain timeout, and returns nil.
func runRole(ctx context.Context, cfg *config.Loaded, stderr io.Writer, as func(*process) role) (err error) {
	// Requests go on when the reader of the log is gone, as it is for the workers of a planner which was killed. Programs which
	// this process starts would inherit an ignored signal: a handler, here one which does nothing, they do not.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	p := &process{cfg: cfg, startedAt: time.Now(), metrics: obs.NewMetrics()}
	if p.log, err = newLogger(cfg, stderr); err != nil {
		return err
	}
	for _, n := range cfg.Notices() {
		p.log.Warn(n.Message, "names", n.Names)
	}
	if cfg.HTTP.Addr != "" {
		if p.endpoint, err = openHTTPEndpoint(cfg, p.log); err != nil {
			return err
		}
		p.listener = p.endpoint.listener
		defer p.listener.Close() // a server that runs on it also closes it
	}
	traces, err := openTraces(ctx, cfg, p.log)
	if err != nil {
		return err
	}
	if traces != nil {
		p.tracer = traces.Tracer()
		defer traces.Close() // after everything that has spans
	}
	if cfg.Command.ResolvesMedia() || cfg.Media.Multimodal {
		if p.fetcher, err = newFetcher(cfg); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.fetcher.Close()) }()
	}
	removeTokens, err := createTokens(cfg)
	if err != nil {
		return err
	}
	defer removeTokens()
	if err = p.openAll(ctx); err != nil || ctx.Err() != nil {
		err = errors.Join(err, p.tiers.close(), p.planes.Close())
		if ctx.Err() != nil {
			return nil // stopped before it was ready
		}
		return err
	}
	defer func() {
		p.closePools()
		err = errors.Join(err, p.closeRegion(), p.tiers.close(), p.planes.Close())
	}()

	limits := doctor.NewLimitMonitor(cfg, p.planes, p.log)
	limits.LogAtStart(ctx)
	r := as(p)
	if err := r.buildServices(); err != nil {
		return err
	}
	stages, life := newStages(ctx)
	defer func() { err = errors.Join(err, stages.stopAll()) }()
	stages.startStage(life, "garbage collector", func(ctx context.Context) error { tuneGC(ctx); return nil })
	stages.startStage(life, "limits", limits.RunChecks)
	if p.borrower != nil {
		stages.startStage(life, "bulk data", p.borrower.Run)
	}
	if p.exchange != nil {
		stages.startStage(life, "block exchange", p.exchange.run)
	}
	if p.tiers != nil {
		stages.startStage(life, "embedding cache", p.tiers.Run)
	}
	if p.encoders != nil {
		stages.startStage(life, "encode workers", p.encoders.Run, p.holders.Run)
	}
	if p.regions != nil {
		stages.startStage(life, "embedding regions", p.regions.Run)
	}
	if o := p.ownRegion(); o != nil {
		stages.startStage(life, "embedding region", o.Run)
	}
	if p.pools != nil {
		stages.startStage(life, "pool", p.poolRunners()...)
	}
	p.endpoint.startReloading(life, stages, p.log)
	r.startServices(life, stages)
	if err := r.awaitReady(life); err != nil {
		if ctx.Err() != nil || life.Err() != nil {
			return nil // stopped before it was ready, or a failed stage holds the error
		}
		return err
	}
	p.logServing()
	r.announceReady()
	<-life.Done()
	p.log.Info("stopping", "running_requests_may_take", cfg.Drain.Timeout.String())
	return nil
}

// openAll opens the planes and, if engines run here, makes them, concurrently since neither needs the other.
// After an error, planes holds what was opened.
func (p *process) openAll(ctx context.Context) error {
	var opening sync.WaitGroup
	var modelErr error
	if p.cfg.Command.HasEngines() && !p.cfg.HasRemoteEngines() {
		sources := engines.MediaSources{Files: mediaFiles(p.cfg, p.fetcher), Fetch: func(ctx context.Context, place string, size int) ([]byte, error) {
			return p.borrower.Fetch(ctx, place, size) // there are requests only after openAll
		}, Remote: remoteEncoders{p}, Tracer: p.tracer}
		p.shareEmbeddings(&sources)
		if p.cfg.HasEmbeddingTiers() {
			p.tiers = &embeddingTiers{}
			sources.Tiers = p.tiers
		}
		opening.Go(func() { p.model, modelErr = engines.OpenLocal(ctx, p.cfg, sources) })
	}
	var err error
	p.planes, err = planes.Open(ctx, p.cfg, p.log)
	opening.Wait()
	if err := errors.Join(err, modelErr); err != nil || !p.cfg.Command.HasEngines() {
		return err
	}
	if err := p.openTiers(); err != nil {
		return err
	}
	p.borrower = bulk.NewFetcher(bulk.FetcherConfig{BulkOnly: onlyOnHost(p.cfg), Log: obs.Component(p.log, "worker")}, p.planes.RPC, p.planes.Bulk)
	return p.openEncoders()
}

// logServing logs what announce tells the caller.
func (p *process) logServing() {
	args := []any{"role", string(p.cfg.Command), "took", time.Since(p.startedAt).Round(time.Millisecond).String()}
	for _, at := range [][2]string{{"url", p.httpURL()}, {"nats", p.planes.NATSURL()}} {
		if at[1] != "" {
			args = append(args, at[0], at[1])
		}
	}
	p.log.Info("serving", args...)
}

// LogFailure logs the error with which a process ended.
func LogFailure(cfg *config.Loaded, w io.Writer, failure error) {
	log, err := newLogger(cfg, w)
	if err != nil {
		return // cfg is valid
	}
	log.Error("ended by an error", "error", failure)
}

func newLogger(cfg *config.Loaded, w io.Writer) (*slog.Logger, error) {
	levels, err := cfg.ParseLogLevels()
	if err != nil {
		return nil, err
	}
	return obs.NewLogger(w, obs.LogFormat(cfg.Log.Format), levels)
}

// httpURL is where this machine reaches the HTTP API; "" if there is none.
func (p *process) httpURL() string {
	if p.listener == nil {
		return ""
	}
	return p.endpoint.urlScheme() + "://" + reachableAddr(p.listener.Addr())
}

// openTraces opens the exporter of spans to a collector; nil if the environment disables it.
func openTraces(ctx context.Context, cfg *config.Loaded, log *slog.Logger) (*otlp.TraceExporter, error) {
	log = obs.Component(log, "traces")
	on, trouble := cfg.TracesEnabled()
	if trouble != "" {
		log.Warn("traces are wanted and there are none", "reason", trouble)
	}
	if !on {
		return nil, nil
	}
	return otlp.Open(context.WithoutCancel(ctx), "penstock-"+string(cfg.Command), log)
}

// openTokenizer opens the pipeline of a model's tokenizer: that of this process's engines, the built-in one,
// the files which the worker names or, if they are elsewhere on this machine, the files of model-path.
func (p *process) openTokenizer(ref engine.TokenizerRef) (*prep.Pipeline, error) {
	if p.model != nil && ref.Digest == p.model.Pipe.Digest {
		return p.model.Pipe, nil
	}
	if p.remoteEngines != nil && ref.Digest != "" {
		if pipe := p.remoteEngines.Pipeline(ref.Digest); pipe != nil {
			return pipe, nil
		}
	}
	pipe, err := chat.Open(chat.Ref(ref))
	if err == nil || ref.Kind != "dir" {
		return pipe, err
	}
	if p.cfg.Engine.ModelPath == "" || p.cfg.Engine.ModelPath == ref.Dir {
		return nil, fmt.Errorf("%w; if the checkpoint is elsewhere on this machine, name its directory with --model-path", err)
	}
	ref.Dir = p.cfg.Engine.ModelPath
	return chat.Open(chat.Ref(ref))
}
