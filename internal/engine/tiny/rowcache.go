package tiny

import (
	"sync"

	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/bounded"
)

// rowCache keeps the most recently used encoded objects, within a number of bytes. It belongs to one model,
// so a key names only the object. An object without a digest is not kept, since 64 bits do not identify it.
type rowCache struct {
	limit int
	mu    struct {
		sync.Mutex
		objects *bounded.Cache[rowKey, encodedObject]
	}
}

// rowKey identifies an object.
type rowKey struct {
	kind   media.Kind
	digest kv.Digest
}

func (e encodedObject) sizeBytes() int { return 4*len(e.rows) + 256 } // including the index entry

func newRowCache(limit int) *rowCache {
	c := &rowCache{limit: limit}
	c.mu.objects = bounded.NewCache[rowKey](limit, encodedObject.sizeBytes)
	return c
}

// lookupRows returns the rows of an object. Callers must not change them.
func (c *rowCache) lookupRows(key rowKey) (encodedObject, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.objects.Get(key)
}

// storeRows keeps the rows of an object and replaces earlier ones, if they fit at all.
func (c *rowCache) storeRows(key rowKey, e encodedObject) {
	if key.digest == (kv.Digest{}) || e.sizeBytes() > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.objects.Put(key, e)
}
