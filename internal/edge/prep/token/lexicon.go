package token

import (
	"slices"
	"strings"
	"sync"

	"penstock/core/kv"
)

// lexicon is the set of tokens which merging can make, by their text. With it a word of any length is encoded
// from left to right, in linear time and without more memory than the ids: merging a whole word takes some 30
// bytes per symbol, and clients choose the length of a word.
//
// Why left to right works: let e be tokens whose texts make up a text. They are the merge result of the text
// if and only if each two neighbours are the merge result of their two texts. Take the first merge of the
// whole text which crosses a border between two tokens of e. Up to it, what happened between the two
// surrounding borders depends on those two texts only, since the order of merging, lowest rank and then
// leftmost, is the same among few candidates as among many. So merging the two alone reaches that merge as
// well, and they are not its result. The reverse is the same argument. It holds for ranks in any order.
//
// So there is exactly one sequence of tokens for the text up to each position in which all neighbours agree.
// A search which extends a sequence by any token that agrees with the last one, and backtracks when none
// does, reaches each position at most once.
type lexicon struct {
	merger  *merger
	symbols func(dst []kv.Token, text string) []kv.Token // the symbols from which merging starts

	text    string
	start   []uint32   // entry i is text[start[i]:start[i+1]]; entries ascend
	ids     []kv.Token // by entry
	shorter []int32    // the longest other entry which is a prefix of entry i, noEntry if there is none
	pool    sync.Pool  // *lexiconScratch
}

// noEntry stands for no entry.
const noEntry = -1

// longWord is the length in bytes of the longest word which is merged. Shorter words are merged faster than
// searched; for longer ones it is the reverse.
const longWord = 4 << 10

type lexiconWord struct {
	text string
	id   kv.Token
}

func newLexicon(m *merger, words []lexiconWord, symbols func([]kv.Token, string) []kv.Token) *lexicon {
	words = distinctByID(words)
	slices.SortFunc(words, func(a, b lexiconWord) int { return strings.Compare(a.text, b.text) })
	l := &lexicon{merger: m, symbols: symbols, start: make([]uint32, 1, len(words)+1)}
	var text strings.Builder
	var within []int32 // entries which each extend the one before, the current one last
	for i, w := range words {
		for len(within) > 0 && !strings.HasPrefix(w.text, words[within[len(within)-1]].text) {
			within = within[:len(within)-1]
		}
		shorter := int32(noEntry)
		if len(within) > 0 {
			shorter = within[len(within)-1]
		}
		within = append(within, int32(i))
		l.shorter = append(l.shorter, shorter)
		l.ids = append(l.ids, w.id)
		text.WriteString(w.text)
		l.start = append(l.start, uint32(text.Len()))
	}
	l.text = text.String()
	return l
}

// distinctByID returns words, in place, with each id once: several merges can make the same token.
func distinctByID(words []lexiconWord) []lexiconWord {
	seen := map[kv.Token]bool{}
	return slices.DeleteFunc(words, func(w lexiconWord) bool {
		was := seen[w.id]
		seen[w.id] = true
		return was
	})
}

func (l *lexicon) entryText(i int32) string { return l.text[l.start[i]:l.start[i+1]] }

// longestEntry returns the longest entry which is a prefix of text. It is the last entry not above text, or a
// prefix of that entry.
func (l *lexicon) longestEntry(text string) int32 {
	low, high := 0, len(l.ids)
	for low < high {
		middle := (low + high) / 2
		if l.entryText(int32(middle)) <= text {
			low = middle + 1
		} else {
			high = middle
		}
	}
	i := int32(low - 1)
	for i != noEntry && !strings.HasPrefix(text, l.entryText(i)) {
		i = l.shorter[i]
	}
	return i
}

// lexiconScratch is the working memory for one word.
type lexiconScratch struct {
	symbols []kv.Token
	agreed  [1 << agreedBits]agreement
	lookups int // number of entry lookups, for tests
}

// agreement caches a result of canFollow: agreementKnown, the entries, and the result in the lowest bit.
type agreement uint64

const (
	agreementKnown agreement = 1 << 63
	agreedBits               = 14
)

// appendWord encodes a text whose every symbol is an entry.
func (l *lexicon) appendWord(dst []kv.Token, text string) []kv.Token {
	s, _ := l.pool.Get().(*lexiconScratch)
	if s == nil {
		s = new(lexiconScratch)
	}
	dst = l.searchTokens(dst, text, s)
	l.pool.Put(s)
	return dst
}

func (l *lexicon) searchTokens(dst []kv.Token, text string, s *lexiconScratch) []kv.Token {
	row := len(dst) // from here on, entries instead of ids
	last := int32(noEntry)
	for at := 0; at < len(text); {
		s.lookups++
		next := l.longestAgreeing(s, last, l.longestEntry(text[at:]))
		for next == noEntry { // backtrack: drop the last entry and continue with a shorter one
			at -= len(l.entryText(last))
			instead := l.shorter[last]
			dst = dst[:len(dst)-1]
			last = noEntry
			if len(dst) > row {
				last = int32(dst[len(dst)-1])
			}
			next = l.longestAgreeing(s, last, instead)
		}
		dst = append(dst, kv.Token(next))
		at += len(l.entryText(next))
		last = next
	}
	for i, entry := range dst[row:] {
		dst[row+i] = l.ids[entry]
	}
	return dst
}

// longestAgreeing returns the longest of right and its prefix entries which can follow left.
func (l *lexicon) longestAgreeing(s *lexiconScratch, left, right int32) int32 {
	for right != noEntry && !l.canFollow(s, left, right) {
		right = l.shorter[right]
	}
	return right
}

// canFollow reports whether left and right are the merge result of their joined texts; left may be noEntry.
func (l *lexicon) canFollow(s *lexiconScratch, left, right int32) bool {
	key := agreementKnown | agreement(left+1)<<32 | agreement(right)<<1
	slot := &s.agreed[uint64(key)*golden>>(64-agreedBits)]
	if *slot&^1 == key {
		return *slot&1 != 0
	}
	*slot = key
	if l.mergeToThemselves(s, left, right) {
		*slot |= 1
	}
	return *slot&1 != 0
}

// mergeToThemselves is the definition of canFollow.
func (l *lexicon) mergeToThemselves(s *lexiconScratch, left, right int32) bool {
	s.symbols = s.symbols[:0]
	if left != noEntry {
		s.symbols = l.symbols(s.symbols, l.entryText(left))
	}
	s.symbols = l.symbols(s.symbols, l.entryText(right))
	merged := l.merger.mergeSymbols(s.symbols)
	if left == noEntry {
		return len(merged) == 1 && merged[0] == l.ids[right]
	}
	return len(merged) == 2 && merged[0] == l.ids[left] && merged[1] == l.ids[right]
}
