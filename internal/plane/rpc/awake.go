package rpc

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// awakeClock distinguishes time during which this process ran from time during which it did not. A
// process which was stopped or got no CPU received nothing from its peers meanwhile, and that
// silence is its own. A loop that measures a peer's silence waits with an awakeClock.
type awakeClock struct {
	due   time.Time
	slack time.Duration
	late  int // consecutive waits that ended too late
}

// lateShare is the number of late waits that count as one, so that a process which is always late
// still detects a dead peer eventually.
const lateShare = 8

// startWait starts a wait of d from now and returns its end. The wait counts if it ends no more
// than slack later than that.
func (a *awakeClock) startWait(d, slack time.Duration) time.Time {
	a.due, a.slack = time.Now().Add(d), slack
	return a.due
}

// waitCounts reports whether the wait which has just ended counts.
func (a *awakeClock) waitCounts() bool {
	if time.Since(a.due) <= a.slack {
		a.late = 0
		return true
	}
	a.late++
	return a.late%lateShare == 0
}

// yieldProcessor returns after the goroutines which were ready have run. They may be about to send
// or read the bytes whose absence looks like silence. The time they take shows in awakeClock.
func yieldProcessor() { runtime.Gosched() }

// awakeSlices is the number of slices into which afterAwake divides its duration.
const awakeSlices = 8

// afterAwake calls f in its own goroutine when this process has run for d. stop cancels the wait
// and reports whether f will not be called.
func afterAwake(d time.Duration, f func()) (stop func() bool) {
	w := &struct {
		sync.Mutex
		awakeClock
		timer *time.Timer
		left  int // remaining slices
		over  bool
	}{left: awakeSlices}
	slice := max(d/awakeSlices, 1)
	w.Lock()
	defer w.Unlock()
	w.startWait(slice, slice)
	w.timer = time.AfterFunc(slice, func() {
		yieldProcessor()
		w.Lock()
		defer w.Unlock()
		switch {
		case w.over:
			return
		case w.waitCounts():
			w.left--
		}
		if w.left > 0 {
			w.startWait(slice, slice)
			w.timer.Reset(slice)
			return
		}
		w.over = true
		go f()
	})
	return func() bool {
		w.Lock()
		defer w.Unlock()
		w.timer.Stop()
		first := !w.over
		w.over = true
		return first
	}
}

// withAwakeTimeout returns a context which ends, with cause DeadlineExceeded, when this process has
// run for d. The caller must call release.
func withAwakeTimeout(ctx context.Context, d time.Duration) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := afterAwake(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
