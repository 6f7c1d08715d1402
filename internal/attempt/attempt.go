// Package attempt carries a task from worker to worker until one completes it: the
// goroutine, the clock and the waiting around core/migrate, which decides. It also
// has what attempts of all kinds do alike: asking the router, and calling a worker
// that must not be silent for too long.
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

// Task is a prompt, or what becomes one, that is tried on one worker after another.
// It belongs to the goroutine that runs it.
type Task interface {
	// Choose asks for a worker that is none of exclude, which it does not keep. Its
	// error has a code, see [fault.Of].
	Choose(ctx context.Context, attempt uint32, exclude []kv.WorkerID) (route.Decision, error)
	// Try makes one attempt on the worker that was chosen and reserved for it. It
	// returns nil when the task is complete.
	Try(ctx context.Context, attempt uint32, d route.Decision) error
	// Tokens is how many of its tokens are out: they bind it to go on.
	Tokens() int
	// Kind names the kind of a further attempt, for metrics.
	Kind() string
}

// The kinds of further attempts.
const (
	NewRequest     = "new_request"     // no token is out yet
	OngoingRequest = "ongoing_request" // some are
	Preprocess     = "preprocess"      // a prompt is to be made
)

// Kind is the kind of a further attempt at an answer of which so many tokens are out.
func Kind(tokens int) string {
	if tokens > 0 {
		return OngoingRequest
	}
	return NewRequest
}

// View is who is registered, at one time.
type View interface {
	// Life returns the life that a worker is in; known is false for one that is not
	// registered.
	Life(kv.WorkerID) (epoch uint64, known bool)
	// Superseded is closed when there is a newer view.
	Superseded() <-chan struct{}
}

// Runner runs tasks. It can be copied, and used by many goroutines.
type Runner struct {
	// Limits bound what is done for one task.
	Limits migrate.Config
	// View returns the latest view.
	View func() View
	// Failed is told of calls that failed in a way that another worker may make good.
	Failed func(Failure)
	// Moves counts further attempts, by kind; Waiting are the tasks that wait for a
	// worker.
	Moves   *prometheus.CounterVec
	Waiting prometheus.Gauge
	// Tracer, if not nil, gets a span for each attempt.
	Tracer *obs.Tracer
}

// Failure is an attempt that failed in a way that another worker may make good.
type Failure struct {
	Worker  kv.Worker
	Attempt uint32
	Tokens  int // of the task that are out
	Err     error
}

// Lost is the error of a task that had a worker, and that none has finished. Its
// code, see [fault.Of], is that of the last attempt's error, which may name
// addresses and is for the log.
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

// Run makes attempts, numbered from first, until the task is complete. Else it
// returns ctx's error when that ends, the router's when the task never had a worker,
// the attempt's when no other worker makes that good, or a *Lost.
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

// series is the attempts at one task.
type series struct {
	*Runner
	task    Task
	m       *migrate.Machine
	began   time.Time
	view    View
	number  uint32 // of the next attempt
	waiting bool   // it counts as such
	refused error  // what the router said last
	worker  kv.WorkerID
	last    error // of the last attempt
}

func (s *series) now() kv.Mono { return kv.Mono(time.Since(s.began)) }

// next looks who is there before the router is asked, so that no change is missed.
func (s *series) next() migrate.Step {
	s.view = s.View()
	return s.m.Next(s.now(), s.view.Life)
}

// try makes an attempt, if there is a worker for it. What it returns is no use once
// ctx has ended.
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
	if !known { // the router had heard of it first
		epoch, _ = s.View().Life(d.Worker.ID)
	}
	return s.m.Failed(s.now(), migrate.Failure{Worker: d.Worker.ID, Epoch: epoch, Code: code, Tokens: s.task.Tokens(), Words: words(s.last, code)}), false
}

// words are what an engine said of a request on which it failed; "" of other failures.
func words(err error, code fault.Code) string {
	if code != fault.EngineError {
		return ""
	}
	return err.Error()
}

// misrouted makes of the error of a worker that does not know the model one that
// others can make good: it was the model's worker when it was chosen.
func misrouted(d route.Decision, err error) error {
	if fault.Of(err) != fault.NotFound {
		return err
	}
	return fault.New(fault.Unavailable, "worker %d no longer serves the model: %w", d.Worker.ID, err)
}

// wait waits for d, or until news come. It reports whether ctx is still on.
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

// lacks counts the task among those that wait, and found no longer.
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

// why is the error of a task that is given up.
func (s *series) why(reason migrate.Reason) error {
	switch reason {
	case migrate.Refused:
		return s.refused
	case migrate.Final:
		return s.last
	}
	return &Lost{Tried: s.m.Tried(), Worker: s.worker, Pinned: reason == migrate.Pinned, Err: s.last}
}
