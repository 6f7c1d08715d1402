package fetch

import (
	"container/list"
	"sync"
	"time"

	"penstock/internal/media/probe"
)

// failureTTL is how long failures are cached: a conversation contains its pictures again in each
// turn.
const failureTTL = time.Minute

// sizeCache caches the results of Size: a bounded number of entries, evicting the least recently
// used.
type sizeCache struct {
	max int
	ttl time.Duration
	now func() time.Time
	mu  struct {
		sync.Mutex
		entries map[urlKey]*list.Element // of sizeEntry
		order   list.List                // least recently used last
	}
}

// sizeEntry is what is known about a URL.
type sizeEntry struct {
	key     urlKey
	info    probe.Info
	err     error
	partial bool // the picture's orientation was not determined
	expires time.Time
}

func newSizeCache(most int, ttl time.Duration, now func() time.Time) *sizeCache {
	s := &sizeCache{max: most, ttl: ttl, now: now}
	s.mu.entries = map[urlKey]*list.Element{}
	return s
}

// getSize returns what is known about k, if anything.
func (s *sizeCache) getSize(k urlKey) (sizeEntry, bool) {
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

// putSize stores what is known about k.
func (s *sizeCache) putSize(k urlKey, e sizeEntry) {
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
