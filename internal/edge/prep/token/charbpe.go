package token

import (
	"slices"
	"strings"
	"unicode/utf8"

	"penstock/core/kv"
)

// charBPE is byte-pair encoding which starts from characters: SentencePiece's. A character without an entry
// becomes the entries of its bytes, or the unknown token.
type charBPE struct {
	chars        map[rune]kv.Token
	bytes        *byteEntries // nil without byte fallback
	unk          kv.Token
	hasUnk       bool // otherwise unknown characters are dropped
	fusesUnknown bool // adjacent unknown characters are one token
	merger       merger
	// lexicon is nil if bytes or the unknown token merge with others.
	lexicon *lexicon
	whole   map[string]kv.Token
}

// spaceMark stands for a space in SentencePiece.
const spaceMark = "▁"

func (m *fileModel) checkBPE() error {
	switch {
	case m.Dropout != 0:
		return unsupported("BPE dropout is not supported: it makes encoding random")
	case m.ContinuingSubwordPrefix != "":
		return unsupported("BPE continuing_subword_prefix is not supported")
	case m.EndOfWordSuffix != "":
		return unsupported("BPE end_of_word_suffix is not supported")
	case m.Type != "BPE" && m.Type != "":
		return unsupported("model %s is not supported", m.Type)
	case len(m.Merges) > maxMerges:
		return unsupported("a vocabulary with %d merges is not supported; there must be at most %d", len(m.Merges), maxMerges)
	}
	return nil
}

func (t *Tokenizer) newCharBPE(f *fileModel, vocab map[string]kv.Token) (wordModel, error) {
	m := &charBPE{chars: map[rune]kv.Token{}, fusesUnknown: f.FuseUnk, merger: merger{merges: newPairTable(len(f.Merges))}}
	for name, id := range vocab {
		if r, n := utf8.DecodeRuneInString(name); n == len(name) && !t.IsSpecial(id) {
			m.chars[r] = id
		}
	}
	if f.ByteFallback {
		m.bytes = t.newByteEntries(vocab)
	}
	if f.UnkToken != "" {
		if m.unk, m.hasUnk = vocab[f.UnkToken]; !m.hasUnk {
			return nil, malformed("the unk_token is not in the vocabulary")
		}
	}
	cuts := true
	var joined []lexiconWord
	for rank, pair := range f.Merges {
		found, err := t.resolveMerge(rank, pair, vocab)
		if err != nil {
			return nil, err
		}
		m.merger.merges.addMerge(vocab[pair.left], vocab[pair.right], found)
		w := lexiconWord{pair.left + pair.right, found.id}
		joined = append(joined, w)
		cuts = cuts && !strings.Contains(strings.TrimLeft(w.text, spaceMark), spaceMark)
	}
	m.setLexicon(joined, f.Merges, vocab)
	if f.IgnoreMerges {
		m.whole = make(map[string]kv.Token, len(vocab))
		for name, id := range vocab {
			if !t.IsSpecial(id) {
				m.whole[name] = id
			}
		}
		return &cachedModel{model: m}, nil
	}
	if _, ok := vocab[spaceMark]; ok && cuts {
		return &spaceMarkSplitter{cachedModel{model: m}}, nil
	}
	return &cachedModel{model: m}, nil
}

func (t *Tokenizer) resolveMerge(rank int, pair fileMerge, vocab map[string]kv.Token) (mergeResult, error) {
	_, haveLeft := vocab[pair.left]
	_, haveRight := vocab[pair.right]
	id, have := vocab[pair.left+pair.right]
	if !haveLeft || !haveRight || !have {
		return mergeResult{}, malformed("merge %d is about entries that the vocabulary does not have", rank)
	}
	if t.IsSpecial(id) {
		return mergeResult{}, unsupported("merge %d makes a special token, which plain text could then forge", rank)
	}
	return mergeResult{uint32(rank), id}, nil
}

// setLexicon makes the lexicon of characters and merged tokens.
func (m *charBPE) setLexicon(joined []lexiconWord, merges []fileMerge, vocab map[string]kv.Token) {
	for _, pair := range merges {
		for _, name := range [...]string{pair.left, pair.right} {
			if _, isByte := parseByteEntry(name); isByte && m.bytes != nil || m.hasUnk && vocab[name] == m.unk {
				return
			}
		}
	}
	words := slices.DeleteFunc(joined, func(w lexiconWord) bool { return m.knownEnd(w.text) < len(w.text) })
	for r, id := range m.chars {
		words = append(words, lexiconWord{string(r), id})
	}
	m.lexicon = newLexicon(&m.merger, words, m.appendSymbols)
}

// spaceMarkSplitter cuts text before every run of space marks, which no merge crosses, so that words are
// short and can be cached.
type spaceMarkSplitter struct{ words cachedModel }

func (m *spaceMarkSplitter) appendWord(dst []kv.Token, text string) []kv.Token {
	for text != "" {
		n := wordEnd(text)
		dst = m.words.appendWord(dst, text[:n])
		text = text[n:]
	}
	return dst
}

// wordEnd returns the position of the first space mark after another character.
func wordEnd(text string) int {
	rest := strings.TrimLeft(text, spaceMark)
	n := strings.Index(rest, spaceMark)
	if n < 0 {
		return len(text)
	}
	return len(text) - len(rest) + n
}

func (m *charBPE) appendWord(dst []kv.Token, word string) []kv.Token {
	if id, ok := m.whole[word]; ok {
		return append(dst, id)
	}
	if len(word) > longWord && m.lexicon != nil {
		return m.appendLong(dst, word)
	}
	start := len(dst)
	dst = m.appendSymbols(dst, word)
	return dst[:start+len(m.merger.mergeSymbols(dst[start:]))]
}

// appendLong encodes runs of known characters apart from the unknown ones in between, which never merge.
func (m *charBPE) appendLong(dst []kv.Token, word string) []kv.Token {
	for word != "" {
		n := m.knownEnd(word)
		dst = m.lexicon.appendWord(dst, word[:n])
		word = word[n:]
		n = m.unknownEnd(word)
		dst = m.appendSymbols(dst, word[:n])
		word = word[n:]
	}
	return dst
}

// knownEnd returns the position of the first unknown character.
func (m *charBPE) knownEnd(word string) int {
	for i := 0; i < len(word); {
		_, width, ok := m.lookupChar(word[i:])
		if !ok {
			return i
		}
		i += width
	}
	return len(word)
}

// unknownEnd returns the position of the first known character.
func (m *charBPE) unknownEnd(word string) int {
	for i := 0; i < len(word); {
		_, width, ok := m.lookupChar(word[i:])
		if ok {
			return i
		}
		i += width
	}
	return len(word)
}

// lookupChar returns the entry of the first character of a text, and its length.
func (m *charBPE) lookupChar(text string) (id kv.Token, width int, ok bool) {
	r, width := utf8.DecodeRuneInString(text)
	if r == utf8.RuneError && width == 1 {
		return 0, width, false
	}
	id, ok = m.chars[r]
	return id, width, ok
}

// appendSymbols appends the ids from which merging starts. An unknown token waits for the next known
// character, and bytes go before it, as in the reference.
func (m *charBPE) appendSymbols(dst []kv.Token, word string) []kv.Token {
	waiting := false // a pending unknown token
	for i := 0; i < len(word); {
		id, width, ok := m.lookupChar(word[i:])
		char := word[i : i+width]
		i += width
		if ok {
			if waiting {
				dst = append(dst, m.unk)
				waiting = false
			}
			dst = append(dst, id)
			continue
		}
		if m.bytes != nil {
			if dst, ok = m.bytes.appendAll(dst, char); ok {
				continue
			}
		}
		if waiting && !m.fusesUnknown {
			dst = append(dst, m.unk)
		}
		waiting = m.hasUnk
	}
	if waiting {
		dst = append(dst, m.unk)
	}
	return dst
}
