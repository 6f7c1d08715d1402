package frontend

import (
	"penstock/core/migrate"
	"penstock/internal/catalog"
	"penstock/internal/dispatch"
)

// newDispatcher returns the dispatcher of the frontend's requests.
func newDispatcher(f *Frontend) *dispatch.Dispatcher {
	return &dispatch.Dispatcher{
		Limits: migrate.Config{
			MaxFailures: *f.cfg.MigrationLimit,
			MaxWait:     *f.cfg.MigrationWait,
		},
		Router: f.deps.Router, Plane: f.deps.Plane, HasRouters: true,
		StallTimeout: f.cfg.StallTimeout, PreprocessTimeout: f.cfg.PreprocessTimeout,
		View:         func() dispatch.WorkerView { return f.catalog.workers.Current() },
		ContextError: contextError,
		Moves:        f.metrics.migrations, Waiting: f.metrics.waiting,
		Log: f.throttled, Tracer: f.deps.Tracer,
		Legs: dispatch.LegsConfig{Outcomes: f.metrics.legs},
	}
}

// latestWorkers returns a function that returns the latest workers of a model which was found earlier.
func (c *modelCatalog) latestWorkers(m *servedModel) func() *catalog.Model {
	return func() *catalog.Model { return c.currentModel(m) }
}
