package token

import (
	"unicode"
	"unicode/utf8"
)

// charClass is the class of a character in a pre-tokenizer's regular expression. The zero value is control
// characters and unassigned code points.
type charClass uint8

const (
	letter  charClass = 1 << iota // \p{L}
	number                        // \p{N}
	space                         // \s, the Unicode property White_Space
	newline                       // \r or \n; space is set too
	upper                         // [\p{Lu}\p{Lt}]; letter is set too
	lower                         // \p{Ll}; letter is set too
	mark                          // \p{M}
	sign                          // [\p{P}\p{S}]
)

// classes gives the class of every code point with one load, except the marks from U+E0100 to U+E01EF: the
// last letter is U+323AF.
type classes [0x323B0]charClass

func newClasses() *classes {
	c := new(classes)
	c.markTable(unicode.L, letter)
	c.markTable(unicode.N, number)
	c.markTable(unicode.White_Space, space)
	c.markTable(unicode.Lu, upper)
	c.markTable(unicode.Lt, upper)
	c.markTable(unicode.Ll, lower)
	c.markTable(unicode.M, mark)
	c.markTable(unicode.P, sign)
	c.markTable(unicode.S, sign)
	c.markRanges(letters16(), letter)
	c.markRanges(uppers16(), upper)
	c.markRanges(lowers16(), lower)
	c.markRanges(marks16(), mark)
	c.markRanges(signs16(), sign)
	c.markRanges(numbers16(), number)
	c['\r'] |= newline
	c['\n'] |= newline
	return c
}

func (c *classes) markTable(table *unicode.RangeTable, bit charClass) {
	for _, r := range table.R16 {
		c.markRange(int(r.Lo), int(r.Hi), int(r.Stride), bit)
	}
	for _, r := range table.R32 {
		c.markRange(int(r.Lo), int(r.Hi), int(r.Stride), bit)
	}
}

func (c *classes) markRanges(ranges [][2]int, bit charClass) {
	for _, r := range ranges {
		c.markRange(r[0], r[1], 1, bit)
	}
}

func (c *classes) markRange(low, high, stride int, bit charClass) {
	for p := low; p <= high && p < len(c); p += stride {
		c[p] |= bit
	}
}

// classAt returns the class and the width of the first character of s, (0, 0) for the empty string. An
// invalid byte is a sign of width 1, like U+FFFD.
func (c *classes) classAt(s string) (charClass, int) {
	if len(s) == 0 {
		return 0, 0
	}
	if s[0] < utf8.RuneSelf {
		return c[s[0]], 1
	}
	r, width := utf8.DecodeRuneInString(s)
	if int(r) < len(c) {
		return c[r], width
	}
	if 0xE0100 <= r && r <= 0xE01EF { // variation selectors
		return mark, width
	}
	return 0, width
}

// runLength returns the length of the longest prefix of s whose characters all have one of the bits in any.
func (c *classes) runLength(s string, any charClass) int {
	i := 0
	for i < len(s) {
		if b := s[i]; b < utf8.RuneSelf {
			if c[b]&any == 0 {
				break
			}
			i++
			continue
		}
		k, width := c.classAt(s[i:])
		if k&any == 0 {
			break
		}
		i += width
	}
	return i
}

// otherRunLength returns the length of the longest prefix of s without letters, numbers and white space.
func (c *classes) otherRunLength(s string) int {
	i := 0
	for i < len(s) {
		if b := s[i]; b < utf8.RuneSelf {
			if c[b]&(letter|number|space) != 0 {
				break
			}
			i++
			continue
		}
		k, width := c.classAt(s[i:])
		if k&(letter|number|space) != 0 {
			break
		}
		i += width
	}
	return i
}
