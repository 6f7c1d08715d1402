// Package strictjson reads JSON as strangers write it, and writes strings as
// they read them.
//
// A [Reader] is a cursor that leaves nothing to luck: what encoding/json lets
// pass (keys given twice, keys in another case, half of a surrogate pair, bytes
// that are no UTF-8) is an error here, sizes are bounded, and an error names the
// field by its path and says in JSON's words what it must be.
package strictjson

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"penstock/core/fault"
)

const (
	maxDepth  = 64      // nesting of arrays and objects
	maxKeys   = 1 << 14 // keys of one object
	maxAll    = 1 << 20 // keys of all objects: comparing them is most of what a hostile text costs
	maxNumber = 1 << 10 // bytes of a number as it is written
)

// Kind is the type of a JSON value, told by its first byte.
type Kind string

// The kinds of values, as errors name them.
const (
	NullKind    Kind = "null"
	BoolKind    Kind = "a boolean"
	NumberKind  Kind = "a number"
	StringKind  Kind = "a string"
	ArrayKind   Kind = "an array"
	ObjectKind  Kind = "an object"
	InvalidKind Kind = "no JSON value"
)

// Reader is a strict cursor over one JSON text. Unlike encoding/json it refuses
// duplicate keys, lone surrogates, invalid UTF-8, deep nesting and numbers that
// nothing could hold, compares keys exactly, and reports a wrong type by the path
// of the field and in JSON's own words. Each value is read once, in order: by one
// of the typed methods, or by Skip or Raw, which are as strict about what is in it.
//
// The work is linear in the text, and what a Reader keeps is bounded by its depth
// and the keys of the objects that are open.
type Reader struct {
	data  []byte
	pos   int
	depth int
	path  []step
	seen  keys
	keys  int // read so far
}

// step is one element of the path to the value being read: the index of an
// array element, or a key if index is negative.
type step struct {
	key   []byte
	index int
}

// fewSteps is as deep as most values are.
const fewSteps = 4

// NewReader returns a Reader at the start of data, of which it keeps hold. The
// error is that of data that is no UTF-8.
func NewReader(data []byte) (*Reader, error) {
	if !utf8.Valid(data) {
		return nil, fault.New(fault.Invalid, "the request body is not valid UTF-8 (byte %d)", invalidAt(data))
	}
	return &Reader{data: data}, nil
}

func invalidAt(data []byte) int {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(data)
}

// Param is the path of the value being read, such as "messages[0].content".
func (r *Reader) Param() string {
	var b strings.Builder
	for _, s := range r.path {
		switch {
		case s.index >= 0:
			b.WriteByte('[')
			b.WriteString(strconv.Itoa(s.index))
			b.WriteByte(']')
		case b.Len() > 0:
			b.WriteByte('.')
			b.WriteString(Clip(string(s.key)))
		default:
			b.WriteString(Clip(string(s.key)))
		}
	}
	return b.String()
}

// Clip bounds a client's key where a message repeats it.
func Clip(key string) string {
	const limit = 64
	if len(key) <= limit {
		return key
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(key[cut]) {
		cut--
	}
	return key[:cut] + "…"
}

// syntax returns the error of a text that is not JSON.
func (r *Reader) syntax(what string) error {
	return fault.New(fault.Invalid, "the request body is not valid JSON: %s at byte %d", what, r.pos)
}

// Refuse returns an Invalid error about the value being read.
func (r *Reader) Refuse(format string, args ...any) error {
	p := r.Param()
	if p == "" {
		return fault.New(fault.Invalid, "the request body "+format, args...)
	}
	return fault.Param(p, "'%s' "+format, append([]any{p}, args...)...)
}

// RefuseParent returns an Invalid error about the array or the object that the
// value being read is in.
func (r *Reader) RefuseParent(format string, args ...any) error {
	if n := len(r.path); n > 0 {
		r.path = r.path[:n-1]
	}
	return r.Refuse(format, args...)
}

// Unsupported returns the error of a key that nobody defines: the value being
// read is that key's.
func (r *Reader) Unsupported() error {
	return fault.Param(r.Param(), "Unsupported parameter(s): %s", r.Param())
}

// Expected returns the error of a value of the wrong type.
func (r *Reader) Expected(want string) error {
	got := r.Kind()
	if got == InvalidKind {
		return r.unexpected()
	}
	return r.Refuse("must be %s, not %s", want, got)
}

// unexpected is the syntax error of a byte that begins nothing.
func (r *Reader) unexpected() error {
	if r.space(); r.pos >= len(r.data) {
		return r.syntax("unexpected end")
	}
	return r.syntax("unexpected character")
}

func (r *Reader) space() {
	for r.pos < len(r.data) {
		switch r.data[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

// Kind tells the type of the next value without reading it.
func (r *Reader) Kind() Kind {
	r.space()
	if r.pos >= len(r.data) {
		return InvalidKind
	}
	switch c := r.data[r.pos]; {
	case c == 'n':
		return NullKind
	case c == 't' || c == 'f':
		return BoolKind
	case c == '"':
		return StringKind
	case c == '[':
		return ArrayKind
	case c == '{':
		return ObjectKind
	case c == '-' || '0' <= c && c <= '9':
		return NumberKind
	}
	return InvalidKind
}

// Null reads a null if that is the next value.
func (r *Reader) Null() (bool, error) {
	if r.Kind() != NullKind {
		return false, nil
	}
	return true, r.word("null")
}

func (r *Reader) word(w string) error {
	if len(r.data)-r.pos < len(w) || string(r.data[r.pos:r.pos+len(w)]) != w {
		return r.syntax("unexpected character")
	}
	r.pos += len(w)
	return nil
}

// Bool reads a boolean.
func (r *Reader) Bool() (bool, error) {
	if r.Kind() != BoolKind {
		return false, r.Expected("a boolean")
	}
	if r.data[r.pos] == 't' {
		return true, r.word("true")
	}
	return false, r.word("false")
}

// Float reads a number; one beyond float64 is refused.
func (r *Reader) Float() (float64, error) {
	lit, err := r.literal("a number")
	if err != nil {
		return 0, err
	}
	f, err := strconv.ParseFloat(string(lit), 64)
	if err != nil {
		return 0, r.outOfRange()
	}
	return f, nil
}

// Int reads an integer; 1.0 and 1e2 are integers.
func (r *Reader) Int() (int64, error) {
	lit, err := r.literal("an integer")
	if err != nil {
		return 0, err
	}
	if n, err := strconv.ParseInt(string(lit), 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(string(lit), 64)
	switch {
	case err != nil || math.Abs(f) > 1<<53:
		return 0, r.Refuse("is an integer out of range")
	case f != math.Trunc(f):
		return 0, r.Refuse("must be an integer")
	}
	return int64(f), nil
}

// Object reads an object; visit reads the value of each key.
func (r *Reader) Object(visit func(key string) error) error {
	if r.Kind() != ObjectKind {
		return r.Expected("an object")
	}
	return r.object(func(key []byte) error { return visit(string(key)) })
}

// object reads the object that is there; key is valid until visit returns.
func (r *Reader) object(visit func(key []byte) error) error {
	if err := r.enter(); err != nil {
		return err
	}
	mine := r.seen.open()
	at := len(r.path)
	r.path = append(r.path, step{index: -1})
	for first := true; ; first = false {
		done, err := r.next('}', first)
		if err != nil {
			return err
		}
		if done {
			r.seen.close(mine)
			r.path = r.path[:at]
			return nil
		}
		key, err := r.key()
		if err != nil {
			return err
		}
		r.path[at].key = key
		switch {
		case !r.seen.add(&mine, key):
			return r.Refuse("is given twice")
		case r.seen.len(mine) > maxKeys:
			return r.RefuseParent("has more than %d keys", maxKeys)
		case r.keys == maxAll:
			return fault.New(fault.Invalid, "the request body has more than %d keys", maxAll)
		}
		r.keys++
		if err := visit(key); err != nil {
			return err
		}
	}
}

// key reads a key and the colon behind it. It is a part of the text if it can be.
func (r *Reader) key() ([]byte, error) {
	if r.space(); r.pos >= len(r.data) || r.data[r.pos] != '"' {
		return nil, r.unexpected()
	}
	s, err := r.scan()
	if err != nil {
		return nil, err
	}
	if r.space(); r.pos >= len(r.data) || r.data[r.pos] != ':' {
		return nil, r.unexpected()
	}
	r.pos++
	if s.plain() {
		return r.data[s.start:s.end:s.end], nil
	}
	return []byte(s.text(r.data)), nil
}

// Array reads an array; visit reads each element.
func (r *Reader) Array(want string, visit func(i int) error) error {
	if r.Kind() != ArrayKind {
		return r.Expected(want)
	}
	if err := r.enter(); err != nil {
		return err
	}
	at := len(r.path)
	r.path = append(r.path, step{})
	for i := 0; ; i++ {
		done, err := r.next(']', i == 0)
		if err != nil {
			return err
		}
		if done {
			r.path = r.path[:at]
			return nil
		}
		r.path[at].index = i
		if err := visit(i); err != nil {
			return err
		}
	}
}

// enter steps over an opening bracket.
func (r *Reader) enter() error {
	if r.path == nil {
		r.path = make([]step, 0, fewSteps)
	}
	if r.depth++; r.depth > maxDepth {
		return fault.New(fault.Invalid, "the request body is nested deeper than %d levels", maxDepth)
	}
	r.pos++
	return nil
}

// next steps over what stands before an element: nothing, a comma, or the
// closing bracket, which ends the container.
func (r *Reader) next(closing byte, first bool) (done bool, err error) {
	r.space()
	switch {
	case r.pos >= len(r.data):
		return false, r.syntax("unexpected end")
	case r.data[r.pos] == closing:
		r.pos++
		r.depth--
		return true, nil
	case first:
		return false, nil
	case r.data[r.pos] != ',':
		return false, r.syntax("unexpected character")
	}
	r.pos++
	return false, nil
}

// End checks that nothing follows the value read.
func (r *Reader) End() error {
	if r.space(); r.pos < len(r.data) {
		return r.syntax("unexpected data after the end")
	}
	return nil
}
