package fetch

import (
	"container/list"
	"sync"
	"time"

	"penstock/core/media/probe"
)

// failureTTL is for how long it is remembered that no size could be had: a conversation
// shows its pictures again with each turn.
const failureTTL = time.Minute

// sizes remembers what Size found, the newest entries of a bounded number.
type sizes struct {
	max int
	ttl time.Duration
	now func() time.Time
	mu  struct {
		sync.Mutex
		entries map[key]*list.Element // of sizeEntry
		order   list.List             // least recently used last
	}
}

// sizeEntry is what is known of a URL.
type sizeEntry struct {
	key     key
	info    probe.Info
	err     error
	partial bool // more could be known: which way up the picture is
	expires time.Time
}

func newSizes(most int, ttl time.Duration, now func() time.Time) *sizes {
	s := &sizes{max: most, ttl: ttl, now: now}
	s.mu.entries = map[key]*list.Element{}
	return s
}

// get returns what is known of k, if anything is.
func (s *sizes) get(k key) (sizeEntry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	el, ok := s.mu.entries[k]
	if !ok {
		return sizeEntry{}, false
	}
	e := el.Value.(*sizeEntry)
	if s.now().After(e.expires) {
		s.mu.order.Remove(el)
		delete(s.mu.entries, k)
		return sizeEntry{}, false
	}
	s.mu.order.MoveToFront(el)
	return *e, true
}

// put remembers what is known of k.
func (s *sizes) put(k key, e sizeEntry) {
	e.key = k
	e.expires = s.now().Add(s.ttl)
	if e.err != nil {
		e.expires = s.now().Add(min(failureTTL, s.ttl))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if el, ok := s.mu.entries[k]; ok {
		if old := el.Value.(*sizeEntry); e.partial && !old.partial && old.err == nil {
			return // more was found in the meantime
		}
		el.Value = &e
		s.mu.order.MoveToFront(el)
		return
	}
	s.mu.entries[k] = s.mu.order.PushFront(&e)
	if s.mu.order.Len() > s.max {
		oldest := s.mu.order.Back()
		s.mu.order.Remove(oldest)
		delete(s.mu.entries, oldest.Value.(*sizeEntry).key)
	}
}
