package token

import (
	"encoding/json"
	"slices"
	"strings"

	"penstock/core/kv"
)

// charTokenizer replaces the stages and the byte-level model in a tokenizer whose vocabulary is not
// byte-level.
type charTokenizer struct {
	cutters []wordCutter
	model   wordModel
	chain   *decoderChain
	// names are the entries as spelled in the file: id i is names[start[i]:start[i+1]].
	names string
	start []uint32
	bytes []bool // ids that stand for one byte
}

// wordModel turns a non-empty word into ids. It is safe for concurrent use.
type wordModel interface {
	appendWord(dst []kv.Token, word string) []kv.Token
}

// isByteLevel reports whether a file has a vocabulary in the byte-level alphabet.
func (f *tokenizerFile) isByteLevel() (bool, error) {
	for _, raw := range []json.RawMessage{f.PreTokenizer, f.Decoder} {
		list, err := parseComponents(raw)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(list, func(s componentConfig) bool { return s.Type == "ByteLevel" }) {
			return true, nil
		}
	}
	return false, nil
}

// buildCharLevel builds a tokenizer which is not byte-level.
func (t *Tokenizer) buildCharLevel(f *tokenizerFile, c *fileConfig) error {
	vocab, scores, err := f.Model.charVocabulary()
	if err != nil {
		return err
	}
	tokens, err := addedTokens(f.AddedTokens, c.Added)
	if err != nil {
		return err
	}
	if t.normalizers, err = newNormalizers(f.Normalizer); err != nil {
		return err
	}
	p := new(charTokenizer)
	if p.chain, err = newDecoderChain(f.Decoder); err != nil {
		return err
	}
	t.charLevel = p
	if err := t.setCharVocabulary(vocab, tokens); err != nil {
		return err
	}
	if err := t.setAdded(tokens); err != nil {
		return err
	}
	if p.model, err = t.newCharModel(&f.Model, vocab, scores); err != nil {
		return err
	}
	alters, err := findStartAltering(f.Normalizer)
	if err != nil {
		return err
	}
	if p.cutters, err = newCutters(f.PreTokenizer, alters); err != nil {
		return err
	}
	return t.setPostProcessor(f.PostProcessor)
}

func (t *Tokenizer) newCharModel(f *fileModel, vocab map[string]kv.Token, scores []float64) (wordModel, error) {
	switch f.Type {
	case "BPE", "":
		return t.newCharBPE(f, vocab)
	case "Unigram":
		return t.newUnigram(f, vocab, scores)
	case "WordPiece":
		return t.newWordPiece(f, vocab)
	case "WordLevel":
		return t.newWordLevel(f, vocab)
	}
	return nil, unsupported("model %s is not supported", f.Type)
}

// charVocabulary returns the entries, and for Unigram their scores by id.
func (m *fileModel) charVocabulary() (vocab map[string]kv.Token, scores []float64, err error) {
	if m.Type == "Unigram" {
		return m.scoredVocabulary()
	}
	if m.Type != "WordPiece" && m.Type != "WordLevel" {
		if err := m.checkBPE(); err != nil {
			return nil, nil, err
		}
	}
	if len(m.Vocab) == 0 || !strings.HasPrefix(string(m.Vocab[:1]), "{") {
		return nil, nil, unsupported("a model without a vocabulary by entry is not supported")
	}
	err = json.Unmarshal(m.Vocab, &vocab)
	return vocab, nil, err
}

// setCharVocabulary stores the entries as they are decoded, one after another.
func (t *Tokenizer) setCharVocabulary(vocab map[string]kv.Token, tokens []addedToken) error {
	names, err := entryNames(vocab, tokens)
	if err != nil {
		return err
	}
	p := t.charLevel
	e := entryTable{start: make([]uint32, len(names)+1), known: make([]bool, len(names)), special: make([]bool, len(names))}
	p.start, p.bytes = make([]uint32, len(names)+1), make([]bool, len(names))
	for _, a := range tokens {
		e.special[a.id] = a.special
		if a.normalized {
			names[a.id] = t.normalize(a.content) // decoded in this form, as in the reference
		}
	}
	var text, spelled strings.Builder
	for id, name := range names {
		if name != "" {
			rendered, isByte := p.chain.renderEntry(name, false)
			text.WriteString(rendered)
			spelled.WriteString(name)
			e.known[id], p.bytes[id] = true, isByte
		}
		e.start[id+1], p.start[id+1] = uint32(text.Len()), uint32(spelled.Len())
	}
	e.text, p.names = text.String(), spelled.String()
	t.entries = e
	t.setCharWords(vocab)
	return nil
}

// setCharWords is setWords in which an entry for a byte only counts where no other entry has the same text.
func (t *Tokenizer) setCharWords(vocab map[string]kv.Token) {
	t.words = make(map[string]kv.Token, len(vocab))
	rank := func(id kv.Token) uint64 {
		if t.charLevel.isByte(id) {
			return 1<<32 | uint64(id)
		}
		return uint64(id)
	}
	for _, id := range vocab {
		if t.IsSpecial(id) {
			continue
		}
		word := t.entryBytes(id)
		if other, ok := t.words[word]; !ok || rank(id) < rank(other) {
			t.words[word] = id
		}
	}
}

func (p *charTokenizer) isByte(id kv.Token) bool { return int(id) < len(p.bytes) && p.bytes[id] }

func (p *charTokenizer) entryName(id kv.Token) string { return p.names[p.start[id]:p.start[id+1]] }

// appendPiece encodes a piece of normalized text. first reports that the input begins with it.
func (p *charTokenizer) appendPiece(dst []kv.Token, text string, first bool) []kv.Token {
	if len(p.cutters) == 0 {
		return p.model.appendWord(dst, text)
	}
	// One function per cutter, made once per piece and not per word.
	yield := func(word string, _ bool) { dst = p.model.appendWord(dst, word) }
	for _, cut := range slices.Backward(p.cutters) {
		next := yield
		yield = func(word string, first bool) { cut(word, first, next) }
	}
	yield(text, first)
	return dst
}

// cachedModel is a model with a word cache.
type cachedModel struct {
	model wordModel
	cache wordCache
}

func (r *cachedModel) appendWord(dst []kv.Token, word string) []kv.Token {
	if len(word) > maxCachedWord {
		return r.model.appendWord(dst, word)
	}
	dst, ok := r.cache.appendCached(dst, word, len(word))
	if ok {
		return dst
	}
	start := len(dst)
	dst = r.model.appendWord(dst, word)
	r.cache.addWord(word, dst[start:])
	return dst
}

// byteEntries are the ids of <0x00> to <0xFF>, where the vocabulary has them.
type byteEntries struct {
	ids  [256]kv.Token
	have [256]bool
}

func (t *Tokenizer) newByteEntries(vocab map[string]kv.Token) *byteEntries {
	e := new(byteEntries)
	for b := range 256 {
		id, ok := vocab[byteEntryName(byte(b))]
		e.ids[b], e.have[b] = id, ok && !t.IsSpecial(id)
	}
	return e
}

// appendAll appends the ids of the bytes of text if all have entries.
func (e *byteEntries) appendAll(dst []kv.Token, text string) ([]kv.Token, bool) {
	start := len(dst)
	for i := range len(text) {
		if !e.have[text[i]] {
			return dst[:start], false
		}
		dst = append(dst, e.ids[text[i]])
	}
	return dst, true
}
