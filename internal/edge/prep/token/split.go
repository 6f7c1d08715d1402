package token

import (
	"strings"
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
