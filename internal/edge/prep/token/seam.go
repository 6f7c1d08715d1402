package token

import (
	"encoding/json"
	"unicode/utf8"
)

// A seam is a place in a text where encoding what is before it and what is after
// it, each by itself, gives the ids of the whole. There are two kinds, told by
// the characters around them: one line break, after something that is not white
// space, and before a letter; and, between two ASCII letters, one space, which
// goes with what follows.
//
// Why they are seams, for every pattern that this package knows: none has a
// match that goes on from a line break to a letter or from a letter to a space,
// and each has one that begins with a space and a letter. The one lookahead,
// \s+(?!\S), would give a longer run of white space before the letter back in
// part, but not a single line break. Digits and Punctuation cut only next to
// numbers and signs. Normalization form C composes nothing with a line break or
// a space and, since a letter comes after, reorders nothing over it. Added
// tokens could bridge a seam: bridges knows.

// nextSeam returns the first seam of text at or after from, or len(text). It
// takes time in proportion to how far it goes.
func (c *classes) nextSeam(text string, from int) int {
	for i := max(from, 1); i < len(text); i++ {
		switch {
		case text[i-1] == '\n':
			if k, _ := c.at(text[i:]); k&letter != 0 && !c.endsInSpace(text[:i-1]) {
				return i
			}
		case text[i] == ' ' && i+1 < len(text) && latin(text[i-1]) && latin(text[i+1]):
			return i
		}
	}
	return len(text)
}

func (c *classes) endsInSpace(s string) bool {
	_, width := utf8.DecodeLastRuneInString(s)
	k, _ := c.at(s[len(s)-width:])
	return k&space != 0
}

func latin(b byte) bool { return 'a' <= b|0x20 && b|0x20 <= 'z' }

// bridges reports whether an added token could lie over a seam, take the white
// space at one along, or ask what is on the other side.
func (c *classes) bridges(t *added) bool {
	s := t.content
	if s == "" {
		return false
	}
	first, _ := c.at(s)
	_, width := utf8.DecodeLastRuneInString(s)
	last, _ := c.at(s[len(s)-width:])
	return t.singleWord || (first|last)&letter != 0 || s[0] == ' ' && (len(s) == 1 || latin(s[1])) || c.nextSeam(s, 0) < len(s)
}

// hasSeams reports whether seams are seams for t, which was read from f: whether
// a pattern cuts there, nothing is put before pieces of text, and no normalizer
// or added token looks over them.
func (t *Tokenizer) hasSeams(f *file, c *classes) bool {
	normalizers, err := steps(f.Normalizer)
	if err != nil {
		return false
	}
	for _, n := range normalizers {
		if n.Type != "NFC" {
			return false
		}
	}
	for _, set := range []*addedSet{t.raw, t.added} {
		for i := range set.tokens {
			if c.bridges(&set.tokens[i]) {
				return false
			}
		}
	}
	return cutsSeams(f.PreTokenizer)
}

// cutsSeams reports whether one of the pre-tokenizers cuts at seams, and all are
// known not to join or change anything there.
func cutsSeams(raw json.RawMessage) bool {
	list, err := steps(raw)
	if err != nil {
		return false
	}
	cuts := false
	for _, s := range list {
		switch s.Type {
		case "Digits", "Punctuation":
		case "ByteLevel":
			if s.AddPrefixSpace == nil || *s.AddPrefixSpace {
				return false
			}
			cuts = cuts || s.UseRegex == nil || *s.UseRegex
		case "Split":
			cuts = cuts || s.Pattern.Regex != patternNumbers3 && s.Pattern.Regex != patternHan
		default:
			return false
		}
	}
	return cuts
}
