package relay

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/backoff"
)

// maxAttempts bounds the attempts that one attempt of a caller may become: it is
// also the distance between the numbers that two of them use, so that each of all
// attempts at a request has a number of its own, and a later one a higher.
const maxAttempts = 256

// maxCallerAttempt is the last attempt of a caller whose numbers fit.
const maxCallerAttempt = 1 << 23

// first returns the number of the first attempt on behalf of a caller's.
func first(attempt uint32) (uint32, error) {
	if attempt == 0 || attempt > maxCallerAttempt {
		return 0, fault.Param("attempt", "attempts are numbered from 1 to %d", maxCallerAttempt)
	}
	return (attempt-1)*maxAttempts + 1, nil
}

// task is a prompt that is tried on one worker after another. It belongs to one
// goroutine.
type task interface {
	// name is the id of the request, as the router and the logs know it.
	name() string
	// choose takes a worker that is none of the failed.
	choose(ctx context.Context, attempt uint32, failed []kv.WorkerID) (route.Decision, error)
	// try makes one attempt on the worker that was chosen and reserved for it.
	try(ctx context.Context, attempt uint32, d route.Decision) error
	// moved reports whether the last attempt brought anything.
	moved() bool
	// migration names the kind of a further attempt for metrics.
	migration() string
}

// attempts makes attempts until the task is complete, ctx ends, or an attempt
// fails that no other worker can make good. The first one that fails has a
// successor at once, as one has that brought tokens; others follow after a pause.
// When the router has no worker the request waits for one, and those that failed
// may be it: whether they answer again is the router's judgement.
func (e *relayed) attempts(ctx context.Context, t task, attempt uint32) error {
	var failed []kv.WorkerID
	var last error
	var since time.Time // from when on a worker is waited for
	limit := e.r.cfg.MigrationLimit
	pause := backoff.Backoff{Least: 20 * time.Millisecond, Most: time.Second}
	for tried, end := 0, attempt+maxAttempts; attempt < end; {
		d, err := t.choose(ctx, attempt, failed)
		switch {
		case ctx.Err() != nil:
			return ended(ctx)
		case err != nil:
			if since.IsZero() {
				since = time.Now()
			}
			if time.Since(since) >= e.r.patience(err, last) {
				return cmp.Or(exhausted(last, tried), err)
			}
			failed = failed[:0]
			if pause.Wait(ctx) != nil {
				return ended(ctx)
			}
			continue
		}
		if tried > 0 {
			e.r.metrics.migrations.WithLabelValues(t.migration()).Inc()
		}
		tried, since = tried+1, time.Time{}
		last = t.try(ctx, attempt, d)
		attempt++
		switch {
		case last == nil:
			return nil
		case ctx.Err() != nil:
			return ended(ctx)
		case !fault.Of(last).Class().Retryable:
			return last
		}
		e.r.deps.Router.Failed(d.Worker, last)
		e.r.throttled.Log(ctx, slog.LevelWarn, "a worker failed under a request",
			"request", t.name(), "worker", uint64(d.Worker.ID), "attempt", attempt-1, "error", last)
		if fault.Of(last) != fault.Draining {
			limit--
		}
		if limit < 0 {
			return exhausted(last, tried)
		}
		failed = append(failed, d.Worker.ID)
		switch {
		case t.moved():
			pause.Reset()
		case tried > 1 && pause.Wait(ctx) != nil:
			return ended(ctx)
		}
	}
	return exhausted(last, maxAttempts)
}

// patience is how long a worker is waited for while the router has none because
// of err, by a request whose last attempt ended in last; nil if it had none.
func (r *Relay) patience(err, last error) time.Duration {
	switch {
	case last != nil && fault.Of(err).Class().Retryable:
		return r.cfg.MigrationWait
	case last == nil && fault.Of(err) == fault.Unavailable:
		return min(r.cfg.MigrationWait, r.cfg.FirstWait)
	}
	return 0
}

// exhausted is what the caller is told when the last worker that could be tried
// has failed too. A worker that leaves is no reason to think that this relay does.
func exhausted(err error, attempts int) error {
	if err == nil {
		return nil
	}
	code := fault.Of(err)
	if code == fault.Draining {
		code = fault.Unavailable
	}
	f := &fault.Error{Code: code, Message: fmt.Sprintf("no worker behind the router could finish the request (%d tried)", attempts), Err: err}
	if code == fault.Overloaded || code == fault.Limited {
		f.RetryAfter = time.Second
	}
	return f
}
