package sim

import (
	"context"
	"time"
)

// Clock says how an engine waits for the end of a pass.
type Clock uint8

// The clocks.
const (
	// ClockTimers are the timers of the runtime. In real time they are late by up to a millisecond (on Linux
	// the runtime sleeps in whole ones), which does not add up over passes. In the virtual time of a test
	// they are exact.
	ClockTimers Clock = iota
	// ClockPrecise is a timer of the operating system, late by some ten microseconds, or ClockTimers if there
	// is none. It works only in real time.
	ClockPrecise
)

// maxCatchUp is how far an engine may lag its passes and still catch up; a longer lag, on a machine that is
// too slow or was suspended, is dropped.
const maxCatchUp = 100 * time.Millisecond

// passClock waits for the end of passes. It is for one goroutine.
type passClock struct {
	sleeper sleeper
	kind    Clock
	end     time.Time // of the previous pass, as scheduled
}

// sleeper waits for a duration.
type sleeper interface {
	// sleep returns after d, which is positive, or with ctx's error when ctx ends: the context with which the
	// clock was opened.
	sleep(ctx context.Context, d time.Duration) error
	// close releases what the sleeper holds.
	close()
}

// openSleeper prepares to wait until ctx ends. Until closeSleeper the clock may hold a file.
func (c *passClock) openSleeper(ctx context.Context) {
	if c.kind == ClockPrecise {
		c.sleeper = newPreciseSleeper(ctx)
	}
	if c.sleeper == nil {
		c.sleeper = newTimerSleeper()
	}
}

func (c *passClock) closeSleeper() { c.sleeper.close() }

// waitForPass waits for the end of a pass that takes d. A pass that follows another starts at the scheduled
// end of that one: lateness, and the work between the two, is not added to it.
func (c *passClock) waitForPass(ctx context.Context, d time.Duration, follows bool) error {
	now := time.Now()
	begin := now
	if follows && now.Sub(c.end) < maxCatchUp {
		begin = c.end
	}
	c.end = begin.Add(d)
	if left := c.end.Sub(now); left > 0 {
		return c.sleeper.sleep(ctx, left)
	}
	return nil
}

// timerSleeper is a sleeper with a timer of the runtime.
type timerSleeper struct{ timer *time.Timer }

func newTimerSleeper() *timerSleeper {
	t := time.NewTimer(0)
	t.Stop()
	return &timerSleeper{t}
}

func (t *timerSleeper) sleep(ctx context.Context, d time.Duration) error {
	t.timer.Reset(d)
	select {
	case <-t.timer.C:
		return nil
	case <-ctx.Done():
		t.timer.Stop()
		return ctx.Err()
	}
}

func (t *timerSleeper) close() { t.timer.Stop() }
