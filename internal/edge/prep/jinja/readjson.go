package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"unicode/utf8"
)

// FromJSON reads one JSON value and keeps the order of its keys; for a duplicate key the last value counts,
// in the first place, as in Python. Values nested deeper than templates can print, and integers longer than
// they can compute with, are refused.
func FromJSON(data []byte) (any, error) {
	r := &jsonReader{data: data}
	v, err := r.readValue(0)
	if err == nil {
		if r.skipSpace(); r.at < len(data) {
			err = errors.New("more than one value")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	return v, nil
}

// jsonReader is at an offset of a JSON text.
type jsonReader struct {
	data []byte
	at   int
}

// skipSpace skips white space.
func (r *jsonReader) skipSpace() {
	for r.at < len(r.data) {
		switch r.data[r.at] {
		case ' ', '\t', '\n', '\r':
			r.at++
		default:
			return
		}
	}
}

// peekByte skips space and returns the next byte, 0 at the end.
func (r *jsonReader) peekByte() byte {
	if r.skipSpace(); r.at == len(r.data) {
		return 0
	}
	return r.data[r.at]
}

// skipByte consumes c if it is next.
func (r *jsonReader) skipByte(c byte) bool {
	if r.peekByte() != c {
		return false
	}
	r.at++
	return true
}

// syntaxError says where the text is not JSON, without quoting it.
func (r *jsonReader) syntaxError() error {
	if r.at >= len(r.data) {
		return errors.New("it ends before its value does")
	}
	return fmt.Errorf("not JSON at offset %d", r.at)
}

func (r *jsonReader) readValue(depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d levels deep", maxDepth)
	}
	switch c := r.peekByte(); c {
	case '{':
		return r.readObject(depth)
	case '[':
		return r.readArray(depth)
	case '"':
		return r.readText()
	case 't':
		return true, r.readWord("true")
	case 'f':
		return false, r.readWord("false")
	case 'n':
		return nil, r.readWord("null")
	}
	return r.readNumber()
}

func (r *jsonReader) readWord(word string) error {
	if !bytes.HasPrefix(r.data[r.at:], []byte(word)) {
		return r.syntaxError()
	}
	r.at += len(word)
	return nil
}

func (r *jsonReader) readArray(depth int) (any, error) {
	out := &listValue{}
	r.at++
	if r.skipByte(']') {
		return out, nil
	}
	for {
		v, err := r.readValue(depth + 1)
		if err != nil {
			return nil, err
		}
		out.items = append(out.items, v)
		if r.skipByte(']') {
			return out, nil
		}
		if !r.skipByte(',') {
			return nil, r.syntaxError()
		}
	}
}

func (r *jsonReader) readObject(depth int) (any, error) {
	out := NewDict()
	r.at++
	if r.skipByte('}') {
		return out, nil
	}
	for {
		if r.peekByte() != '"' {
			return nil, r.syntaxError()
		}
		k, err := r.readText()
		if err != nil {
			return nil, err
		}
		if !r.skipByte(':') {
			return nil, r.syntaxError()
		}
		v, err := r.readValue(depth + 1)
		if err != nil {
			return nil, err
		}
		out.putKey(k, v)
		if r.skipByte('}') {
			return out, nil
		}
		if !r.skipByte(',') {
			return nil, r.syntaxError()
		}
	}
}

// readText reads a string. A string with escapes or broken characters is left to the standard library, which
// uses U+FFFD for invalid characters.
func (r *jsonReader) readText() (any, error) {
	start, plain := r.at, true
	for i := r.at + 1; i < len(r.data); i++ {
		switch c := r.data[i]; {
		case c == '"':
			r.at = i + 1
			if inner := r.data[start+1 : i]; plain && utf8.Valid(inner) {
				return string(inner), nil
			}
			var t string
			if err := json.Unmarshal(r.data[start:r.at], &t); err != nil {
				return nil, fmt.Errorf("not a JSON string at offset %d", start)
			}
			return t, nil
		case c == '\\':
			plain = false
			i++
		case c < ' ':
			r.at = i
			return nil, r.syntaxError()
		}
	}
	r.at = len(r.data)
	return nil, r.syntaxError()
}

// readNumber reads a number: an integer unless it has a fraction or an exponent.
func (r *jsonReader) readNumber() (any, error) {
	start, whole := r.at, true
	r.skipMinus()
	first := r.at
	if r.skipDigits() == 0 || r.data[first] == '0' && r.at > first+1 {
		r.at = first
		return nil, r.syntaxError()
	}
	if r.at < len(r.data) && r.data[r.at] == '.' {
		whole = false
		r.at++
		if r.skipDigits() == 0 {
			return nil, r.syntaxError()
		}
	}
	if r.at < len(r.data) && r.data[r.at]|0x20 == 'e' {
		whole = false
		if r.at++; !r.skipMinus() && r.at < len(r.data) && r.data[r.at] == '+' {
			r.at++
		}
		if r.skipDigits() == 0 {
			return nil, r.syntaxError()
		}
	}
	return parseNumber(string(r.data[start:r.at]), whole)
}

func (r *jsonReader) skipMinus() bool {
	if r.at < len(r.data) && r.data[r.at] == '-' {
		r.at++
		return true
	}
	return false
}

// skipDigits skips digits and returns their number.
func (r *jsonReader) skipDigits() int {
	start := r.at
	for r.at < len(r.data) && r.data[r.at] >= '0' && r.data[r.at] <= '9' {
		r.at++
	}
	return r.at - start
}

func parseNumber(text string, whole bool) (any, error) {
	if !whole {
		f, _ := strconv.ParseFloat(text, 64) // infinite if out of range, as in Python
		return f, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	if len(text) > maxIntBits/4 {
		return nil, errors.New("integer too large")
	}
	n, _ := new(big.Int).SetString(text, 10)
	return n, nil
}
