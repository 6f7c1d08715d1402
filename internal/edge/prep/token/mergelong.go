package token

import (
	"slices"

	"penstock/core/kv"
)

// mergeScratch is the working memory for one long word: a doubly linked list of
// symbols and a heap of the merges that are possible between them.
type mergeScratch struct {
	symbols []symbol
	heap    []candidate
}

// symbol is one token of the word so far; prev and next are indices, -1 at the
// ends. A symbol that was merged into its left neighbour has next == dead.
type symbol struct {
	id         kv.Token
	prev, next int32
}

const dead = -2

// candidate says that the symbol at a position and the one after it could merge:
// the rank above, the position below, so that the order of the numbers is the
// order of merging. It is stale when the two no longer merge at that rank.
type candidate uint64

func newCandidate(rank uint32, pos int32) candidate { return candidate(rank)<<32 | candidate(pos) }

func (c candidate) rank() uint32 { return uint32(c >> 32) }
func (c candidate) pos() int32   { return int32(uint32(c)) }

// mergeLong takes O(n log n) for a word of n bytes; about its memory see
// [bpe.mergeWindows].
func (m *bpe) mergeLong(dst []kv.Token, word string) []kv.Token {
	s, _ := m.pool.Get().(*mergeScratch)
	if s == nil {
		s = new(mergeScratch)
	}
	dst = m.mergeWindows(dst, word, s, window)
	if cap(s.symbols) <= keepScratch {
		m.pool.Put(s)
	}
	return dst
}

// keepScratch bounds, in symbols, the scratch that is kept for the next word, so
// that one huge word does not pin its memory.
const keepScratch = 1 << 16

func (s *mergeScratch) merge(dst []kv.Token, word string, m *bpe) []kv.Token {
	s.start(m, word)
	for len(s.heap) > 0 {
		c := s.pop()
		if now := s.mergeAt(m, c.pos()); now.rank == c.rank() {
			s.join(m, c.pos(), now.id)
		}
	}
	return s.appendIDs(dst)
}

// start makes the bytes of word the symbols, and offers what they merge to.
func (s *mergeScratch) start(m *bpe, word string) {
	s.symbols, s.heap = slices.Grow(s.symbols[:0], len(word)), slices.Grow(s.heap[:0], len(word))
	for i := range len(word) {
		s.symbols = append(s.symbols, symbol{m.single[word[i]], int32(i - 1), int32(i + 1)})
	}
	s.symbols[len(word)-1].next = -1
	for i := range s.symbols {
		s.offer(m, int32(i))
	}
}

// appendIDs appends what the symbols are now.
func (s *mergeScratch) appendIDs(dst []kv.Token) []kv.Token {
	for i := int32(0); i >= 0; i = s.symbols[i].next {
		dst = append(dst, s.symbols[i].id)
	}
	return dst
}

// mergeAt returns what the symbol at pos and its right neighbour become.
func (s *mergeScratch) mergeAt(m *bpe, pos int32) merge {
	left := s.symbols[pos]
	if left.next < 0 {
		return merge{rank: noMerge}
	}
	return m.lookup(left.id, s.symbols[left.next].id)
}

// offer puts the merge of the symbol at pos on the heap, if there is one.
func (s *mergeScratch) offer(m *bpe, pos int32) {
	if found := s.mergeAt(m, pos); found.rank != noMerge {
		s.push(newCandidate(found.rank, pos))
	}
}

// join makes the symbol at pos and its right neighbour the one symbol id.
func (s *mergeScratch) join(m *bpe, pos int32, id kv.Token) {
	left := &s.symbols[pos]
	right := &s.symbols[left.next]
	left.id = id
	left.next, right.next = right.next, dead
	if left.next >= 0 {
		s.symbols[left.next].prev = pos
	}
	s.offer(m, pos)
	if left.prev >= 0 {
		s.offer(m, left.prev)
	}
}

func (s *mergeScratch) push(c candidate) {
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

func (s *mergeScratch) pop() candidate {
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
