package sim

import (
	"sync"

	"penstock/core/embcache"
	"penstock/core/kv"
)

// RowBytes is the size of a token's row of an embedding in bytes: 4,096 elements of 2 bytes, as models of the size
// of the default KV have.
const RowBytes = 4096 * 2

// RowMemory is the embedding cache of a simulated worker: entries have a size and no bytes. An engine copies rows
// when it finds them, so no entry is in use longer than a look-up. It is safe for concurrent use.
type RowMemory struct {
	mu struct {
		sync.Mutex
		cache   *embcache.RowCache
		changes []embcache.Change // scratch
		watch   func(*embcache.Change)
	}
}

// NewRowMemory returns an empty cache of capacity bytes; one of 0 bytes keeps nothing.
func NewRowMemory(capacity int) *RowMemory {
	m := &RowMemory{}
	m.mu.cache = embcache.New(capacity)
	return m
}

// WatchChanges has f called with each change from now on, in their order. f must not use the cache.
func (m *RowMemory) WatchChanges(f func(*embcache.Change)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.watch = f
}

// rowTime is the time of all entries: they do not end.
const rowTime kv.Mono = 1

// LookupRows reports whether there are rows for a key, and counts a hit or a miss. A key without a digest names
// nothing: it is a miss which is not counted.
func (m *RowMemory) LookupRows(key *embcache.RowKey) bool {
	return m.useRows(key, (*embcache.RowCache).Get)
}

// RepeatLookup is LookupRows without counting, for a look-up which was counted before, or elsewhere.
func (m *RowMemory) RepeatLookup(key *embcache.RowKey) bool {
	return m.useRows(key, (*embcache.RowCache).Pin)
}

// useRows looks rows up by Get or Pin of the cache, which make them the most recently used ones.
func (m *RowMemory) useRows(key *embcache.RowKey, pin func(*embcache.RowCache, *embcache.RowKey, kv.Mono) (embcache.Entry, bool)) bool {
	if key.Digest == (kv.Digest{}) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := pin(m.mu.cache, key, rowTime)
	if ok {
		m.mu.cache.Release(e.Ref)
	}
	return ok
}

// HasRows reports whether there are rows for a key. It is no use of them, and counts nothing.
func (m *RowMemory) HasRows(key *embcache.RowKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.cache.Contains(key, rowTime)
}

// KeepRows keeps the rows of an object of so many tokens, if they have room.
func (m *RowMemory) KeepRows(key *embcache.RowKey, tokens int) {
	if key.Digest == (kv.Digest{}) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	item := embcache.Item{Key: *key, Bytes: tokens * RowBytes, Shape: embcache.Shape{Layers: 1, Rows: tokens, Width: RowBytes / 2}}
	e, refused, changes := m.mu.cache.Reserve(&item, rowTime, m.mu.changes[:0])
	if refused == embcache.NotRefused {
		changes = m.mu.cache.Commit(e.Ref, changes)
		m.mu.cache.Release(e.Ref)
	}
	m.mu.changes = changes
	for i := range changes {
		if m.mu.watch != nil {
			m.mu.watch(&changes[i])
		}
	}
}

// Stats returns the figures of the cache.
func (m *RowMemory) Stats() embcache.Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.cache.Stats()
}
