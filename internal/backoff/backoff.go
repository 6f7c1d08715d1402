// Package backoff spaces out retries.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is an exponential backoff with jitter: the wait starts at Min and doubles up to Max, plus
// a random half of it at most, so that clients which failed together do not retry together. It is
// not safe for concurrent use.
type Backoff struct {
	Min, Max time.Duration // both above 0
	next     time.Duration
}

// Wait waits for the next attempt, or returns ctx's error if ctx ends first.
func (b *Backoff) Wait(ctx context.Context) error { return SleepContext(ctx, b.Next()) }

// Next returns the wait before the next attempt, for callers which also wait for other events.
func (b *Backoff) Next() time.Duration {
	d := max(b.next, b.Min)
	b.next = min(2*d, b.Max)
	return d + rand.N(d/2+1)
}

// Reset makes the next wait the shortest one, after a successful attempt.
func (b *Backoff) Reset() { b.next = 0 }

// SleepContext waits for d, or returns ctx's error if ctx ends first.
func SleepContext(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Poll returns nil when ok reports true, which it asks at once and then in the given interval, or ctx's cause
// if ctx ends first.
func Poll(ctx context.Context, every time.Duration, ok func() bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
