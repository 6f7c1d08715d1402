package token

import (
	"slices"

	"penstock/internal/edge/prep"
)

var _ prep.LengthBounder = (*Tokenizer)(nil)

// maxShrinkNFC bounds how many bytes of text normalization form C replaces by one: 3 where the Kelvin sign becomes a
// K, and 3.5, the most, where U+1FBE and two accents become U+0390.
const maxShrinkNFC = 4

// MaxTokenBytes is the length in bytes of the longest text which one token can stand for: n bytes are
// n/MaxTokenBytes tokens or more. It is 0 if there is no such length: a part of the text may vanish, or one token
// stand for any number of unknown characters.
func (t *Tokenizer) MaxTokenBytes() int { return t.longest }

// findMaxTokenBytes returns what MaxTokenBytes returns, of t, which was read from f.
func (t *Tokenizer) findMaxTokenBytes(f *tokenizerFile) (int, error) {
	longest := 0
	for _, set := range []*addedSet{t.raw, t.added} {
		for i := range set.tokens {
			a := &set.tokens[i]
			if a.lstrip || a.rstrip {
				return 0, nil // it includes any number of spaces
			}
			longest = max(longest, len(a.content))
		}
	}
	start := t.entries.start
	if t.charLevel != nil {
		if keeps, err := t.charLevel.keepsAll(f); err != nil || !keeps {
			return 0, err
		}
		start = t.charLevel.start
	}
	for id := range len(start) - 1 {
		longest = max(longest, int(start[id+1]-start[id]))
	}
	normalizers, err := parseComponents(f.Normalizer)
	if err != nil {
		return 0, err
	}
	for _, n := range normalizers {
		switch {
		case n.Type == "NFC":
			longest *= maxShrinkNFC
		case n.Type == "Prepend", n.Type == "Replace" && n.Pattern.String != "" && len(n.Content) >= len(n.Pattern.String):
		default:
			return 0, nil
		}
	}
	return longest, nil
}

// keepsAll reports whether every byte of a normalized text is part of a token whose entry is at least as long as
// what it stands for.
func (p *charTokenizer) keepsAll(f *tokenizerFile) (bool, error) {
	list, err := parseComponents(f.PreTokenizer)
	if err != nil {
		return false, err
	}
	for _, s := range list {
		switch s.Type {
		case "Metaspace", "Digits":
		case "Punctuation", "Split":
			if s.Behavior == "Removed" {
				return false, nil
			}
		default:
			return false, nil
		}
	}
	model := p.model
	switch m := model.(type) {
	case *cachedModel:
		model = m.model
	case *spaceMarkSplitter:
		model = m.words.model
	}
	var bytes *byteEntries
	switch m := model.(type) {
	case *charBPE:
		bytes = m.bytes
	case *unigram:
		bytes = m.bytes
	}
	return bytes != nil && !slices.Contains(bytes.have[:], false), nil
}
