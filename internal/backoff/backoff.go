// Package backoff spaces out the attempts of those who try again until they
// succeed or are told to stop.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff waits longer each time: Least, doubling up to Most, each up to a half
// more at random, so that those who failed together do not return together. One
// goroutine uses it.
type Backoff struct {
	Least, Most time.Duration // both above 0
	next        time.Duration
}

// Wait waits for the next attempt, or returns ctx's error if it ends first.
func (b *Backoff) Wait(ctx context.Context) error { return Pause(ctx, b.Next()) }

// Next returns how long to wait for the next attempt, for those who wait for
// something else besides.
func (b *Backoff) Next() time.Duration {
	d := max(b.next, b.Least)
	b.next = min(2*d, b.Most)
	return d + rand.N(d/2+1)
}

// Reset makes the next wait the least one: an attempt has succeeded.
func (b *Backoff) Reset() { b.next = 0 }

// Pause waits for d, or returns ctx's error if it ends first.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
