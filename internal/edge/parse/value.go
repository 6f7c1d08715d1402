package parse

import (
	"crypto/sha256"
	"encoding/json"
	"strconv"
)

// valueScanner finds the end of one JSON value by its brackets and quotes only.
type valueScanner struct {
	depth    int
	inString bool // in a string
	escaped  bool
}

// scanByte reads c, a byte after the value's start. part says that c belongs to the value, done that the
// value is complete.
func (v *valueScanner) scanByte(c byte) (part, done bool) {
	if v.inString {
		switch {
		case v.escaped:
			v.escaped = false
		case c == '\\':
			v.escaped = true
		case c == '"':
			v.inString = false
			return true, v.depth == 0
		}
		return true, false
	}
	switch c {
	case '"':
		v.inString = true
	case '{', '[':
		v.depth++
	case '}', ']':
		if v.depth == 0 {
			return false, true
		}
		v.depth--
		return true, v.depth == 0
	case ',', ' ', '\n', '\r', '\t':
		if v.depth == 0 {
			return false, true
		}
	}
	return true, false
}

// unquoteJSON returns the string of the JSON text b, or b itself if it is not a JSON string.
func unquoteJSON(b []byte) string {
	var s string
	if json.Unmarshal(b, &s) != nil {
		return string(b)
	}
	return s
}

const hexDigits = "0123456789abcdef"

// appendEscaped appends one byte of the inside of a JSON string.
func appendEscaped(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	if c < ' ' {
		return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
	}
	return append(dst, c)
}

// appendQuoted appends s as a JSON string.
func appendQuoted(dst, s []byte) []byte {
	dst = append(dst, '"')
	for _, c := range s {
		dst = appendEscaped(dst, c)
	}
	return append(dst, '"')
}

const alphanumeric = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// makeCallID returns the id of a call. It is a function of the seed and the index, so that a resumed stream
// repeats it. Mistral's templates accept only ids of nine letters and digits.
func (p *Parser) makeCallID(index int) string {
	sum := sha256.Sum256([]byte(p.seed + "/" + strconv.Itoa(index)))
	prefix, n := "call_", 24
	if p.shortIDs {
		prefix, n = "", 9
	}
	id := append(make([]byte, 0, 32), prefix...)
	for _, b := range sum[:n] {
		id = append(id, alphanumeric[int(b)%len(alphanumeric)])
	}
	return string(id)
}
