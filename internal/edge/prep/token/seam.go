package token

import (
	"encoding/json"
	"unicode/utf8"
)

// A seam is a position in a text where encoding the two sides separately gives the ids of the whole. There
// are two kinds, recognised by the surrounding characters: a single line break, after a character which is
// not white space and before a letter; and, between two ASCII letters, one space, which belongs to the second
// side.
//
// Why they are seams, for every known pattern: none has a match which continues from a line break to a letter
// or from a letter to a space, and each has one which starts with a space and a letter. The one lookahead,
// \s+(?!\S), would give back part of a longer run of white space before the letter, but not a single line
// break. Digits and Punctuation cut only next to numbers and signs. Normalization form C composes nothing
// with a line break or a space and, since a letter follows, reorders nothing across it. Added tokens could
// bridge a seam: see bridgesSeam.

// nextSeam returns the first seam of text at or after from, or len(text). Its time is proportional to the
// distance.
func (c *classes) nextSeam(text string, from int) int {
	for i := max(from, 1); i < len(text); i++ {
		switch {
		case text[i-1] == '\n':
			if k, _ := c.classAt(text[i:]); k&letter != 0 && !c.endsInSpace(text[:i-1]) {
				return i
			}
		case text[i] == ' ' && i+1 < len(text) && isLatinLetter(text[i-1]) && isLatinLetter(text[i+1]):
			return i
		}
	}
	return len(text)
}

func (c *classes) endsInSpace(s string) bool {
	_, width := utf8.DecodeLastRuneInString(s)
	k, _ := c.classAt(s[len(s)-width:])
	return k&space != 0
}

func isLatinLetter(b byte) bool { return 'a' <= b|0x20 && b|0x20 <= 'z' }

// bridgesSeam reports whether an added token could span a seam, include the white space at one, or depend on
// the other side.
func (c *classes) bridgesSeam(t *addedToken) bool {
	s := t.content
	if s == "" {
		return false
	}
	first, _ := c.classAt(s)
	_, width := utf8.DecodeLastRuneInString(s)
	last, _ := c.classAt(s[len(s)-width:])
	return t.singleWord || (first|last)&letter != 0 || s[0] == ' ' && (len(s) == 1 || isLatinLetter(s[1])) || c.nextSeam(s, 0) < len(s)
}

// hasSeams reports whether seams are valid for t, which was read from f: a pattern cuts there, nothing is
// prepended to pieces of text, and no normalizer or added token looks across them.
func (t *Tokenizer) hasSeams(f *tokenizerFile, c *classes) bool {
	normalizers, err := parseComponents(f.Normalizer)
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
			if c.bridgesSeam(&set.tokens[i]) {
				return false
			}
		}
	}
	return cutsSeams(f.PreTokenizer)
}

// cutsSeams reports whether one of the pre-tokenizers cuts at seams, and none joins or changes anything
// there.
func cutsSeams(raw json.RawMessage) bool {
	list, err := parseComponents(raw)
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
