package tiny

import (
	"container/list"
	"sync"

	"penstock/core/kv"
	"penstock/core/media"
)

// rowCache keeps the most recently used encoded objects, within a number of bytes. It belongs to one model,
// so a key names only the object. An object without a digest is not kept, since 64 bits do not identify it.
type rowCache struct {
	limit int
	mu    struct {
		sync.Mutex
		bytes int
		order list.List // of *cachedRows, the most recently used first
		by    map[rowKey]*list.Element
	}
}

// rowKey identifies an object.
type rowKey struct {
	kind   media.Kind
	digest kv.Digest
}

type keptRows struct {
	key rowKey
	encoding
}

func (k *keptRows) bytes() int { return 4*len(k.rows) + 256 } // including the index entry

func newRowCache(limit int) *rowCache {
	c := &rowCache{limit: limit}
	c.mu.by = map[rowKey]*list.Element{}
	return c
}

// lookupRows returns the rows of an object. Callers must not change them.
func (c *rowCache) get(key rowKey) (encoding, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.mu.by[key]
	if !ok {
		return encoding{}, false
	}
	c.mu.order.MoveToFront(at)
	return at.Value.(*keptRows).encoding, true
}

// storeRows keeps the rows of an object and replaces earlier ones, if they fit at all.
func (c *rowCache) put(key rowKey, e encoding) {
	k := &keptRows{key, e}
	if key.digest == (kv.Digest{}) || k.bytes() > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.mu.by[key]; ok {
		c.drop(at)
	}
	c.mu.by[key] = c.mu.order.PushFront(k)
	c.mu.bytes += k.bytes()
	for c.mu.bytes > c.limit {
		c.drop(c.mu.order.Back())
	}
}

// dropLocked removes an entry.
func (c *rowCache) drop(at *list.Element) {
	k := c.mu.order.Remove(at).(*keptRows)
	delete(c.mu.by, k.key)
	c.mu.bytes -= k.bytes()
}
