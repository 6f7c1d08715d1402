package token

import (
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"
)

// wordCutter is a pre-tokenizer of a vocabulary which is not byte-level: it yields the non-empty words of
// text. first reports that text, or a word, begins where the whole input does.
type wordCutter func(text string, first bool, yield func(word string, first bool))

// newCutters reads the pre-tokenizers. findStartAltering names a normalizer which can remove the beginning of a
// text, "" if there is none.
func newCutters(raw json.RawMessage, altersStart string) ([]wordCutter, error) {
	list, err := parseComponents(raw)
	if err != nil {
		return nil, err
	}
	var cutters []wordCutter
	for _, s := range list {
		c, err := newCutter(&s, altersStart)
		if err != nil {
			return nil, err
		}
		cutters = append(cutters, c)
	}
	return cutters, nil
}

func newCutter(s *componentConfig, altersStart string) (wordCutter, error) {
	switch s.Type {
	case "WhitespaceSplit":
		return splitRule{find: findRune(unicode.IsSpace), behavior: removed}.cutText, nil
	case "CharDelimiterSplit", "UnicodeScripts", "FixedLength", "ByteLevel":
		return nil, unsupported("pre_tokenizer %s is not supported with this model", s.Type)
	case "Digits":
		return digitsCutter(s), nil
	case "Split":
		return splitCutter(s)
	case "Metaspace":
		return newMetaspaceCutter(s, altersStart)
	case "Whitespace", "Punctuation", "BertPreTokenizer":
		p, err := newCharProperties()
		if err != nil {
			return nil, err
		}
		return p.newPropertyCutter(s)
	}
	return nil, unsupported("pre_tokenizer %s is not supported", s.Type)
}

// newPropertyCutter makes the pre-tokenizers which use character properties.
func (p *charProperties) newPropertyCutter(s *componentConfig) (wordCutter, error) {
	signs := findRune(p.punctuation.contains)
	switch s.Type {
	case "Whitespace":
		return splitRule{find: p.findWordOrSigns, behavior: removed, invert: true}.cutText, nil
	case "Punctuation":
		b, err := behaviorOf(s.Behavior)
		return splitRule{find: signs, behavior: b}.cutText, err
	}
	spaces := splitRule{find: findRune(unicode.IsSpace), behavior: removed}
	apart := splitRule{find: signs, behavior: isolated}
	return func(text string, first bool, yield func(string, bool)) {
		spaces.cutText(text, first, func(word string, first bool) { apart.cutText(word, first, yield) })
	}, nil
}

// findWordOrSigns matches \w+|[^\w\s]+ .
func (p *charProperties) findWordOrSigns(text string) (start, end int) {
	start = strings.IndexFunc(text, func(r rune) bool { return !unicode.IsSpace(r) })
	if start < 0 {
		return -1, -1
	}
	r, _ := utf8.DecodeRuneInString(text[start:])
	word := p.word.contains(r)
	n := strings.IndexFunc(text[start:], func(r rune) bool { return unicode.IsSpace(r) || p.word.contains(r) != word })
	if n < 0 {
		return start, len(text)
	}
	return start, start + n
}

func digitsCutter(s *componentConfig) wordCutter {
	c := newClasses()
	c.markRanges(numbers17(), number)
	rule := splitRule{behavior: contiguous, find: findRune(func(r rune) bool { return int(r) < len(c) && c[r]&number != 0 })}
	if s.IndividualDigits {
		rule.behavior = isolated
	}
	return rule.cutText
}

func splitCutter(s *componentConfig) (wordCutter, error) {
	b, err := behaviorOf(s.Behavior)
	if err != nil {
		return nil, err
	}
	rule := splitRule{behavior: b, invert: s.Invert}
	if s.Pattern.String != "" {
		rule.find = findString(s.Pattern.String)
		return rule.cutText, nil
	}
	next, ok := Splitter(s.Pattern.Regex)
	if !ok {
		return nil, unsupported("pre_tokenizer Split with the pattern %q is not supported", s.Pattern.Regex)
	}
	rule.find = func(text string) (int, int) { return 0, next(text) }
	return rule.cutText, nil
}

// splitBehavior says what happens to the matches of a pattern.
type splitBehavior int

const (
	removed splitBehavior = iota
	isolated
	mergedWithPrevious
	mergedWithNext
	contiguous
)

func behaviorOf(name string) (splitBehavior, error) {
	switch name {
	case "Removed":
		return removed, nil
	case "Isolated", "":
		return isolated, nil
	case "MergedWithPrevious":
		return mergedWithPrevious, nil
	case "MergedWithNext":
		return mergedWithNext, nil
	case "Contiguous":
		return contiguous, nil
	}
	return 0, unsupported("a pre_tokenizer with the behavior %q is not supported", name)
}

// splitRule cuts text at the matches of a pattern.
type splitRule struct {
	// find returns the first match in a non-empty text, or -1. A match is not empty.
	find     func(text string) (start, end int)
	behavior splitBehavior
	invert   bool // swaps matches and the text between them
}

func findRune(has func(rune) bool) func(string) (int, int) {
	return func(text string) (int, int) {
		start := strings.IndexFunc(text, has)
		if start < 0 {
			return -1, -1
		}
		_, width := utf8.DecodeRuneInString(text[start:])
		return start, start + width
	}
}

func findString(pattern string) func(string) (int, int) {
	return func(text string) (int, int) {
		start := strings.Index(text, pattern)
		return start, start + len(pattern)
	}
}

// matchSpan is a part of a text; last reports whether the last part joined to it is a match.
type matchSpan struct {
	start, end int
	match      bool
	last       bool
}

// cutText yields words as it finds them, without storing them, since a client can send a text of many words.
func (rule splitRule) cutText(text string, first bool, yield func(string, bool)) {
	var held matchSpan // not yielded yet, the next may join it
	flush := func() {
		if held.start < held.end && (rule.behavior != removed || !held.match) {
			yield(text[held.start:held.end], first && held.start == 0)
		}
	}
	add := func(start, end int, match bool) {
		if start == end {
			return
		}
		if held.end > 0 && rule.joinsNext(held.last, match) {
			held.end, held.last = end, match
			return
		}
		flush()
		held = matchSpan{start, end, match, match}
	}
	for at := 0; at < len(text); {
		start, end := rule.find(text[at:])
		if start < 0 {
			start, end = len(text)-at, len(text)-at
		}
		add(at, at+start, rule.invert)
		add(at+start, at+end, !rule.invert)
		at += end
	}
	flush()
}

// joinsNext reports whether a span and the next one become one.
func (rule splitRule) joinsNext(match, next bool) bool {
	switch rule.behavior {
	case mergedWithPrevious:
		return !match && next
	case mergedWithNext:
		return match && !next
	case contiguous:
		return match == next
	}
	return false
}

// metaspace replaces spaces by a visible character.
type metaspace struct {
	mark   string
	scheme string // always, first, never
	split  splitRule
	whole  bool // do not cut
}

// newMetaspace reads the options common to the pre-tokenizer and the decoder of that name. Older files have
// add_prefix_space instead of prepend_scheme.
func newMetaspace(s *componentConfig) (*metaspace, error) {
	m := &metaspace{mark: s.Replacement, scheme: s.PrependScheme, whole: s.Split != nil && !*s.Split}
	if utf8.RuneCountInString(m.mark) != 1 {
		return nil, malformed("Metaspace has the replacement %q, not one character", s.Replacement)
	}
	never := s.AddPrefixSpace != nil && !*s.AddPrefixSpace
	switch {
	case m.scheme == "" && never:
		m.scheme = "never"
	case m.scheme == "":
		m.scheme = "always"
	case never && m.scheme != "never":
		return nil, malformed("Metaspace has add_prefix_space and a prepend_scheme that disagree")
	}
	if m.scheme != "always" && m.scheme != "first" && m.scheme != "never" {
		return nil, unsupported("Metaspace with the prepend_scheme %q is not supported", m.scheme)
	}
	m.split = splitRule{find: findString(m.mark), behavior: mergedWithNext}
	return m, nil
}

func newMetaspaceCutter(s *componentConfig, altersStart string) (wordCutter, error) {
	m, err := newMetaspace(s)
	if err != nil {
		return nil, err
	}
	if m.scheme == "first" && altersStart != "" {
		return nil, unsupported("Metaspace with the prepend_scheme first after the normalizer %s is not supported", altersStart)
	}
	return m.cutText, nil
}

func (m *metaspace) cutText(text string, first bool, yield func(string, bool)) {
	text = strings.ReplaceAll(text, " ", m.mark)
	if (m.scheme == "always" || m.scheme == "first" && first) && !strings.HasPrefix(text, m.mark) {
		text = m.mark + text
	}
	if m.whole {
		yield(text, first)
		return
	}
	m.split.cutText(text, first, yield)
}

// findStartAltering returns the name of a normalizer which can remove the beginning of a text, so that the
// rest does not begin where the input does.
func findStartAltering(raw json.RawMessage) (string, error) {
	list, err := parseComponents(raw)
	if err != nil {
		return "", err
	}
	for _, s := range list {
		switch {
		case s.Type == "Strip" && s.StripLeft, s.Type == "Replace" && s.Content == "",
			s.Type == "BertNormalizer", s.Type == "StripAccents", s.Type == "Nmt":
			return s.Type, nil
		}
	}
	return "", nil
}
