package load

import "time"

const (
	// coarse is how long before a moment the runtime's timers are no longer relied
	// on: they wait in steps of a millisecond where the process is idle.
	coarse = 2 * time.Millisecond
	// nap is the longest sleep without a look at what else is to be sent.
	nap = 200 * time.Microsecond
	// spin is how long before a moment the clock is watched without sleeping: about
	// what the system needs to wake a thread.
	spin = 20 * time.Microsecond
)

// clock tells the time of a run and waits for moments close by.
type clock struct {
	start time.Time
	spin  time.Duration
	sleep func(time.Duration)
	// prepare makes the calling goroutine's sleeps precise. The goroutine ends with
	// its thread.
	prepare func()
}

func newClock() *clock { return &clock{spin: spin, sleep: sleep, prepare: sharpen} }

func (c *clock) now() time.Duration { return time.Since(c.start) }

// approach sleeps towards due, at most for a nap, and reports whether it is reached.
func (c *clock) approach(due time.Duration) bool {
	left := due - c.now()
	if left > c.spin {
		c.sleep(min(left-c.spin, nap))
		left = due - c.now()
	}
	if left > c.spin {
		return false
	}
	for left > 0 {
		left = due - c.now()
	}
	return true
}
