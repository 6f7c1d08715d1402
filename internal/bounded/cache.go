package bounded

import "container/list"

// Cache is a map which evicts its least recently used entries beyond a limit. It is not safe for concurrent
// use.
type Cache[K comparable, V any] struct {
	limit, used int
	weigh       func(V) int
	order       list.List // of *cacheEntry[K, V], the most recently used first
	byKey       map[K]*list.Element
}

type cacheEntry[K comparable, V any] struct {
	key   K
	value V
}

// NewCache returns an empty cache of at most limit: the sum of what weigh returns for its values.
func NewCache[K comparable, V any](limit int, weigh func(V) int) *Cache[K, V] {
	return &Cache[K, V]{limit: limit, weigh: weigh, byKey: map[K]*list.Element{}}
}

// CountEntries is the weigh of a cache whose limit is a number of entries.
func CountEntries[V any](V) int { return 1 }

// Get returns the value of a key, which is the most recently used one then.
func (c *Cache[K, V]) Get(key K) (v V, ok bool) {
	at, ok := c.byKey[key]
	if !ok {
		return v, false
	}
	c.order.MoveToFront(at)
	return at.Value.(*cacheEntry[K, V]).value, true
}

// Put sets the value of a key, and evicts what no longer fits: also the value itself if it is too large alone.
func (c *Cache[K, V]) Put(key K, v V) {
	c.Remove(key)
	c.byKey[key] = c.order.PushFront(&cacheEntry[K, V]{key, v})
	c.used += c.weigh(v)
	for c.used > c.limit {
		c.Remove(c.order.Back().Value.(*cacheEntry[K, V]).key)
	}
}

// Remove removes a key, if it is there.
func (c *Cache[K, V]) Remove(key K) {
	if at, ok := c.byKey[key]; ok {
		c.used -= c.weigh(c.order.Remove(at).(*cacheEntry[K, V]).value)
		delete(c.byKey, key)
	}
}

// Used returns the sum of the weights.
func (c *Cache[K, V]) Used() int { return c.used }

// Len returns the number of entries.
func (c *Cache[K, V]) Len() int { return len(c.byKey) }
