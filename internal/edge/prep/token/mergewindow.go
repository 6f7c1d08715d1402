package token

import "penstock/core/kv"

// window is how many bytes of a word are merged at a time, so that the memory
// for most words does not grow with them: about 40 bytes for each of these.
const window = 32 << 10

// reach says at which rank a token could first merge with what comes after it.
// With it the beginning of a word can be merged for good without the rest.
type reach struct {
	// lowest has, for a token and the byte after it, the lowest rank at which the
	// token merges with anything that begins with that byte.
	lowest *pairs
	// words are the tokens that merge to the left, among others, by their bytes,
	// and longest is the length of the longest; nil if those are not known.
	words   map[string]kv.Token
	longest int
}

// newReach reads it off the merges of a file, which are in order of rank. words
// is the vocabulary by bytes.
func newReach(merges []fileMerge, vocab, words map[string]kv.Token) reach {
	inverse := newBytesOf()
	lowest := make(map[[2]kv.Token]uint32)
	longest := 0
	var text []byte
	for rank, m := range merges {
		text = inverse.append(text[:0], m.right)
		if len(text) == 0 {
			continue
		}
		key := [2]kv.Token{vocab[m.left], kv.Token(text[0])}
		if _, ok := lowest[key]; !ok {
			lowest[key] = uint32(rank)
		}
		longest = max(longest, len(text))
		if id, ok := words[string(text)]; !ok || id != vocab[m.right] {
			words = nil // an added token has changed what its entry stands for
		}
	}
	return packReach(lowest, words, longest)
}

func packReach(lowest map[[2]kv.Token]uint32, words map[string]kv.Token, longest int) reach {
	p := newPairs(len(lowest))
	for key, rank := range lowest {
		p.add(key[0], key[1], merge{rank: rank})
	}
	return reach{p, words, longest}
}

// barrier returns a rank that is not above the lowest at which id could merge
// with a token that text, which follows it, begins with; [noMerge] if it cannot.
func (m *bpe) barrier(id kv.Token, text string) uint32 {
	found, ok := m.reach.lowest.get(id, kv.Token(text[0]))
	if !ok {
		return noMerge
	}
	if m.reach.words == nil {
		return found.rank
	}
	rank := noMerge
	for n := 1; n <= m.reach.longest && n <= len(text); n++ {
		if right, ok := m.reach.words[text[:n]]; ok {
			rank = min(rank, m.lookup(id, right).rank)
		}
	}
	return rank
}

// mergeWindows merges a word of any length, size bytes at a time. A window of
// which less than half is settled is made four times as large, and only then
// memory grows: words of one or two characters repeated do that in vocabularies
// that have many lengths of them, since where one repetition ends bears upon the
// one before it, all the way.
func (m *bpe) mergeWindows(dst []kv.Token, word string, s *mergeScratch, size int) []kv.Token {
	for n := size; n < len(word); {
		out, settled := s.mergeSettled(dst, word, n, m)
		if settled < n/2 {
			n *= 4
			continue
		}
		dst, word, n = out, word[settled:], size
	}
	return s.merge(dst, word, m)
}

// mergeSettled merges the first n bytes of a longer word as far as that does not
// depend on what follows: it appends the tokens of the first settled bytes, which
// are the first tokens of the whole word, and the rest of the word, by itself,
// has the others.
//
// All symbols up to last are settled: they are what they would be at this point
// of merging the whole word. What is to the right of last may be any token that
// the text there begins with. As long as the merge whose turn it is among the
// settled comes before any that last could have with such a token, it is also the
// next of the whole word that touches them. When it does not, last is no longer
// settled. In the end what is settled can never merge to the right, so that no
// merge of the whole word lies over that border, and the two sides have nothing
// to do with each other.
func (s *mergeScratch) mergeSettled(dst []kv.Token, word string, n int, m *bpe) (out []kv.Token, settled int) {
	s.start(m, word[:n])
	last := int32(n - 1)
	settled = n
	barrier := m.barrier(s.symbols[last].id, word[settled:])
	for {
		if len(s.heap) == 0 && barrier == noMerge {
			return s.appendIDs(dst), settled
		}
		if len(s.heap) == 0 || s.heap[0] > newCandidate(barrier, last) {
			settled, last = int(last), s.symbols[last].prev
			if last < 0 {
				return dst, 0
			}
			s.symbols[last].next = -1
			barrier = m.barrier(s.symbols[last].id, word[settled:])
			continue
		}
		c := s.pop()
		if now := s.mergeAt(m, c.pos()); now.rank == c.rank() {
			s.join(m, c.pos(), now.id)
			if s.symbols[c.pos()].next < 0 {
				last = c.pos()
				barrier = m.barrier(now.id, word[settled:])
			}
		}
	}
}
