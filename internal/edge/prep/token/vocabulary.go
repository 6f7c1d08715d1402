package token

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"penstock/core/kv"
)

// maxID bounds ids, and so the memory which a short malicious file can demand: eight times the largest
// vocabularies in use.
const maxID = 1 << 21

// setVocabulary stores the entries of the model and the added tokens.
func (t *Tokenizer) setVocabulary(vocab map[string]kv.Token, tokens []addedToken) error {
	names, err := entryNames(vocab, tokens)
	if err != nil {
		return err
	}
	e := entryTable{
		start:   make([]uint32, len(names)+1),
		known:   make([]bool, len(names)),
		special: make([]bool, len(names)),
	}
	for _, a := range tokens {
		e.special[a.id] = a.special
		if a.normalized {
			names[a.id] = t.normalize(a.content) // decoded in this form, as in the reference
		}
	}
	inverse := newInverseAlphabet()
	var text []byte
	for id, name := range names {
		if e.special[id] {
			text = append(text, name...)
		} else {
			text = inverse.appendBytes(text, name)
		}
		e.known[id] = name != ""
		e.start[id+1] = uint32(len(text))
	}
	e.text = string(text)
	t.entries = e
	t.setWords(vocab)
	return nil
}

// entryNames returns the entry of each id as spelled in the file; "" if the id is unused.
func entryNames(vocab map[string]kv.Token, tokens []addedToken) ([]string, error) {
	largest := kv.Token(0)
	for _, id := range vocab {
		largest = max(largest, id)
	}
	for _, a := range tokens {
		largest = max(largest, a.id)
	}
	if largest >= maxID {
		return nil, unsupported("a vocabulary with the id %d is not supported; ids must be below %d", largest, maxID)
	}
	names := make([]string, largest+1)
	for name, id := range vocab {
		if name == "" || names[id] != "" {
			return nil, malformed("the id %d has an empty entry or more than one", id)
		}
		names[id] = name
	}
	for _, a := range tokens {
		if have, ok := vocab[a.content]; ok && have != a.id || names[a.id] != "" && names[a.id] != a.content {
			return nil, malformed("the added token %.100q and the vocabulary disagree about the id %d", a.content, a.id)
		}
		names[a.id] = a.content
	}
	return names, nil
}

func (t *Tokenizer) setWords(vocab map[string]kv.Token) {
	t.words = make(map[string]kv.Token, len(vocab))
	for _, id := range vocab {
		if t.IsSpecial(id) {
			continue // never the result of encoding plain text
		}
		word := t.entryBytes(id)
		if other, ok := t.words[word]; !ok || id < other {
			t.words[word] = id
		}
	}
}

// addedTokens returns the added tokens of tokenizer.json and the ones which only tokenizer_config.json lists,
// by id.
func addedTokens(list []fileAdded, further map[kv.Token]fileAdded) ([]addedToken, error) {
	seen := make(map[string]kv.Token, len(list))
	var tokens []addedToken
	add := func(id kv.Token, f fileAdded) error {
		if f.Content == "" {
			return nil
		}
		if have, ok := seen[f.Content]; ok {
			if have != id {
				return malformed("the added token %.100q has the ids %d and %d", f.Content, have, id)
			}
			return nil
		}
		seen[f.Content] = id
		tokens = append(tokens, addedToken{
			id: id, content: f.Content, special: f.Special, normalized: f.Normalized,
			singleWord: f.SingleWord, lstrip: f.LStrip, rstrip: f.RStrip,
		})
		return nil
	}
	for _, f := range list {
		if err := add(f.ID, f); err != nil {
			return nil, err
		}
	}
	for _, id := range sortedKeys(further) {
		if err := add(id, further[id]); err != nil {
			return nil, err
		}
	}
	return tokens, nil
}

func sortedKeys(m map[kv.Token]fileAdded) []kv.Token {
	keys := make([]kv.Token, 0, len(m))
	for id := range m {
		keys = append(keys, id)
	}
	slices.Sort(keys)
	return keys
}

func (t *Tokenizer) setAdded(tokens []addedToken) error {
	t.names = make(map[string]kv.Token, len(tokens))
	var raw, normalized []addedToken
	for _, a := range tokens {
		t.names[a.content] = a.id
		if a.normalized {
			a.content = t.normalize(a.content)
			normalized = append(normalized, a)
		} else {
			raw = append(raw, a)
		}
	}
	var word *runeSet
	if slices.ContainsFunc(tokens, func(a addedToken) bool { return a.singleWord }) {
		p, err := newCharProperties()
		if err != nil {
			return err
		}
		word = &p.word
	}
	t.raw, t.added = newAddedSet(raw, word), newAddedSet(normalized, word)
	return nil
}

// checkByteLevel refuses options of byte-pair encoding which change its result and are not implemented. Files
// older than the type field have it empty.
func (m *fileModel) checkByteLevel() error {
	switch {
	case m.Type != "BPE" && m.Type != "":
		return unsupported("model %.100s is not supported", m.Type)
	case len(m.Vocab) == 0 || !strings.HasPrefix(string(m.Vocab[:1]), "{"):
		return unsupported("a model without a vocabulary by entry is not supported")
	case m.Dropout != 0:
		return unsupported("BPE dropout is not supported: it makes encoding random")
	case m.ContinuingSubwordPrefix != "":
		return unsupported("BPE continuing_subword_prefix is not supported")
	case m.EndOfWordSuffix != "":
		return unsupported("BPE end_of_word_suffix is not supported")
	case m.ByteFallback:
		return unsupported("BPE byte_fallback is not supported")
	case len(m.Merges) > maxMerges:
		return unsupported("a vocabulary with %d merges is not supported; there must be at most %d", len(m.Merges), maxMerges)
	}
	return nil
}

func (t *Tokenizer) newByteLevelModel(f *fileModel, vocab map[string]kv.Token) (*bpe, error) {
	m := &bpe{merger: merger{merges: newPairTable(len(f.Merges))}, cache: new(wordCache)}
	if f.IgnoreMerges {
		m.wholeWords = t.words
	}
	words := make([]lexiconWord, 0, len(m.byteTokens)+len(f.Merges))
	for b, r := range Alphabet() {
		id, ok := vocab[string(r)]
		if !ok || t.IsSpecial(id) {
			return nil, unsupported("a vocabulary without an entry for the byte 0x%02x is not supported", b)
		}
		m.byteTokens[b] = id
		words = append(words, lexiconWord{string([]byte{byte(b)}), id})
	}
	inverse := newInverseAlphabet()
	for rank, pair := range f.Merges {
		left, haveLeft := vocab[pair.left]
		right, haveRight := vocab[pair.right]
		id, have := vocab[pair.left+pair.right]
		if !haveLeft || !haveRight || !have {
			return nil, malformed("merge %d is about entries that the vocabulary does not have", rank)
		}
		if t.IsSpecial(id) {
			return nil, unsupported("merge %d makes a special token, which plain text could then forge", rank)
		}
		m.merges.addMerge(left, right, mergeResult{uint32(rank), id})
		if text, ok := inverse.spelledBytes(pair.left + pair.right); ok {
			words = append(words, lexiconWord{text, id})
		}
	}
	m.lexicon = newLexicon(&m.merger, words, m.appendBytes)
	return m, nil
}

// MaskedIDs returns, ascending, the ids which a model with random weights must not draw, so that its output
// is clean text: special tokens, the end-of-text token, tokens which are not valid UTF-8 on their own or
// contain a control character other than tab and line feed, and unused ids below VocabSize.
func (t *Tokenizer) MaskedIDs() []kv.Token {
	var masked []kv.Token
	for id := range kv.Token(t.VocabSize()) {
		isEOS := t.hasEOS && id == t.eos
		if isEOS || t.IsSpecial(id) || !t.isKnown(id) || !printableText(t.entryBytes(id)) {
			masked = append(masked, id)
		}
	}
	return masked
}

func printableText(s string) bool {
	for _, r := range s {
		if unicode.IsControl(r) && r != '\t' && r != '\n' {
			return false
		}
	}
	return utf8.ValidString(s)
}
