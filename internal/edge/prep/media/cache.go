package media

import (
	"sync"

	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/bounded"
)

// maxCachedContents bounds the cache; an entry has a hundred bytes.
const maxCachedContents = 1 << 16

// contentCache is an LRU cache of what files show, by their contents: decoding is the expensive part.
type contentCache struct {
	mu struct {
		sync.Mutex
		shown *bounded.Cache[kv.Digest, shownContent]
	}
}

// shownContent is what a file shows.
type shownContent struct {
	key  media.Key
	size media.Size
}

func newContentCache(limit int) *contentCache {
	s := &contentCache{}
	s.mu.shown = bounded.NewCache[kv.Digest](limit, bounded.CountEntries[shownContent])
	return s
}

func (s *contentCache) lookupContent(content media.Key, kind media.Kind) (media.Key, media.Size, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.mu.shown.Get(contentCacheKey(content, kind))
	return v.key, v.size, ok
}

func (s *contentCache) addContent(content media.Key, kind media.Kind, key media.Key, size media.Size) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := contentCacheKey(content, kind)
	if _, known := s.mu.shown.Get(d); !known {
		s.mu.shown.Put(d, shownContent{key, size})
	}
}
