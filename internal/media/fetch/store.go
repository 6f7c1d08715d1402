package fetch

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// store is the memory of files: downloads under way, files in use, and files that are kept in case
// somebody asks again. All of them together take no more than limit bytes; those that are only kept make
// room, the least recently used first, and then downloads wait ([store.grow]).
type store struct {
	limit int64
	ttl   time.Duration
	now   func() time.Time
	mu    struct {
		sync.Mutex
		used    int64  // by files and by budget's claims
		budget  budget // of the downloads under way
		entries map[key]*file
		idle    list.List // of *file: kept and not in use, least recently used last
		waiting list.List // of *waiter, in the order in which they came
	}
}

// waiter is a download that waits for memory.
type waiter struct {
	claim *claim
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

// newStore returns a store of limit bytes, of which the downloads of one client or from one host take
// at most share.
func newStore(limit, share int64, ttl time.Duration, now func() time.Time) *store {
	s := &store{limit: limit, ttl: ttl, now: now}
	s.mu.budget = budget{limit: limit, share: share}
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

// lacks is what a download lacks whose memory is not granted.
type lacks int

const (
	nothing lacks = iota
	memory
	share // its client or host has too much of it already
)

// lacksLocked returns what keeps a waiter from its memory.
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

// grant gives memory to those that wait, as far as there is some. Downloads that hold some already come
// first, since they give it back when they are complete; while one of them lacks memory, none begins. A
// download whose client or host has its share holds up no other one.
func (s *store) grant() {
	lacking := false
	s.grantEach(func(w *waiter) bool { return w.claim.held > 0 }, func() bool { lacking = true; return true })
	if !lacking {
		s.grantEach(func(w *waiter) bool { return w.claim.held == 0 }, func() bool { return false })
	}
}

// grantEach gives memory to those that wait and are meant, in order. short says whether to go on after
// one for which there is no memory.
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

// resize changes what a download holds.
func (s *store) resize(c *claim, by int64) {
	s.mu.budget.resize(c, by)
	s.mu.used += by
}

// begin begins a download that needs at most most bytes at any one moment, and holds none yet.
func (s *store) begin(o owner, most int64) *claim {
	c := &claim{owner: o, most: most}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.budget.add(c)
	return c
}

// grow waits until there are n more bytes for a download, and takes them. It returns the cause of ctx's
// end if that comes first.
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
	case <-w.ready: // in the meantime
		s.resize(c, -n)
	default:
		s.mu.waiting.Remove(el)
	}
	s.grant() // those behind may need less
	return context.Cause(ctx)
}

// shrink gives back n bytes of what a download holds.
func (s *store) shrink(c *claim, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resize(c, -n)
	s.grant()
}

// abandon ends a download that came to nothing.
func (s *store) abandon(c *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.used -= c.held
	s.mu.budget.remove(c)
	s.grant()
}

// put turns what a download holds into a file, pinned once, and ends the download. It is not kept for
// others if k is zero.
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

// used returns how many bytes are taken.
func (s *store) used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.used
}
