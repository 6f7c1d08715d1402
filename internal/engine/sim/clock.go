package sim

import (
	"context"
	"time"
)

// Clock says by what an engine waits for the end of a pass.
type Clock uint8

// The clocks.
const (
	// ClockTimers are the timers of the runtime. In real time they are late by up to
	// a millisecond (on Linux the runtime sleeps in whole ones), which does not add up
	// over passes. In the virtual time of a test they are exact.
	ClockTimers Clock = iota
	// ClockPrecise is a timer of the operating system where there is one that serves,
	// late by some ten microseconds, else ClockTimers. It is for real time alone.
	ClockPrecise
)

// forgiven is how far an engine may be behind its passes, on a machine that is too
// slow or was suspended, without catching up for it later.
const forgiven = 100 * time.Millisecond

// clock lets passes end when they should. It is of one goroutine.
type clock struct {
	sleeper sleeper
	kind    Clock
	end     time.Time // of the pass before, as it should have been
}

// sleeper waits.
type sleeper interface {
	// sleep returns after d, which is positive, or with ctx's error when ctx ends: that
	// with which the clock was opened.
	sleep(ctx context.Context, d time.Duration) error
	// close releases what the sleeper holds.
	close()
}

// open makes ready to wait until ctx ends. Until close the clock may hold a file.
func (c *clock) open(ctx context.Context) {
	if c.kind == ClockPrecise {
		c.sleeper = precise(ctx)
	}
	if c.sleeper == nil {
		c.sleeper = newTimers()
	}
}

func (c *clock) close() { c.sleeper.close() }

// pass waits for the end of a pass that takes d. One that follows another begins when
// that should have ended: what was late, and the work between the two, is not added
// to it.
func (c *clock) pass(ctx context.Context, d time.Duration, follows bool) error {
	now := time.Now()
	begin := now
	if follows && now.Sub(c.end) < forgiven {
		begin = c.end
	}
	c.end = begin.Add(d)
	if left := c.end.Sub(now); left > 0 {
		return c.sleeper.sleep(ctx, left)
	}
	return nil
}

// timers is a sleeper by a timer of the runtime.
type timers struct{ timer *time.Timer }

func newTimers() *timers {
	t := time.NewTimer(0)
	t.Stop()
	return &timers{t}
}

func (t *timers) sleep(ctx context.Context, d time.Duration) error {
	t.timer.Reset(d)
	select {
	case <-t.timer.C:
		return nil
	case <-ctx.Done():
		t.timer.Stop()
		return ctx.Err()
	}
}

func (t *timers) close() { t.timer.Stop() }
