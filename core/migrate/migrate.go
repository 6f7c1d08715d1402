// Package migrate decides how one task moves from worker to worker: which workers may be tried next, when,
// and when to give up.
//
// The first further attempt is immediate: most failures affect one worker, and all its streams wait. An
// attempt after one which produced tokens is immediate too. Later ones wait longer and longer. A worker which
// failed in its present epoch is not tried again while there is another; when there is none, it may be after
// Reprieve, unless it is shutting down. A task which has lost its worker waits for the next one within
// bounds, since its client has been promised an answer.
//
// A worker which rules the request out by itself, while another may take it, has not failed: the task goes
// elsewhere without a wait, and is not bound by it.
//
// A working engine may fail on a request because of the request. The task is tried elsewhere; the same error
// message at the same position, or a failure beyond the limit, is the task's answer.
//
// Only the bounds of Config limit further attempts; tasks do not share a budget. When half of the workers die
// at once each of their streams needs one further attempt, and a budget would turn the attempts it refuses
// into the failures which migration should hide. A retry storm is limited by what each task may do: a bounded
// number of failures, with growing waits; waits which call no worker; and no second call to a worker which
// failed while there is another.
//
// A Planner has one owner: its methods must not run concurrently. It is deterministic: the same seed and the
// same calls give the same steps.
//
//	step     followed by
//	Try      HandleNoWorker or HandleFailure, unless the task is over
//	Pause    Next, after the wait
//	Await    Next, after the wait or WorkersChanged
//	GiveUp   nothing
package migrate

import (
	"fmt"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/splitmix"
)

// Reprieve is how long after its failure a worker may be tried again when there is no other. A router which
// has found that it does not answer does not offer it.
const Reprieve = 500 * time.Millisecond

// The waits between further attempts, and between questions to the router while it has no worker. A change of
// the set of workers ends a wait at once.
const (
	leastPace, mostPace = 20 * time.Millisecond, time.Second
	leastPoll, mostPoll = 10 * time.Millisecond, 500 * time.Millisecond
)

// defaultAttempts bounds the attempts of a task unless Config says otherwise.
const defaultAttempts = 64

// Config bounds what is done for one task.
type Config struct {
	// MaxFailures is how many failures are followed by another attempt; none if negative. Workers which shut
	// down as planned or rule the task out do not count, nor do workers without room while the task may wait.
	Limit int
	// MaxAttempts bounds all attempts, whether they count or not. Default 64.
	Attempts int
	// MaxWait is how long a task which lost its worker waits for another while there is none, starting again
	// after each attempt which produced tokens. None if negative.
	Wait time.Duration
	// FirstWait is how long a task which never had a worker waits while there is none. A task which is
	// refused for lack of room does not wait.
	FirstWait time.Duration
	// Pinned says that no other worker may continue the task.
	Pinned bool
}

// Action is what a Step says to do.
type Action uint8

// The actions.
const (
	// Try says to ask the router for a worker which is not in Exclude and to make an attempt there.
	// HandleNoWorker or HandleFailure follows, unless the task is over.
	Try Action = iota
	// Pause says to wait for Wait, in any case. Next follows.
	Pause
	// Await says to wait for Wait, or until the set of workers changes. Next follows, in the second case
	// after WorkersChanged.
	Await
	// GiveUp ends the task, because of Reason.
	GiveUp
)

// GiveUpReason is why a task is given up.
type Reason uint8

// The reasons; the zero value is for a task which goes on.
const (
	Hopeful   Reason = iota
	Refused          // it never had a worker: the router's answer is the result
	Final            // another worker would not help after the last failure
	Pinned           // the worker to which it is pinned failed
	Exhausted        // failures, attempts or waiting time are used up
)

// Step is what to do next.
type Step struct {
	Do Action
	// Exclude are the workers which must not be tried. It is valid until the next call.
	Exclude []kv.WorkerID
	For     time.Duration
	Why     Reason
}

// String returns the step in words.
func (s Step) String() string {
	switch s.Do {
	case Try:
		return fmt.Sprintf("try any but %v", s.Exclude)
	case Pause:
		return fmt.Sprintf("pause for %v", s.For)
	case Await:
		return fmt.Sprintf("await for %v", s.For)
	}
	return "give up: " + [...]string{"hopeful", "refused", "final", "pinned", "exhausted"}[s.Why]
}

// EpochLookup returns the present epoch of a worker; known is false for one which is not registered.
type Lives func(kv.WorkerID) (epoch uint64, known bool)

// Failure is the end of an attempt which did not complete the task.
type Failure struct {
	Worker kv.WorkerID
	Epoch  uint64 // epoch in which it was tried; 0 if unknown
	Code   fault.Code
	// Tokens is how many of the task's tokens were sent in total.
	Tokens int
	// Message is the message of an engine which failed on the request, see [fault.EngineError]; it is
	// compared, and kept only until the next failure.
	Words string
}

// workerFailure is the last failure of a worker.
type failure struct {
	worker kv.WorkerID
	epoch  uint64
	never  bool // it is not tried again: it shuts down as planned, or rules the task out
	at     kv.Mono
}

// Planner is the state of one task on its way from worker to worker.
type Machine struct {
	cfg      Config
	failures []failure     // the last one of each worker
	excluded []kv.WorkerID // in the outstanding step
	tried    int           // failed attempts
	counted  int           // number of them which count against the limit
	tokens   int           // sent
	// onRequest says that in the last failure a working engine failed on the request; message is what it
	// reported.
	onRequest bool
	words     string
	// bound says that the task had a worker which failed or shut down, so that it is worth waiting for the
	// next.
	bound bool
	// waited is how long the task has waited since it was bound or got tokens, without the wait in progress,
	// if any, which started at since.
	waited  time.Duration
	waiting bool
	since   kv.Mono
	pace    pace
	poll    pace
}

// New returns the planner of a task which has not been tried. The seed spreads the waits of tasks which
// failed at the same time.
func New(cfg Config, seed uint64) *Machine {
	if cfg.Attempts == 0 {
		cfg.Attempts = defaultAttempts
	}
	return &Machine{
		cfg:  cfg,
		pace: pace{least: leastPace, most: mostPace, draw: splitmix.Source(seed)},
		poll: pace{least: leastPoll, most: mostPoll, draw: splitmix.Source(^seed)},
	}
}

// FailedAttempts returns how many attempts have failed.
func (m *Machine) Tried() int { return m.tried }

// WorkersChanged records that the set of workers has changed: a suitable worker may be there, or the router
// may learn of it a moment later.
func (m *Machine) News() { m.poll.reset() }

// Next starts the task, or continues after a Pause or an Await. It always returns Try, excluding all workers
// which failed in their present epoch.
func (m *Machine) Next(now kv.Mono, lives Lives) Step {
	if m.waiting {
		m.waiting = false
		m.waited += now.Sub(m.since)
	}
	m.excluded = m.excluded[:0]
	for _, f := range m.failures {
		if epoch, known := lives(f.worker); !known || epoch == f.epoch {
			m.excluded = append(m.excluded, f.worker)
		}
	}
	return Step{Do: Try, Exclude: m.excluded}
}

// HandleNoWorker records that the router has no worker, with the code of its answer. Failed workers past
// their Reprieve are tried then, if any; else the task waits, or ends.
func (m *Machine) NoWorker(now kv.Mono, code fault.Code) Step {
	if m.spare(now) {
		return Step{Do: Try, Exclude: m.excluded}
	}
	left := m.patience(code) - m.waited
	switch {
	case left > 0 && (refusal(code) || code == fault.Unavailable):
		m.waiting, m.since = true, now
		return Step{Do: Await, For: min(m.poll.next(), left)}
	case m.tried == 0:
		return Step{Do: GiveUp, Why: Refused}
	}
	return m.giveUp(Exhausted)
}

// giveUp ends the task. If the last failure was an engine's on the request, its message is the answer, even
// if another reason prevents a further attempt.
func (m *Machine) giveUp(why Reason) Step {
	if m.onRequest {
		why = Final
	}
	return Step{Do: GiveUp, Why: why}
}

// readmitFailed removes from the excluded workers those past their Reprieve, and reports whether there were
// any.
func (m *Machine) spare(now kv.Mono) bool {
	before := len(m.excluded)
	for _, f := range m.failures {
		if !f.never && now.Sub(f.at) >= Reprieve {
			m.excluded = slices.DeleteFunc(m.excluded, func(id kv.WorkerID) bool { return id == f.worker })
		}
	}
	return len(m.excluded) < before
}

// waitLimit is how long the task waits in total while there is no worker.
func (m *Machine) patience(code fault.Code) time.Duration {
	switch {
	case m.bound:
		return m.cfg.Wait
	case m.tried == 0 && code == fault.Unavailable:
		return m.cfg.FirstWait
	}
	return 0
}

// HandleFailure records that an attempt failed, and how.
func (m *Machine) Failed(now kv.Mono, f Failure) Step {
	same := m.repeats(f)
	m.note(now, f)
	switch {
	case same || !Movable(f.Code):
		return Step{Do: GiveUp, Why: Final}
	case m.cfg.Pinned:
		return m.giveUp(Pinned)
	case m.tried >= m.cfg.Attempts:
		return m.giveUp(Exhausted)
	case elsewhere(f.Code), refusal(f.Code) && m.bound && m.waited < m.cfg.Wait:
		return Step{Do: Pause}
	}
	if m.counted++; m.counted > max(m.cfg.Limit, 0) {
		return m.giveUp(Exhausted)
	}
	return Step{Do: Pause, For: m.pace.nextButFirst()}
}

// CanMigrate reports whether a task continues at another worker after a failure with a code.
func Movable(code fault.Code) bool { return code.Class().Retryable || code == fault.EngineError }

// repeatsMessage reports whether an engine reports the same message for the request as the last one, without
// a token in between.
func (m *Machine) repeats(f Failure) bool {
	return f.Code == fault.EngineError && m.onRequest && f.Words == m.words && f.Tokens <= m.tokens
}

// recordFailure records a failure.
func (m *Machine) note(now kv.Mono, f Failure) {
	m.tried++
	m.poll.reset()
	m.onRequest, m.words = f.Code == fault.EngineError, f.Words
	m.failures = slices.DeleteFunc(m.failures, func(old failure) bool { return old.worker == f.Worker })
	m.failures = append(m.failures, failure{worker: f.Worker, epoch: f.Epoch, never: elsewhere(f.Code), at: now})
	progress := f.Tokens > m.tokens
	if progress {
		m.tokens = f.Tokens
		m.pace.reset()
	}
	bound := m.bound || m.tokens > 0 || !refusal(f.Code) && f.Code != fault.Ineligible
	if progress || bound && !m.bound {
		m.waited = 0
	}
	m.bound = bound
}

// belongsElsewhere reports whether a worker's code says that another worker should take the task.
func elsewhere(code fault.Code) bool { return code == fault.Draining || code == fault.Ineligible }

// isRefusal reports whether a worker, or the router for all of them, had no room: nothing is wrong with it.
func refusal(code fault.Code) bool { return code == fault.Overloaded || code == fault.Limited }
