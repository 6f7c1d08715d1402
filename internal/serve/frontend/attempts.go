package frontend

import (
	"iter"
	"time"

	"penstock/core/kv"
	"penstock/core/migrate"
	"penstock/internal/dispatch"
)

// firstWait is how long a request that never had a worker waits while the router knows none. The
// frontend takes requests for a model while its workers are registered, and the router learns of them
// separately, so for a moment only one of the two may know them.
const firstWait = 250 * time.Millisecond

// newDispatcher returns the dispatcher of the frontend's requests.
func newDispatcher(f *Frontend) *dispatch.Dispatcher {
	return &dispatch.Dispatcher{
		Limits: migrate.Config{
			MaxFailures: *f.cfg.MigrationLimit,
			MaxWait:     *f.cfg.MigrationWait, FirstWait: min(firstWait, *f.cfg.MigrationWait),
		},
		Router: f.deps.Router, Plane: f.deps.Plane,
		StallTimeout: f.cfg.StallTimeout, PreprocessTimeout: f.cfg.PreprocessTimeout,
		View:         func() dispatch.WorkerView { return f.catalog.current.Load() },
		ContextError: contextError,
		Moves:        f.metrics.migrations, Waiting: f.metrics.waiting,
		Log: f.throttled, Tracer: f.deps.Tracer,
	}
}

// latestWorkers returns a function that returns the latest workers of a model which was found earlier.
func (c *modelCatalog) latestWorkers(m *servedModel) func() dispatch.ModelWorkers {
	return func() dispatch.ModelWorkers { return c.currentModel(m) }
}

// FitWorkers implements dispatch.ModelWorkers.
func (m *servedModel) FitWorkers() iter.Seq[dispatch.ModelWorker] {
	return func(yield func(dispatch.ModelWorker) bool) {
		for i := range m.workers {
			in := &m.workers[i]
			if !yield(dispatch.ModelWorker{ID: in.ID, Addr: in.Addr, Card: &in.card}) {
				return
			}
		}
	}
}

// UnfitWorkers implements dispatch.ModelWorkers.
func (m *servedModel) UnfitWorkers() []kv.WorkerID { return m.unfitWorkers }
