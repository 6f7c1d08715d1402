package token

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"penstock/core/kv"
)

// chunks remembers the ids of pieces of text that begin and end at seams, so
// that of a growing conversation only what is new is encoded. Since the ids of a
// chunk do not depend on what surrounds it, it serves any prompt that has the
// same chunk. It is safe for concurrent use; what was not used for longest goes
// first, about.
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
	chunkOverhead = 96
	// slabsOfShard is how many slabs a shard has when its budget is used up.
	slabsOfShard = 16
)

// chunkKey finds a chunk by its text and how that was encoded. Texts can share one.
type chunkKey uint64

func chunkKeyOf(text string, parseSpecial bool) chunkKey {
	key := chunkKey(xxh3.HashString(text))
	if parseSpecial {
		return key ^ golden // of the same text never the same key
	}
	return key
}

// chunkShard keeps chunks one after the other in slabs, and forgets those of the oldest slab
// together: so remembering a chunk is two copies and no allocation, and the garbage
// collector has nothing to look through. What is used while it is in the older half
// of the slabs is copied to the newest.
type chunkShard struct {
	mu struct {
		sync.Mutex
		budget int
		held   int
		places map[chunkKey]chunkPlace
		slabs  []*slab // the oldest first
		oldest uint32  // number of slabs[0]
		spare  *slab   // one that was emptied, or nil
	}
}

// slab is a row of chunks.
type slab struct {
	keys []chunkKey
	text []byte
	ids  []kv.Token
}

func (s *slab) size() int { return len(s.text) + 4*len(s.ids) + chunkOverhead*len(s.keys) }

// chunkPlace is where a chunk is: in which slab, by number, and where there.
type chunkPlace struct {
	slab          uint32
	text, textEnd uint32
	ids, idsEnd   uint32
}

func newChunks(classes *classes, budget int) *chunks {
	c := &chunks{classes: classes}
	for i := range c.shards {
		c.shards[i].mu.budget = budget / chunkShards
		c.shards[i].mu.places = map[chunkKey]chunkPlace{}
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
	key := chunkKeyOf(text, parseSpecial)
	dst, ok := t.chunks.append(dst, key, text)
	if ok {
		return dst
	}
	start := len(dst)
	dst = t.appendPlain(dst, text, parseSpecial)
	t.chunks.shard(key).remember(key, text, dst[start:])
	return dst
}

func (c *chunks) shard(key chunkKey) *chunkShard { return &c.shards[key>>32%chunkShards] }

// append appends the ids of exactly this text if they are remembered.
func (c *chunks) append(dst []kv.Token, key chunkKey, text string) ([]kv.Token, bool) {
	dst, ok := c.shard(key).append(dst, key, text)
	if !ok {
		c.misses.Add(1)
		c.encoded.Add(uint64(len(text)))
		return dst, false
	}
	c.hits.Add(1)
	c.reused.Add(uint64(len(text)))
	return dst, true
}

func (s *chunkShard) append(dst []kv.Token, key chunkKey, text string) ([]kv.Token, bool) {
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
		s.put(key, text, dst[start:])
	}
	return dst, true
}

// remember puts a chunk in the place of one with the same key.
func (s *chunkShard) remember(key chunkKey, text string, ids []kv.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(key, text, ids)
}

// put copies a chunk to the newest slab. The caller holds the lock.
func (s *chunkShard) put(key chunkKey, text string, ids []kv.Token) {
	size := len(text) + 4*len(ids) + chunkOverhead
	if size > s.mu.budget {
		return
	}
	for s.mu.held+size > s.mu.budget {
		s.forget()
	}
	to := s.newest(size)
	at := chunkPlace{
		slab: s.mu.oldest + uint32(len(s.mu.slabs)-1),
		text: uint32(len(to.text)), textEnd: uint32(len(to.text) + len(text)),
		ids: uint32(len(to.ids)), idsEnd: uint32(len(to.ids) + len(ids)),
	}
	to.keys, to.text, to.ids = append(to.keys, key), append(to.text, text...), append(to.ids, ids...)
	s.mu.places[key] = at
	s.mu.held += size
}

// newest returns the slab for a chunk that takes size bytes. The caller holds the
// lock.
func (s *chunkShard) newest(size int) *slab {
	if n := len(s.mu.slabs); n > 0 && s.mu.slabs[n-1].size()+size <= s.mu.budget/slabsOfShard {
		return s.mu.slabs[n-1]
	}
	fresh := s.mu.spare
	if s.mu.spare = nil; fresh == nil {
		fresh = new(slab)
	}
	s.mu.slabs = append(s.mu.slabs, fresh)
	return fresh
}

// forget empties the oldest slab. The caller holds the lock.
func (s *chunkShard) forget() {
	old := s.mu.slabs[0]
	s.mu.held -= old.size()
	for _, key := range old.keys {
		if s.mu.places[key].slab == s.mu.oldest { // else it was copied, or is another's
			delete(s.mu.places, key)
		}
	}
	old.keys, old.text, old.ids = old.keys[:0], old.text[:0], old.ids[:0]
	s.mu.spare = old
	s.mu.slabs = slices.Delete(s.mu.slabs, 0, 1)
	s.mu.oldest++
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
