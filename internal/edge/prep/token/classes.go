package token

import (
	"unicode"
	"unicode/utf8"
)

// class says what a character is to a pre-tokenizer's regular expression. The
// zero value is everything that is neither letter, number nor white space.
type class uint8

const (
	letter  class = 1 << iota // \p{L}
	number                    // \p{N}
	space                     // \s, the Unicode property White_Space
	newline                   // \r or \n; space is set too
)

// classes answers for the basic multilingual plane by one load; the rest of
// Unicode is rare enough for a search in the range tables.
type classes [1 << 16]class

func newClasses() *classes {
	c := new(classes)
	c.mark(unicode.L, letter)
	c.mark(unicode.N, number)
	c.mark(unicode.White_Space, space)
	c['\r'] |= newline
	c['\n'] |= newline
	return c
}

func (c *classes) mark(table *unicode.RangeTable, bit class) {
	for _, r := range table.R16 {
		for p := int(r.Lo); p <= int(r.Hi); p += int(r.Stride) {
			c[p] |= bit
		}
	}
}

// at returns the class and the width of the first character of s; of the empty
// string it is (0, 0). A broken byte is a character of width 1 and class zero.
func (c *classes) at(s string) (class, int) {
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
	return beyondBMP(r), width
}

func beyondBMP(r rune) class {
	switch {
	case unicode.Is(unicode.L, r):
		return letter
	case unicode.Is(unicode.N, r):
		return number
	}
	return 0 // no white space lives beyond the basic plane
}

// run returns the length of the longest prefix of s whose characters all have
// one of the bits in any.
func (c *classes) run(s string, any class) int {
	i := 0
	for i < len(s) {
		k, width := c.at(s[i:])
		if k&any == 0 {
			break
		}
		i += width
	}
	return i
}

// otherRun returns the length of the longest prefix of s that has no letter, no
// number and no white space.
func (c *classes) otherRun(s string) int {
	i := 0
	for i < len(s) {
		k, width := c.at(s[i:])
		if k != 0 {
			break
		}
		i += width
	}
	return i
}
