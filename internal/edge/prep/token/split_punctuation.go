package token

import "unicode"

// newPunctuation returns classes with only the characters which the Punctuation pre-tokenizer isolates, as
// sign.
func newPunctuation() *classes {
	c := new(classes)
	c.markTable(unicode.P, sign)
	more, fewer := punctuation8()
	c.markRanges(more, sign)
	for _, r := range fewer {
		clear(c[r[0] : r[1]+1])
	}
	for b := range 128 {
		if unicode.IsSymbol(rune(b)) {
			c[b] = sign
		}
	}
	return c
}

// nextSign isolates each sign.
func (c *classes) nextSign(s string) int {
	if k, width := c.classAt(s); k&sign != 0 {
		return width
	}
	return c.untilSign(s)
}

// nextSigns isolates each run of signs.
func (c *classes) nextSigns(s string) int {
	if n := c.runLength(s, sign); n > 0 {
		return n
	}
	return c.untilSign(s)
}

func (c *classes) untilSign(s string) int {
	n := 0
	for n < len(s) {
		k, width := c.classAt(s[n:])
		if k&sign != 0 {
			break
		}
		n += width
	}
	return n
}
