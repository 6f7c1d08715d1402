package bus

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff spaces attempts out: 25 ms, doubling up to 1 s, each up to a half more
// at random. The zero value is ready.
type backoff struct{ next time.Duration }

// wait waits for the next attempt or the end of ctx.
func (b *backoff) wait(ctx context.Context) {
	d := max(b.next, 25*time.Millisecond)
	b.next = min(2*d, time.Second)
	t := time.NewTimer(d + rand.N(d/2))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
