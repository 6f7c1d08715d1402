package token

import (
	"container/list"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"penstock/core/kv"
)

// chunks remembers the ids of pieces of text that begin and end at seams, so
// that of a growing conversation only what is new is encoded. Since the ids of a
// chunk do not depend on what surrounds it, it serves any prompt that has the
// same chunk. It is safe for concurrent use; what was used longest ago goes
// first.
type chunks struct {
	classes *classes
	shards  [chunkShards]chunkShard
	hits    atomic.Uint64
	misses  atomic.Uint64
	reused  atomic.Uint64 // bytes
	encoded atomic.Uint64 // bytes
}

const (
	chunkShards = 16
	// chunkBudget bounds, in bytes, what the chunks of one tokenizer hold: the
	// text and ids of about 10 million tokens of English.
	chunkBudget = 64 << 20
	// chunkSize is the length in bytes from which a chunk ends at the next seam.
	// Half of it, on average, is encoded again when a text grows at its end.
	chunkSize = 512
	// minChunk is the length in bytes below which encoding a text is as fast as
	// looking it up.
	minChunk = 128
	// maxChunk is the length in bytes of the longest chunk that is remembered:
	// only text of an unusual kind goes so long without a seam.
	maxChunk = 16 << 10
	// chunkOverhead is what an entry takes besides its text and ids.
	chunkOverhead = 192
)

type chunkKey struct {
	hash         uint64
	parseSpecial bool
}

// chunk is an entry; it does not change.
type chunk struct {
	key  chunkKey
	text string
	ids  []kv.Token
}

func (c *chunk) size() int { return len(c.text) + 4*len(c.ids) + chunkOverhead }

type chunkShard struct {
	mu struct {
		sync.Mutex
		budget  int
		held    int
		entries map[chunkKey]*list.Element // of *chunk
		recent  list.List                  // the one used last in front
	}
}

func newChunks(classes *classes, budget int) *chunks {
	c := &chunks{classes: classes}
	for i := range c.shards {
		c.shards[i].mu.budget = budget / chunkShards
		c.shards[i].mu.entries = map[chunkKey]*list.Element{}
	}
	return c
}

// appendChunks encodes text, chunk by chunk if it can be cut.
func (t *Tokenizer) appendChunks(dst []kv.Token, text string, parseSpecial bool) []kv.Token {
	if t.chunks == nil {
		return t.appendPlain(dst, text, parseSpecial)
	}
	for len(text) >= minChunk {
		n := len(text)
		if n > chunkSize {
			n = t.chunks.classes.nextSeam(text, chunkSize)
		}
		dst = t.appendChunk(dst, text[:n], parseSpecial)
		text = text[n:]
	}
	return t.appendPlain(dst, text, parseSpecial)
}

func (t *Tokenizer) appendChunk(dst []kv.Token, text string, parseSpecial bool) []kv.Token {
	if len(text) > maxChunk {
		return t.appendPlain(dst, text, parseSpecial)
	}
	key := chunkKey{xxh3.HashString(text), parseSpecial}
	if found := t.chunks.get(key, text); found != nil {
		return append(dst, found.ids...)
	}
	start := len(dst)
	dst = t.appendPlain(dst, text, parseSpecial)
	t.chunks.put(&chunk{key, strings.Clone(text), slices.Clone(dst[start:])})
	return dst
}

func (c *chunks) shard(key chunkKey) *chunkShard { return &c.shards[key.hash>>32%chunkShards] }

// get returns the chunk of exactly this text, or nil.
func (c *chunks) get(key chunkKey, text string) *chunk {
	found := c.shard(key).get(key)
	if found == nil || found.text != text {
		c.misses.Add(1)
		c.encoded.Add(uint64(len(text)))
		return nil
	}
	c.hits.Add(1)
	c.reused.Add(uint64(len(text)))
	return found
}

func (s *chunkShard) get(key chunkKey) *chunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mu.entries[key]
	if e == nil {
		return nil
	}
	s.mu.recent.MoveToFront(e)
	return e.Value.(*chunk)
}

// put remembers a chunk in the place of one with the same key, and forgets those
// used longest ago until the budget is kept.
func (c *chunks) put(entry *chunk) { c.shard(entry.key).put(entry) }

func (s *chunkShard) put(entry *chunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.mu.entries[entry.key]; old != nil {
		s.remove(old)
	}
	s.mu.entries[entry.key] = s.mu.recent.PushFront(entry)
	s.mu.held += entry.size()
	for s.mu.held > s.mu.budget {
		s.remove(s.mu.recent.Back())
	}
}

// remove forgets an entry; the caller holds the lock.
func (s *chunkShard) remove(e *list.Element) {
	entry := s.mu.recent.Remove(e).(*chunk)
	delete(s.mu.entries, entry.key)
	s.mu.held -= entry.size()
}

// Stats are counts since a tokenizer was made, of texts long enough to be looked
// up in pieces.
type Stats struct {
	Hits, Misses uint64 // pieces that were remembered, and those that were not
	Reused       uint64 // bytes of text that were not encoded again
	Encoded      uint64 // bytes of text that were looked up in vain
	Held         int    // bytes of memory that what is remembered takes, about
}

// Stats returns the counts of t. All are zero for a tokenizer whose texts cannot
// be cut without regard to what surrounds them.
func (t *Tokenizer) Stats() Stats {
	c := t.chunks
	if c == nil {
		return Stats{}
	}
	stats := Stats{Hits: c.hits.Load(), Misses: c.misses.Load(), Reused: c.reused.Load(), Encoded: c.encoded.Load()}
	for i := range c.shards {
		stats.Held += c.shards[i].bytes()
	}
	return stats
}

func (s *chunkShard) bytes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.held
}
