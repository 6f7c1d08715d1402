package load

import "time"

const (
	// coarseTimer is how long before a deadline runtime timers are no longer used: they have a resolution of
	// a millisecond where the process is idle.
	coarseTimer = 2 * time.Millisecond
	// maxNap is the longest sleep before checking for other jobs.
	maxNap = 200 * time.Microsecond
	// spinTime is how long before a deadline the clock is polled without sleeping: about the time which the
	// system needs to wake a thread.
	spinTime = 20 * time.Microsecond
)

// runClock is the clock of a run and waits precisely for near deadlines.
type runClock struct {
	start time.Time
	spin  time.Duration
	sleep func(time.Duration)
	// prepare makes the calling goroutine's sleeps precise. The goroutine then exits with its thread.
	prepare func()
}

func newRunClock() *runClock {
	return &runClock{spin: spinTime, sleep: sleepPrecisely, prepare: sharpenSleep}
}

func (c *runClock) elapsed() time.Duration { return time.Since(c.start) }

// sleepTowards sleeps towards due, at most for maxNap, and reports whether it is reached.
func (c *runClock) sleepTowards(due time.Duration) bool {
	left := due - c.elapsed()
	if left > c.spin {
		c.sleep(min(left-c.spin, maxNap))
		left = due - c.elapsed()
	}
	if left > c.spin {
		return false
	}
	for left > 0 {
		left = due - c.elapsed()
	}
	return true
}
