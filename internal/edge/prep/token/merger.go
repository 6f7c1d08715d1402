package token

import (
	"slices"
	"sync"

	"penstock/core/kv"
)

// merger is the core of byte-pair encoding: it merges the neighbouring symbols of the lowest rank, the
// leftmost first, until no merge is left. It is safe for concurrent use.
type merger struct {
	merges *pairTable
	pool   sync.Pool // *mergeScratch
}

// shortWord is the length in symbols up to which scanning the whole word for every merge beats a heap.
const shortWord = 32

// mergeSymbols merges symbols in place and returns the rest of them.
func (m *merger) mergeSymbols(symbols []kv.Token) []kv.Token {
	if len(symbols) <= shortWord {
		return m.mergeShort(symbols)
	}
	s, _ := m.pool.Get().(*mergeScratch)
	if s == nil {
		s = new(mergeScratch)
	}
	symbols = s.mergeAll(m.merges, symbols)
	if cap(s.links) <= keepScratch {
		m.pool.Put(s)
	}
	return symbols
}

// mergeShort is quadratic in at most shortWord symbols.
func (m *merger) mergeShort(ids []kv.Token) []kv.Token {
	var next [shortWord]uint32 // the rank at which ids[i] and ids[i+1] merge
	n := len(ids)
	for i := range n - 1 {
		next[i] = m.merges.lookupRank(ids[i], ids[i+1])
	}
	for n > 1 {
		best := 0
		for i := 1; i < n-1; i++ {
			if next[i] < next[best] {
				best = i
			}
		}
		if next[best] == noMerge {
			break
		}
		ids[best] = m.merges.mergedID(next[best])
		copy(ids[best+1:n-1], ids[best+2:n])
		copy(next[best:n-2], next[best+1:n-1])
		n--
		if best > 0 {
			next[best-1] = m.merges.lookupRank(ids[best-1], ids[best])
		}
		if best < n-1 {
			next[best] = m.merges.lookupRank(ids[best], ids[best+1])
		}
	}
	return ids[:n]
}

// keepScratch bounds, in symbols, the scratch which is kept for the next word, so that one huge word does not
// pin its memory.
const keepScratch = 1 << 16

// mergeScratch is the working memory for one word: the symbols as a doubly linked list, and a heap of the
// possible merges.
type mergeScratch struct {
	ids   []kv.Token
	links []symbolLink
	heap  []mergeCandidate
}

// symbolLink has the positions of a symbol's neighbours, -1 at the ends. A symbol which was merged into its
// left neighbour has next == mergedAway.
type symbolLink struct{ prev, next int32 }

const mergedAway = -2

// mergeCandidate is a possible merge of the symbol at a position with the next one: the rank in the high
// bits, the position in the low bits, so that numeric order is merge order. It is stale when the two no
// longer merge at that rank.
type mergeCandidate uint64

func (c mergeCandidate) rank() uint32 { return uint32(c >> 32) }
func (c mergeCandidate) pos() int32   { return int32(uint32(c)) }

// mergeAll takes O(n log n) for n symbols.
func (s *mergeScratch) mergeAll(p *pairTable, ids []kv.Token) []kv.Token {
	s.ids = ids
	s.links, s.heap = slices.Grow(s.links[:0], len(ids)), slices.Grow(s.heap[:0], len(ids))
	for i := range ids {
		s.links = append(s.links, symbolLink{int32(i - 1), int32(i + 1)})
	}
	s.links[len(ids)-1].next = -1
	for i := range ids {
		s.pushMerge(p, int32(i))
	}
	for len(s.heap) > 0 {
		c := s.pop()
		if s.rankAt(p, c.pos()) == c.rank() {
			s.joinSymbols(p, c.pos(), p.mergedID(c.rank()))
		}
	}
	n := 0
	for i := int32(0); i >= 0; i = s.links[i].next {
		ids[n] = ids[i]
		n++
	}
	s.ids = nil
	return ids[:n]
}

// rankAt returns the rank at which the symbol at pos and its right neighbour merge.
func (s *mergeScratch) rankAt(p *pairTable, pos int32) uint32 {
	next := s.links[pos].next
	if next < 0 {
		return noMerge
	}
	return p.lookupRank(s.ids[pos], s.ids[next])
}

// pushMerge pushes the merge of the symbol at pos on the heap, if there is one.
func (s *mergeScratch) pushMerge(p *pairTable, pos int32) {
	if rank := s.rankAt(p, pos); rank != noMerge {
		s.push(mergeCandidate(rank)<<32 | mergeCandidate(pos))
	}
}

// joinSymbols replaces the symbol at pos and its right neighbour by the symbol id.
func (s *mergeScratch) joinSymbols(p *pairTable, pos int32, id kv.Token) {
	left := &s.links[pos]
	right := &s.links[left.next]
	s.ids[pos] = id
	left.next, right.next = right.next, mergedAway
	if left.next >= 0 {
		s.links[left.next].prev = pos
	}
	s.pushMerge(p, pos)
	if left.prev >= 0 {
		s.pushMerge(p, left.prev)
	}
}

func (s *mergeScratch) push(c mergeCandidate) {
	s.heap = append(s.heap, c)
	h := s.heap
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if c >= h[parent] {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = c
}

func (s *mergeScratch) pop() mergeCandidate {
	h := s.heap
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	s.heap = h
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if h[child] >= last {
			break
		}
		h[i] = h[child]
		i = child
	}
	if len(h) > 0 {
		h[i] = last
	}
	return top
}

// bpe is byte-pair encoding which starts from bytes. Words are kept in a bounded cache. It is safe for
// concurrent use.
type bpe struct {
	merger
	byteTokens [256]kv.Token // the token of each byte
	lexicon    *lexicon
	// wholeWords is looked up before merging: the vocabulary by bytes. nil unless the model ignores merges
	// for known words.
	wholeWords map[string]kv.Token
	cache      *wordCache
}

// appendWord appends the ids of the word text[:n]. The text after it only makes the lookup faster.
func (m *bpe) appendWord(dst []kv.Token, text string, n int) []kv.Token {
	if n == 1 {
		return append(dst, m.byteTokens[text[0]])
	}
	if n > maxCachedWord {
		return m.appendUncached(dst, text[:n])
	}
	// Words of the vocabulary are cached too: it is large, and a lookup in it waits for memory several times.
	dst, ok := m.cache.appendCached(dst, text, n)
	if ok {
		return dst
	}
	start := len(dst)
	dst = m.appendUncached(dst, text[:n])
	m.cache.addWord(text[:n], dst[start:])
	return dst
}

func (m *bpe) appendUncached(dst []kv.Token, word string) []kv.Token {
	if id, ok := m.wholeWords[word]; ok {
		return append(dst, id)
	}
	if len(word) > longWord {
		return m.lexicon.appendWord(dst, word)
	}
	start := len(dst)
	dst = m.appendBytes(dst, word)
	return dst[:start+len(m.mergeSymbols(dst[start:]))]
}

// appendBytes appends the token of each byte.
func (m *bpe) appendBytes(dst []kv.Token, word string) []kv.Token {
	for i := range len(word) {
		dst = append(dst, m.byteTokens[word[i]])
	}
	return dst
}
