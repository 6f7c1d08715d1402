package bounded

import (
	"context"
	"slices"
	"sync"
)

// MemoryBudget is a bounded amount of memory that requests share, in bytes. It is safe for
// concurrent use.
type Memory struct {
	limit int64
	mu    struct {
		sync.Mutex
		used    int64
		waiting []*share // in order of arrival
	}
}

// reservation is a pending wait for n bytes; granted is closed when they are reserved.
type share struct {
	n       int64
	granted chan struct{}
}

// NewMemoryBudget returns an unused budget of limit bytes.
func NewMemory(limit int64) *Memory { return &Memory{limit: limit} }

// TryReserve reserves n bytes and reports whether they were available.
func (m *Memory) Take(n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.used+n > m.limit {
		return false
	}
	m.mu.used += n
	return true
}

// Reserve waits until n bytes are available, and reserves them; a larger n than the limit is
// reduced to it. Waits are served in order. It returns how many bytes it reserved, or the error of
// ctx. Callers must bound the number of waits.
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
	m.grant() // later waits may fit now
	return 0, ctx.Err()
}

// Release returns n reserved bytes.
func (m *Memory) Give(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.used -= n
	m.grant()
}

// grantLocked serves the first waits while there is room.
func (m *Memory) grant() {
	for len(m.mu.waiting) > 0 && m.mu.used+m.mu.waiting[0].n <= m.limit {
		s := m.mu.waiting[0]
		m.mu.waiting = m.mu.waiting[1:]
		m.mu.used += s.n
		close(s.granted)
	}
}

// Used returns how many bytes are reserved.
func (m *Memory) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.used
}

// Waiting returns the number of pending waits.
func (m *Memory) Waiting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mu.waiting)
}
