package token

import (
	"math/bits"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The regular expressions which cut text into words before byte-pair merging, as spelled in checkpoints. Each
// is recognised by its exact text and matched by hand-written code; no expression is ever interpreted.
const (
	// PatternGPT2 is the pattern of the ByteLevel pre-tokenizer.
	PatternGPT2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	// PatternLlama3 is the pattern of Llama 3 and, before it, cl100k: numbers in groups of three.
	PatternLlama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// PatternQwen2 is the pattern of Qwen 2 to 3: one digit at a time.
	PatternQwen2 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// PatternCL100K is the original spelling of Llama 3's, with possessive repetition, which changes no
	// match.
	PatternCL100K = `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`
	// PatternQwen35 is the pattern of Qwen 3.5: marks belong to words.
	PatternQwen35 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// PatternO200K is the pattern of GPT-4o, gpt-oss and Llama 4: a capital after a small letter starts a new
	// word, and words include their contractions.
	PatternO200K = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// PatternTekken is the pattern of Mistral's Tekken vocabularies and of Nemotron 3: O200K without
	// contractions, one digit at a time.
	PatternTekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// splitter returns the length of the first word of a non-empty text, at least 1: the words of a text, joined,
// are the text.
type splitter func(text string) int

// Splitter returns the function which gives the length of the first match of pattern in a non-empty text. The
// matches cover the text without gaps. ok is false for an unknown pattern.
func Splitter(pattern string) (next func(text string) int, ok bool) {
	c := newClasses()
	switch pattern {
	case PatternGPT2:
		return c.nextGPT2, true
	case PatternLlama3, PatternCL100K:
		return c.nextLlama3, true
	case PatternQwen2:
		return c.nextQwen2, true
	case PatternQwen35:
		return c.nextQwen35, true
	case PatternO200K:
		return c.nextO200K, true
	case PatternTekken:
		return c.nextTekken, true
	}
	return nil, false
}

func (c *classes) nextGPT2(s string) int {
	if n := matchContraction(s); n > 0 {
		return n
	}
	// A word, number or run of signs may include the one space before it.
	lead := 0
	if s[0] == ' ' {
		lead = 1
	}
	switch k, width := c.classAt(s[lead:]); {
	case width == 0 || k&space != 0:
		return c.nextSpaces(s)
	case k&letter != 0:
		return lead + c.runLength(s[lead:], letter)
	case k&number != 0:
		return lead + c.runLength(s[lead:], number)
	default:
		return lead + c.otherRunLength(s[lead:])
	}
}

func (c *classes) nextLlama3(s string) int { return c.nextGrouped(s, 3) }

func (c *classes) nextQwen2(s string) int { return c.nextGrouped(s, 1) }

// nextGrouped is the cl100k family: contractions in either case, any one character except a number or line
// break may lead a word, numbers come in groups of at most digits, signs include the line breaks after them.
func (c *classes) nextGrouped(s string, digits int) int {
	if n := matchFoldedContraction(s); n > 0 {
		return n
	}
	first, width := c.classAt(s)
	if first&letter != 0 {
		return c.runLength(s, letter)
	}
	if first&number != 0 {
		return c.nextDigits(s, digits)
	}
	if first&newline == 0 {
		if n := c.runLength(s[width:], letter); n > 0 {
			return width + n
		}
	}
	lead := 0
	if s[0] == ' ' {
		lead = 1
	}
	if n := c.otherRunLength(s[lead:]); n > 0 {
		n += lead
		return n + c.runLength(s[n:], newline)
	}
	return c.nextLines(s)
}

func (c *classes) nextDigits(s string, limit int) int {
	n := 0
	for range limit {
		k, width := c.classAt(s[n:])
		if k&number == 0 {
			break
		}
		n += width
	}
	return n
}

// nextLines matches \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line break of a run of white space if there is
// one.
func (c *classes) nextLines(s string) int {
	n := c.runLength(s, space)
	if i := strings.LastIndexAny(s[:n], "\r\n"); i >= 0 {
		return i + 1
	}
	return dropLastSpace(s, n)
}

// nextSpaces matches \s+(?!\S)|\s+ .
func (c *classes) nextSpaces(s string) int {
	return dropLastSpace(s, c.runLength(s, space))
}

// dropLastSpace shortens a run of n bytes of white space by its last character if something follows, so that
// the next word can include it, but never to nothing.
func dropLastSpace(s string, n int) int {
	if n == len(s) {
		return n
	}
	_, last := utf8.DecodeLastRuneInString(s[:n])
	if n > last {
		return n - last
	}
	return n
}

// matchContraction returns the length of 's 't 're 've 'm 'll 'd at the start of s, or 0.
func matchContraction(s string) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	return 1 + contractionLength(s[1], thirdByte(s))
}

// matchFoldedContraction is matchContraction in either case. Unicode folds the long s (U+017F) to s.
func matchFoldedContraction(s string) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	if strings.HasPrefix(s[1:], "ſ") {
		return 1 + len("ſ")
	}
	return 1 + contractionLength(s[1]|0x20, thirdByte(s)|0x20)
}

func thirdByte(s string) byte {
	if len(s) < 3 {
		return 0
	}
	return s[2]
}

// contractionLength returns the length of the contraction's letters, or -1.
func contractionLength(a, b byte) int {
	switch {
	case a == 's' || a == 't' || a == 'm' || a == 'd':
		return 1
	case b == 'e' && (a == 'r' || a == 'v'), b == 'l' && a == 'l':
		return 2
	}
	return -1
}

// nextWhole leaves text in one piece.
func nextWhole(s string) int { return len(s) }

// nextDigit isolates each number.
func (c *classes) nextDigit(s string) int {
	k, width := c.classAt(s)
	if k&number != 0 {
		return width
	}
	return c.untilNumber(s)
}

// nextNumber isolates each run of numbers.
func (c *classes) nextNumber(s string) int {
	if n := c.runLength(s, number); n > 0 {
		return n
	}
	return c.untilNumber(s)
}

func (c *classes) untilNumber(s string) int {
	i := 0
	for i < len(s) {
		k, width := c.classAt(s[i:])
		if k&number != 0 {
			break
		}
		i += width
	}
	return i
}

// asciiWordFinder returns a function which finds the first match of pattern, one of [Splitter]'s, faster than
// its splitter, or returns 0 if the splitter is needed; nil if there is none.
func asciiWordFinder(pattern string) func(text string) int {
	switch pattern {
	case PatternGPT2, PatternLlama3, PatternCL100K, PatternQwen2, PatternQwen35:
		return asciiWord
	case PatternO200K, PatternTekken:
		return asciiCasedWord
	}
	return nil
}

// asciiCasedWord is asciiWord for patterns in which a capital after a small letter starts a new word, and a
// contraction may belong to the word before.
func asciiCasedWord(text string) int {
	n := asciiWord(text)
	if n == 0 || n < len(text) && text[n] == '\'' {
		return 0
	}
	const small = 0x20 // set in small letters, and in the leading space
	for i := 1; i < n; i++ {
		if text[i]&small < text[i-1]&small && text[i-1] != ' ' {
			return 0
		}
	}
	return n
}

// asciiWord returns the length of the leading run of ASCII letters, with an optional space before it; 0 if
// there is no such run, or if the next character is not ASCII. Most words of most texts have this form, and
// it checks eight bytes at a time.
func asciiWord(text string) int {
	n := 0
	if len(text) > 0 && text[0] == ' ' {
		n = 1
	}
	lead := n
	for len(text)-n >= 8 {
		run := letterRun(loadUint64(text[n:]))
		n += run
		if run < 8 {
			return checkWordEnd(text, lead, n)
		}
	}
	for n < len(text) && isLatinLetter(text[n]) {
		n++
	}
	return checkWordEnd(text, lead, n)
}

// checkWordEnd returns n unless there is no letter from lead on or the character at n could continue the
// word.
func checkWordEnd(text string, lead, n int) int {
	if n == lead || n < len(text) && text[n] >= 0x80 {
		return 0
	}
	return n
}

// letterRun returns how many of the eight bytes of x, the lowest first, are leading ASCII letters.
func letterRun(x uint64) int {
	const (
		each = 0x0101010101010101
		top  = 0x80 * each
	)
	folded := (x | 0x20*each) &^ top         // no sum below carries over to the next byte
	from := folded + (0x80-'a')*each         // the top bit of a byte is set from 'a' on
	beyond := folded + (0x80-'z'-1)*each     // and after 'z'
	others := ^(from &^ beyond &^ x) & top   // x: bytes above ASCII are not letters
	return bits.TrailingZeros64(others) >> 3 // 64 if there are none
}

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
