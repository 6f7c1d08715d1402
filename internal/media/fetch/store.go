package fetch

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// fileStore is the memory of files: downloads in progress, files in use, and cached files. Together
// they take no more than limit bytes. Cached files are evicted to make room, least recently used
// first; when there are none, downloads wait ([fileStore.reserveMemory]).
type store struct {
	limit int64
	ttl   time.Duration
	now   func() time.Time
	mu    struct {
		sync.Mutex
		used    int64  // by files and by the claims of budget
		budget  budget // of the downloads in progress
		entries map[key]*file
		idle    list.List // of *cachedFile: cached and not in use, least recently used last
		waiting list.List // of *memoryWaiter, in order of arrival
	}
}

// memoryWaiter is a download which waits for memory.
type waiter struct {
	claim *claim
	n     int64
	ready chan struct{} // closed when the memory is reserved
}

// cachedFile is a file in memory.
type file struct {
	key     key
	b       []byte
	size    int64 // memory used, in bytes
	pins    int
	kept    bool          // it is in entries
	idle    *list.Element // in the idle list, if it is there
	expires time.Time
}

// newFileStore returns a store of limit bytes. The downloads of one client or from one host take at
// most share bytes.
func newStore(limit, share int64, ttl time.Duration, now func() time.Time) *store {
	s := &store{limit: limit, ttl: ttl, now: now}
	s.mu.budget = budget{limit: limit, share: share}
	s.mu.entries = map[key]*file{}
	return s
}

// getPinned returns the file for k, pinned, if there is one.
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

// pinFile adds one user to a file in use.
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

// unpinFile removes one user of a file.
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

// evictLocked removes a file from the cache. Its memory is free when it is no longer in use.
func (s *store) forget(e *file) {
	delete(s.mu.entries, e.key)
	e.kept = false
	if e.idle != nil {
		s.mu.idle.Remove(e.idle)
		e.idle = nil
		s.mu.used -= e.size
	}
}

// makeRoomLocked evicts files until n bytes are free, and reports whether it succeeded.
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

// shortage is the reason why a download does not get memory.
type lacks int

const (
	nothing lacks = iota
	memory
	share // its client or host has used its share
)

// shortageLocked returns the reason why a waiter does not get its memory.
func (s *store) lacksLocked(w *waiter) lacks {
	b := &s.mu.budget
	switch {
	case !b.safe(w.claim, w.n, alone):
		return memory
	case !b.sharing(w.claim, w.n) || !b.safe(w.claim, w.n, withShares):
		return share
	case !s.room(w.n):
		return memory
	}
	return nothing
}

// grantWaitersLocked grants memory to waiters while there is some. Downloads which already hold
// memory come first, because they return it when they are complete; while one of them lacks memory,
// no other download starts. A download whose client or host has used its share does not block
// others.
func (s *store) grant() {
	lacking := false
	s.grantEach(func(w *waiter) bool { return w.claim.held > 0 }, func() bool { lacking = true; return true })
	if !lacking {
		s.grantEach(func(w *waiter) bool { return w.claim.held == 0 }, func() bool { return false })
	}
}

// grantMatchingLocked grants memory to the waiters for which meant is true, in order. short decides
// whether to continue after a waiter for which there is no memory.
func (s *store) grantEach(meant func(*waiter) bool, short func() bool) {
	for el := s.mu.waiting.Front(); el != nil; {
		w, next := el.Value.(*waiter), el.Next()
		if meant(w) {
			switch s.lacksLocked(w) {
			case nothing:
				s.resize(w.claim, w.n)
				s.mu.waiting.Remove(el)
				close(w.ready)
			case memory:
				if !short() {
					return
				}
			}
		}
		el = next
	}
}

// resizeLocked changes what a download holds.
func (s *store) resize(c *claim, by int64) {
	s.mu.budget.resize(c, by)
	s.mu.used += by
}

// startDownload registers a download which needs at most most bytes at any time, and holds none
// yet.
func (s *store) begin(o owner, most int64) *claim {
	c := &claim{owner: o, most: most}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.budget.add(c)
	return c
}

// reserveMemory waits until n more bytes are available for a download, and reserves them. It
// returns the cause of ctx if ctx ends first.
func (s *store) grow(ctx context.Context, c *claim, n int64) error {
	w := &waiter{claim: c, n: n, ready: make(chan struct{})}
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
	case <-w.ready: // granted in the meantime
		s.resize(c, -n)
	default:
		s.mu.waiting.Remove(el)
	}
	s.grant() // later waiters may need less
	return context.Cause(ctx)
}

// releaseMemory returns n bytes which a download holds.
func (s *store) shrink(c *claim, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resize(c, -n)
	s.grant()
}

// abortDownload ends a failed download.
func (s *store) abandon(c *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.used -= c.held
	s.mu.budget.remove(c)
	s.grant()
}

// putFile converts what a download holds into a file, pinned once, and ends the download. If k is
// zero, the file is not cached.
func (s *store) put(k key, b []byte, c *claim) *file {
	e := &file{key: k, b: b, size: int64(cap(b)), pins: 1, expires: s.now().Add(s.ttl)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.used += e.size - c.held
	s.mu.budget.remove(c)
	if k != (key{}) {
		if old, ok := s.mu.entries[k]; ok {
			s.forget(old)
		}
		s.mu.entries[k], e.kept = e, true
	}
	s.grant()
	return e
}

// usedBytes returns how many bytes are used.
func (s *store) used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.used
}
