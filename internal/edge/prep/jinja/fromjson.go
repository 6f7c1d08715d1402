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
	r := &reader{data: data}
	v, err := r.value(0)
	if err == nil {
		if r.space(); r.at < len(data) {
			err = errors.New("more than one value")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	return v, nil
}

// jsonReader is at an offset of a JSON text.
type reader struct {
	data []byte
	at   int
}

// skipSpace skips white space.
func (r *reader) space() {
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
func (r *reader) next() byte {
	if r.space(); r.at == len(r.data) {
		return 0
	}
	return r.data[r.at]
}

// skipByte consumes c if it is next.
func (r *reader) skip(c byte) bool {
	if r.next() != c {
		return false
	}
	r.at++
	return true
}

// syntaxError says where the text is not JSON, without quoting it.
func (r *reader) fail() error {
	if r.at >= len(r.data) {
		return errors.New("it ends before its value does")
	}
	return fmt.Errorf("not JSON at offset %d", r.at)
}

func (r *reader) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d levels deep", maxDepth)
	}
	switch c := r.next(); c {
	case '{':
		return r.object(depth)
	case '[':
		return r.array(depth)
	case '"':
		return r.text()
	case 't':
		return true, r.word("true")
	case 'f':
		return false, r.word("false")
	case 'n':
		return nil, r.word("null")
	}
	return r.number()
}

func (r *reader) word(word string) error {
	if !bytes.HasPrefix(r.data[r.at:], []byte(word)) {
		return r.fail()
	}
	r.at += len(word)
	return nil
}

func (r *reader) array(depth int) (any, error) {
	out := &list{}
	r.at++
	if r.skip(']') {
		return out, nil
	}
	for {
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		out.items = append(out.items, v)
		if r.skip(']') {
			return out, nil
		}
		if !r.skip(',') {
			return nil, r.fail()
		}
	}
}

func (r *reader) object(depth int) (any, error) {
	out := NewDict()
	r.at++
	if r.skip('}') {
		return out, nil
	}
	for {
		if r.next() != '"' {
			return nil, r.fail()
		}
		k, err := r.text()
		if err != nil {
			return nil, err
		}
		if !r.skip(':') {
			return nil, r.fail()
		}
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		out.put(k, v)
		if r.skip('}') {
			return out, nil
		}
		if !r.skip(',') {
			return nil, r.fail()
		}
	}
}

// readText reads a string. A string with escapes or broken characters is left to the standard library, which
// uses U+FFFD for invalid characters.
func (r *reader) text() (any, error) {
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
			return nil, r.fail()
		}
	}
	r.at = len(r.data)
	return nil, r.fail()
}

// readNumber reads a number: an integer unless it has a fraction or an exponent.
func (r *reader) number() (any, error) {
	start, whole := r.at, true
	r.minus()
	first := r.at
	if r.digits() == 0 || r.data[first] == '0' && r.at > first+1 {
		r.at = first
		return nil, r.fail()
	}
	if r.at < len(r.data) && r.data[r.at] == '.' {
		whole = false
		r.at++
		if r.digits() == 0 {
			return nil, r.fail()
		}
	}
	if r.at < len(r.data) && r.data[r.at]|0x20 == 'e' {
		whole = false
		if r.at++; !r.minus() && r.at < len(r.data) && r.data[r.at] == '+' {
			r.at++
		}
		if r.digits() == 0 {
			return nil, r.fail()
		}
	}
	return numberOf(string(r.data[start:r.at]), whole)
}

func (r *reader) minus() bool {
	if r.at < len(r.data) && r.data[r.at] == '-' {
		r.at++
		return true
	}
	return false
}

// skipDigits skips digits and returns their number.
func (r *reader) digits() int {
	start := r.at
	for r.at < len(r.data) && r.data[r.at] >= '0' && r.data[r.at] <= '9' {
		r.at++
	}
	return r.at - start
}

func numberOf(text string, whole bool) (any, error) {
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
