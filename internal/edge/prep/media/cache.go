package media

import (
	"container/list"
	"sync"

	"penstock/core/kv"
	"penstock/core/media"
)

// maxCachedContents bounds the cache; an entry has a hundred bytes.
const maxCachedContents = 1 << 16

// contentCache is an LRU cache of what files show, by their contents: decoding is the expensive part.
type contentCache struct {
	limit int
	mu    struct {
		sync.Mutex
		order *list.List // of *cachedContent, the most recently used first
		by    map[kv.Digest]*list.Element
	}
}

// cachedContent is what a file shows.
type cachedContent struct {
	content kv.Digest
	key     media.Key
	size    media.Size
}

func newContentCache(limit int) *contentCache {
	s := &contentCache{limit: limit}
	s.mu.order, s.mu.by = list.New(), map[kv.Digest]*list.Element{}
	return s
}

func (s *contentCache) lookupContent(content media.Key, kind media.Kind) (media.Key, media.Size, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mu.by[contentCacheKey(content, kind)]
	if e == nil {
		return media.Key{}, media.Size{}, false
	}
	s.mu.order.MoveToFront(e)
	v := e.Value.(*cachedContent)
	return v.key, v.size, true
}

func (s *contentCache) addContent(content media.Key, kind media.Kind, key media.Key, size media.Size) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := contentCacheKey(content, kind)
	if e := s.mu.by[d]; e != nil {
		s.mu.order.MoveToFront(e)
		return
	}
	s.mu.by[d] = s.mu.order.PushFront(&cachedContent{d, key, size})
	if s.mu.order.Len() > s.limit {
		last := s.mu.order.Back()
		s.mu.order.Remove(last)
		delete(s.mu.by, last.Value.(*cachedContent).content)
	}
}
