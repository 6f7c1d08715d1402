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
type fileStore struct {
	limit int64
	ttl   time.Duration
	now   func() time.Time
	mu    struct {
		sync.Mutex
		used    int64          // by files and by the claims of budget
		budget  downloadBudget // of the downloads in progress
		entries map[urlKey]*cachedFile
		idle    list.List // of *cachedFile: cached and not in use, least recently used last
		waiting list.List // of *memoryWaiter, in order of arrival
	}
}

// memoryWaiter is a download which waits for memory.
type memoryWaiter struct {
	claim *downloadClaim
	n     int64
	ready chan struct{} // closed when the memory is reserved
}

// cachedFile is a file in memory.
type cachedFile struct {
	key     urlKey
	b       []byte
	memory  int64 // memory used, in bytes
	pins    int
	kept    bool          // it is in entries
	idle    *list.Element // in the idle list, if it is there
	expires time.Time
}

// newFileStore returns a store of limit bytes. The downloads of one client or from one host take at
// most share bytes.
func newFileStore(limit, share int64, ttl time.Duration, now func() time.Time) *fileStore {
	s := &fileStore{limit: limit, ttl: ttl, now: now}
	s.mu.budget = downloadBudget{limit: limit, share: share}
	s.mu.entries = map[urlKey]*cachedFile{}
	return s
}

// getPinned returns the file for k, pinned, if there is one.
func (s *fileStore) getPinned(k urlKey) (*cachedFile, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.mu.entries[k]
	if !ok {
		return nil, false
	}
	if s.now().After(e.expires) {
		s.evictLocked(e)
		s.grantWaitersLocked()
		return nil, false
	}
	s.pinLocked(e)
	return e, true
}

// pinFile adds one user to a file in use.
func (s *fileStore) pinFile(e *cachedFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pinLocked(e)
}

func (s *fileStore) pinLocked(e *cachedFile) {
	e.pins++
	if e.idle != nil {
		s.mu.idle.Remove(e.idle)
		e.idle = nil
	}
}

// unpinFile removes one user of a file.
func (s *fileStore) unpinFile(e *cachedFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.pins--; e.pins > 0 {
		return
	}
	if e.kept {
		e.idle = s.mu.idle.PushFront(e)
	} else {
		s.mu.used -= e.memory
	}
	s.grantWaitersLocked()
}

// evictLocked removes a file from the cache. Its memory is free when it is no longer in use.
func (s *fileStore) evictLocked(e *cachedFile) {
	delete(s.mu.entries, e.key)
	e.kept = false
	if e.idle != nil {
		s.mu.idle.Remove(e.idle)
		e.idle = nil
		s.mu.used -= e.memory
	}
}

// makeRoomLocked evicts files until n bytes are free, and reports whether it succeeded.
func (s *fileStore) makeRoomLocked(n int64) bool {
	for s.mu.used+n > s.limit {
		oldest := s.mu.idle.Back()
		if oldest == nil {
			return false
		}
		s.evictLocked(oldest.Value.(*cachedFile))
	}
	return true
}

// shortage is the reason why a download does not get memory.
type shortage int

const (
	noShortage shortage = iota
	memoryShortage
	shareShortage // its client or host has used its share
)

// shortageLocked returns the reason why a waiter does not get its memory.
func (s *fileStore) shortageLocked(w *memoryWaiter) shortage {
	b := &s.mu.budget
	switch {
	case !b.isSafe(w.claim, w.n, limitOnly):
		return memoryShortage
	case !b.fitsShares(w.claim, w.n) || !b.isSafe(w.claim, w.n, limitAndShares):
		return shareShortage
	case !s.makeRoomLocked(w.n):
		return memoryShortage
	}
	return noShortage
}

// grantWaitersLocked grants memory to waiters while there is some. Downloads which already hold
// memory come first, because they return it when they are complete; while one of them lacks memory,
// no other download starts. A download whose client or host has used its share does not block
// others.
func (s *fileStore) grantWaitersLocked() {
	lacking := false
	s.grantMatchingLocked(func(w *memoryWaiter) bool { return w.claim.held > 0 }, func() bool { lacking = true; return true })
	if !lacking {
		s.grantMatchingLocked(func(w *memoryWaiter) bool { return w.claim.held == 0 }, func() bool { return false })
	}
}

// grantMatchingLocked grants memory to the waiters for which meant is true, in order. short decides
// whether to continue after a waiter for which there is no memory.
func (s *fileStore) grantMatchingLocked(meant func(*memoryWaiter) bool, short func() bool) {
	for el := s.mu.waiting.Front(); el != nil; {
		w, next := el.Value.(*memoryWaiter), el.Next()
		if meant(w) {
			switch s.shortageLocked(w) {
			case noShortage:
				s.resizeLocked(w.claim, w.n)
				s.mu.waiting.Remove(el)
				close(w.ready)
			case memoryShortage:
				if !short() {
					return
				}
			}
		}
		el = next
	}
}

// resizeLocked changes what a download holds.
func (s *fileStore) resizeLocked(c *downloadClaim, by int64) {
	s.mu.budget.resize(c, by)
	s.mu.used += by
}

// startDownload registers a download which needs at most most bytes at any time, and holds none
// yet.
func (s *fileStore) startDownload(o account, most int64) *downloadClaim {
	c := &downloadClaim{owner: o, most: most}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.budget.addClaim(c)
	return c
}

// reserveMemory waits until n more bytes are available for a download, and reserves them. It
// returns the cause of ctx if ctx ends first.
func (s *fileStore) reserveMemory(ctx context.Context, c *downloadClaim, n int64) error {
	w := &memoryWaiter{claim: c, n: n, ready: make(chan struct{})}
	s.mu.Lock()
	el := s.mu.waiting.PushBack(w)
	s.grantWaitersLocked()
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
		s.resizeLocked(c, -n)
	default:
		s.mu.waiting.Remove(el)
	}
	s.grantWaitersLocked() // later waiters may need less
	return context.Cause(ctx)
}

// releaseMemory returns n bytes which a download holds.
func (s *fileStore) releaseMemory(c *downloadClaim, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resizeLocked(c, -n)
	s.grantWaitersLocked()
}

// abortDownload ends a failed download.
func (s *fileStore) abortDownload(c *downloadClaim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.used -= c.held
	s.mu.budget.removeClaim(c)
	s.grantWaitersLocked()
}

// putFile converts what a download holds into a file, pinned once, and ends the download. If k is
// zero, the file is not cached.
func (s *fileStore) putFile(k urlKey, b []byte, c *downloadClaim) *cachedFile {
	e := &cachedFile{key: k, b: b, memory: int64(cap(b)), pins: 1, expires: s.now().Add(s.ttl)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.used += e.memory - c.held
	s.mu.budget.removeClaim(c)
	if k != (urlKey{}) {
		if old, ok := s.mu.entries[k]; ok {
			s.evictLocked(old)
		}
		s.mu.entries[k], e.kept = e, true
	}
	s.grantWaitersLocked()
	return e
}

// usedBytes returns how many bytes are used.
func (s *fileStore) usedBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.used
}
