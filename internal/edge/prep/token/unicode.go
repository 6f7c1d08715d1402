package token

import (
	_ "embed"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// unicodeData is made and described by tools/fixtures/make_unicode.py.
//
//go:embed unicode.txt
var unicodeData string

// charProperties are the character properties of the reference implementation, each in the reference's
// Unicode version.
type charProperties struct {
	other       runeSet // control and similar characters which BertNormalizer removes
	bertAccents runeSet // marks which BertNormalizer removes
	accents     runeSet // marks which StripAccents removes
	punctuation runeSet
	word        runeSet // \w of the Whitespace pre-tokenizer and around added tokens
	extends     runeSet // extends the previous character to one grapheme cluster
	lower       map[rune]string
	compatible  map[rune]string // full compatibility decomposition
}

func newCharProperties() (*charProperties, error) {
	p := &charProperties{lower: map[rune]string{}, compatible: map[rune]string{}}
	sets := map[byte]*runeSet{
		'o': &p.other, 'm': &p.bertAccents, 'a': &p.accents, 'p': &p.punctuation, 'w': &p.word, 'e': &p.extends,
	}
	var runes []rune
	for line := range strings.Lines(unicodeData) {
		runes = runes[:0]
		for field := range strings.FieldsSeq(line[1:]) {
			r, err := strconv.ParseUint(field, 16, 21)
			if err != nil {
				return nil, err
			}
			runes = append(runes, rune(r))
		}
		switch line[0] {
		case 'L':
			p.lower[runes[0]] = string(runes[1:])
		case 'K':
			p.compatible[runes[0]] = string(runes[1:])
		default:
			sets[line[0]].addRange(runes[0], runes[1])
		}
	}
	return p, nil
}

// runeSet is a set of characters as ascending ranges, ASCII by its bits.
type runeSet struct {
	ascii  [2]uint64
	ranges []runeRange
}

type runeRange struct{ first, last rune }

func (s *runeSet) addRange(first, last rune) {
	s.ranges = append(s.ranges, runeRange{first, last})
	for r := first; r <= last && r < utf8.RuneSelf; r++ {
		s.ascii[r/64] |= 1 << (r % 64)
	}
}

func (s *runeSet) contains(r rune) bool {
	if r < utf8.RuneSelf {
		return s.ascii[r/64]&(1<<(r%64)) != 0
	}
	_, found := slices.BinarySearchFunc(s.ranges, r, func(have runeRange, r rune) int {
		switch {
		case have.last < r:
			return -1
		case have.first > r:
			return 1
		}
		return 0
	})
	return found
}
