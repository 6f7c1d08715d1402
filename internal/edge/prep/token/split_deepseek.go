package token

import "unicode/utf8"

// The three patterns which DeepSeek-V3 and R1 apply one after the other. They do not match everything: text
// between two matches is a word too.
const (
	patternNumbers3 = `\p{N}{1,3}`
	patternHan      = "[一-龥\u3040-ゟ゠-ヿ]+"
	patternDeepSeek = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

// sparseSplitter is [Splitter] for patterns whose matches leave gaps. It cuts gaps and matches alike.
func sparseSplitter(pattern string) (next splitter, ok bool) {
	c := newClasses()
	switch pattern {
	case patternNumbers3:
		return c.nextNumbers3, true
	case patternHan:
		return nextHan, true
	case patternDeepSeek:
		return c.nextDeepSeek, true
	}
	return nil, false
}

func (c *classes) nextNumbers3(s string) int {
	if n := c.nextDigits(s, 3); n > 0 {
		return n
	}
	return c.untilNumber(s)
}

// nextHan isolates runs of Chinese characters and Japanese syllables.
func nextHan(s string) int {
	first, n := utf8.DecodeRuneInString(s)
	for n < len(s) {
		r, width := utf8.DecodeRuneInString(s[n:])
		if isHan(r) != isHan(first) {
			break
		}
		n += width
	}
	return n
}

func isHan(r rune) bool { return 0x4E00 <= r && r <= 0x9FA5 || 0x3040 <= r && r <= 0x30FF }

func (c *classes) nextDeepSeek(s string) int {
	if n := c.matchDeepSeek(s); n > 0 {
		return n
	}
	// No match starts here: everything up to the next one.
	n := 0
	for n < len(s) && c.matchDeepSeek(s[n:]) == 0 {
		_, width := c.classAt(s[n:])
		n += width
	}
	return n
}

// matchDeepSeek returns the length of the match at the start of s, 0 if there is none.
func (c *classes) matchDeepSeek(s string) int {
	first, width := c.classAt(s)
	if s[0] < utf8.RuneSelf && first&sign != 0 {
		if n := latinRun(s[1:]); n > 0 {
			return 1 + n
		}
	}
	if first&letter != 0 {
		return c.runLength(s, letter|mark)
	}
	if first&(newline|sign) == 0 {
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
	if n := c.runLength(s[lead:], sign); n > 0 {
		n += lead
		return n + c.runLength(s[n:], newline)
	}
	if first&space != 0 {
		return c.nextLines(s)
	}
	return 0
}

// latinRun returns the length of the run of A to Z in either case.
func latinRun(s string) int {
	n := 0
	for n < len(s) && 'a' <= s[n]|0x20 && s[n]|0x20 <= 'z' {
		n++
	}
	return n
}
