package strictjson

import (
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string. Each byte that is not valid UTF-8 becomes U+FFFD. It
// escapes what JSON requires and the two line separators which JavaScript forbids; '<', '>' and '&'
// stay.
func AppendString[S []byte | string](dst []byte, s S) []byte {
	dst = append(dst, '"')
	start := 0 // start of the part that is not appended yet
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = append(dst, s[start:i]...)
			dst = appendEscape(dst, c)
			i++
			start = i
			continue
		}
		r, n := decodeRune(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(dst, s[start:i]...)
			dst = append(dst, `\ufffd`...)
			start = i + n
		case r == '\u2028' || r == '\u2029':
			dst = append(dst, s[start:i]...)
			dst = append(dst, `\u202`...)
			dst = append(dst, hexDigits[r&0xf])
			start = i + n
		}
		i += n
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
}

// decodeRune decodes the first rune of s without an allocating conversion.
func decodeRune[S []byte | string](s S) (rune, int) {
	var buf [utf8.UTFMax]byte
	return utf8.DecodeRune(buf[:copy(buf[:], s)])
}

// AppendMember appends opening, the text up to a value, such as `,"model":`, and then s as a JSON string.
func AppendMember[S []byte | string](dst []byte, opening string, s S) []byte {
	return AppendString(append(dst, opening...), s)
}

// AppendOptional is AppendMember with null in place of an empty string.
func AppendOptional(dst []byte, opening, s string) []byte {
	if s == "" {
		return append(append(dst, opening...), "null"...)
	}
	return AppendMember(dst, opening, s)
}

// AppendInt appends opening, as AppendMember does, and then n.
func AppendInt(dst []byte, opening string, n int) []byte {
	return strconv.AppendInt(append(dst, opening...), int64(n), 10)
}

// AppendFloat appends a number.
func AppendFloat(dst []byte, v float64) []byte { return strconv.AppendFloat(dst, v, 'g', -1, 64) }

// AppendComma appends the comma before element i of an array: none before the first.
func AppendComma(dst []byte, i int) []byte {
	if i == 0 {
		return dst
	}
	return append(dst, ',')
}
