package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/router"
	"penstock/internal/serve/worker"
)

// workersOfEach is how many workers a model has: one to fail, one to continue.
const workersOfEach = 2

// maxBody bounds request bodies, low enough for a small test of the limit.
const maxBody = 1 << 20

// readyTimeout bounds the time until every model is ready.
const readyTimeout = 5 * time.Minute

// recordedSystem is a router, a frontend and workers on in-memory planes.
type recordedSystem struct {
	dialects []*dialect
	pipes    map[engine.TokenizerRef]*prep.Pipeline
	router   *router.Router
	workers  []*worker.Worker
	frontend *frontend.Frontend
}

// buildSystem makes the system of the dialects. Files of their pipelines go to scratch.
func buildSystem(dialects []*dialect, scratch string, stderr io.Writer) (*recordedSystem, error) {
	levels, err := obs.ParseLevels("warn", nil)
	if err != nil {
		return nil, err
	}
	log, err := obs.NewLogger(stderr, "text", levels)
	if err != nil {
		return nil, err
	}
	s := &recordedSystem{dialects: dialects, pipes: map[engine.TokenizerRef]*prep.Pipeline{}}
	metrics := obs.NewMetrics()
	planes := worker.Planes{RPC: rpc.NewMemPlane(), Bus: bus.NewMemBus(), Registry: disco.NewMemRegistry()}
	s.router, err = router.New(router.Config{Route: route.Config{Mode: route.RoundRobin}},
		router.Planes{Bus: planes.Bus, Registry: planes.Registry, RPC: planes.RPC}, nil, metrics, log)
	if err != nil {
		return nil, err
	}
	counts := worker.NewMetrics(metrics)
	for _, d := range dialects {
		engines, err := s.openEngines(d, filepath.Join(scratch, d.name))
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", d.name, err)
		}
		for _, eng := range engines {
			// There is no recording for a canary.
			cfg := worker.Config{ID: kv.WorkerID(len(s.workers) + 1), Epoch: 1, CanaryInterval: new(time.Duration(0))}
			w, err := worker.New(cfg, eng, planes, counts, log)
			if err != nil {
				return nil, err
			}
			s.workers = append(s.workers, w)
		}
	}
	s.frontend, err = frontend.New(frontend.Config{MaxBodyBytes: maxBody}, frontend.Deps{
		Router: s.router, Plane: planes.RPC, Catalog: s.router.Catalog(), OpenTokenizer: s.lookupPipeline, Metrics: metrics, Log: log,
		Mount: map[string]http.Handler{"/v1/router/": s.router.Handler()}, OnDrain: s.router.EndWatches,
	})
	return s, err
}

// openEngines makes the engines of one dialect, whose pipeline has its files in dir.
func (s *recordedSystem) openEngines(d *dialect, dir string) ([]*recordingEngine, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	pipe, ref, err := openPipeline(d, dir)
	if err != nil {
		return nil, err
	}
	s.pipes[ref] = pipe
	var engines []*recordingEngine
	for range workersOfEach {
		e, err := newRecordingEngine(d, pipe, ref)
		if err != nil {
			return nil, err
		}
		engines = append(engines, e)
	}
	return engines, nil
}

// lookupPipeline returns the pipelines which were opened for the workers.
func (s *recordedSystem) lookupPipeline(ref engine.TokenizerRef) (*prep.Pipeline, error) {
	if p := s.pipes[ref]; p != nil {
		return p, nil
	}
	return nil, fault.New(fault.NotFound, "no recordings have this tokenizer")
}

// serveUntilDone runs everything until ctx ends or a part fails, and calls ready once. The frontend stops
// first, then the workers, then the router, so that requests in progress may finish.
func (s *recordedSystem) serveUntilDone(ctx context.Context, ln net.Listener, ready func()) error {
	ctx, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	var workers []func(context.Context) error
	for _, w := range s.workers {
		workers = append(workers, w.Run)
	}
	stages := []*serviceStage{
		startStage(ctx, failed, s.router.Run),
		startStage(ctx, failed, workers...),
		startStage(ctx, failed, func(ctx context.Context) error { return s.frontend.Run(ctx, ln) }),
	}
	err := s.awaitReady(ctx)
	if err == nil {
		ready()
		<-ctx.Done()
	}
	for _, st := range slices.Backward(stages) {
		err = errors.Join(err, st.endStage())
	}
	return err
}

// awaitReady returns when every model is ready, or ctx has ended.
func (s *recordedSystem) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for {
		waiting := 0
		for _, d := range s.dialects {
			if s.frontend.WorkerCount(d.name) < workersOfEach {
				waiting++
			}
		}
		if waiting == 0 {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%d models are not ready: %w", waiting, context.Cause(ctx))
		}
	}
}

// serviceStage is a set of services which start and stop together.
type serviceStage struct {
	stop context.CancelFunc
	ends chan error // has room for the result of each
}

// startStage runs services until the stage ends. A failing one is reported at once; ctx does not cancel them.
func startStage(ctx context.Context, failed context.CancelCauseFunc, runs ...func(context.Context) error) *serviceStage {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	st := &serviceStage{stop: stop, ends: make(chan error, len(runs))}
	for _, run := range runs {
		go func() {
			err := run(life)
			if err != nil {
				failed(err)
			}
			st.ends <- err
		}()
	}
	return st
}

// endStage stops the services and waits for them.
func (st *serviceStage) endStage() (err error) {
	st.stop()
	for range cap(st.ends) {
		err = errors.Join(err, <-st.ends)
	}
	return err
}
