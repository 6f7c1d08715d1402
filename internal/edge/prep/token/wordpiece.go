package token

import (
	"strings"
	"unicode/utf8"

	"penstock/core/kv"
)

// wordPiece takes the longest entry repeatedly, or the unknown token for the whole word if that does not
// reach its end.
type wordPiece struct {
	begin    map[string]kv.Token // entries as they are
	within   map[string]kv.Token // entries after their prefix marker
	longest  int                 // bytes of the longest key
	maxChars int
	unk      kv.Token
}

// wordPieceChars is the default for the longest word, in characters.
const wordPieceChars = 100

func (t *Tokenizer) newWordPiece(f *fileModel, vocab map[string]kv.Token) (wordModel, error) {
	m := &wordPiece{begin: map[string]kv.Token{}, within: map[string]kv.Token{}, maxChars: wordPieceChars}
	if f.MaxInputCharsPerWord != nil {
		m.maxChars = *f.MaxInputCharsPerWord
	}
	var ok bool
	if m.unk, ok = vocab[f.UnkToken]; !ok {
		return nil, malformed("the unk_token is not in the vocabulary")
	}
	for name, id := range vocab {
		if t.IsSpecial(id) {
			continue // never the result of encoding plain text
		}
		m.begin[name] = id
		m.longest = max(m.longest, len(name))
		if rest, ok := strings.CutPrefix(name, f.ContinuingSubwordPrefix); ok {
			m.within[rest] = id
		}
	}
	return &cachedModel{model: m}, nil
}

func (m *wordPiece) appendWord(dst []kv.Token, word string) []kv.Token {
	if utf8.RuneCountInString(word) > m.maxChars {
		return append(dst, m.unk)
	}
	start := len(dst)
	entries := m.begin
	for word != "" {
		id, n := m.longestPrefix(entries, word)
		if n == 0 {
			return append(dst[:start], m.unk)
		}
		dst = append(dst, id)
		word = word[n:]
		entries = m.within
	}
	return dst
}

// longestPrefix returns the longest entry which is a prefix of word; n is 0 if there is none.
func (m *wordPiece) longestPrefix(entries map[string]kv.Token, word string) (id kv.Token, n int) {
	for n = min(len(word), m.longest); n > 0; n-- {
		if id, ok := entries[word[:n]]; ok {
			return id, n
		}
	}
	return 0, 0
}

// wordLevel only knows whole words.
type wordLevel struct {
	words map[string]kv.Token
	unk   kv.Token
}

func (t *Tokenizer) newWordLevel(f *fileModel, vocab map[string]kv.Token) (wordModel, error) {
	m := &wordLevel{words: make(map[string]kv.Token, len(vocab))}
	var ok bool
	if m.unk, ok = vocab[f.UnkToken]; !ok {
		return nil, malformed("the unk_token is not in the vocabulary")
	}
	for name, id := range vocab {
		if !t.IsSpecial(id) {
			m.words[name] = id // special tokens are never the result of encoding plain text
		}
	}
	return m, nil
}

func (m *wordLevel) appendWord(dst []kv.Token, word string) []kv.Token {
	if id, ok := m.words[word]; ok {
		return append(dst, id)
	}
	return append(dst, m.unk)
}
