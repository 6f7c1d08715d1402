package token

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"penstock/core/kv"
)

// chunkCache caches the ids of pieces of text which start and end at seams, so that only the new part of a
// growing conversation is encoded. The ids of a chunk do not depend on its surroundings, so any prompt with
// the same chunk can use them. It is safe for concurrent use; eviction is approximately least recently used.
type chunkCache struct {
	classes *classes
	shards  [chunkShards]chunkShard
	hits    atomic.Uint64
	misses  atomic.Uint64
	reused  atomic.Uint64 // bytes
	encoded atomic.Uint64 // bytes
}

const (
	chunkShards = 16
	// chunkBudget bounds the bytes of a tokenizer's chunks: the text and ids of about 10 million tokens of
	// English.
	chunkBudget = 64 << 20
	// chunkSize is the length in bytes from which a chunk ends at the next seam. On average half of it is
	// encoded again when a text grows at its end.
	chunkSize = 512
	// minChunk is the length in bytes below which encoding a text is as fast as looking it up.
	minChunk = 128
	// maxChunk is the length in bytes of the longest cached chunk: only unusual text goes so long without a
	// seam.
	maxChunk = 16 << 10
	// chunkOverhead is the size of an entry in addition to its text and ids.
	chunkOverhead = 96
	// arenasPerShard is how many arenas a shard has when its budget is used up.
	arenasPerShard = 16
)

// chunkKey is the hash of a chunk's text and encoding mode. Texts can collide.
type chunkKey uint64

func chunkKeyOf(text string, parseSpecial bool) chunkKey {
	key := chunkKey(xxh3.HashString(text))
	if parseSpecial {
		return key ^ golden // the keys of the two modes always differ
	}
	return key
}

// chunkShard stores chunks one after the other in arenas, and evicts the oldest arena as a whole: adding a
// chunk is two copies without allocation, and the garbage collector has nothing to scan. A chunk used in the
// older half of the arenas is copied to the newest.
type chunkShard struct {
	mu struct {
		sync.Mutex
		budget int
		held   int
		places map[chunkKey]chunkPlace
		slabs  []*chunkArena // the oldest first
		oldest uint32        // number of slabs[0]
		spare  *chunkArena   // an emptied one, or nil
	}
}

// chunkArena is a sequence of chunks.
type chunkArena struct {
	keys []chunkKey
	text []byte
	ids  []kv.Token
}

func (s *chunkArena) byteSize() int { return len(s.text) + 4*len(s.ids) + chunkOverhead*len(s.keys) }

// chunkPlace is the place of a chunk: its arena, by number, and the ranges in it.
type chunkPlace struct {
	slab          uint32
	text, textEnd uint32
	ids, idsEnd   uint32
}

func newChunkCache(classes *classes, budget int) *chunkCache {
	c := &chunkCache{classes: classes}
	for i := range c.shards {
		c.shards[i].mu.budget = budget / chunkShards
		c.shards[i].mu.places = map[chunkKey]chunkPlace{}
	}
	return c
}

// appendChunks encodes text, chunk by chunk if it can be cut. It may leave out the rest once dst is longer than
// limit.
func (t *Tokenizer) appendChunks(dst []kv.Token, text string, parseSpecial bool, limit int) []kv.Token {
	if t.chunks == nil {
		return t.appendRuns(dst, text, []segmentRun{{len(text), parseSpecial}}, limit)
	}
	for len(text) >= minChunk {
		if len(dst) > limit {
			return dst
		}
		n := len(text)
		if n > chunkSize {
			n = t.chunks.classes.nextSeam(text, chunkSize)
		}
		dst = t.appendChunk(dst, text[:n], parseSpecial, limit)
		text = text[n:]
	}
	return t.appendPlain(dst, text, parseSpecial)
}

// appendChunk encodes a chunk. One which is cached is encoded whole, whatever the limit.
func (t *Tokenizer) appendChunk(dst []kv.Token, text string, parseSpecial bool, limit int) []kv.Token {
	if len(text) > maxChunk {
		return t.appendRuns(dst, text, []segmentRun{{len(text), parseSpecial}}, limit)
	}
	key := chunkKeyOf(text, parseSpecial)
	dst, ok := t.chunks.appendCached(dst, key, text)
	if ok {
		return dst
	}
	start := len(dst)
	dst = t.appendPlain(dst, text, parseSpecial)
	t.chunks.shardOf(key).addChunk(key, text, dst[start:])
	return dst
}

func (c *chunkCache) shardOf(key chunkKey) *chunkShard { return &c.shards[key>>32%chunkShards] }

// appendCached appends the ids of exactly this text if they are cached.
func (c *chunkCache) appendCached(dst []kv.Token, key chunkKey, text string) ([]kv.Token, bool) {
	dst, ok := c.shardOf(key).appendCached(dst, key, text)
	if !ok {
		c.misses.Add(1)
		c.encoded.Add(uint64(len(text)))
		return dst, false
	}
	c.hits.Add(1)
	c.reused.Add(uint64(len(text)))
	return dst, true
}

func (s *chunkShard) appendCached(dst []kv.Token, key chunkKey, text string) ([]kv.Token, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.mu.places[key]
	if !ok {
		return dst, false
	}
	age := at.slab - s.mu.oldest
	from := s.mu.slabs[age]
	if string(from.text[at.text:at.textEnd]) != text {
		return dst, false
	}
	start := len(dst)
	dst = append(dst, from.ids[at.ids:at.idsEnd]...)
	if int(age) < len(s.mu.slabs)/2 {
		s.addChunkLocked(key, text, dst[start:])
	}
	return dst, true
}

// addChunk stores a chunk and replaces one with the same key.
func (s *chunkShard) addChunk(key chunkKey, text string, ids []kv.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addChunkLocked(key, text, ids)
}

// addChunkLocked copies a chunk to the newest arena.
func (s *chunkShard) addChunkLocked(key chunkKey, text string, ids []kv.Token) {
	size := len(text) + 4*len(ids) + chunkOverhead
	if size > s.mu.budget {
		return
	}
	for s.mu.held+size > s.mu.budget {
		s.evictOldestLocked()
	}
	to := s.newestArenaLocked(size)
	at := chunkPlace{
		slab: s.mu.oldest + uint32(len(s.mu.slabs)-1),
		text: uint32(len(to.text)), textEnd: uint32(len(to.text) + len(text)),
		ids: uint32(len(to.ids)), idsEnd: uint32(len(to.ids) + len(ids)),
	}
	to.keys, to.text, to.ids = append(to.keys, key), append(to.text, text...), append(to.ids, ids...)
	s.mu.places[key] = at
	s.mu.held += size
}

// newestArenaLocked returns the arena for a chunk of size bytes.
func (s *chunkShard) newestArenaLocked(size int) *chunkArena {
	if n := len(s.mu.slabs); n > 0 && s.mu.slabs[n-1].byteSize()+size <= s.mu.budget/arenasPerShard {
		return s.mu.slabs[n-1]
	}
	fresh := s.mu.spare
	if s.mu.spare = nil; fresh == nil {
		fresh = new(chunkArena)
	}
	s.mu.slabs = append(s.mu.slabs, fresh)
	return fresh
}

// evictOldestLocked empties the oldest arena.
func (s *chunkShard) evictOldestLocked() {
	old := s.mu.slabs[0]
	s.mu.held -= old.byteSize()
	for _, key := range old.keys {
		if s.mu.places[key].slab == s.mu.oldest { // otherwise it was copied, or replaced
			delete(s.mu.places, key)
		}
	}
	old.keys, old.text, old.ids = old.keys[:0], old.text[:0], old.ids[:0]
	s.mu.spare = old
	s.mu.slabs = slices.Delete(s.mu.slabs, 0, 1)
	s.mu.oldest++
}

// Stats are counts since a tokenizer was made, for texts long enough to be looked up in pieces.
type Stats struct {
	Hits, Misses uint64 // cached pieces, and missing ones
	Reused       uint64 // bytes of text served from the cache
	Encoded      uint64 // bytes of text not found in the cache
	Held         int    // approximate bytes of memory of the cache
}

// Stats returns the counts of t. All are zero for a tokenizer without seams.
func (t *Tokenizer) Stats() Stats {
	c := t.chunks
	if c == nil {
		return Stats{}
	}
	stats := Stats{Hits: c.hits.Load(), Misses: c.misses.Load(), Reused: c.reused.Load(), Encoded: c.encoded.Load()}
	for i := range c.shards {
		stats.Held += c.shards[i].heldBytes()
	}
	return stats
}

func (s *chunkShard) heldBytes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.held
}
