package rpc

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// awake tells a time that passed from a time in which this process ran. A process that
// was stopped, or that got no processor, has heard nothing of its peers meanwhile: that
// silence is its own. A loop that counts silence waits with it.
type awake struct {
	due   time.Time
	slack time.Duration
	late  int // waits in a row that ended too late
}

// lateShare is how many waits that ended too late count as one: a process that never
// runs in time gives up a peer all the same, later.
const lateShare = 8

// wait returns when a wait of d from now is over. It counts if it ends no more than slack
// after that.
func (a *awake) wait(d, slack time.Duration) time.Time {
	a.due, a.slack = time.Now().Add(d), slack
	return a.due
}

// counts reports whether the wait that has ended counts.
func (a *awake) counts() bool {
	if time.Since(a.due) <= a.slack {
		a.late = 0
		return true
	}
	a.late++
	return a.late%lateShare == 0
}

// letOthersRun returns when the goroutines that were ready have run. What a silence lacks
// may be theirs to send or to read, and how long they took shows in awake.
func letOthersRun() { runtime.Gosched() }

// awakeSlices is into how many parts afterAwake divides its time.
const awakeSlices = 8

// afterAwake calls f, in a goroutine of its own, when this process has run for d. stop ends
// the wait and reports whether f will not be called.
func afterAwake(d time.Duration, f func()) (stop func() bool) {
	w := &struct {
		sync.Mutex
		awake
		timer *time.Timer
		left  int // slices
		over  bool
	}{left: awakeSlices}
	slice := max(d/awakeSlices, 1)
	w.Lock()
	defer w.Unlock()
	w.wait(slice, slice)
	w.timer = time.AfterFunc(slice, func() {
		letOthersRun()
		w.Lock()
		defer w.Unlock()
		switch {
		case w.over:
			return
		case w.counts():
			w.left--
		}
		if w.left > 0 {
			w.wait(slice, slice)
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

// withAwakeTimeout returns a context which ends, with DeadlineExceeded as its cause, when this
// process has run for d. The caller calls release when it is done.
func withAwakeTimeout(ctx context.Context, d time.Duration) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := afterAwake(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
