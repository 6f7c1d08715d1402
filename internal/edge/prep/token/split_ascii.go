package token

import "math/bits"

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
