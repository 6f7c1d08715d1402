package bounded

import (
	"context"
	"slices"
	"sync"
)

// MemoryBudget is a bounded amount of memory that requests share, in bytes. It is safe for
// concurrent use.
type MemoryBudget struct {
	limit int64
	mu    struct {
		sync.Mutex
		used    int64
		waiting []*reservation // in order of arrival
	}
}

// reservation is a pending wait for n bytes; granted is closed when they are reserved.
type reservation struct {
	n       int64
	granted chan struct{}
}

// NewMemoryBudget returns an unused budget of limit bytes.
func NewMemoryBudget(limit int64) *MemoryBudget { return &MemoryBudget{limit: limit} }

// TryReserve reserves n bytes and reports whether they were available.
func (m *MemoryBudget) TryReserve(n int64) bool {
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
func (m *MemoryBudget) Reserve(ctx context.Context, n int64) (reserved int64, err error) {
	s := &reservation{n: min(n, m.limit), granted: make(chan struct{})}
	m.mu.Lock()
	m.mu.waiting = append(m.mu.waiting, s)
	m.grantLocked()
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
	m.grantLocked() // later waits may fit now
	return 0, ctx.Err()
}

// Release returns n reserved bytes.
func (m *MemoryBudget) Release(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.used -= n
	m.grantLocked()
}

// grantLocked serves the first waits while there is room.
func (m *MemoryBudget) grantLocked() {
	for len(m.mu.waiting) > 0 && m.mu.used+m.mu.waiting[0].n <= m.limit {
		s := m.mu.waiting[0]
		m.mu.waiting = m.mu.waiting[1:]
		m.mu.used += s.n
		close(s.granted)
	}
}

// Used returns how many bytes are reserved.
func (m *MemoryBudget) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.used
}

// Waiting returns the number of pending waits.
func (m *MemoryBudget) Waiting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mu.waiting)
}
