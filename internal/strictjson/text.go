package strictjson

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"penstock/core/kv"
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

// AppendTokens appends token ids to dst as one JSON array.
func AppendTokens(dst []byte, lists ...[]kv.Token) []byte {
	dst = append(dst, '[')
	empty := len(dst)
	for _, list := range lists {
		dst = slices.Grow(dst, len(list)*(maxDigits+1))
		at, room := len(dst), dst[:cap(dst)]
		for _, t := range list {
			at += putToken(room[at:at+maxDigits+1], t)
		}
		dst = dst[:at]
	}
	if len(dst) > empty { // the last comma
		dst = dst[:len(dst)-1]
	}
	return append(dst, ']')
}

// maxDigits is the largest number of digits of a token id.
const maxDigits = 10

// digitPairs holds the numbers below 100 with two digits each.
const digitPairs = "0001020304050607080910111213141516171819" +
	"2021222324252627282930313233343536373839" +
	"4041424344454647484950515253545556575859" +
	"6061626364656667686970717273747576777879" +
	"8081828384858687888990919293949596979899"

// putToken writes an id and a comma to b, and returns their length in bytes. A prompt has tens of thousands
// of ids, in an order that a processor cannot predict: no branch depends on an id below 1,000,000.
func putToken(b []byte, t kv.Token) int {
	if t >= 1_000_000 {
		return len(append(strconv.AppendUint(b[:0], uint64(t), 10), ','))
	}
	most := bits.Len32(uint32(t)|1) * 1233 >> 12 // its number of digits, or one less
	n := most + 1 - int((t-powersOfTen[most&7])>>31)
	six := twoDigits(t/10_000) | twoDigits(t/100%100)<<16 | twoDigits(t%100)<<32 | ','<<48
	binary.LittleEndian.PutUint64(b, six>>(8*(6-n)))
	return n + 1
}

// powersOfTen starts with 0 for the id 0, which has one digit too.
var powersOfTen = [8]kv.Token{0, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000}

// twoDigits returns the two digits of a number below 100.
func twoDigits(n kv.Token) uint64 { return uint64(digitPairs[2*n]) | uint64(digitPairs[2*n+1])<<8 }
