package bounded

import (
	"context"
	"slices"
	"sync"
)

// Memory is memory that requests share, in bytes. It is safe for concurrent use.
type Memory struct {
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

// NewMemory returns a Memory of limit bytes, of which none is used.
func NewMemory(limit int64) *Memory { return &Memory{limit: limit} }

// Take reserves n bytes if they are there.
func (m *Memory) Take(n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.used+n > m.limit {
		return false
	}
	m.mu.used += n
	return true
}

// Wait reserves n bytes, or all there are if that is less, as soon as those who
// waited before have theirs. It returns how many it reserved, or the error of ctx.
// Callers bound how many wait.
func (m *Memory) Wait(ctx context.Context, n int64) (reserved int64, err error) {
	s := &share{n: min(n, m.limit), granted: make(chan struct{})}
	m.mu.Lock()
	m.mu.waiting = append(m.mu.waiting, s)
	m.grant()
	m.mu.Unlock()
	select {
	case <-s.granted:
		return s.n, nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(m.mu.waiting, s); i >= 0 {
		m.mu.waiting = slices.Delete(m.mu.waiting, i, i+1)
	} else { // granted at the same moment
		m.mu.used -= s.n
	}
	m.grant() // those behind it may fit
	return 0, ctx.Err()
}

// Give returns n bytes that were reserved.
func (m *Memory) Give(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.used -= n
	m.grant()
}

// grant serves the first who wait, as far as there is room.
func (m *Memory) grant() {
	for len(m.mu.waiting) > 0 && m.mu.used+m.mu.waiting[0].n <= m.limit {
		s := m.mu.waiting[0]
		m.mu.waiting = m.mu.waiting[1:]
		m.mu.used += s.n
		close(s.granted)
	}
}

// Used returns how much is reserved, and Waiting how many wait.
func (m *Memory) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.used
}

// Waiting is explained at Used.
func (m *Memory) Waiting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mu.waiting)
}
