package worker

import (
	"sync"
	"time"

	"penstock/core/fault"
)

// callLimiter counts and bounds the running calls. After closeAdmission it admits no more calls, and
// the running ones can be awaited.
type callLimiter struct {
	limit int
	// empty is closed when the limiter is closed and no call is running.
	empty chan struct{}
	mu    struct {
		sync.Mutex
		inside int
		shut   bool
	}
}

func newCallLimiter(limit int) *callLimiter {
	return &callLimiter{limit: limit, empty: make(chan struct{})}
}

// acquire admits one call, until release. It fails with Draining after closeAdmission and with
// Overloaded at the limit.
func (d *callLimiter) acquire() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.mu.shut:
		return fault.New(fault.Draining, "the worker is leaving and takes no new calls: call another")
	case d.mu.inside == d.limit:
		err := fault.New(fault.Overloaded, "the worker already serves %d calls: try again later", d.limit)
		err.RetryAfter = time.Second
		return err
	}
	d.mu.inside++
	return nil
}

func (d *callLimiter) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.inside--
	if d.mu.shut && d.mu.inside == 0 {
		close(d.empty)
	}
}

// closeAdmission admits no further calls and returns how many are running. It may be called again.
func (d *callLimiter) closeAdmission() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.mu.shut {
		d.mu.shut = true
		if d.mu.inside == 0 {
			close(d.empty)
		}
	}
	return d.mu.inside
}

// callCount returns how many calls are running, and whether the limiter is closed.
func (d *callLimiter) callCount() (calls int, shut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.inside, d.mu.shut
}
