package frontend

import (
	"context"
	"fmt"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/api"
)

// task is a prompt that is tried on one worker after another. It belongs to one
// goroutine.
type task interface {
	// choose asks the router for a worker that is none of the failed.
	choose(ctx context.Context, attempt uint32, failed []kv.WorkerID) (route.Decision, error)
	// try makes one attempt on the worker that was chosen and reserved for it.
	try(ctx context.Context, attempt uint32, d route.Decision) error
	// migration names the kind of a further attempt for metrics.
	migration() string
}

// attempts makes attempts until the task is complete, ctx ends, or an attempt
// fails that no other worker can make good: if it is pinned to one, none can.
func (f *Frontend) attempts(ctx context.Context, t task, pinned bool) error {
	var failed []kv.WorkerID
	var last error
	for attempt := uint32(1); ; attempt++ {
		decision, err := t.choose(ctx, attempt, failed)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ended(ctx)
		case last != nil:
			return exhausted(last, attempt-1)
		default:
			return err
		}
		if attempt > 1 {
			f.metrics.migrations.WithLabelValues(t.migration()).Inc()
		}
		last = f.try(ctx, t, attempt, decision)
		switch {
		case last == nil:
			return nil
		case ctx.Err() != nil:
			return ended(ctx)
		case !fault.Of(last).Class().Retryable:
			return last
		}
		f.deps.Router.Failed(decision.Worker, last)
		if int(attempt) > f.cfg.MigrationLimit || pinned {
			return exhausted(last, attempt)
		}
		failed = append(failed, decision.Worker.ID)
	}
}

// route asks the router for a worker of a model of the catalog.
func (f *Frontend) route(ctx context.Context, m *model, req *route.Request) (route.Decision, error) {
	d, err := f.deps.Router.Route(ctx, req)
	if fault.Of(err) == fault.NotFound && req.Pin.ID == 0 {
		// The catalog has the model and the router has not, or no longer.
		err = fault.New(fault.Unavailable, "the model '%s' has no worker now: try again later", m.card.Name)
	}
	return d, err
}

// exhausted is what a client is told when the last worker that could be tried
// has failed too. The cause may name addresses and is for the log.
func exhausted(err error, attempts uint32) error {
	f := api.Fault(err)
	return &fault.Error{
		Code:       f.Code,
		Message:    fmt.Sprintf("no worker could finish the request (%d tried): send it again", attempts),
		RetryAfter: f.RetryAfter,
		Err:        err,
	}
}
