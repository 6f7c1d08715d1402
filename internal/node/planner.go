package node

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/plan"
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
	roles, err := r.cfg.PlannedRoles()
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
	if !r.cfg.IsSet("engine") { // the workers are not of this program, as far as is known
		engine.TokenBudget = r.cfg.Engine.MaxBatchedTokens
	}
	for i := range roles {
		roles[i].Models = []plan.EngineModel{sim.PlanModel{Timing: &engine.Timing, CacheTokens: cacheTokens}}
		roles[i].MaxSequences, roles[i].TokenBudget, roles[i].CacheTokens = engine.MaxSeqs, engine.TokenBudget, cacheTokens
	}
	client, err := r.newClient()
	if err != nil {
		return planner.Config{}, err
	}
	cfg := planner.Config{
		Plan: plan.Config{
			Roles:   roles,
			Targets: plan.Targets{TTFT: time.Duration(r.cfg.Router.TTFTTarget), ITL: time.Duration(r.cfg.Router.ITLTarget), Chance: s.Attainment},
			Budget:  s.Budget, Interval: time.Duration(s.Interval), StartUp: time.Duration(s.StartUp), StartTimeout: time.Duration(s.StartTimeout),
			DownAfter: time.Duration(s.DownAfter),
		},
		Sources: planner.SourceConfig{
			Server: strings.TrimRight(s.Server, "/"), Pages: s.Metrics, Client: client, Model: s.Model, Key: config.APIKey(r.environ),
		},
		Namespace: r.cfg.Fleet.Namespace, Log: obs.Component(r.log, "planner"), Metrics: r.metrics,
	}
	if s.Apply {
		cfg.ConnectorName = s.Connector
	}
	if r.cfg.HTTP.APIKeyFile != "" {
		if cfg.Sources.Key, err = keys.ReadSecret(r.cfg.HTTP.APIKeyFile); err != nil {
			return cfg, config.AsSettingError(fmt.Errorf("api-key-file: %w", err))
		}
	}
	cfg.Plan.EnsureDefaults()
	if err := cfg.Plan.Validate(); err != nil {
		return cfg, config.AsSettingError(err)
	}
	return cfg, nil
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
		dir = filepath.Join(dir, fmt.Sprintf("workers-%d", time.Now().UnixMilli()))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	r.log.Info("the logs of workers are in a directory each", "dir", dir)
	return planner.NewProcessConnector(planner.ProcessConfig{
		Binary: binary, Args: r.cfg.WorkerArgs(), Dir: dir, DrainTimeout: time.Duration(r.cfg.Drain.Timeout), Log: obs.Component(r.log, "planner"),
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
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(report); err != nil && !errors.Is(err, req.Context().Err()) {
		r.log.Debug("a plan was not sent", "error", err)
	}
}
