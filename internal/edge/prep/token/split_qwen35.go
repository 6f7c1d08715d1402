package token

// nextQwen35 is nextQwen2 with marks as letters: they continue or start a word, and are not signs.
func (c *classes) nextQwen35(s string) int {
	if n := matchFoldedContraction(s); n > 0 {
		return n
	}
	first, width := c.classAt(s)
	if first&number != 0 {
		return width
	}
	if first&letter != 0 {
		return c.runLength(s, letter|mark)
	}
	if first&newline == 0 {
		if n := c.runLength(s[width:], letter|mark); n > 0 {
			return width + n
		}
	}
	if first&mark != 0 {
		return width
	}
	lead := 0
	if s[0] == ' ' {
		lead = 1
	}
	n := lead
	for n < len(s) {
		k, width := c.classAt(s[n:])
		if k&(letter|mark|number|space) != 0 {
			break
		}
		n += width
	}
	if n > lead {
		return n + c.runLength(s[n:], newline)
	}
	return c.nextLines(s)
}
