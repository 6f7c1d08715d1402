package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/plan"
	"penstock/internal/bounded"
	"penstock/internal/config"
	"penstock/internal/edge/keys"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/readiness"
	"penstock/internal/engine/sim"
	"penstock/internal/obs"
	"penstock/internal/planner"
)

// RunPlanner sizes a fleet until ctx ends. It calls ready once, when it has begun. Logs go to stderr. When ctx ends the
// workers which it has started drain, within the drain timeout, and it returns nil.
func RunPlanner(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready func(Started)) error {
	return runRole(ctx, cfg, stderr, func(p *process) role { return &plannerRole{process: p, ready: ready, environ: os.Environ()} })
}

type plannerRole struct {
	*process
	ready   func(Started)
	environ []string
	planner *planner.FleetPlanner
	// server answers for the fleet of this process; nil for the one at planner-server.
	server http.Handler
}

func (r *plannerRole) buildServices() error {
	cfg, err := r.plannerConfig()
	if err != nil {
		return err
	}
	connector, err := r.newConnector()
	if err != nil {
		return err
	}
	r.planner, err = planner.New(cfg, connector)
	return err
}

// plannerConfig is a planner's configuration from the settings.
func (r *plannerRole) plannerConfig() (planner.Config, error) {
	s := &r.cfg.Planner
	roles, err := r.cfg.PlannedRoles(r.cfg.Command)
	if err != nil {
		return planner.Config{}, err
	}
	engine, err := r.cfg.ResolveSimulation()
	if err != nil {
		return planner.Config{}, config.AsSettingError(err)
	}
	cacheTokens := r.cfg.CacheBlocks() * r.cfg.Engine.BlockSize
	if cacheTokens == 0 {
		cacheTokens = defaultCacheTokens
	}
	if r.cfg.Command == config.PlannerCommand && !r.cfg.IsSet("engine") { // the workers are not of this program, as far as is known
		engine.TokenBudget = r.cfg.Engine.MaxBatchedTokens
	}
	for i := range roles {
		roles[i].Models = []plan.EngineModel{sim.PlanModel{Timing: &engine.Timing, CacheTokens: cacheTokens}}
		roles[i].MaxSequences, roles[i].TokenBudget, roles[i].CacheTokens = engine.MaxSeqs, engine.TokenBudget, cacheTokens
	}
	ttft, itl := r.cfg.PlannerTargets()
	cfg := planner.Config{
		Plan: plan.Config{
			Roles:   roles,
			Targets: plan.Targets{TTFT: ttft, ITL: itl, Chance: s.Attainment},
			Budget:  s.Budget, Interval: time.Duration(s.Interval), StartUp: time.Duration(s.StartUp), StartTimeout: time.Duration(s.StartTimeout),
			DownAfter: time.Duration(s.DownAfter),
		},
		SampleEvery: time.Duration(s.Sample),
		Namespace:   r.cfg.Fleet.Namespace, Log: obs.Component(r.log, "planner"), Metrics: r.metrics,
	}
	if s.Apply {
		cfg.ConnectorName = s.Connector
	}
	if cfg.Sources, err = r.sourceConfig(); err != nil {
		return cfg, err
	}
	cfg.Plan.EnsureDefaults()
	if err := cfg.Plan.Validate(); err != nil {
		return cfg, config.AsSettingError(err)
	}
	return cfg, nil
}

// sourceConfig says where the planner reads.
func (r *plannerRole) sourceConfig() (planner.SourceConfig, error) {
	s := &r.cfg.Planner
	if r.server != nil {
		return planner.SourceConfig{Server: ownServer, Model: s.Model, Client: &http.Client{Transport: handlerTransport{r.server}}}, nil
	}
	cfg := planner.SourceConfig{Server: strings.TrimRight(s.Server, "/"), Pages: s.Metrics, Model: s.Model, Key: config.APIKey(r.environ)}
	var err error
	if cfg.Client, err = r.newClient(); err != nil {
		return cfg, err
	}
	if r.cfg.HTTP.APIKeyFile != "" {
		if cfg.Key, err = keys.ReadSecret(r.cfg.HTTP.APIKeyFile); err != nil {
			return cfg, config.AsSettingError(fmt.Errorf("api-key-file: %w", err))
		}
	}
	return cfg, nil
}

// ownServer stands for this process in the problems of its planner.
const ownServer = "http://up"

// handlerTransport answers requests with a handler of this process: they need no listener, certificate or key.
type handlerTransport struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (t handlerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	w := &memoryResponse{header: http.Header{}, status: http.StatusOK}
	if err := bounded.RecoverPanic(func() error { t.handler.ServeHTTP(w, req); return nil }); err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: w.status, Status: fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)), Header: w.header, Body: io.NopCloser(&w.body), Request: req,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// memoryResponse is an http.ResponseWriter which keeps the response.
type memoryResponse struct {
	header http.Header
	status int
	begun  bool // the status does not change any more
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (w *memoryResponse) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *memoryResponse) WriteHeader(status int) {
	if !w.begun {
		w.status, w.begun = status, true
	}
}

// Write implements http.ResponseWriter.
func (w *memoryResponse) Write(p []byte) (int, error) {
	w.begun = true
	return w.body.Write(p)
}

// defaultCacheTokens is the cache of an unknown worker, in tokens, as core/plan has it.
const defaultCacheTokens = 1 << 20

// newClient returns the client which reads servers and pages. Redirects are not followed, because the key is for one
// server only.
func (r *plannerRole) newClient() (*http.Client, error) {
	transport := &http.Transport{ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute}
	if ca := r.cfg.Planner.CA; ca != "" {
		roots, err := config.LoadAuthorities("planner-ca", ca)
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// newConnector returns the connector of the settings; nil for a dry run.
func (r *plannerRole) newConnector() (planner.Connector, error) {
	s := &r.cfg.Planner
	if !s.Apply {
		return nil, nil
	}
	switch s.Connector {
	case config.ConnectorProcess:
		return r.newProcessConnector()
	case config.ConnectorVirtual:
		store, err := r.openDecisions()
		if err != nil {
			return nil, err
		}
		return planner.NewVirtualConnector(store, 2*time.Duration(s.Interval)), nil
	case config.ConnectorWebhook:
		secret, err := config.ReadSecret("planner-webhook-secret-file", s.WebhookSecret)
		if err != nil {
			return nil, err
		}
		return planner.NewWebhookConnector(planner.WebhookConfig{URL: s.Webhook, Secret: secret}), nil
	}
	return nil, config.AsSettingError(fmt.Errorf("planner-connector: %.40q does not act", s.Connector))
}

// newProcessConnector returns the connector which starts this program as workers. Without a data directory their logs are
// in a new directory, which stays.
func (r *plannerRole) newProcessConnector() (planner.Connector, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("the program of the workers: %w", err)
	}
	dir := r.cfg.DataDir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "penstock-planner-"); err != nil {
			return nil, err
		}
	} else {
		// Each planner has directories of its own: worker-1 of the last one may still be draining.
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		if dir, err = os.MkdirTemp(dir, "workers-"); err != nil {
			return nil, err
		}
	}
	r.log.Info("the logs of workers are in a directory each", "dir", dir)
	return planner.NewProcessConnector(planner.ProcessConfig{
		Binary: binary, Args: r.cfg.WorkerArgs(r.planes.NATSURL()), Dir: dir, DrainTimeout: time.Duration(r.cfg.Drain.Timeout), Log: obs.Component(r.log, "planner"),
	})
}

// openDecisions opens the store of connector virtual: NATS, or a directory without it.
func (r *plannerRole) openDecisions() (planner.DecisionStore, error) {
	if r.planes.Conn != nil {
		return planner.NewNATSStore(r.planes.Conn, r.cfg.Fleet.Namespace)
	}
	return planner.NewDirectoryStore(filepath.Join(r.cfg.DataDir, "decisions"))
}

func (r *plannerRole) startServices(ctx context.Context, stages *stages) {
	if r.listener != nil {
		stages.startStage(ctx, "http", func(ctx context.Context) error {
			return serveHTTP(ctx, r.listener, r.newHandler(http.HandlerFunc(servePlannerHealth), http.HandlerFunc(servePlannerHealth), map[string]http.Handler{
				"/v1/plan": http.HandlerFunc(r.servePlan),
			}), r.log)
		})
	}
	stages.startStage(ctx, "planner", r.planner.Run)
}

func (r *plannerRole) awaitReady(context.Context) error { return nil }

func (r *plannerRole) announceReady() { r.ready(r.startedStatus()) }

// servePlannerHealth answers GET /health and GET /ready: a planner takes no requests, and is ready while it runs.
func servePlannerHealth(w http.ResponseWriter, _ *http.Request) {
	readiness.WriteJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

// servePlan answers GET /v1/plan with the last plan.
func (r *plannerRole) servePlan(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		openai.WriteMethodNotAllowed(w, req, "GET, HEAD")
		return
	}
	report := r.planner.LastReport()
	if report == nil {
		openai.WriteError(w, fault.New(fault.Unavailable, "there is no plan yet: the first one comes when an interval of %v is over", r.planner.PlanInterval()))
		return
	}
	text, err := json.Marshal(report)
	if err != nil {
		openai.WriteError(w, fmt.Errorf("the plan cannot be written as JSON: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // the client may have disconnected
}
