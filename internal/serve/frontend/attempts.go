package frontend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"penstock/core/fault"
	"penstock/core/migrate"
	"penstock/internal/dispatch"
	"penstock/internal/edge/api"
)

// newRunner returns the runner which dispatches the tasks of this frontend's requests.
func newRunner(f *Frontend) dispatch.Dispatcher {
	return dispatch.Dispatcher{
		Limits: migrate.Config{
			MaxFailures: *f.cfg.MigrationLimit,
			MaxWait:     *f.cfg.MigrationWait,
		},
		View:    func() dispatch.WorkerView { return f.catalog.workers.Current() },
		Moves:   f.metrics.migrations,
		Waiting: f.metrics.waiting,
		Tracer:  f.deps.Tracer,
	}
}

// runAttempts makes attempts until the task is complete, ctx ends, or an attempt fails in a way that no
// other worker can repair; for a pinned task none can.
func (f *Frontend) runAttempts(ctx context.Context, t dispatch.Task, pinned bool) error {
	runner := f.runner
	runner.Limits.Pinned = pinned
	runner.OnFailure = func(l dispatch.AttemptFailure) {
		f.deps.Router.ReportFailure(l.Worker, l.Err)
		f.throttled.Log(ctx, slog.LevelWarn, "a worker failed under a request",
			"request", requestIDOf(ctx), "worker", uint64(l.Worker.ID), "attempt", l.Attempt, "tokens", l.Tokens, "error", l.Err)
	}
	err := runner.Run(ctx, t, 1)
	var lost *dispatch.UnfinishedError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return contextError(ctx)
	case errors.As(err, &lost):
		return unfinishedError(lost)
	}
	return err
}

// unfinishedError is the client's error when the last eligible worker has failed too.
func unfinishedError(lost *dispatch.UnfinishedError) error {
	if fault.CodeOf(lost) == fault.Ineligible { // it says what about the request the workers cannot serve, and what to do
		return api.AsFault(lost.Err)
	}
	message := fmt.Sprintf("no worker could finish the request (%d tried): send it again", lost.Tried)
	if lost.Pinned {
		message = fmt.Sprintf("worker %d, which the request is pinned to, could not finish it, and a pinned request does not move to another: send it again, or leave the choice to the router", lost.Worker)
	}
	f := api.AsFault(lost.Err)
	code := f.Code
	if code == fault.Draining { // an internal matter of the fleet
		code = fault.Unavailable
	}
	return &fault.Error{Code: code, Message: message, RetryAfter: f.RetryAfter, Err: lost.Err}
}
