// Package dispatch moves a task from worker to worker until one completes it. It adds the goroutine,
// the clock and the waiting to core/migrate, which decides. It has every kind of task that a frontend or a
// router process gives to workers: [Generation], [Passthrough], [Embedding] and [Preprocessing]. Each asks
// the router, and calls the worker with a bound on its silence.
//
// # Legs
//
// A generation whose worker's engine moves KV blocks itself (engine.Card.KVConnector) is served as two legs, if the
// model has prefill workers with that connector: first a prefill leg on one of them, then a decode leg on the
// attempt's worker with what the first gave. That happens inside of one attempt, in the place of the one call which
// it makes otherwise. So the router's choice by load stays the choice of the decode worker, and streaming,
// cancelling and moving to another worker know nothing of legs: an attempt which moves begins its legs anew, with
// the tokens so far as a part of the prompt. The steps are those of [disagg.Legs]; the router chooses the prefill
// worker by what its cache has and by its load, with a reservation of its own ([route.PrefillWorkers]). A request
// is served whole where legs are of no use or fail too often, never refused.
package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/engine"
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

// Dispatcher runs tasks. All fields but Tracer are required. Many goroutines may use it; it must not be
// copied.
type Dispatcher struct {
	// Limits bound the attempts and the waits of one task.
	Limits migrate.Config
	Router Router
	Plane  WorkerCaller
	// StallTimeout is how long a worker may send nothing, not even progress, before the task moves to another. It is
	// not the setting stall-timeout, which workers apply to single streams. PreprocessTimeout is the same of workers
	// which make prompts.
	StallTimeout, PreprocessTimeout time.Duration
	// View returns the latest view.
	View func() WorkerView
	// Place says in messages where the workers are; "" or such as " behind the router".
	Place string
	// HasRouters says that workers may be router processes, which get the hints of a request.
	HasRouters bool
	// ContextError returns the error of a task whose context has ended.
	ContextError func(ctx context.Context) error
	// Moves counts further attempts, by kind. Waiting is the number of tasks that wait for a worker.
	Moves   *prometheus.CounterVec
	Waiting prometheus.Gauge
	Log     *obs.Throttle
	// Tracer, if not nil, gets a span for each attempt.
	Tracer *obs.Tracer
	// Legs says how requests are divided; the zero value is good.
	Legs LegsConfig

	nextWorker atomic.Uint64 // round-robin position among workers that make prompts
	legRuns    atomic.Uint64 // attempts which were divided
}

// maxLegAttempts bounds LegsConfig.MaxAttempts.
const maxLegAttempts = 16

// nextLegs returns the first reference of an attempt which is divided, which has maxLegAttempts of them. They do not leave
// the process, except as numbers of reservations.
func (r *Dispatcher) nextLegs() disagg.AttemptRef {
	n := r.legRuns.Add(1) * maxLegAttempts
	return disagg.AttemptRef{Epoch: n>>32 + 1, Attempt: uint32(n)}
}

// errSink ends the attempts of a task whose answer is no longer taken.
var errSink = errors.New("dispatch: the answer is not taken")

// runRouted is runTask for a task whose workers the router chooses.
func (r *Dispatcher) runRouted(ctx context.Context, t Task, routed *RoutedTask, first uint32) error {
	routed.dispatcher = r
	err := r.runTask(ctx, t, routed.Route.ID, first, routed.Route.Pin.ID != 0)
	if errors.Is(err, errSink) {
		return routed.sinkErr
	}
	return err
}

// interruptedError is the error of a request whose last attempt failed with err. Draining is an internal
// matter of the fleet: the process that was asked does not drain.
func interruptedError(err error, message string) error {
	f := &fault.Error{Code: fault.CodeOf(err), Message: message, Err: err}
	var last *fault.Error
	if errors.As(err, &last) {
		f.RetryAfter = last.RetryAfter
	}
	switch f.Code {
	case fault.Draining:
		f.Code = fault.Unavailable
	case fault.Overloaded, fault.Limited:
		f.RetryAfter = cmp.Or(f.RetryAfter, time.Second)
	}
	return f
}

// runTask makes attempts for the request of an id, numbered from first, until the task is complete. A pinned
// task does not move. The error is for the caller: that of ctx if it has ended, the router's if the
// task never had a worker, the attempt's if no other worker can repair it, or that no worker could finish it.
func (r *Dispatcher) runTask(ctx context.Context, t Task, id string, first uint32, pinned bool) error {
	limits := r.Limits
	limits.Pinned = pinned
	s := &attemptSeries{Dispatcher: r, task: t, id: id, number: first, machine: migrate.New(limits, rand.Uint64()), startedAt: time.Now()}
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
			if step.Wait <= 0 || s.waitFor(ctx, step.Wait, nil) {
				step = s.nextStep()
			}
		case migrate.Await:
			s.startWaiting()
			if s.waitFor(ctx, step.Wait, s.view.Superseded()) {
				step = s.nextStep()
			}
		case migrate.GiveUp:
			return s.giveUpError(step.Reason)
		}
		if ctx.Err() != nil {
			return r.ContextError(ctx)
		}
	}
}

// attemptSeries is the series of attempts at one task.
type attemptSeries struct {
	*Dispatcher
	task       Task
	id         string // of the request, for the log
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
	code := decisiveCode(s.lastErr)
	if ctx.Err() == nil && migrate.CanMigrate(code) {
		s.Router.ReportFailure(d.Worker, s.lastErr)
		s.Log.Log(ctx, slog.LevelWarn, "a worker failed under a request",
			"request", s.id, "worker", uint64(d.Worker.ID), "attempt", s.number-1, "tokens", s.task.TokensDelivered(), "error", s.lastErr)
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

// decisiveCode is the code by which it is decided how a task goes on after err. That of a medium which no other worker
// would encode either is final, whatever its client is told: the time for it may be over.
func decisiveCode(err error) fault.Code {
	if slices.ContainsFunc(engine.MediaFailures(err), (*engine.MediaFailure).EndsRequest) {
		return fault.MediaFailed
	}
	return fault.CodeOf(err)
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
	message := fmt.Sprintf("no worker%s could finish the request (%d tried): send it again", s.Place, s.machine.FailedAttempts())
	switch {
	case reason == migrate.Refused:
		return s.refused
	case reason == migrate.Final, fault.CodeOf(s.lastErr) == fault.Ineligible: // it says what the matter is, and what to do
		return s.lastErr
	case reason == migrate.Pinned:
		message = fmt.Sprintf("worker %d, which the request is pinned to, could not finish it, and a pinned request does not move to another: send it again, or leave the choice to the router", s.lastWorker)
	}
	return interruptedError(s.lastErr, message)
}
