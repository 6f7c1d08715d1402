package fetch

import (
	"sync"
	"time"

	"penstock/internal/bounded"
	"penstock/internal/media/probe"
)

// failureTTL is how long failures are cached: a conversation contains its pictures again in each
// turn.
const failureTTL = time.Minute

// sizeCache caches the results of Size: a bounded number of entries, evicting the least recently
// used.
type sizeCache struct {
	ttl time.Duration
	now func() time.Time
	mu  struct {
		sync.Mutex
		entries *bounded.Cache[urlKey, sizeEntry]
	}
}

// sizeEntry is what is known about a URL.
type sizeEntry struct {
	info    probe.Info
	err     error
	partial bool // the picture's orientation was not determined
	expires time.Time
}

func newSizeCache(most int, ttl time.Duration, now func() time.Time) *sizeCache {
	s := &sizeCache{ttl: ttl, now: now}
	s.mu.entries = bounded.NewCache[urlKey](most, bounded.CountEntries[sizeEntry])
	return s
}

// getSize returns what is known about k, if anything.
func (s *sizeCache) getSize(k urlKey) (sizeEntry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.mu.entries.Get(k)
	if ok && s.now().After(e.expires) {
		s.mu.entries.Remove(k)
		return sizeEntry{}, false
	}
	return e, ok
}

// putSize stores what is known about k.
func (s *sizeCache) putSize(k urlKey, e sizeEntry) {
	e.expires = s.now().Add(s.ttl)
	if e.err != nil {
		e.expires = s.now().Add(min(failureTTL, s.ttl))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.mu.entries.Get(k); ok && e.partial && !old.partial && old.err == nil {
		return // more was found in the meantime
	}
	s.mu.entries.Put(k, e)
}
