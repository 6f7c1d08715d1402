package token

import (
	"strings"
	"unicode/utf8"

	"penstock/core/kv"
)

// charBPE is byte-pair encoding that starts from characters: SentencePiece's. A
// character without an entry becomes the entries of its bytes, or the unknown
// token.
type charBPE struct {
	chars  map[rune]kv.Token
	bytes  *byteEntries // nil without byte fallback
	unk    kv.Token
	hasUnk bool // else unknown characters are left out
	fuse   bool // neighbouring unknown characters are one token
	merges *bpe // what merges, and its scratch memory
	whole  map[string]kv.Token
}

// spaceMark is what SentencePiece writes for a space.
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
	}
	return nil
}

func (t *Tokenizer) newCharBPE(f *fileModel, vocab map[string]kv.Token) (wordModel, error) {
	m := &charBPE{chars: map[rune]kv.Token{}, fuse: f.FuseUnk, merges: &bpe{merges: newPairs(len(f.Merges))}}
	for name, id := range vocab {
		if r, n := utf8.DecodeRuneInString(name); n == len(name) && !t.Special(id) {
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
	for rank, pair := range f.Merges {
		joined, found, err := t.plainMerge(rank, pair, vocab)
		if err != nil {
			return nil, err
		}
		m.merges.merges.add(vocab[pair.left], vocab[pair.right], found)
		cuts = cuts && !strings.Contains(strings.TrimLeft(joined, spaceMark), spaceMark)
	}
	if f.IgnoreMerges {
		m.whole = make(map[string]kv.Token, len(vocab))
		for name, id := range vocab {
			if !t.Special(id) {
				m.whole[name] = id
			}
		}
		return &remembered{model: m}, nil
	}
	if _, ok := vocab[spaceMark]; ok && cuts {
		return &atBorders{remembered{model: m}}, nil
	}
	return &remembered{model: m}, nil
}

func (t *Tokenizer) plainMerge(rank int, pair fileMerge, vocab map[string]kv.Token) (joined string, found merge, err error) {
	joined = pair.left + pair.right
	_, haveLeft := vocab[pair.left]
	_, haveRight := vocab[pair.right]
	id, have := vocab[joined]
	if !haveLeft || !haveRight || !have {
		return "", merge{}, malformed("merge %d is about entries that the vocabulary does not have", rank)
	}
	if t.Special(id) {
		return "", merge{}, unsupported("merge %d makes a special token, which plain text could then forge", rank)
	}
	return joined, merge{uint32(rank), id}, nil
}

// atBorders cuts text before every run of space marks, which no merge crosses,
// so that words are short and can be remembered.
type atBorders struct{ words remembered }

func (m *atBorders) appendWord(dst []kv.Token, text string) []kv.Token {
	for text != "" {
		n := wordEnd(text)
		dst = m.words.appendWord(dst, text[:n])
		text = text[n:]
	}
	return dst
}

// wordEnd returns the position of the first space mark after something else.
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
	s, _ := m.merges.pool.Get().(*mergeScratch)
	if s == nil {
		s = new(mergeScratch)
	}
	s.symbols, s.heap = s.symbols[:0], s.heap[:0]
	start := len(dst)
	dst = m.appendSymbols(dst, word)
	for i, id := range dst[start:] {
		s.symbols = append(s.symbols, symbol{id, int32(i - 1), int32(i + 1)})
	}
	dst = m.mergeSymbols(dst[:start], s)
	if cap(s.symbols) <= keepScratch {
		m.merges.pool.Put(s)
	}
	return dst
}

// mergeSymbols merges the symbols of s, the lowest rank first.
func (m *charBPE) mergeSymbols(dst []kv.Token, s *mergeScratch) []kv.Token {
	if len(s.symbols) == 0 {
		return dst
	}
	s.symbols[len(s.symbols)-1].next = -1
	for i := range s.symbols {
		s.offer(m.merges, int32(i))
	}
	for len(s.heap) > 0 {
		c := s.pop()
		if now := s.mergeAt(m.merges, c.pos()); now.rank == c.rank() {
			s.join(m.merges, c.pos(), now.id)
		}
	}
	for i := int32(0); i >= 0; i = s.symbols[i].next {
		dst = append(dst, s.symbols[i].id)
	}
	return dst
}

// appendSymbols appends the ids that merging starts from. An unknown token waits
// for the next known character, as in the reference, bytes go before it.
func (m *charBPE) appendSymbols(dst []kv.Token, word string) []kv.Token {
	waiting := false // an unknown token
	for i := 0; i < len(word); {
		r, width := utf8.DecodeRuneInString(word[i:])
		char := word[i : i+width]
		i += width
		id, ok := m.chars[r]
		if ok && (r != utf8.RuneError || width > 1) {
			if waiting {
				dst = append(dst, m.unk)
				waiting = false
			}
			dst = append(dst, id)
			continue
		}
		if m.bytes != nil {
			if dst, ok = m.bytes.append(dst, char); ok {
				continue
			}
		}
		if waiting && !m.fuse {
			dst = append(dst, m.unk)
		}
		waiting = m.hasUnk
	}
	if waiting {
		dst = append(dst, m.unk)
	}
	return dst
}
