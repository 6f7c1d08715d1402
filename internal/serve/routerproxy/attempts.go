package routerproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"penstock/core/fault"
	"penstock/core/migrate"
	"penstock/internal/dispatch"
)

// maxAttempts bounds the attempts made for one attempt of a caller. It is also the distance between the
// attempt numbers of two such, so that every attempt of a request has its own number, and a later one a
// higher.
const maxAttempts = 256

// maxCallerAttempt is the last attempt of a caller whose numbers fit.
const maxCallerAttempt = 1 << 23

// firstAttempt returns the number of the first attempt made for a caller's attempt.
func firstAttempt(number uint32) (uint32, error) {
	if number == 0 || number > maxCallerAttempt {
		return 0, fault.InvalidParam("attempt", "attempts are numbered from 1 to %d", maxCallerAttempt)
	}
	return (number-1)*maxAttempts + 1, nil
}

// newDispatcher returns the dispatcher of the proxy's requests.
func newDispatcher(r *Proxy) dispatch.Dispatcher {
	return dispatch.Dispatcher{
		Limits: migrate.Config{
			MaxFailures: *r.cfg.MigrationLimit, MaxAttempts: maxAttempts,
			MaxWait: *r.cfg.MigrationWait, FirstWait: min(r.cfg.FirstWait, *r.cfg.MigrationWait),
		},
		View:    func() dispatch.WorkerView { return r.deps.Catalog.Current() },
		Moves:   r.metrics.migrations,
		Waiting: r.metrics.waiting,
		Tracer:  r.deps.Tracer,
	}
}

// runAttempts makes attempts until the task is complete, ctx ends, or an attempt fails in a way that no
// other worker can repair.
func (e *proxyEngine) runAttempts(ctx context.Context, id string, t dispatch.Task, number uint32) error {
	runner := e.proxy.dispatcher
	runner.OnFailure = func(f dispatch.AttemptFailure) {
		e.proxy.deps.Router.ReportFailure(f.Worker, f.Err)
		e.proxy.throttled.Log(ctx, slog.LevelWarn, "a worker failed under a request",
			"request", id, "worker", uint64(f.Worker.ID), "attempt", f.Attempt, "tokens", f.Tokens, "error", f.Err)
	}
	err := runner.Run(ctx, t, number)
	var lost *dispatch.UnfinishedError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return contextError(ctx)
	case errors.As(err, &lost):
		return unfinishedError(lost)
	case fault.CodeOf(err) == fault.EngineError:
		// What the workers here say about the request is the answer: another router would be asked in
		// vain.
		return &fault.Error{Code: fault.Internal, Message: err.Error(), Err: err}
	}
	return err
}

// unfinishedError is the caller's error when the last eligible worker has failed too. A draining worker
// does not mean that this proxy drains.
func unfinishedError(lost *dispatch.UnfinishedError) error {
	code := fault.CodeOf(lost)
	if code == fault.Ineligible { // it says what about the request the workers cannot serve, and what to do
		return lost.Err
	}
	if code == fault.Draining {
		code = fault.Unavailable
	}
	f := &fault.Error{Code: code, Message: fmt.Sprintf("no worker behind the router could finish the request (%d tried)", lost.Tried), Err: lost.Err}
	if code == fault.Overloaded || code == fault.Limited {
		f.RetryAfter = time.Second
	}
	return f
}
