package launch

import (
	"cmp"
	"time"

	"penstock/internal/backoff"
)

// The pauses before restarts.
const (
	minPause = time.Second
	maxPause = 30 * time.Second
)

// lifecycle is the state machine of an engine's process. It starts nothing and reads no clock: its methods get the time and
// return what to do.
//
//	state     event                                     next
//	starting  the process is started                    running
//	starting  the process cannot be started             as for the end of a running one which did not serve
//	starting  a stop is requested                       ended
//	running   a stop is requested                       stopping: SIGTERM
//	running   serveTimeout without serving (1)          stopping: SIGTERM
//	running   the process ends                          pausing or ended, as restartPolicy decides; ended if it never served
//	stopping  stopTimeout is over                       stopping: SIGKILL, once
//	stopping  the process ends, a stop was requested    ended
//	stopping  the process ends, no stop was requested   as for running
//	pausing   the pause is over                         starting
//	pausing   a stop is requested                       ended
//
// (1) Since the start of the process, or since it last served. An engine which never served is not bounded here: its
// worker bounds the first start.
type lifecycle struct {
	serveTimeout, stopTimeout time.Duration
	restarts                  restartPolicy
	pauses                    backoff.Backoff

	state processState
	// hasServed says that the engine has served, also in an earlier process.
	hasServed bool
	// stopRequested says that the end is intended.
	stopRequested bool
	// stopCode is the exit code of a process which ended when the end was intended.
	stopCode int
	// pause is the time until the next start, while pausing.
	pause time.Duration

	// The rest is about the process which runs, or the last one.

	// checkedAt is the time of its last check or its start, and servedAt when it last served, or its start.
	checkedAt, servedAt time.Time
	served              time.Duration // for how long it served
	isStalled           bool          // it was stopped because it did not serve
	killAt              time.Time     // while stopping; zero once it is killed
}

type processState string

const (
	stateStarting processState = "starting"
	stateRunning  processState = "running"
	stateStopping processState = "stopping"
	statePausing  processState = "pausing"
	stateEnded    processState = "ended"
)

// processAction is what to do to the process.
type processAction string

const (
	actionNone      processAction = ""
	actionTerminate processAction = "SIGTERM"
	actionKill      processAction = "SIGKILL"
)

func newLifecycle(cfg *ProcessConfig) lifecycle {
	return lifecycle{
		serveTimeout: cfg.ServeTimeout, stopTimeout: cfg.StopTimeout, restarts: restartPolicy{limit: cfg.Restarts},
		pauses: backoff.Backoff{Min: cmp.Or(cfg.restartPause, minPause), Max: maxPause}, state: stateStarting,
	}
}

// recordStart records that the process is started.
func (l *lifecycle) recordStart(now time.Time) {
	l.state, l.checkedAt, l.servedAt, l.served, l.isStalled, l.killAt = stateRunning, now, now, 0, false, time.Time{}
}

// check records whether the engine serves, and returns what is due.
func (l *lifecycle) check(now time.Time, isServing bool) processAction {
	switch {
	case l.state == stateStopping && !l.killAt.IsZero() && !now.Before(l.killAt):
		l.killAt = time.Time{}
		return actionKill
	case l.state != stateRunning:
		return actionNone
	case isServing:
		l.served += now.Sub(l.checkedAt)
		l.servedAt = now
	}
	l.checkedAt = now
	if l.hasServed && now.Sub(l.servedAt) >= l.serveTimeout {
		l.isStalled = true
		return l.terminate(now)
	}
	return actionNone
}

// requestStop records that the engine shall end.
func (l *lifecycle) requestStop(now time.Time) processAction {
	l.stopRequested = true
	switch l.state {
	case stateRunning:
		return l.terminate(now)
	case stateStarting, statePausing:
		l.state = stateEnded
	}
	return actionNone
}

func (l *lifecycle) terminate(now time.Time) processAction {
	l.state, l.killAt = stateStopping, now.Add(l.stopTimeout)
	return actionTerminate
}

// recordEnd records that the process has ended.
func (l *lifecycle) recordEnd(code int) {
	if l.stopRequested {
		l.state, l.stopCode = stateEnded, code
		if code == terminatedCode { // servers such as uvicorn finish after SIGTERM, and then end by that signal
			l.stopCode = 0
		}
		return
	}
	if l.served >= settledAfter {
		l.pauses.Reset()
	}
	if !l.hasServed || !l.restarts.decideRestart(l.served) {
		l.state = stateEnded
		return
	}
	l.state, l.pause = statePausing, l.pauses.Next()
}

// recordStartFailure records that the process could not be started. The lack of memory or of processes may pass.
func (l *lifecycle) recordStartFailure() {
	l.served, l.isStalled = 0, false
	if !l.stopRequested {
		l.recordEnd(0)
	}
}

// recordPauseEnd records that the pause is over.
func (l *lifecycle) recordPauseEnd() {
	if l.state == statePausing {
		l.state = stateStarting
	}
}
