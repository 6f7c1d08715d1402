package fetch

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// store is the memory of files: what downloads under way may grow to, files in use, and
// files that are kept in case somebody asks again. All of them together take no more than
// limit bytes; those that are only kept make room, the least recently used first, and then
// downloads wait, in order.
type store struct {
	limit int64
	ttl   time.Duration
	now   func() time.Time
	mu    struct {
		sync.Mutex
		used    int64
		entries map[key]*file
		idle    list.List // of *file: kept and not in use, least recently used last
		waiting list.List // of *waiter
	}
}

// waiter is a download that waits for memory.
type waiter struct {
	n     int64
	ready chan struct{} // closed when it has it
}

// file is a file in memory.
type file struct {
	key     key
	b       []byte
	size    int64 // what it takes
	pins    int
	kept    bool          // it is in entries
	idle    *list.Element // in idle, if so
	expires time.Time
}

func newStore(limit int64, ttl time.Duration, now func() time.Time) *store {
	s := &store{limit: limit, ttl: ttl, now: now}
	s.mu.entries = map[key]*file{}
	return s
}

// get returns the file for k, pinned, if there is one.
func (s *store) get(k key) (*file, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.mu.entries[k]
	if !ok {
		return nil, false
	}
	if s.now().After(e.expires) {
		s.forget(e)
		s.grant()
		return nil, false
	}
	s.pinLocked(e)
	return e, true
}

// pin notes one more user of a file that is in use.
func (s *store) pin(e *file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pinLocked(e)
}

func (s *store) pinLocked(e *file) {
	e.pins++
	if e.idle != nil {
		s.mu.idle.Remove(e.idle)
		e.idle = nil
	}
}

// unpin notes one user less.
func (s *store) unpin(e *file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.pins--; e.pins > 0 {
		return
	}
	if e.kept {
		e.idle = s.mu.idle.PushFront(e)
	} else {
		s.mu.used -= e.size
	}
	s.grant()
}

// forget takes a file out of what is kept; its memory is back when nobody uses it.
func (s *store) forget(e *file) {
	delete(s.mu.entries, e.key)
	e.kept = false
	if e.idle != nil {
		s.mu.idle.Remove(e.idle)
		e.idle = nil
		s.mu.used -= e.size
	}
}

// room makes room for n bytes, and reports whether it could.
func (s *store) room(n int64) bool {
	for s.mu.used+n > s.limit {
		oldest := s.mu.idle.Back()
		if oldest == nil {
			return false
		}
		s.forget(oldest.Value.(*file))
	}
	return true
}

// grant gives memory to those that wait, as far as there is some.
func (s *store) grant() {
	for {
		el := s.mu.waiting.Front()
		if el == nil {
			return
		}
		w := el.Value.(*waiter)
		if !s.room(w.n) {
			return
		}
		s.mu.used += w.n
		s.mu.waiting.Remove(el)
		close(w.ready)
	}
}

// reserve waits until there is room for n bytes, at most limit, and takes it.
func (s *store) reserve(ctx context.Context, n int64) error {
	w := &waiter{n: n, ready: make(chan struct{})}
	s.mu.Lock()
	el := s.mu.waiting.PushBack(w)
	s.grant()
	s.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.ready: // in the meantime
		s.mu.used -= n
	default:
		s.mu.waiting.Remove(el)
	}
	s.grant() // those behind may need less
	return context.Cause(ctx)
}

// free gives back what was reserved.
func (s *store) free(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.used -= n
	s.grant()
}

// put turns memory that was reserved into a file, pinned once. It is not kept for others
// if k is zero.
func (s *store) put(k key, b []byte, reserved int64) *file {
	e := &file{key: k, b: b, size: int64(cap(b)), pins: 1, expires: s.now().Add(s.ttl)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.used += e.size - reserved
	if k != (key{}) {
		if old, ok := s.mu.entries[k]; ok {
			s.forget(old)
		}
		s.mu.entries[k], e.kept = e, true
	}
	s.grant()
	return e
}

// used returns how many bytes are taken.
func (s *store) used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.used
}
