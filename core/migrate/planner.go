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
package migrate

import (
	"cmp"
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
	minRetryWait, maxRetryWait = 20 * time.Millisecond, time.Second
	minPollWait, maxPollWait   = 10 * time.Millisecond, 500 * time.Millisecond
)

// defaultAttempts bounds the attempts of a task unless Config says otherwise.
const defaultAttempts = 64

// Config bounds what is done for one task.
type Config struct {
	// MaxFailures is how many failures are followed by another attempt; none if negative. Workers which shut
	// down as planned or rule the task out do not count, nor do workers without room while the task may wait.
	MaxFailures int
	// MaxAttempts bounds all attempts, whether they count or not. Default 64.
	MaxAttempts int
	// MaxWait is how long a task which lost its worker waits for another while there is none, starting again
	// after each attempt which produced tokens. None if negative.
	MaxWait time.Duration
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
type GiveUpReason uint8

// The reasons; the zero value is for a task which goes on.
const (
	NoReason  GiveUpReason = iota
	Refused                // it never had a worker: the router's answer is the result
	Final                  // another worker would not help after the last failure
	Pinned                 // the worker to which it is pinned failed
	Exhausted              // failures, attempts or waiting time are used up
)

// Step is what to do next.
type Step struct {
	Action Action
	// Exclude are the workers which must not be tried. It is valid until the next call.
	Exclude []kv.WorkerID
	Wait    time.Duration
	Reason  GiveUpReason
}

// String returns the step in words.
func (s Step) String() string {
	switch s.Action {
	case Try:
		return fmt.Sprintf("try any but %v", s.Exclude)
	case Pause:
		return fmt.Sprintf("pause for %v", s.Wait)
	case Await:
		return fmt.Sprintf("await for %v", s.Wait)
	}
	return "give up: " + [...]string{"hopeful", "refused", "final", "pinned", "exhausted"}[s.Reason]
}

// EpochLookup returns the present epoch of a worker; known is false for one which is not registered.
type EpochLookup func(kv.WorkerID) (epoch uint64, known bool)

// Failure is the end of an attempt which did not complete the task.
type Failure struct {
	Worker kv.WorkerID
	Epoch  uint64 // epoch in which it was tried; 0 if unknown
	Code   fault.Code
	// Tokens is how many of the task's tokens were sent in total.
	Tokens int
	// Message is the message of an engine which failed on the request, see [fault.EngineError]; it is
	// compared, and kept only until the next failure.
	Message string
}

// workerFailure is the last failure of a worker.
type workerFailure struct {
	worker     kv.WorkerID
	epoch      uint64
	neverRetry bool // it is not tried again: it shuts down as planned, or rules the task out
	at         kv.Mono
}

// Planner is the state of one task on its way from worker to worker. Its state is the last step.
//
//	step   event                                                  next step
//	none   Next                                                   Try
//	Try    HandleNoWorker, and a failed worker is past Reprieve   Try, also there
//	Try    HandleNoWorker, and the task may still wait            Await
//	Try    HandleNoWorker otherwise                               GiveUp: Refused, Exhausted or Final
//	Try    HandleFailure which no other worker can help           GiveUp: Final
//	Try    HandleFailure of a pinned task, or beyond a bound      GiveUp: Pinned, Exhausted or Final
//	Try    HandleFailure which does not count                     Pause of 0
//	Try    HandleFailure otherwise                                Pause
//	Pause  Next, after the wait                                   Try
//	Await  Next, after the wait or WorkersChanged                 Try
type Planner struct {
	cfg             Config
	failed          []workerFailure // the last one of each worker
	excluded        []kv.WorkerID   // in the outstanding step
	failedAttempts  int             // failed attempts
	countedFailures int             // number of them which count against the limit
	tokens          int             // sent
	// onRequest says that in the last failure a working engine failed on the request; message is what it
	// reported.
	onRequest bool
	message   string
	// bound says that the task had a worker which failed or shut down, so that it is worth waiting for the
	// next.
	bound bool
	// waited is how long the task has waited since it was bound or got tokens, without the wait in progress,
	// if any, which started at since.
	waited  time.Duration
	waiting bool
	since   kv.Mono
	retries waitBackoff
	polls   waitBackoff
}

// New returns the planner of a task which has not been tried. The seed spreads the waits of tasks which
// failed at the same time.
func New(cfg Config, seed uint64) *Planner {
	cfg.MaxAttempts = cmp.Or(cfg.MaxAttempts, defaultAttempts)
	return &Planner{
		cfg:     cfg,
		retries: waitBackoff{least: minRetryWait, most: maxRetryWait, draw: splitmix.Source(seed)},
		polls:   waitBackoff{least: minPollWait, most: maxPollWait, draw: splitmix.Source(^seed)},
	}
}

// FailedAttempts returns how many attempts have failed.
func (m *Planner) FailedAttempts() int { return m.failedAttempts }

// WorkersChanged records that the set of workers has changed: a suitable worker may be there, or the router
// may learn of it a moment later.
func (m *Planner) WorkersChanged() { m.polls.resetWait() }

// Next starts the task, or continues after a Pause or an Await. It always returns Try, excluding all workers
// which failed in their present epoch.
func (m *Planner) Next(now kv.Mono, lives EpochLookup) Step {
	if m.waiting {
		m.waiting = false
		m.waited += now.Sub(m.since)
	}
	m.excluded = m.excluded[:0]
	for _, f := range m.failed {
		if epoch, known := lives(f.worker); !known || epoch == f.epoch {
			m.excluded = append(m.excluded, f.worker)
		}
	}
	return Step{Action: Try, Exclude: m.excluded}
}

// HandleNoWorker records that the router has no worker, with the code of its answer. Failed workers past
// their Reprieve are tried then, if any; else the task waits, or ends.
func (m *Planner) HandleNoWorker(now kv.Mono, code fault.Code) Step {
	if m.readmitFailed(now) {
		return Step{Action: Try, Exclude: m.excluded}
	}
	left := m.waitLimit(code) - m.waited
	switch {
	case left > 0 && (isRefusal(code) || code == fault.Unavailable):
		m.waiting, m.since = true, now
		return Step{Action: Await, Wait: min(m.polls.nextWait(), left)}
	case m.failedAttempts == 0:
		return Step{Action: GiveUp, Reason: Refused}
	}
	return m.giveUp(Exhausted)
}

// giveUp ends the task. If the last failure was an engine's on the request, its message is the answer, even
// if another reason prevents a further attempt.
func (m *Planner) giveUp(why GiveUpReason) Step {
	if m.onRequest {
		why = Final
	}
	return Step{Action: GiveUp, Reason: why}
}

// readmitFailed removes from the excluded workers those past their Reprieve, and reports whether there were
// any.
func (m *Planner) readmitFailed(now kv.Mono) bool {
	before := len(m.excluded)
	for _, f := range m.failed {
		if !f.neverRetry && now.Sub(f.at) >= Reprieve {
			m.excluded = slices.DeleteFunc(m.excluded, func(id kv.WorkerID) bool { return id == f.worker })
		}
	}
	return len(m.excluded) < before
}

// waitLimit is how long the task waits in total while there is no worker.
func (m *Planner) waitLimit(code fault.Code) time.Duration {
	switch {
	case m.bound:
		return m.cfg.MaxWait
	case m.failedAttempts == 0 && code == fault.Unavailable:
		return m.cfg.FirstWait
	}
	return 0
}

// HandleFailure records that an attempt failed, and how.
func (m *Planner) HandleFailure(now kv.Mono, f Failure) Step {
	same := m.repeatsMessage(f)
	m.recordFailure(now, f)
	switch {
	case same || !CanMigrate(f.Code):
		return Step{Action: GiveUp, Reason: Final}
	case m.cfg.Pinned:
		return m.giveUp(Pinned)
	case m.failedAttempts >= m.cfg.MaxAttempts:
		return m.giveUp(Exhausted)
	case belongsElsewhere(f.Code), isRefusal(f.Code) && m.bound && m.waited < m.cfg.MaxWait:
		return Step{Action: Pause}
	}
	if m.countedFailures++; m.countedFailures > max(m.cfg.MaxFailures, 0) {
		return m.giveUp(Exhausted)
	}
	return Step{Action: Pause, Wait: m.retries.nextAfterFirst()}
}

// CanMigrate reports whether a task continues at another worker after a failure with a code.
func CanMigrate(code fault.Code) bool { return code.Class().Retryable || code == fault.EngineError }

// repeatsMessage reports whether an engine reports the same message for the request as the last one, without
// a token in between.
func (m *Planner) repeatsMessage(f Failure) bool {
	return f.Code == fault.EngineError && m.onRequest && f.Message == m.message && f.Tokens <= m.tokens
}

// recordFailure records a failure.
func (m *Planner) recordFailure(now kv.Mono, f Failure) {
	m.failedAttempts++
	m.polls.resetWait()
	m.onRequest, m.message = f.Code == fault.EngineError, f.Message
	m.failed = slices.DeleteFunc(m.failed, func(old workerFailure) bool { return old.worker == f.Worker })
	m.failed = append(m.failed, workerFailure{worker: f.Worker, epoch: f.Epoch, neverRetry: belongsElsewhere(f.Code), at: now})
	progress := f.Tokens > m.tokens
	if progress {
		m.tokens = f.Tokens
		m.retries.resetWait()
	}
	bound := m.bound || m.tokens > 0 || !isRefusal(f.Code) && f.Code != fault.Ineligible
	if progress || bound && !m.bound {
		m.waited = 0
	}
	m.bound = bound
}

// belongsElsewhere reports whether a worker's code says that another worker should take the task.
func belongsElsewhere(code fault.Code) bool {
	return code == fault.Draining || code == fault.Ineligible
}

// isRefusal reports whether a worker, or the router for all of them, had no room: nothing is wrong with it.
func isRefusal(code fault.Code) bool { return code == fault.Overloaded || code == fault.Limited }

// waitBackoff doubles each wait, from least to most, and adds up to a half which differs between tasks, so
// that tasks which failed at the same time do not retry at the same time.
type waitBackoff struct {
	least, most time.Duration
	last        time.Duration // without the random part; 0 before the first
	started     bool
	draw        splitmix.Source
}

func (p *waitBackoff) nextWait() time.Duration {
	p.last = min(max(2*p.last, p.least), p.most)
	return p.last + time.Duration(p.draw.Next()%uint64(p.last/2+1))
}

// nextAfterFirst is nextWait, but without a wait the first time.
func (p *waitBackoff) nextAfterFirst() time.Duration {
	if !p.started {
		p.started = true
		return 0
	}
	return p.nextWait()
}

func (p *waitBackoff) resetWait() { p.last, p.started = 0, false }
