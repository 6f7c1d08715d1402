package worker

import (
	"context"
	"time"
)

// The waits between attempts at a plane that fails.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// backoff waits longer each time.
type backoff struct{ next time.Duration }

func newBackoff() *backoff { return &backoff{next: minBackoff} }

// sleep waits, or returns ctx's error if it ends first.
func (b *backoff) sleep(ctx context.Context) error {
	d := b.next
	b.next = min(2*d, maxBackoff)
	return pause(ctx, d)
}

// pause waits for d, or returns ctx's error if it ends first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
