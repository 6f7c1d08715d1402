// Package dispatch moves a task from worker to worker until one completes it. It adds the goroutine,
// the clock and the waiting to core/migrate, which decides. It also has the parts common to all kinds
// of attempts: asking the router, and calling a worker with a bound on its silence.
package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/obs"
)

// Task is a request, or the making of its prompt, that is tried on one worker after another. The
// goroutine that runs it owns it.
type Task interface {
	// ChooseWorker asks for a worker which is not in exclude; it does not keep the slice. Its error has
	// a code, see [fault.Of].
	ChooseWorker(ctx context.Context, attempt uint32, exclude []kv.WorkerID) (route.Decision, error)
	// RunAttempt makes one attempt on the worker that was chosen and reserved for it. It returns nil
	// when the task is complete.
	RunAttempt(ctx context.Context, attempt uint32, d route.Decision) error
	// TokensDelivered is the number of its tokens already sent; further attempts must continue them.
	TokensDelivered() int
	// MoveKind names the kind of a further attempt, for metrics.
	MoveKind() string
}

// The kinds of further attempts.
const (
	MoveNewRequest     = "new_request"     // no token has been sent
	MoveOngoingRequest = "ongoing_request" // some tokens have been sent
	MovePreprocess     = "preprocess"      // a prompt is to be made
)

// MoveKind is the kind of a further attempt at an answer after tokens have been sent.
func MoveKind(tokens int) string {
	if tokens > 0 {
		return MoveOngoingRequest
	}
	return MoveNewRequest
}

// WorkerView is the set of registered workers at one time.
type WorkerView interface {
	// WorkerEpoch returns the epoch of a worker; known is false for an unregistered one.
	WorkerEpoch(kv.WorkerID) (epoch uint64, known bool)
	// Superseded is closed when there is a newer view.
	Superseded() <-chan struct{}
}

// Dispatcher runs tasks. It can be copied, and used by many goroutines.
type Dispatcher struct {
	// Limits bound the attempts and the waits of one task.
	Limits migrate.Config
	// View returns the latest view.
	View func() WorkerView
	// OnFailure is called after calls that failed in a way that another worker may repair.
	OnFailure func(AttemptFailure)
	// Moves counts further attempts, by kind. Waiting is the number of tasks that wait for a worker.
	Moves   *prometheus.CounterVec
	Waiting prometheus.Gauge
	// Tracer, if not nil, gets a span for each attempt.
	Tracer *obs.Tracer
}

// AttemptFailure is an attempt that failed in a way that another worker may repair.
type AttemptFailure struct {
	Worker  kv.Worker
	Attempt uint32
	Tokens  int // of the task, already sent
	Err     error
}

// UnfinishedError is the error of a task that had a worker but that no worker has finished. Its code,
// see [fault.Of], is the code of the last attempt's error, which may name addresses and is for the log.
type UnfinishedError struct {
	Tried  int         // attempts
	Worker kv.WorkerID // the last one
	Pinned bool        // the task could not move to another
	Err    error       // of the last attempt
}

// Error implements error.
func (l *UnfinishedError) Error() string { return fmt.Sprintf("%d attempts: %v", l.Tried, l.Err) }

// Unwrap returns the last attempt's error.
func (l *UnfinishedError) Unwrap() error { return l.Err }

// Run makes attempts, numbered from first, until the task is complete. Otherwise it returns ctx's error
// when that ends, the router's when the task never had a worker, the attempt's when no other worker can
// repair it, or an *UnfinishedError.
func (r *Dispatcher) Run(ctx context.Context, t Task, first uint32) error {
	s := &attemptSeries{Dispatcher: r, task: t, number: first, machine: migrate.New(r.Limits, rand.Uint64()), startedAt: time.Now()}
	defer s.stopWaiting()
	step := s.nextStep()
	for {
		switch step.Action {
		case migrate.Try:
			next, done := s.tryWorker(ctx, step.Exclude)
			if done {
				return nil
			}
			step = next
		case migrate.Pause:
			if step.Wait > 0 && !s.waitFor(ctx, step.Wait, nil) {
				return ctx.Err()
			}
			step = s.nextStep()
		case migrate.Await:
			s.startWaiting()
			if s.waitFor(ctx, step.Wait, s.view.Superseded()) {
				step = s.nextStep()
			}
		case migrate.GiveUp:
			return s.giveUpError(step.Reason)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// attemptSeries is the series of attempts at one task.
type attemptSeries struct {
	*Dispatcher
	task       Task
	machine    *migrate.Planner
	startedAt  time.Time
	view       WorkerView
	number     uint32 // of the next attempt
	waiting    bool   // it is counted as waiting
	refused    error  // the router's last error
	lastWorker kv.WorkerID
	lastErr    error // of the last attempt
}

func (s *attemptSeries) now() kv.Mono { return kv.Mono(time.Since(s.startedAt)) }

// nextStep takes a view of the workers before the router is asked, so that no change is missed.
func (s *attemptSeries) nextStep() migrate.Step {
	s.view = s.View()
	return s.machine.Next(s.now(), s.view.WorkerEpoch)
}

// tryWorker makes an attempt, if there is a worker for it. Its result is meaningless once ctx has
// ended.
func (s *attemptSeries) tryWorker(ctx context.Context, exclude []kv.WorkerID) (_ migrate.Step, done bool) {
	d, err := s.task.ChooseWorker(ctx, s.number, exclude)
	if err != nil {
		s.refused = err
		return s.machine.HandleNoWorker(s.now(), fault.CodeOf(err)), false
	}
	s.stopWaiting()
	epoch, known := s.view.WorkerEpoch(d.Worker.ID)
	if s.machine.FailedAttempts() > 0 {
		s.Moves.WithLabelValues(s.task.MoveKind()).Inc()
	}
	err = s.runTraced(ctx, d)
	if err == nil {
		return migrate.Step{}, true
	}
	s.number++
	s.lastWorker, s.lastErr = d.Worker.ID, asUnavailable(d, err)
	code := fault.CodeOf(s.lastErr)
	if ctx.Err() == nil && migrate.CanMigrate(code) {
		s.OnFailure(AttemptFailure{Worker: d.Worker, Attempt: s.number - 1, Tokens: s.task.TokensDelivered(), Err: s.lastErr})
	}
	if !known { // the router saw the worker first
		epoch, _ = s.View().WorkerEpoch(d.Worker.ID)
	}
	return s.machine.HandleFailure(s.now(), migrate.Failure{Worker: d.Worker.ID, Epoch: epoch, Code: code, Tokens: s.task.TokensDelivered(), Message: engineMessage(s.lastErr, code)}), false
}

// engineMessage is an engine's own message about a request which it failed; "" for other failures.
func engineMessage(err error, code fault.Code) string {
	if code != fault.EngineError {
		return ""
	}
	return err.Error()
}

// asUnavailable replaces the error of a worker that does not know the model by one that other workers
// can repair: it was the model's worker when it was chosen.
func asUnavailable(d route.Decision, err error) error {
	if fault.CodeOf(err) != fault.NotFound {
		return err
	}
	return fault.New(fault.Unavailable, "worker %d no longer serves the model: %w", d.Worker.ID, err)
}

// waitFor waits for d, or until news is closed. It reports whether ctx is still active.
func (s *attemptSeries) waitFor(ctx context.Context, d time.Duration, news <-chan struct{}) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-late.C:
	case <-news:
		s.machine.WorkersChanged()
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// startWaiting counts the task as waiting, until stopWaiting.
func (s *attemptSeries) startWaiting() {
	if !s.waiting {
		s.waiting = true
		s.Waiting.Inc()
	}
}

func (s *attemptSeries) stopWaiting() {
	if s.waiting {
		s.waiting = false
		s.Waiting.Dec()
	}
}

// giveUpError is the error of a task that is given up.
func (s *attemptSeries) giveUpError(reason migrate.GiveUpReason) error {
	switch reason {
	case migrate.Refused:
		return s.refused
	case migrate.Final:
		return s.lastErr
	}
	return &UnfinishedError{Tried: s.machine.FailedAttempts(), Worker: s.lastWorker, Pinned: reason == migrate.Pinned, Err: s.lastErr}
}

// Router is the part of the router that attempts need.
type Router interface {
	// Route chooses a worker and reserves the request's load there. It keeps nothing of req.
	Route(ctx context.Context, req *route.Request) (route.Decision, error)
}

// RouteAvoiding asks for a worker for req which is not in exclude, and preferably not in avoid. It sets
// req.Exclude. A model that the router does not know, or no longer, counts as a model without workers,
// because the caller knows that it exists.
func RouteAvoiding(ctx context.Context, router Router, req *route.Request, avoid, exclude []kv.WorkerID) (route.Decision, error) {
	if len(avoid) > 0 {
		req.Exclude = slices.Concat(avoid, exclude)
		d, err := router.Route(ctx, req)
		if err == nil || ctx.Err() != nil {
			return d, err
		}
	}
	req.Exclude = exclude
	d, err := router.Route(ctx, req)
	if fault.CodeOf(err) == fault.NotFound && req.Pin.ID == 0 {
		err = fault.New(fault.Unavailable, "the model '%s' has no worker now: try again later", req.Model)
	}
	return d, err
}
