// Package strictjson reads JSON from outside without reflection, and writes JSON strings and numbers.
//
// A [Reader] reads the requests of clients: what encoding/json accepts (duplicate keys, keys in a
// different case, lone surrogates, invalid UTF-8) is an error here, sizes are bounded, and an error
// names the field by its path and the expected type in JSON's terms.
//
// A [Cursor] reads the answers of engines and the values of templates: it does not allocate, checks
// what it reads, and skips the rest.
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
	maxAll    = 1 << 20 // keys of all objects: comparing them dominates the cost of a hostile text
	maxNumber = 1 << 10 // bytes of a number's text
)

// Kind is the type of a JSON value, determined by its first byte.
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

// Reader is a strict cursor over one JSON text. Unlike encoding/json it rejects duplicate keys,
// lone surrogates, invalid UTF-8, deep nesting and numbers out of range, compares keys exactly, and
// reports a wrong type by the path of the field and in JSON's terms. Each value is read once, in
// order: by one of the typed methods, or by SkipValue or ReadRaw, which validate it as strictly.
//
// The work is linear in the text. The memory of a Reader is bounded by its depth and the keys of
// the open objects.
type Reader struct {
	scanner
	depth    int
	path     []pathStep
	seen     keyStack
	keyCount int // number of keys read so far
}

// pathStep is one element of the path to the current value: the index of an array element, or a key
// if index is negative.
type pathStep struct {
	key   []byte
	index int
}

// fewSteps is the depth of most values.
const fewSteps = 4

// NewReader returns a Reader at the start of data, which it keeps. It returns an error if data is
// not valid UTF-8.
func NewReader(data []byte) (*Reader, error) {
	r := &Reader{}
	if err := r.Open(data); err != nil {
		return nil, err
	}
	return r, nil
}

// Open sets r, which must be the zero value, to the start of data, as NewReader does.
func (r *Reader) Open(data []byte) error {
	if !utf8.Valid(data) {
		return fault.New(fault.Invalid, "the request body is not valid UTF-8 (byte %d)", invalidAt(data))
	}
	r.data = data
	return nil
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

// ParamPath returns the path of the current value, such as "messages[0].content".
func (r *Reader) ParamPath() string {
	var b strings.Builder
	for _, s := range r.path {
		switch {
		case s.index >= 0:
			b.WriteByte('[')
			b.WriteString(strconv.Itoa(s.index))
			b.WriteByte(']')
		case b.Len() > 0:
			b.WriteByte('.')
			b.WriteString(TruncateKey(string(s.key)))
		default:
			b.WriteString(TruncateKey(string(s.key)))
		}
	}
	return b.String()
}

// TruncateKey truncates a client's key for use in a message.
func TruncateKey(key string) string {
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

// syntaxError returns the error for a text that is not JSON.
func (r *Reader) syntaxError(what string) error {
	return fault.New(fault.Invalid, "the request body is not valid JSON: %s at byte %d", what, r.pos)
}

// InvalidError returns an Invalid error about the current value.
func (r *Reader) InvalidError(format string, args ...any) error {
	p := r.ParamPath()
	if p == "" {
		return fault.New(fault.Invalid, "the request body "+format, args...)
	}
	return fault.InvalidParam(p, "'%s' "+format, append([]any{p}, args...)...)
}

// ParentInvalidError returns an Invalid error about the array or object which contains the current
// value.
func (r *Reader) ParentInvalidError(format string, args ...any) error {
	if n := len(r.path); n > 0 {
		r.path = r.path[:n-1]
	}
	return r.InvalidError(format, args...)
}

// UnsupportedError returns the error for an undefined key, whose value is the current one.
func (r *Reader) UnsupportedError() error {
	return fault.InvalidParam(r.ParamPath(), "Unsupported parameter(s): %s", r.ParamPath())
}

// WrongTypeError returns the error for a value of the wrong type.
func (r *Reader) WrongTypeError(want string) error {
	got := r.Kind()
	if got == InvalidKind {
		return r.unexpectedError()
	}
	return r.InvalidError("must be %s, not %s", want, got)
}

// unexpectedError returns the syntax error for a byte which starts no value.
func (r *Reader) unexpectedError() error {
	if r.skipSpace(); r.pos >= len(r.data) {
		return r.syntaxError("unexpected end")
	}
	return r.syntaxError("unexpected character")
}

// Kind returns the type of the next value without reading it.
func (r *Reader) Kind() Kind {
	r.skipSpace()
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

// ReadNull reads a null if that is the next value.
func (r *Reader) ReadNull() (bool, error) {
	if r.Kind() != NullKind {
		return false, nil
	}
	return true, r.readWord("null")
}

func (r *Reader) readWord(w string) error {
	if !r.skipWord(w) {
		return r.syntaxError("unexpected character")
	}
	return nil
}

// ReadBool reads a boolean.
func (r *Reader) ReadBool() (bool, error) {
	if r.Kind() != BoolKind {
		return false, r.WrongTypeError("a boolean")
	}
	if r.data[r.pos] == 't' {
		return true, r.readWord("true")
	}
	return false, r.readWord("false")
}

// ReadFloat reads a number; it rejects one outside the range of float64.
func (r *Reader) ReadFloat() (float64, error) {
	lit, err := r.readNumberText("a number")
	if err != nil {
		return 0, err
	}
	f, err := ParseFloat(lit)
	if err != nil {
		return 0, r.rangeError()
	}
	return f, nil
}

// ReadInt reads an integer; 1.0 and 1e2 are integers.
func (r *Reader) ReadInt() (int64, error) {
	lit, err := r.readNumberText("an integer")
	if err != nil {
		return 0, err
	}
	if n, err := strconv.ParseInt(string(lit), 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(string(lit), 64)
	switch {
	case err != nil || math.Abs(f) > 1<<53:
		return 0, r.InvalidError("is an integer out of range")
	case f != math.Trunc(f):
		return 0, r.InvalidError("must be an integer")
	}
	return int64(f), nil
}

// ReadObject reads an object; visit reads the value of each key.
func (r *Reader) ReadObject(visit func(key string) error) error {
	if r.Kind() != ObjectKind {
		return r.WrongTypeError("an object")
	}
	return r.visitObject(func(key []byte) error { return visit(string(key)) })
}

// ReadMembers reads an object; visit reads the value of each key whose value is not null.
func (r *Reader) ReadMembers(visit func(key string) error) error {
	return r.ReadMemberBytes(func(key []byte) error { return visit(string(key)) })
}

// ReadMemberBytes is ReadMembers without an allocation for each key: key is valid until visit
// returns.
func (r *Reader) ReadMemberBytes(visit func(key []byte) error) error {
	if r.Kind() != ObjectKind {
		return r.WrongTypeError("an object")
	}
	return r.visitObject(func(key []byte) error {
		if none, err := r.ReadNull(); none || err != nil {
			return err
		}
		return visit(key)
	})
}

// visitObject reads an object; key is valid until visit returns.
func (r *Reader) visitObject(visit func(key []byte) error) error {
	if err := r.openContainer(); err != nil {
		return err
	}
	mine := r.seen.openSet()
	at := len(r.path)
	r.path = append(r.path, pathStep{index: -1})
	for first := true; ; first = false {
		done, err := r.nextElement('}', first)
		if err != nil {
			return err
		}
		if done {
			r.seen.closeSet(mine)
			r.path = r.path[:at]
			return nil
		}
		key, err := r.readKey()
		if err != nil {
			return err
		}
		r.path[at].key = key
		switch {
		case !r.seen.addKey(&mine, key):
			return r.InvalidError("is given twice")
		case r.seen.countKeys(mine) > maxKeys:
			return r.ParentInvalidError("has more than %d keys", maxKeys)
		case r.keyCount == maxAll:
			return fault.New(fault.Invalid, "the request body has more than %d keys", maxAll)
		}
		r.keyCount++
		if err := visit(key); err != nil {
			return err
		}
	}
}

// readKey reads a key and the colon after it. The result aliases the text if it has no escapes.
func (r *Reader) readKey() ([]byte, error) {
	if r.skipSpace(); r.pos >= len(r.data) || r.data[r.pos] != '"' {
		return nil, r.unexpectedError()
	}
	s, problem := r.scanString()
	if problem != "" {
		return nil, r.syntaxError(problem)
	}
	if r.skipSpace(); !r.skipByte(':') {
		return nil, r.unexpectedError()
	}
	if s.isLiteral() {
		return r.data[s.start:s.end:s.end], nil
	}
	return []byte(s.decode(r.data)), nil
}

// ReadArray reads an array; visit reads each element.
func (r *Reader) ReadArray(want string, visit func(i int) error) error {
	if r.Kind() != ArrayKind {
		return r.WrongTypeError(want)
	}
	if err := r.openContainer(); err != nil {
		return err
	}
	at := len(r.path)
	r.path = append(r.path, pathStep{})
	for i := 0; ; i++ {
		done, err := r.nextElement(']', i == 0)
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

// openContainer advances past an opening bracket.
func (r *Reader) openContainer() error {
	if r.path == nil {
		r.path = make([]pathStep, 0, fewSteps)
	}
	if r.depth++; r.depth > maxDepth {
		return fault.New(fault.Invalid, "the request body is nested deeper than %d levels", maxDepth)
	}
	r.pos++
	return nil
}

// nextElement advances past the separator before an element: nothing, a comma, or the closing
// bracket, which ends the container.
func (r *Reader) nextElement(closing byte, first bool) (done bool, err error) {
	r.skipSpace()
	switch {
	case r.pos >= len(r.data):
		return false, r.syntaxError("unexpected end")
	case r.data[r.pos] == closing:
		r.pos++
		r.depth--
		return true, nil
	case first:
		return false, nil
	case r.data[r.pos] != ',':
		return false, r.syntaxError("unexpected character")
	}
	r.pos++
	return false, nil
}

// CheckEnd checks that nothing follows the value read.
func (r *Reader) CheckEnd() error {
	if r.skipSpace(); r.pos < len(r.data) {
		return r.syntaxError("unexpected data after the end")
	}
	return nil
}
