// Package dispatch moves a task from worker to worker until one completes it. It adds the goroutine,
// the clock and the waiting to core/migrate, which decides. It also has the parts common to all kinds
// of attempts: asking the router, and calling a worker with a bound on its silence.
package attempt

import (
	"context"
	"fmt"
	"math/rand/v2"
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
	Choose(ctx context.Context, attempt uint32, exclude []kv.WorkerID) (route.Decision, error)
	// RunAttempt makes one attempt on the worker that was chosen and reserved for it. It returns nil
	// when the task is complete.
	Try(ctx context.Context, attempt uint32, d route.Decision) error
	// TokensDelivered is the number of its tokens already sent; further attempts must continue them.
	Tokens() int
	// MoveKind names the kind of a further attempt, for metrics.
	Kind() string
}

// The kinds of further attempts.
const (
	NewRequest     = "new_request"     // no token has been sent
	OngoingRequest = "ongoing_request" // some tokens have been sent
	Preprocess     = "preprocess"      // a prompt is to be made
)

// MoveKind is the kind of a further attempt at an answer after tokens have been sent.
func Kind(tokens int) string {
	if tokens > 0 {
		return OngoingRequest
	}
	return NewRequest
}

// WorkerView is the set of registered workers at one time.
type View interface {
	// WorkerEpoch returns the epoch of a worker; known is false for an unregistered one.
	Life(kv.WorkerID) (epoch uint64, known bool)
	// Superseded is closed when there is a newer view.
	Superseded() <-chan struct{}
}

// Dispatcher runs tasks. It can be copied, and used by many goroutines.
type Runner struct {
	// Limits bound the attempts and the waits of one task.
	Limits migrate.Config
	// View returns the latest view.
	View func() View
	// OnFailure is called after calls that failed in a way that another worker may repair.
	Failed func(Failure)
	// Moves counts further attempts, by kind. Waiting is the number of tasks that wait for a worker.
	Moves   *prometheus.CounterVec
	Waiting prometheus.Gauge
	// Tracer, if not nil, gets a span for each attempt.
	Tracer *obs.Tracer
}

// AttemptFailure is an attempt that failed in a way that another worker may repair.
type Failure struct {
	Worker  kv.Worker
	Attempt uint32
	Tokens  int // of the task, already sent
	Err     error
}

// UnfinishedError is the error of a task that had a worker but that no worker has finished. Its code,
// see [fault.Of], is the code of the last attempt's error, which may name addresses and is for the log.
type Lost struct {
	Tried  int         // attempts
	Worker kv.WorkerID // the last one
	Pinned bool        // the task could not move to another
	Err    error       // of the last attempt
}

// Error implements error.
func (l *Lost) Error() string { return fmt.Sprintf("%d attempts: %v", l.Tried, l.Err) }

// Unwrap returns the last attempt's error.
func (l *Lost) Unwrap() error { return l.Err }

// Run makes attempts, numbered from first, until the task is complete. Otherwise it returns ctx's error
// when that ends, the router's when the task never had a worker, the attempt's when no other worker can
// repair it, or an *UnfinishedError.
func (r *Runner) Run(ctx context.Context, t Task, first uint32) error {
	s := &series{Runner: r, task: t, number: first, m: migrate.New(r.Limits, rand.Uint64()), began: time.Now()}
	defer s.found()
	step := s.next()
	for {
		switch step.Do {
		case migrate.Try:
			next, done := s.try(ctx, step.Exclude)
			if done {
				return nil
			}
			step = next
		case migrate.Pause:
			if step.For > 0 && !s.wait(ctx, step.For, nil) {
				return ctx.Err()
			}
			step = s.next()
		case migrate.Await:
			s.lacks()
			if s.wait(ctx, step.For, s.view.Superseded()) {
				step = s.next()
			}
		case migrate.GiveUp:
			return s.why(step.Why)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// attemptSeries is the series of attempts at one task.
type series struct {
	*Runner
	task    Task
	m       *migrate.Machine
	began   time.Time
	view    View
	number  uint32 // of the next attempt
	waiting bool   // it is counted as waiting
	refused error  // the router's last error
	worker  kv.WorkerID
	last    error // of the last attempt
}

func (s *series) now() kv.Mono { return kv.Mono(time.Since(s.began)) }

// nextStep takes a view of the workers before the router is asked, so that no change is missed.
func (s *series) next() migrate.Step {
	s.view = s.View()
	return s.m.Next(s.now(), s.view.Life)
}

// tryWorker makes an attempt, if there is a worker for it. Its result is meaningless once ctx has
// ended.
func (s *series) try(ctx context.Context, exclude []kv.WorkerID) (_ migrate.Step, done bool) {
	d, err := s.task.Choose(ctx, s.number, exclude)
	if err != nil {
		s.refused = err
		return s.m.NoWorker(s.now(), fault.Of(err)), false
	}
	s.found()
	epoch, known := s.view.Life(d.Worker.ID)
	if s.m.Tried() > 0 {
		s.Moves.WithLabelValues(s.task.Kind()).Inc()
	}
	err = s.traced(ctx, d)
	if err == nil {
		return migrate.Step{}, true
	}
	s.number++
	s.worker, s.last = d.Worker.ID, misrouted(d, err)
	code := fault.Of(s.last)
	if ctx.Err() == nil && migrate.Movable(code) {
		s.Failed(Failure{Worker: d.Worker, Attempt: s.number - 1, Tokens: s.task.Tokens(), Err: s.last})
	}
	if !known { // the router saw the worker first
		epoch, _ = s.View().Life(d.Worker.ID)
	}
	return s.m.Failed(s.now(), migrate.Failure{Worker: d.Worker.ID, Epoch: epoch, Code: code, Tokens: s.task.Tokens(), Words: words(s.last, code)}), false
}

// engineMessage is an engine's own message about a request which it failed; "" for other failures.
func words(err error, code fault.Code) string {
	if code != fault.EngineError {
		return ""
	}
	return err.Error()
}

// asUnavailable replaces the error of a worker that does not know the model by one that other workers
// can repair: it was the model's worker when it was chosen.
func misrouted(d route.Decision, err error) error {
	if fault.Of(err) != fault.NotFound {
		return err
	}
	return fault.New(fault.Unavailable, "worker %d no longer serves the model: %w", d.Worker.ID, err)
}

// waitFor waits for d, or until news is closed. It reports whether ctx is still active.
func (s *series) wait(ctx context.Context, d time.Duration, news <-chan struct{}) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-late.C:
	case <-news:
		s.m.News()
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// startWaiting counts the task as waiting, until stopWaiting.
func (s *series) lacks() {
	if !s.waiting {
		s.waiting = true
		s.Waiting.Inc()
	}
}

func (s *series) found() {
	if s.waiting {
		s.waiting = false
		s.Waiting.Dec()
	}
}

// giveUpError is the error of a task that is given up.
func (s *series) why(reason migrate.Reason) error {
	switch reason {
	case migrate.Refused:
		return s.refused
	case migrate.Final:
		return s.last
	}
	return &Lost{Tried: s.m.Tried(), Worker: s.worker, Pinned: reason == migrate.Pinned, Err: s.last}
}
