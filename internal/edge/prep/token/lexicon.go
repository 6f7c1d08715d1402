package token

import (
	"slices"
	"strings"
	"sync"

	"penstock/core/kv"
)

// lexicon are the tokens that merging can make, by their text. With it a word of
// any length is encoded from left to right, in time that grows with its length
// and in no more memory than the ids take: merging a word as a whole takes some
// 30 bytes for each of its symbols, and clients choose how long a word is.
//
// Why left to right works: let e be tokens whose texts make a text. They are what
// the text merges to if and only if each two neighbours are what their two texts
// merge to. For take the first merge of the whole text that goes over a border
// between two of e. Up to it, what happened between the two borders around has to
// do with those two texts alone, since the order of merging, lowest rank and then
// leftmost, is the same among few candidates as among many; so merging the two
// alone comes to that merge as well, and they are not what it leaves. The reverse
// is the same argument. It holds for ranks in any order.
//
// So there is exactly one row of tokens for the text up to each position in which
// all neighbours agree, and a search that goes on from a row by any token that
// agrees with the last, and takes back the last when none does, comes to each
// position at most once.
type lexicon struct {
	merger  *merger
	symbols func(dst []kv.Token, text string) []kv.Token // what merging starts from

	text    string
	start   []uint32   // entry i is text[start[i]:start[i+1]]; entries ascend
	ids     []kv.Token // by entry
	shorter []int32    // the longest other entry that entry i begins with, none if there is none
	pool    sync.Pool  // *lexiconScratch
}

// none is no entry.
const none = -1

// longWord is the length in bytes of the longest word that is merged. Short words
// are merged faster than they are searched for; from here on it is the reverse.
const longWord = 4 << 10

type word struct {
	text string
	id   kv.Token
}

func newLexicon(m *merger, words []word, symbols func([]kv.Token, string) []kv.Token) *lexicon {
	words = distinct(words)
	slices.SortFunc(words, func(a, b word) int { return strings.Compare(a.text, b.text) })
	l := &lexicon{merger: m, symbols: symbols, start: make([]uint32, 1, len(words)+1)}
	var text strings.Builder
	var within []int32 // entries that each begin with the one before, the current one last
	for i, w := range words {
		for len(within) > 0 && !strings.HasPrefix(w.text, words[within[len(within)-1]].text) {
			within = within[:len(within)-1]
		}
		shorter := int32(none)
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

// distinct returns words, in place, with each id once: several merges can make
// the same token.
func distinct(words []word) []word {
	seen := map[kv.Token]bool{}
	return slices.DeleteFunc(words, func(w word) bool {
		was := seen[w.id]
		seen[w.id] = true
		return was
	})
}

func (l *lexicon) entry(i int32) string { return l.text[l.start[i]:l.start[i+1]] }

// longest returns the longest entry that text begins with. It is the last entry
// that is not above text, or one that this begins with.
func (l *lexicon) longest(text string) int32 {
	low, high := 0, len(l.ids)
	for low < high {
		middle := (low + high) / 2
		if l.entry(int32(middle)) <= text {
			low = middle + 1
		} else {
			high = middle
		}
	}
	i := int32(low - 1)
	for i != none && !strings.HasPrefix(text, l.entry(i)) {
		i = l.shorter[i]
	}
	return i
}

// lexiconScratch is the working memory for one word.
type lexiconScratch struct {
	symbols []kv.Token
	agreed  [1 << agreedBits]agreement
	tried   int // how often entries were looked for, for tests
}

// agreement remembers an answer of agree: known, the entries, and the answer in
// the lowest bit.
type agreement uint64

const (
	known      agreement = 1 << 63
	agreedBits           = 14
)

// append encodes a text whose every symbol is an entry.
func (l *lexicon) append(dst []kv.Token, text string) []kv.Token {
	s, _ := l.pool.Get().(*lexiconScratch)
	if s == nil {
		s = new(lexiconScratch)
	}
	dst = l.search(dst, text, s)
	l.pool.Put(s)
	return dst
}

func (l *lexicon) search(dst []kv.Token, text string, s *lexiconScratch) []kv.Token {
	row := len(dst) // from here on, entries instead of ids
	last := int32(none)
	for at := 0; at < len(text); {
		s.tried++
		next := l.agreeing(s, last, l.longest(text[at:]))
		for next == none { // take back the last, and go on by something shorter
			at -= len(l.entry(last))
			instead := l.shorter[last]
			dst = dst[:len(dst)-1]
			last = none
			if len(dst) > row {
				last = int32(dst[len(dst)-1])
			}
			next = l.agreeing(s, last, instead)
		}
		dst = append(dst, kv.Token(next))
		at += len(l.entry(next))
		last = next
	}
	for i, entry := range dst[row:] {
		dst[row+i] = l.ids[entry]
	}
	return dst
}

// agreeing returns the longest of right and the entries that it begins with that
// can follow left.
func (l *lexicon) agreeing(s *lexiconScratch, left, right int32) int32 {
	for right != none && !l.agree(s, left, right) {
		right = l.shorter[right]
	}
	return right
}

// agree reports whether left and right are what their texts together merge to;
// left may be none.
func (l *lexicon) agree(s *lexiconScratch, left, right int32) bool {
	key := known | agreement(left+1)<<32 | agreement(right)<<1
	slot := &s.agreed[uint64(key)*golden>>(64-agreedBits)]
	if *slot&^1 == key {
		return *slot&1 != 0
	}
	*slot = key
	if l.merges(s, left, right) {
		*slot |= 1
	}
	return *slot&1 != 0
}

// merges is the definition of agree.
func (l *lexicon) merges(s *lexiconScratch, left, right int32) bool {
	s.symbols = s.symbols[:0]
	if left != none {
		s.symbols = l.symbols(s.symbols, l.entry(left))
	}
	s.symbols = l.symbols(s.symbols, l.entry(right))
	merged := l.merger.merge(s.symbols)
	if left == none {
		return len(merged) == 1 && merged[0] == l.ids[right]
	}
	return len(merged) == 2 && merged[0] == l.ids[left] && merged[1] == l.ids[right]
}
