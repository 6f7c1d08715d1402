package remote

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"unicode/utf8"

	"penstock/core/kv"
)

// maxNesting bounds the depth of skipped values.
const maxNesting = 64

// errJSON says that an engine's response is not JSON, or not of the expected form.
var errJSON = errors.New("the answer is not the JSON that was expected")

// JSONCursor reads the JSON of an engine without allocating: it reads the wanted values by typed methods and
// skips the rest. It trusts the engine's documented format: it checks the values that it reads, and skipped
// values only as far as needed to find their ends. The first error sticks, and every read after it returns
// zero.
//
//	c := remote.NewCursor(data)
//	for key := range c.Object { … }
//
// is written as
//
//	for c.Open('{'); c.More('}'); {
//		switch string(c.Key()) { case "usage": …; default: c.Skip() }
//	}
type JSONCursor struct {
	data  []byte
	pos   int
	first bool // the next element is the first of its array or object
	err   error
}

// NewCursor returns a cursor before the value in data.
func NewCursor(data []byte) JSONCursor { return JSONCursor{data: data} }

// Err returns the first error.
func (c *JSONCursor) Err() error { return c.err }

// Pos returns the offset of the cursor in the data.
func (c *JSONCursor) Pos() int { return c.pos }

func (c *JSONCursor) fail() { c.err = errJSON; c.pos = len(c.data) }

// peek skips white space and returns the next byte without consuming it; 0 at the end.
func (c *JSONCursor) peek() byte {
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
func (c *JSONCursor) SkipNull() bool {
	if c.peek() != 'n' {
		return false
	}
	c.skipWord("null")
	return true
}

// NextIs reports whether the next value starts with b: '{', '[', '"', or a digit.
func (c *JSONCursor) NextIs(b byte) bool { return c.peek() == b }

// End returns an error if anything but white space follows.
func (c *JSONCursor) End() error {
	if c.err == nil && c.peek() != 0 {
		c.fail()
	}
	return c.err
}

// Open enters an array ('[') or an object ('{').
func (c *JSONCursor) Open(b byte) {
	if c.err != nil || c.peek() != b {
		c.fail()
		return
	}
	c.pos++
	c.first = true
}

// More reports whether another element follows in the array or object that ends with b. It moves to the
// element, or past the end.
func (c *JSONCursor) More(b byte) bool {
	if c.err != nil {
		return false
	}
	next := c.peek()
	first := c.first
	c.first = false
	switch {
	case next == b:
		c.pos++
		return false
	case first:
		return true
	case next != ',':
		c.fail()
		return false
	}
	c.pos++
	return true
}

// Key reads the name of a member and the colon after it. The result is valid as long as the data; escapes in
// it are not resolved.
func (c *JSONCursor) Key() []byte {
	key := c.Raw()
	if c.err != nil || len(key) < 2 || key[0] != '"' || c.peek() != ':' {
		c.fail()
		return nil
	}
	c.pos++
	return key[1 : len(key)-1]
}

// Skip skips a value.
func (c *JSONCursor) Skip() { c.Raw() }

// Raw skips a value and returns its bytes, a part of the data.
func (c *JSONCursor) Raw() []byte {
	if c.err != nil {
		return nil
	}
	c.peek()
	start, depth := c.pos, 0
	for c.pos < len(c.data) {
		switch b := c.data[c.pos]; b {
		case '"':
			c.skipString()
		case '{', '[':
			if depth++; depth > maxNesting {
				c.fail()
				return nil
			}
			c.pos++
			continue
		case '}', ']':
			if depth--; depth < 0 {
				c.fail()
				return nil
			}
			c.pos++
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				c.fail()
				return nil
			}
			c.pos++
			continue
		default:
			c.skipPlain()
		}
		if c.err != nil {
			return nil
		}
		if depth == 0 {
			return c.data[start:c.pos]
		}
	}
	c.fail()
	return nil
}

// skipString skips a string. Most are short; images have megabytes.
func (c *JSONCursor) skipString() {
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
	c.fail()
}

// skipPlain skips a number or a word.
func (c *JSONCursor) skipPlain() {
	start := c.pos
	for c.pos < len(c.data) {
		b := c.data[c.pos]
		if (b < '0' || b > '9') && (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && b != '-' && b != '+' && b != '.' {
			break
		}
		c.pos++
	}
	if c.pos == start {
		c.fail()
	}
}

func (c *JSONCursor) skipWord(w string) {
	if len(c.data)-c.pos < len(w) || string(c.data[c.pos:c.pos+len(w)]) != w {
		c.fail()
		return
	}
	c.pos += len(w)
}

// ReadInt reads a whole number.
func (c *JSONCursor) ReadInt() int64 {
	b := c.peek()
	neg := b == '-'
	if neg {
		c.pos++
	}
	start, n := c.pos, uint64(0)
	for c.pos < len(c.data) && c.data[c.pos] >= '0' && c.data[c.pos] <= '9' && c.pos-start < 19 {
		n = n*10 + uint64(c.data[c.pos]-'0')
		c.pos++
	}
	if c.err != nil || c.pos == start || n > math.MaxInt64 || c.continuesNumber() {
		c.fail()
		return 0
	}
	if neg {
		return -int64(n)
	}
	return int64(n)
}

// continuesNumber reports whether a number continues here.
func (c *JSONCursor) continuesNumber() bool {
	if c.pos == len(c.data) {
		return false
	}
	b := c.data[c.pos]
	return b >= '0' && b <= '9' || b == '.' || b == 'e' || b == 'E'
}

// ReadFloat reads a number; Python's Infinity and -Infinity are accepted.
func (c *JSONCursor) ReadFloat() float64 {
	raw := c.Raw()
	if c.err != nil {
		return 0
	}
	v, err := parseFloat(raw)
	if err != nil || math.IsNaN(v) {
		c.fail()
		return 0
	}
	return v
}

// parseFloat is strconv.ParseFloat without a copy of its argument for short numbers.
func parseFloat(b []byte) (float64, error) {
	switch string(b) {
	case "-Infinity":
		return math.Inf(-1), nil
	case "Infinity":
		return math.Inf(1), nil
	}
	// Most are short numbers of digits and one point, which are exact.
	if v, ok := shortFloat(b); ok {
		return v, nil
	}
	return strconv.ParseFloat(string(b), 64)
}

// shortFloat reads a number of at most 15 digits without exponent: the division of two exact numbers rounds
// correctly.
func shortFloat(b []byte) (float64, bool) {
	neg := len(b) > 0 && b[0] == '-'
	if neg {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 16 {
		return 0, false
	}
	mantissa, digits, point := uint64(0), 0, -1
	for i, d := range b {
		switch {
		case d >= '0' && d <= '9':
			mantissa = mantissa*10 + uint64(d-'0')
			digits++
		case d == '.' && point < 0 && i > 0 && i < len(b)-1:
			point = digits
		default:
			return 0, false
		}
	}
	if digits == 0 || digits > 15 {
		return 0, false
	}
	v := float64(mantissa)
	if point >= 0 {
		v /= pow10(digits - point)
	}
	if neg {
		v = -v
	}
	return v, true
}

func pow10(n int) float64 {
	v := 1.0
	for range n {
		v *= 10
	}
	return v
}

// ParseTokenize appends an array of token ids to dst.
func (c *JSONCursor) ReadTokens(dst []kv.Token) []kv.Token {
	for c.Open('['); c.More(']'); {
		n := c.ReadInt()
		if n < 0 || n > math.MaxUint32 {
			c.fail()
			return dst
		}
		dst = append(dst, kv.Token(n))
	}
	return dst
}

// ReadToken reads a token id.
func (c *JSONCursor) ReadToken() kv.Token {
	n := c.ReadInt()
	if n < 0 || n > math.MaxUint32 {
		c.fail()
		return 0
	}
	return kv.Token(n)
}

// ReadBool reads true or false.
func (c *JSONCursor) ReadBool() bool {
	if c.peek() == 't' {
		c.skipWord("true")
		return c.err == nil
	}
	c.skipWord("false")
	return false
}

// ReadTokenName reads a string "token_id:17", by which engines name the tokens of log-probabilities.
func (c *JSONCursor) ReadTokenName() kv.Token { return c.parseTokenName(c.Raw()) }

// ReadTokenKey is Key for a member with such a name.
func (c *JSONCursor) ReadTokenKey() kv.Token {
	key := c.Raw()
	if c.err == nil && c.peek() == ':' {
		c.pos++
	} else {
		c.fail()
	}
	return c.parseTokenName(key)
}

func (c *JSONCursor) parseTokenName(raw []byte) kv.Token {
	const prefix = `"token_id:`
	if c.err != nil || len(raw) < len(prefix)+2 || string(raw[:len(prefix)]) != prefix {
		c.fail()
		return 0
	}
	inner := JSONCursor{data: raw[len(prefix) : len(raw)-1]}
	n := inner.ReadInt()
	if inner.End() != nil || n < 0 || n > math.MaxUint32 {
		c.fail()
		return 0
	}
	return kv.Token(n)
}

// ReadString reads a string and resolves its escapes. It allocates.
func (c *JSONCursor) ReadString() string {
	raw := c.Raw()
	if c.err != nil || len(raw) < 2 || raw[0] != '"' {
		c.fail()
		return ""
	}
	s, err := strconv.Unquote(string(raw))
	if err != nil { // JSON has escapes that Go lacks
		s = unescapeJSON(raw[1 : len(raw)-1])
	}
	return s
}

// unescapeJSON resolves the escapes of JSON.
func unescapeJSON(b []byte) string {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' || i+1 == len(b) {
			out = append(out, b[i])
			continue
		}
		i++
		switch b[i] {
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'u':
			if i+5 > len(b) {
				return string(out)
			}
			n, _ := strconv.ParseUint(string(b[i+1:i+5]), 16, 32)
			i += 4
			out = utf8.AppendRune(out, rune(n))
		default:
			out = append(out, b[i])
		}
	}
	return string(out)
}
