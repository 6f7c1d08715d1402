package frontend

import (
	"context"
	"slices"
	"sync"
)

// budget is memory that requests share, in bytes.
type budget struct {
	limit int64
	mu    struct {
		sync.Mutex
		used    int64
		waiting []*share // in the order in which they came
	}
}

// share is somebody's wait for n bytes; granted is closed when they are there.
type share struct {
	n       int64
	granted chan struct{}
}

// take reserves n bytes if they are there.
func (b *budget) take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.used+int64(n) > b.limit {
		return false
	}
	b.mu.used += int64(n)
	return true
}

// wait reserves n bytes, or all there are if that is less, as soon as those who
// waited before have theirs. It returns how many it reserved, or the error of ctx.
// Who waits is a request in progress, whose number is bounded.
func (b *budget) wait(ctx context.Context, n int) (reserved int, err error) {
	s := &share{n: min(int64(n), b.limit), granted: make(chan struct{})}
	b.mu.Lock()
	b.mu.waiting = append(b.mu.waiting, s)
	b.grant()
	b.mu.Unlock()
	select {
	case <-s.granted:
		return int(s.n), nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.mu.waiting, s); i >= 0 {
		b.mu.waiting = slices.Delete(b.mu.waiting, i, i+1)
	} else { // granted at the same moment
		b.mu.used -= s.n
	}
	b.grant() // those behind it may fit
	return 0, ctx.Err()
}

func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.used -= int64(n)
	b.grant()
}

// grant serves the first who wait, as far as there is room.
func (b *budget) grant() {
	for len(b.mu.waiting) > 0 && b.mu.used+b.mu.waiting[0].n <= b.limit {
		s := b.mu.waiting[0]
		b.mu.waiting = b.mu.waiting[1:]
		b.mu.used += s.n
		close(s.granted)
	}
}

// inUse is how much is reserved.
func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.used
}
