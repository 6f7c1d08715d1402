package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"penstock/core/kv"
)

// maxRaw bounds the nesting of a value which a Cursor skips.
const maxRaw = 64

// Cursor is a lenient cursor over one JSON text, which does not allocate: callers read the wanted
// values by typed methods and skip the rest. It checks the values which it reads, and skipped values
// only as far as needed to find their ends; it does not look for duplicate keys. The first error
// stays, and every read after it returns zero.
//
//	c := strictjson.NewCursor(data)
//	for c.Open('{'); c.More('}'); {
//		switch string(c.Key()) { case "usage": …; default: c.Skip() }
//	}
type Cursor struct {
	scanner
	state    elementState
	failed   bool
	failedAt int
}

// elementState is what [Cursor.More] finds after an opening bracket:
//
//	laterElement  a comma before the next element, or the end
//	firstElement  an element, or the end
//	noElement     nothing: there is no array or object, and the cursor is after the value in its place
type elementState uint8

const (
	laterElement elementState = iota
	firstElement
	noElement
)

// NewCursor returns a cursor before the value in data.
func NewCursor(data []byte) Cursor { return Cursor{scanner: scanner{data: data}} }

// Err returns the first error.
func (c *Cursor) Err() error {
	switch {
	case !c.failed:
		return nil
	case c.failedAt >= len(c.data):
		return errors.New("the JSON ends before its value does")
	}
	return fmt.Errorf("not the expected JSON at byte %d", c.failedAt)
}

// Fail reports that the value before the cursor is not of the expected form.
func (c *Cursor) Fail() {
	if !c.failed {
		c.failed, c.failedAt = true, c.pos
	}
	c.pos = len(c.data)
}

// Pos returns the offset of the cursor in the data.
func (c *Cursor) Pos() int { return c.pos }

// ValueStart skips white space and returns the offset of the next value in the data.
func (c *Cursor) ValueStart() int {
	c.skipSpace()
	return c.pos
}

// Peek skips white space and returns the first byte of the next value; 0 at the end.
func (c *Cursor) Peek() byte {
	for c.pos < len(c.data) {
		switch b := c.data[c.pos]; b {
		case ' ', '\t', '\n', '\r':
			c.pos++
		default:
			return b
		}
	}
	return 0
}

// SkipNull skips a null, and reports whether there was one.
func (c *Cursor) SkipNull() bool {
	if c.Peek() != 'n' {
		return false
	}
	c.readWord("null")
	return true
}

// NextIs reports whether the next value starts with b: '{', '[', '"', or a digit.
func (c *Cursor) NextIs(b byte) bool { return c.Peek() == b }

// End returns an error if anything but white space follows.
func (c *Cursor) End() error {
	if c.skipSpace(); c.pos < len(c.data) {
		c.Fail()
	}
	return c.Err()
}

// Open enters an array ('[') or an object ('{').
func (c *Cursor) Open(b byte) {
	if c.failed || c.Peek() != b {
		c.Fail()
		return
	}
	c.pos++
	c.state = firstElement
}

// OpenIfAny is Open if such a value is next. It skips any other value, and then More finds no
// elements.
func (c *Cursor) OpenIfAny(b byte) {
	if c.Peek() == b {
		c.Open(b)
		return
	}
	c.Skip()
	c.state = noElement
}

// OpenUnlessNull is Open unless null is next: then More finds no elements.
func (c *Cursor) OpenUnlessNull(b byte) {
	if c.SkipNull() {
		c.state = noElement
		return
	}
	c.Open(b)
}

// More reports whether another element follows in the array or object which ends with b. It moves to
// the element, or past the end.
func (c *Cursor) More(b byte) bool {
	state := c.state
	c.state = laterElement
	if c.failed || state == noElement {
		return false
	}
	switch next := c.Peek(); {
	case next == b:
		c.pos++
		return false
	case state == firstElement:
		return true
	case next != ',':
		c.Fail()
		return false
	}
	c.pos++
	return true
}

// Key reads the name of a member and the colon after it. The result is valid as long as the data;
// escapes in it are not resolved.
func (c *Cursor) Key() []byte {
	if c.Peek() != '"' {
		c.Fail()
		return nil
	}
	start := c.pos + 1
	c.skipString()
	end := c.pos - 1
	if c.readColon(); c.failed {
		return nil
	}
	return c.data[start:end]
}

// ReadKey is Key with its escapes resolved, as by ReadString.
func (c *Cursor) ReadKey() string {
	key := c.ReadString()
	c.readColon()
	return key
}

func (c *Cursor) readColon() {
	if c.Peek() != ':' {
		c.Fail()
		return
	}
	c.pos++
}

// Skip skips a value.
func (c *Cursor) Skip() { c.Raw() }

// Raw skips a value and returns its bytes, a part of the data.
func (c *Cursor) Raw() []byte {
	if c.failed {
		return nil
	}
	c.skipSpace()
	start, depth := c.pos, 0
	for c.pos < len(c.data) {
		switch b := c.data[c.pos]; b {
		case '"':
			c.skipString()
		case '{', '[':
			if depth++; depth > maxRaw {
				c.Fail()
				return nil
			}
			c.pos++
			continue
		case '}', ']':
			if depth--; depth < 0 {
				c.Fail()
				return nil
			}
			c.pos++
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				c.Fail()
				return nil
			}
			c.pos++
			continue
		default:
			c.skipPlain()
		}
		if c.failed {
			return nil
		}
		if depth == 0 {
			return c.data[start:c.pos]
		}
	}
	c.Fail()
	return nil
}

// skipString skips a string. Most are short; images have megabytes.
func (c *Cursor) skipString() {
	c.pos++
	for near := min(len(c.data), c.pos+32); c.pos < near; c.pos++ {
		switch c.data[c.pos] {
		case '\\':
			c.pos++
		case '"':
			c.pos++
			return
		}
	}
	for from := c.pos; c.pos < len(c.data); {
		n := bytes.IndexByte(c.data[c.pos:], '"')
		if n < 0 {
			break
		}
		end, before := c.pos+n, c.pos+n
		for before > from && c.data[before-1] == '\\' {
			before--
		}
		c.pos = end + 1
		if (end-before)%2 == 0 {
			return
		}
	}
	c.pos = len(c.data)
	c.Fail()
}

// skipPlain skips a number or a word.
func (c *Cursor) skipPlain() {
	start := c.pos
	for c.pos < len(c.data) {
		b := c.data[c.pos]
		if (b < '0' || b > '9') && (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && b != '-' && b != '+' && b != '.' {
			break
		}
		c.pos++
	}
	if c.pos == start {
		c.Fail()
	}
}

func (c *Cursor) readWord(w string) {
	if !c.skipWord(w) {
		c.Fail()
	}
}

// ReadInt reads a whole number.
func (c *Cursor) ReadInt() int64 {
	b := c.Peek()
	neg := b == '-'
	if neg {
		c.pos++
	}
	start, n := c.pos, uint64(0)
	for c.pos < len(c.data) && c.data[c.pos] >= '0' && c.data[c.pos] <= '9' && c.pos-start < 19 {
		n = n*10 + uint64(c.data[c.pos]-'0')
		c.pos++
	}
	if c.failed || c.pos == start || n > math.MaxInt64 || c.continuesNumber() {
		c.Fail()
		return 0
	}
	if neg {
		return -int64(n)
	}
	return int64(n)
}

// continuesNumber reports whether a number continues here.
func (c *Cursor) continuesNumber() bool {
	if c.pos == len(c.data) {
		return false
	}
	b := c.data[c.pos]
	return b >= '0' && b <= '9' || b == '.' || b == 'e' || b == 'E'
}

// ReadFloat reads a number; Python's Infinity and -Infinity are accepted.
func (c *Cursor) ReadFloat() float64 {
	v, err := ParseFloat(c.Raw())
	if err != nil || math.IsNaN(v) {
		c.Fail()
		return 0
	}
	return v
}

// ReadNumber reads a number and returns its text, a part of the data, which has JSON's form.
func (c *Cursor) ReadNumber() []byte {
	c.skipSpace()
	start := c.pos
	if _, ok := c.scanNumber(); !ok {
		c.Fail()
		return nil
	}
	return c.data[start:c.pos]
}

// ReadBool reads true or false.
func (c *Cursor) ReadBool() bool {
	if c.Peek() == 't' {
		c.readWord("true")
		return !c.failed
	}
	c.readWord("false")
	return false
}

// ReadString reads a string. As in encoding/json, U+FFFD replaces invalid UTF-8 and lone surrogates.
func (c *Cursor) ReadString() string {
	if c.Peek() != '"' {
		c.Fail()
		return ""
	}
	start := c.pos
	if s, problem := c.scanString(); problem == "" && utf8.Valid(c.data[s.start:s.end]) {
		return s.decode(c.data)
	}
	c.pos = start
	c.skipString()
	var s string
	if !c.failed && json.Unmarshal(c.data[start:c.pos], &s) != nil {
		c.pos = start
		c.Fail()
	}
	return s
}

// ReadToken reads a token id.
func (c *Cursor) ReadToken() kv.Token {
	n := c.ReadInt()
	if n < 0 || n > math.MaxUint32 {
		c.Fail()
		return 0
	}
	return kv.Token(n)
}

// ReadTokens appends an array of token ids to dst.
func (c *Cursor) ReadTokens(dst []kv.Token) []kv.Token {
	for c.Open('['); c.More(']'); {
		n := c.ReadInt()
		if n < 0 || n > math.MaxUint32 {
			c.Fail()
			return dst
		}
		dst = append(dst, kv.Token(n))
	}
	return dst
}

// MaxCount is the maximum of integers which count things. For an integer with that upper bound, an
// error names only the lower bound.
const MaxCount = math.MaxInt32

// ReadBoolInto reads a boolean into dst.
func (r *Reader) ReadBoolInto(dst *bool) (err error) {
	*dst, err = r.ReadBool()
	return err
}

// ReadStringInto reads a string into dst.
func (r *Reader) ReadStringInto(dst *string) (err error) {
	*dst, err = r.ReadString()
	return err
}

// ReadNumberInto reads a number within [lo, hi] into a new value at dst.
func (r *Reader) ReadNumberInto(dst **float64, lo, hi float64) error {
	f, err := r.ReadFloat()
	if err != nil {
		return err
	}
	if f < lo || f > hi {
		return r.InvalidError("must be between %v and %v, not %v", lo, hi, f)
	}
	*dst = &f
	return nil
}

// ReadIntegerInto reads an integer within [lo, hi] into dst.
func (r *Reader) ReadIntegerInto(dst *int, lo, hi int64) error {
	n, err := r.ReadInt()
	switch {
	case err != nil:
		return err
	case n < lo && hi == MaxCount:
		return r.InvalidError("must be at least %d, not %d", lo, n)
	case n < lo || n > hi:
		return r.InvalidError("must be between %d and %d, not %d", lo, hi, n)
	}
	*dst = int(n)
	return nil
}
