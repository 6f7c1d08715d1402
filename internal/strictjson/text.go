package strictjson

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// ReadString reads a string.
func (r *Reader) ReadString() (string, error) {
	if r.Kind() != StringKind {
		return "", r.WrongTypeError("a string")
	}
	s, problem := r.scanString()
	if problem != "" {
		return "", r.syntaxError(problem)
	}
	return s.decode(r.data), nil
}

// stringSpan is the location of a string in the text.
type stringSpan struct {
	start, end int // between the quotes
	size       int // of the decoded string, in bytes
}

// isLiteral reports whether the string has no escapes: every escape is longer than what it encodes.
func (s stringSpan) isLiteral() bool { return s.size == s.end-s.start }

// decode returns the decoded string.
func (s stringSpan) decode(data []byte) string {
	if s.isLiteral() {
		return string(data[s.start:s.end])
	}
	var b strings.Builder
	b.Grow(s.size)
	for rest := data[s.start:s.end]; len(rest) > 0; {
		n := bytes.IndexByte(rest, '\\')
		if n < 0 {
			n = len(rest)
		}
		b.Write(rest[:n])
		if rest = rest[n:]; len(rest) > 0 {
			c, n := decodeEscape(rest)
			b.WriteRune(c)
			rest = rest[n:]
		}
	}
	return b.String()
}

// scanString advances past the string whose opening quote is next. If the string is not valid, it
// advances to the problem and returns its name.
func (x *scanner) scanString() (s stringSpan, problem string) {
	data := x.data
	s = stringSpan{start: x.pos + 1}
	for i := s.start; i < len(data); {
		if i += plainRun(data[i:]); i == len(data) {
			break
		}
		switch c := data[i]; {
		case c == '"':
			x.pos, s.end = i+1, i
			s.size += i - s.start
			return s, ""
		case c == '\\':
			char, n := decodeEscape(data[i:])
			if n == 0 {
				x.pos = i
				return s, "invalid escape in a string"
			}
			s.size += utf8.RuneLen(char) - n
			i += n
		case c < ' ':
			x.pos = i
			return s, "control character in a string"
		default:
			i++
		}
	}
	x.pos = len(data)
	return s, "unexpected end"
}

// plainRun returns how many bytes at the start of s have no special meaning in a string. It
// examines eight bytes at a time and ignores the last few of s.
func plainRun(s []byte) int {
	const (
		each = 0x0101010101010101
		top  = 0x80 * each
	)
	n := 0
	for ; len(s)-n >= 8; n += 8 {
		x := binary.LittleEndian.Uint64(s[n:])
		// The top bit of a byte is set where the byte is zero, or less than a space. Borrows can
		// set further bits, but only above a set one, and only the lowest counts.
		quote, escape := x^'"'*each, x^'\\'*each
		found := ((quote-each)&^quote | (escape-each)&^escape | (x-' '*each)&^x) & top
		if found != 0 {
			return n + bits.TrailingZeros64(found)/8
		}
	}
	return n
}

// decodeEscape returns the character of the escape at the start of s and the escape's length; 0 if
// it is invalid. Surrogates must come in pairs.
func decodeEscape(s []byte) (c rune, n int) {
	if len(s) < 2 {
		return 0, 0
	}
	switch s[1] {
	case '"', '\\', '/':
		return rune(s[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		c, ok := hex4(s)
		switch {
		case !ok:
			return 0, 0
		case !utf16.IsSurrogate(c):
			return c, 6
		}
		low, ok := hex4(s[6:])
		pair := utf16.DecodeRune(c, low)
		if !ok || pair == utf8.RuneError {
			return 0, 0
		}
		return pair, 12
	}
	return 0, 0
}

// hex4 decodes \uXXXX at the start of s.
func hex4(s []byte) (c rune, ok bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	for _, h := range s[2:6] {
		switch {
		case '0' <= h && h <= '9':
			c = c<<4 | rune(h-'0')
		case 'a' <= h && h <= 'f':
			c = c<<4 | rune(h-'a'+10)
		case 'A' <= h && h <= 'F':
			c = c<<4 | rune(h-'A'+10)
		default:
			return 0, false
		}
	}
	return c, true
}
