package token

func (c *classes) nextO200K(s string) int {
	if n := c.matchCasedWord(s); n > 0 {
		return n + matchFoldedContraction(s[n:])
	}
	return c.nextAfterWords(s, 3)
}

func (c *classes) nextTekken(s string) int {
	if n := c.matchCasedWord(s); n > 0 {
		return n
	}
	return c.nextAfterWords(s, 1)
}

// nextAfterWords matches the rest of the two patterns: numbers in groups of at most digits, signs with the
// line breaks and slashes after them, white space.
func (c *classes) nextAfterWords(s string, digits int) int {
	if n := c.nextDigits(s, digits); n > 0 {
		return n
	}
	lead := 0
	if s[0] == ' ' {
		lead = 1
	}
	if n := c.otherRunLength(s[lead:]); n > 0 {
		n += lead
		for n < len(s) && (s[n] == '\r' || s[n] == '\n' || s[n] == '/') {
			n++
		}
		return n
	}
	return c.nextLines(s)
}

// matchCasedWord matches, in this order, with A for [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and B for
// [\p{Ll}\p{Lm}\p{Lo}\p{M}],
//
//	[^\r\n\p{L}\p{N}]?A*B+ | [^\r\n\p{L}\p{N}]?A+B*
//
// and returns the length of the match, 0 if there is none.
func (c *classes) matchCasedWord(s string) int {
	first, width := c.classAt(s)
	if first&(letter|number|newline) != 0 {
		width = 0 // cannot lead
	}
	head, last := c.capitalRun(s[width:])
	tail := c.smallRun(s[width+head:])
	switch {
	case tail > 0:
		return width + head + tail
	case last > 0: // A* gives back its last character in B, and what follows it
		return width + last
	case first&mark != 0: // the mark is not a lead but a word of its own
		return width
	case head > 0:
		return width + head
	}
	return 0
}

// capitalRun returns the length of A* at the start of s, and the end of its last character which is in B too;
// 0 if there is none.
func (c *classes) capitalRun(s string) (n, last int) {
	for n < len(s) {
		k, width := c.classAt(s[n:])
		if k&(letter|mark) == 0 || k&lower != 0 {
			break
		}
		n += width
		if k&upper == 0 {
			last = n
		}
	}
	return n, last
}

// smallRun returns the length of B* at the start of s.
func (c *classes) smallRun(s string) int {
	n := 0
	for n < len(s) {
		k, width := c.classAt(s[n:])
		if k&(letter|mark) == 0 || k&upper != 0 {
			break
		}
		n += width
	}
	return n
}

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
