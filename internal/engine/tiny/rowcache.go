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

type cachedRows struct {
	key rowKey
	encodedObject
}

func (k *cachedRows) sizeBytes() int { return 4*len(k.rows) + 256 } // including the index entry

func newRowCache(limit int) *rowCache {
	c := &rowCache{limit: limit}
	c.mu.by = map[rowKey]*list.Element{}
	return c
}

// lookupRows returns the rows of an object. Callers must not change them.
func (c *rowCache) lookupRows(key rowKey) (encodedObject, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.mu.by[key]
	if !ok {
		return encodedObject{}, false
	}
	c.mu.order.MoveToFront(at)
	return at.Value.(*cachedRows).encodedObject, true
}

// storeRows keeps the rows of an object and replaces earlier ones, if they fit at all.
func (c *rowCache) storeRows(key rowKey, e encodedObject) {
	k := &cachedRows{key, e}
	if key.digest == (kv.Digest{}) || k.sizeBytes() > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.mu.by[key]; ok {
		c.dropLocked(at)
	}
	c.mu.by[key] = c.mu.order.PushFront(k)
	c.mu.bytes += k.sizeBytes()
	for c.mu.bytes > c.limit {
		c.dropLocked(c.mu.order.Back())
	}
}

// dropLocked removes an entry.
func (c *rowCache) dropLocked(at *list.Element) {
	k := c.mu.order.Remove(at).(*cachedRows)
	delete(c.mu.by, k.key)
	c.mu.bytes -= k.sizeBytes()
}
