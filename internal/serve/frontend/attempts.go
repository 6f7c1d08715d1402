package frontend

import (
	"context"
	"fmt"
	"log/slog"

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
	// tokens is how many of its tokens are out: they bind it to go on.
	tokens() int
	// migration names the kind of a further attempt for metrics.
	migration() string
}

// maxAttempts bounds the attempts of one task, planned moves and refusals
// included.
const maxAttempts = 64

// attempts makes attempts until the task is complete, ctx ends, or an attempt
// fails that no other worker can make good: if it is pinned to one, none can.
func (f *Frontend) attempts(ctx context.Context, t task, pinned bool) error {
	m := newMigration(f, t)
	for attempt := uint32(1); ; attempt++ {
		d, err := m.choose(ctx, attempt)
		if err != nil {
			return err
		}
		if attempt > 1 {
			f.metrics.migrations.WithLabelValues(t.migration()).Inc()
		}
		err = f.try(ctx, t, attempt, d)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ended(ctx)
		}
		err = misrouted(d, err)
		if !fault.Of(err).Class().Retryable {
			return err
		}
		f.deps.Router.Failed(d.Worker, err)
		f.throttled.Log(ctx, slog.LevelWarn, "a worker failed under a request",
			"request", idOf(ctx), "worker", uint64(d.Worker.ID), "attempt", attempt, "tokens", t.tokens(), "error", err)
		if pinned {
			return stays(d, err)
		}
		if err := m.again(ctx, d, err); err != nil {
			return err
		}
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

// misrouted makes of the error of a worker that does not know the model one that
// others can make good: it was the model's worker when it was chosen.
func misrouted(d route.Decision, err error) error {
	if fault.Of(err) != fault.NotFound {
		return err
	}
	return fault.New(fault.Unavailable, "worker %d no longer serves the model: %w", d.Worker.ID, err)
}

// exhausted is what a client is told when the last worker that could be tried
// has failed too. The cause may name addresses and is for the log.
func exhausted(err error, attempts uint32) error {
	return unfinished(err, fmt.Sprintf("no worker could finish the request (%d tried): send it again", attempts))
}

// stays is what the client of a pinned request is told when its worker has failed.
func stays(d route.Decision, err error) error {
	return unfinished(err, fmt.Sprintf("worker %d, which the request is pinned to, could not finish it, and a pinned request does not move to another: send it again, or leave the choice to the router", d.Worker.ID))
}

// unfinished is an error that says message instead of what a worker said.
func unfinished(err error, message string) error {
	f := api.Fault(err)
	code := f.Code
	if code == fault.Draining { // a matter between us and our workers
		code = fault.Unavailable
	}
	return &fault.Error{Code: code, Message: message, RetryAfter: f.RetryAfter, Err: err}
}
