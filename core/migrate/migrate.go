// Package migrate decides how one task moves from worker to worker: who may be
// asked next, when, and when nobody any more.
//
// The first further attempt comes at once: most failures are one worker's, and every
// stream of it waits. So does one after an attempt that brought tokens. Those that
// follow wait longer and longer. A worker that failed in the life that it is in is
// not asked again while there is another; when there is none, it is after Reprieve,
// unless it leaves. A task that has lost its worker waits for the next within
// bounds, since its client has been promised an answer.
//
// A worker that rules the request out by itself, while another may take it, has not failed: the task goes on elsewhere
// without a wait, and is not bound by it.
//
// An engine that works and fails on a request may do so because of the request. The
// task is tried elsewhere; the same words at the same place, or the last failure
// that is made good, are the task's answer.
//
// Nothing but the bounds of Config limits further attempts; there is no budget that
// tasks share. When half of the workers die at once each of their streams needs one
// further attempt, and a budget would make of the ones it refuses the failures that
// migration is there to hide. A storm is held down by what each task may do: so many
// failures, spaced; waiting that calls nobody; and no second call to a worker that
// failed while there is another.
//
// A Machine has one owner: no method may run beside another one. It is
// deterministic: the same seed and the same calls give the same steps.
package migrate

import (
	"fmt"
	"slices"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/splitmix"
)

// Reprieve is how long after its failure a worker may be tried again when there is
// no other. A router that has found it not to answer does not offer it.
const Reprieve = 500 * time.Millisecond

// The pace of further attempts, and how often the router is asked while it has no
// worker. What can be seen coming, a change of the set of workers, ends a wait at once.
const (
	leastPace, mostPace = 20 * time.Millisecond, time.Second
	leastPoll, mostPoll = 10 * time.Millisecond, 500 * time.Millisecond
)

// defaultAttempts bounds the attempts of a task unless Config says otherwise.
const defaultAttempts = 64

// Config bounds what is done for one task.
type Config struct {
	// Limit is how many failures are made good. Workers that leave as planned or rule the task out do not
	// count, nor do those that have no room while the task may wait. None if
	// negative.
	Limit int
	// Attempts bounds all attempts, whatever they count. Default 64.
	Attempts int
	// Wait is how long a task that lost its worker waits for another while there is
	// none, anew after each attempt that brought tokens. None if negative.
	Wait time.Duration
	// FirstWait is how long a task that never had a worker waits while there is
	// none. One that is refused for lack of room does not.
	FirstWait time.Duration
	// Pinned is for a task that no other worker may go on with.
	Pinned bool
}

// Action is what a Step says to do.
type Action uint8

// The actions.
const (
	// Try asks the router for a worker that is none of Exclude and makes an attempt
	// there. It is followed by NoWorker or Failed, unless the task is over.
	Try Action = iota
	// Pause waits for For, whatever happens. It is followed by Next.
	Pause
	// Await waits for For, or until the set of workers changes. It is followed by
	// Next, after News in the second case.
	Await
	// GiveUp ends the task, because of Why.
	GiveUp
)

// Reason is why a task is given up.
type Reason uint8

// The reasons; the zero value is that of a task that goes on.
const (
	Hopeful   Reason = iota
	Refused          // it never had a worker: what the router says stands
	Final            // the last attempt failed in a way that no worker makes good
	Pinned           // the worker that it is pinned to failed
	Exhausted        // failures, attempts or patience are used up
)

// Step is what to do next.
type Step struct {
	Do Action
	// Exclude are the workers not to try. It is valid until the next call.
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

// Lives returns the life that a worker is in now; known is false for one that is
// not registered.
type Lives func(kv.WorkerID) (epoch uint64, known bool)

// Failure is the end of an attempt that did not complete the task.
type Failure struct {
	Worker kv.WorkerID
	Epoch  uint64 // of the life in which it was tried; 0 if not known
	Code   fault.Code
	// Tokens is how many of the task's tokens are out in all.
	Tokens int
	// Words are what an engine said that failed on the request, see
	// [fault.EngineError]; they are compared and not kept beyond the next failure.
	Words string
}

// failure is a worker's last one.
type failure struct {
	worker kv.WorkerID
	epoch  uint64
	never  bool // it is not tried again: it leaves as planned, or rules the task out
	at     kv.Mono
}

// Machine is the account of one task on its way from worker to worker.
type Machine struct {
	cfg      Config
	failures []failure     // by worker, the last of each
	excluded []kv.WorkerID // in the step that is out
	tried    int           // attempts that failed
	counted  int           // those of them that count against the limit
	tokens   int           // that are out
	// onRequest says that the last failure was a working engine's on the request, and
	// words what the engine said.
	onRequest bool
	words     string
	// bound says that the task has had a worker that failed it or left, so that it is
	// worth waiting for the next.
	bound bool
	// waited is how long it has waited since it was bound or got tokens, but for the
	// wait in progress, if there is one, which began at since.
	waited  time.Duration
	waiting bool
	since   kv.Mono
	pace    pace
	poll    pace
}

// New returns the machine of a task that has not been tried. The seed spreads the
// waits of tasks that failed together.
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

// Tried returns how many attempts have failed.
func (m *Machine) Tried() int { return m.tried }

// News says that the set of workers has changed: what was waited for may be there,
// or the router may hear of it a moment later.
func (m *Machine) News() { m.poll.reset() }

// Next begins the task, or goes on after a Pause or an Await. It always says Try,
// with all excluded that failed in the life that they are in now.
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

// NoWorker says that the router has none, and by which code it says so. Those that
// have their reprieve are tried then, if any; else the task waits, or ends.
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

// giveUp ends the task. Where an engine failed on it last, its words are the answer, whatever else keeps
// the task from another attempt.
func (m *Machine) giveUp(why Reason) Step {
	if m.onRequest {
		why = Final
	}
	return Step{Do: GiveUp, Why: why}
}

// spare excludes no more than those that must not be tried even if there is no other,
// and reports whether these are fewer than before.
func (m *Machine) spare(now kv.Mono) bool {
	before := len(m.excluded)
	for _, f := range m.failures {
		if !f.never && now.Sub(f.at) >= Reprieve {
			m.excluded = slices.DeleteFunc(m.excluded, func(id kv.WorkerID) bool { return id == f.worker })
		}
	}
	return len(m.excluded) < before
}

// patience is how long the task waits in all while there is no worker.
func (m *Machine) patience(code fault.Code) time.Duration {
	switch {
	case m.bound:
		return m.cfg.Wait
	case m.tried == 0 && code == fault.Unavailable:
		return m.cfg.FirstWait
	}
	return 0
}

// Failed says that an attempt failed, and how.
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

// Movable reports whether a task goes on at another worker after a failure of a code.
func Movable(code fault.Code) bool { return code.Class().Retryable || code == fault.EngineError }

// repeats reports whether an engine says of the request what another one, or itself,
// said before, and no token came between.
func (m *Machine) repeats(f Failure) bool {
	return f.Code == fault.EngineError && m.onRequest && f.Words == m.words && f.Tokens <= m.tokens
}

// note keeps the books of a failure.
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

// elsewhere reports whether a worker says with a code that the task belongs to another one.
func elsewhere(code fault.Code) bool { return code == fault.Draining || code == fault.Ineligible }

// refusal reports whether a worker, or the router for all of them, had no room:
// nothing is wrong with it.
func refusal(code fault.Code) bool { return code == fault.Overloaded || code == fault.Limited }
