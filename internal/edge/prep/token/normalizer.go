package token

import (
	"encoding/json"
	"strings"
	"unicode"
)

// normalizer rewrites text before it is cut.
type normalizer func(string) string

// normalizerSet makes normalizers and shares their tables, which are read on first use.
type normalizerSet struct {
	nfc   *nfc
	props *charProperties
}

// newNormalizers reads the normalizers; byte-level vocabularies usually have none.
func newNormalizers(raw json.RawMessage) ([]normalizer, error) {
	list, err := parseComponents(raw)
	if err != nil {
		return nil, err
	}
	var set normalizerSet
	var normalizers []normalizer
	for _, s := range list {
		n, err := set.newNormalizer(&s)
		if err != nil {
			return nil, err
		}
		normalizers = append(normalizers, n)
	}
	return normalizers, nil
}

func (set *normalizerSet) newNormalizer(s *componentConfig) (normalizer, error) {
	switch s.Type {
	case "Prepend":
		return newPrepend(s.Prepend), nil
	case "Replace":
		return newReplacer(s)
	case "Strip":
		return newStrip(s.StripLeft, s.StripRight), nil
	case "Nmt":
		return normalizeNMT, nil
	case "Precompiled":
		return newCharsmap(s.PrecompiledCharsmap)
	case "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer":
		return set.newTableNormalizer(s)
	}
	return nil, unsupported("normalizer %s is not supported", s.Type)
}

// newTableNormalizer makes the normalizers which need tables.
func (set *normalizerSet) newTableNormalizer(s *componentConfig) (normalizer, error) {
	var err error
	if set.nfc == nil {
		if set.nfc, err = newNFC(); err != nil {
			return nil, err
		}
	}
	if s.Type == "NFC" {
		return set.nfc.normalizeNFC, nil
	}
	if set.props == nil {
		if set.props, err = newCharProperties(); err != nil {
			return nil, err
		}
	}
	p, n := set.props, set.nfc
	switch s.Type {
	case "NFD":
		return n.normalizeNFD, nil
	case "NFKC":
		return func(text string) string { return n.normalizeCompatible(text, p.compatible, n.composeRunes) }, nil
	case "NFKD":
		return func(text string) string { return n.normalizeCompatible(text, p.compatible, nil) }, nil
	case "Lowercase":
		return p.toLower, nil
	case "StripAccents":
		return func(text string) string { return p.accents.removeFrom(text) }, nil
	}
	return set.newBertNormalizer(s)
}

// newBertNormalizer applies the order of BertNormalizer; accents are removed if text is lowered, by default.
func (set *normalizerSet) newBertNormalizer(s *componentConfig) (normalizer, error) {
	if s.CleanText == nil || s.HandleChineseChars == nil || s.Lowercase == nil {
		return nil, malformed("normalizer BertNormalizer has not all of clean_text, handle_chinese_chars and lowercase")
	}
	p, n := set.props, set.nfc
	clean, chinese, lower := *s.CleanText, *s.HandleChineseChars, *s.Lowercase
	accents := lower
	if s.StripAccents != nil {
		accents = *s.StripAccents
	}
	return func(text string) string {
		if clean {
			text = strings.Map(func(r rune) rune {
				switch {
				case p.other.contains(r):
					return -1
				case unicode.IsSpace(r):
					return ' '
				}
				return r
			}, text)
		}
		if chinese {
			text = spaceIdeographs(text)
		}
		if accents {
			text = p.bertAccents.removeFrom(n.normalizeNFD(text))
		}
		if lower {
			text = p.toLower(text)
		}
		return text
	}, nil
}

func spaceIdeographs(text string) string {
	if strings.IndexFunc(text, isBertIdeograph) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if isBertIdeograph(r) {
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isBertIdeograph is the reference's test for a Chinese character; one of its ranges starts later than its
// block.
func isBertIdeograph(r rune) bool {
	return 0x4E00 <= r && r <= 0x9FFF || 0x3400 <= r && r <= 0x4DBF || 0x20000 <= r && r <= 0x2A6DF ||
		0x2A700 <= r && r <= 0x2B73F || 0x2B740 <= r && r <= 0x2B81F || 0x2B920 <= r && r <= 0x2CEAF ||
		0xF900 <= r && r <= 0xFAFF || 0x2F800 <= r && r <= 0x2FA1F
}

func newPrepend(prefix string) normalizer {
	return func(text string) string {
		if text == "" {
			return text
		}
		return prefix + text
	}
}

// newReplacer is Replace with a string or one of the expressions in checkpoints.
func newReplacer(s *componentConfig) (normalizer, error) {
	content := s.Content
	if old := s.Pattern.String; old != "" {
		return func(text string) string { return strings.ReplaceAll(text, old, content) }, nil
	}
	switch s.Pattern.Regex {
	case " {2,}":
		return func(text string) string { return replaceRuns(text, 2, content, isBlank) }, nil
	case " +":
		return func(text string) string { return replaceRuns(text, 1, content, isBlank) }, nil
	case `\s+`:
		return func(text string) string { return replaceRuns(text, 1, content, unicode.IsSpace) }, nil
	}
	return nil, unsupported("Replace with the pattern %q is not supported", s.Pattern.Regex)
}

func isBlank(r rune) bool { return r == ' ' }

// replaceRuns replaces every maximal run of at least least characters in set.
func replaceRuns(text string, least int, content string, set func(rune) bool) string {
	var b strings.Builder
	for text != "" {
		start := strings.IndexFunc(text, set)
		if start < 0 {
			break
		}
		length, count := 0, 0
		for i, r := range text[start:] {
			if !set(r) {
				break
			}
			length, count = i+len(string(r)), count+1
		}
		b.WriteString(text[:start])
		if count >= least {
			b.WriteString(content)
		} else {
			b.WriteString(text[start : start+length])
		}
		text = text[start+length:]
	}
	b.WriteString(text)
	return b.String()
}

func newStrip(left, right bool) normalizer {
	return func(text string) string {
		if left {
			text = strings.TrimLeftFunc(text, unicode.IsSpace)
		}
		if right {
			text = strings.TrimRightFunc(text, unicode.IsSpace)
		}
		return text
	}
}

// normalizeNMT removes control characters and replaces unusual spaces, as SentencePiece's nmt rules do.
func normalizeNMT(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 1 <= r && r <= 8, r == 0x0B, 0x0E <= r && r <= 0x1F, r == 0x7F, r == 0x8F, r == 0x9F:
			return -1
		case r == 0x09, r == 0x0A, r == 0x0C, r == 0x0D, r == 0x1680, 0x200B <= r && r <= 0x200F,
			r == 0x2028, r == 0x2029, r == 0x2581, r == 0xFEFF, r == 0xFFFD:
			return ' '
		}
		return r
	}, text)
}

func (p *charProperties) toLower(text string) string {
	var b strings.Builder
	for i, r := range text {
		to, ok := p.lower[r]
		if ok && b.Len() == 0 {
			b.WriteString(text[:i])
		}
		switch {
		case ok:
			b.WriteString(to)
		case b.Len() > 0:
			b.WriteRune(r)
		}
	}
	if b.Len() == 0 {
		return text
	}
	return b.String()
}

// removeFrom returns text without the characters of the set.
func (s *runeSet) removeFrom(text string) string {
	return strings.Map(func(r rune) rune {
		if s.contains(r) {
			return -1
		}
		return r
	}, text)
}

// normalizeNFD returns text in normal form D.
func (n *nfc) normalizeNFD(text string) string {
	if isBelowDecompositions(text) {
		return text
	}
	return rewriteBlocks(text, normalBlock, n.isStarter, func(runes []rune, block string) []rune {
		for _, r := range block {
			runes = n.decomposeRune(runes, r)
		}
		n.orderMarks(runes)
		return runes
	})
}

// normalizeCompatible returns text in normal form KD, or KC if compose is given.
func (n *nfc) normalizeCompatible(text string, table map[rune]string, compose func([]rune) []rune) string {
	if isASCII(text) {
		return text
	}
	starts := func(r rune) bool {
		_, ok := table[r]
		return !ok && n.isStarter(r)
	}
	return rewriteBlocks(text, normalBlock, starts, func(runes []rune, block string) []rune {
		for _, r := range block {
			if to, ok := table[r]; ok {
				runes = append(runes, []rune(to)...)
			} else {
				runes = n.decomposeRune(runes, r)
			}
		}
		n.orderMarks(runes)
		if compose != nil {
			runes = compose(runes)
		}
		return runes
	})
}

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= 0x80 {
			return false
		}
	}
	return true
}

// isBelowDecompositions: nothing below U+00C0 decomposes canonically.
func isBelowDecompositions(text string) bool {
	for _, r := range text {
		if r >= 0xC0 {
			return false
		}
	}
	return true
}
