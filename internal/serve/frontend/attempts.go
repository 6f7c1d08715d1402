package frontend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"penstock/core/fault"
	"penstock/core/migrate"
	"penstock/internal/attempt"
	"penstock/internal/edge/api"
)

// firstWait is how long a request that never had a worker waits while the router knows none. The
// frontend takes requests for a model while its workers are registered, and the router learns of them
// separately, so for a moment only one of the two may know them.
const firstWait = 250 * time.Millisecond

// newRunner returns the runner which dispatches the tasks of this frontend's requests.
func newRunner(f *Frontend) attempt.Runner {
	return attempt.Runner{
		Limits: migrate.Config{
			Limit: f.cfg.MigrationLimit,
			Wait:  f.cfg.MigrationWait, FirstWait: min(firstWait, f.cfg.MigrationWait),
		},
		View:    func() attempt.View { return f.catalog.snap.Load() },
		Moves:   f.metrics.migrations,
		Waiting: f.metrics.waiting,
		Tracer:  f.deps.Tracer,
	}
}

// runAttempts makes attempts until the task is complete, ctx ends, or an attempt fails in a way that no
// other worker can repair; for a pinned task none can.
func (f *Frontend) attempts(ctx context.Context, t attempt.Task, pinned bool) error {
	runner := f.runner
	runner.Limits.Pinned = pinned
	runner.Failed = func(l attempt.Failure) {
		f.deps.Router.Failed(l.Worker, l.Err)
		f.throttled.Log(ctx, slog.LevelWarn, "a worker failed under a request",
			"request", idOf(ctx), "worker", uint64(l.Worker.ID), "attempt", l.Attempt, "tokens", l.Tokens, "error", l.Err)
	}
	err := runner.Run(ctx, t, 1)
	var lost *attempt.Lost
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ended(ctx)
	case errors.As(err, &lost):
		return unfinished(lost)
	}
	return err
}

// unfinishedError is the client's error when the last eligible worker has failed too.
func unfinished(lost *attempt.Lost) error {
	if fault.Of(lost) == fault.Ineligible { // it says what about the request the workers cannot serve, and what to do
		return api.Fault(lost.Err)
	}
	message := fmt.Sprintf("no worker could finish the request (%d tried): send it again", lost.Tried)
	if lost.Pinned {
		message = fmt.Sprintf("worker %d, which the request is pinned to, could not finish it, and a pinned request does not move to another: send it again, or leave the choice to the router", lost.Worker)
	}
	f := api.Fault(lost.Err)
	code := f.Code
	if code == fault.Draining { // an internal matter of the fleet
		code = fault.Unavailable
	}
	return &fault.Error{Code: code, Message: message, RetryAfter: f.RetryAfter, Err: lost.Err}
}
