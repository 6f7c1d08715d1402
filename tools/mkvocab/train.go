package main

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"penstock/internal/edge/prep/token"
)

// tokenVocabulary has the 256 bytes as its first entries and one further entry for each merge, in order; the
// special tokens follow.
type tokenVocabulary struct {
	entries []string // bytes
	merges  []pair
}

type pair struct{ left, right int }

// corpusWord is a distinct word of the corpus as entries, and its frequency.
type corpusWord struct {
	entries []int
	count   int
}

// How often a pair must occur to get an entry. Two letters need few occurrences, since the built-in model
// answers with random entries and words read better than signs.
const (
	minWordCount = 2
	minSignCount = 12
)

// trainMerges learns merges until the vocabulary has size entries or no pair is frequent enough. The most
// frequent pair merges first; among equals the one whose result looks most like a word, then the first in
// byte order.
func trainMerges(texts []string, size int) (*tokenVocabulary, error) {
	words, err := countWords(texts)
	if err != nil {
		return nil, err
	}
	v := new(tokenVocabulary)
	for b := range 256 {
		v.entries = append(v.entries, string([]byte{byte(b)}))
	}
	for len(v.entries) < size {
		best, ok := v.mostFrequent(words)
		if !ok {
			break
		}
		id := len(v.entries)
		v.entries = append(v.entries, v.joinedText(best))
		v.merges = append(v.merges, best)
		for i := range words {
			words[i].mergePair(best, id)
		}
	}
	return v, nil
}

// countWords returns the distinct words of the texts, sorted, with their counts.
func countWords(texts []string) ([]corpusWord, error) {
	next, ok := token.Splitter(token.PatternLlama3)
	if !ok {
		return nil, errors.New("the pre-tokenizer's pattern is unknown")
	}
	counts := map[string]int{}
	for _, text := range texts {
		text = joinLines(text)
		for len(text) > 0 {
			n := next(text)
			counts[text[:n]]++
			text = text[n:]
		}
	}
	var words []corpusWord
	for s, count := range counts {
		w := corpusWord{count: count}
		for i := range len(s) {
			w.entries = append(w.entries, int(s[i]))
		}
		words = append(words, w)
	}
	slices.SortFunc(words, func(a, b corpusWord) int { return slices.Compare(a.entries, b.entries) })
	return words, nil
}

// joinLines turns the line breaks inside paragraphs into spaces, so that a word at the start of a line is
// learnt with its space like any other.
func joinLines(text string) string {
	var b strings.Builder
	for i, line := range strings.Split(text, "\n") {
		switch first, _ := utf8.DecodeRuneInString(line); {
		case i == 0:
		case unicode.IsLetter(first):
			b.WriteByte(' ')
		default:
			b.WriteByte('\n')
		}
		b.WriteString(line)
	}
	return b.String()
}

func (w *corpusWord) mergePair(p pair, id int) {
	kept := w.entries[:0]
	for i := 0; i < len(w.entries); i++ {
		if i+1 < len(w.entries) && w.entries[i] == p.left && w.entries[i+1] == p.right {
			kept = append(kept, id)
			i++
			continue
		}
		kept = append(kept, w.entries[i])
	}
	w.entries = kept
}

func (v *tokenVocabulary) mostFrequent(words []corpusWord) (best pair, ok bool) {
	counts := map[pair]int{}
	for _, w := range words {
		for i := range len(w.entries) - 1 {
			counts[pair{w.entries[i], w.entries[i+1]}] += w.count
		}
	}
	// The order of the map does not matter: comparePairs never calls two pairs equal.
	for p, count := range counts {
		if count >= v.minCount(p) && (!ok || v.comparePairs(p, count, best, counts[best]) < 0) {
			best, ok = p, true
		}
	}
	return best, ok
}

func (v *tokenVocabulary) comparePairs(p pair, count int, q pair, other int) int {
	return cmp.Or(
		cmp.Compare(other, count),
		cmp.Compare(wordLikeness(v.joinedText(q)), wordLikeness(v.joinedText(p))),
		strings.Compare(v.joinedText(p), v.joinedText(q)),
		cmp.Compare(p.left, q.left),
		cmp.Compare(p.right, q.right),
	)
}

func (v *tokenVocabulary) minCount(p pair) int {
	if wordLikeness(v.joinedText(p)) > 0 {
		return minWordCount
	}
	return minSignCount
}

func (v *tokenVocabulary) joinedText(p pair) string { return v.entries[p.left] + v.entries[p.right] }

// wordLikeness is how much an entry looks like a word: 2 for a space and letters, 1 for letters, 0 for
// anything else.
func wordLikeness(entry string) int {
	rest, spaced := strings.CutPrefix(entry, " ")
	switch {
	case rest == "" || !utf8.ValidString(rest) || strings.ContainsFunc(rest, func(r rune) bool { return !unicode.IsLetter(r) }):
		return 0
	case spaced:
		return 2
	}
	return 1
}
