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
	"unicode/utf16"
	"unicode/utf8"

	"penstock/core/fault"
)

const (
	maxDepth = 64      // nesting of arrays and objects
	maxKeys  = 1 << 14 // keys of one object
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
// duplicate keys, lone surrogates, invalid UTF-8 and deep nesting, compares keys
// exactly, and reports a wrong type by the path of the field and in JSON's own
// words. Each value is read once, in order: by one of the typed methods or skip.
type Reader struct {
	data  []byte
	pos   int
	depth int
	path  []step
}

// step is one element of the path to the value being read: the index of an
// array element, or a key if index is negative.
type step struct {
	key   string
	index int
}

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
			b.WriteString(Clip(s.key))
		default:
			b.WriteString(Clip(s.key))
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

// String reads a string.
func (r *Reader) String() (string, error) {
	if r.Kind() != StringKind {
		return "", r.Expected("a string")
	}
	start := r.pos + 1
	for i := start; i < len(r.data); i++ {
		switch c := r.data[i]; {
		case c == '"':
			r.pos = i + 1
			return string(r.data[start:i]), nil
		case c == '\\':
			return r.escaped(start, i)
		case c < ' ':
			r.pos = i
			return "", r.syntax("control character in a string")
		}
	}
	r.pos = len(r.data)
	return "", r.syntax("unexpected end")
}

// escaped reads the rest of a string that began at start and has its first
// escape at r.data[i].
func (r *Reader) escaped(start, i int) (string, error) {
	out := append(make([]byte, 0, i-start+64), r.data[start:i]...)
	for i < len(r.data) {
		switch c := r.data[i]; {
		case c == '"':
			r.pos = i + 1
			return string(out), nil
		case c < ' ':
			r.pos = i
			return "", r.syntax("control character in a string")
		case c != '\\':
			out = append(out, c)
			i++
		default:
			var n int
			if out, n = unescape(out, r.data[i:]); n == 0 {
				r.pos = i
				return "", r.syntax("invalid escape in a string")
			}
			i += n
		}
	}
	r.pos = len(r.data)
	return "", r.syntax("unexpected end")
}

// unescape appends what the escape at the start of s stands for and returns its
// length; 0 if it is none. Surrogates must come in pairs.
func unescape(dst, s []byte) ([]byte, int) {
	if len(s) < 2 {
		return dst, 0
	}
	switch s[1] {
	case '"', '\\', '/':
		return append(dst, s[1]), 2
	case 'b':
		return append(dst, '\b'), 2
	case 'f':
		return append(dst, '\f'), 2
	case 'n':
		return append(dst, '\n'), 2
	case 'r':
		return append(dst, '\r'), 2
	case 't':
		return append(dst, '\t'), 2
	case 'u':
		c, ok := hex4(s)
		if !ok {
			return dst, 0
		}
		if !utf16.IsSurrogate(c) {
			return utf8.AppendRune(dst, c), 6
		}
		low, ok := hex4(s[6:])
		pair := utf16.DecodeRune(c, low)
		if !ok || pair == utf8.RuneError {
			return dst, 0
		}
		return utf8.AppendRune(dst, pair), 12
	}
	return dst, 0
}

// hex4 reads \uXXXX at the start of s.
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

// literal reads a number and returns its text, which stays valid with the body.
func (r *Reader) literal(want string) (string, error) {
	if r.Kind() != NumberKind {
		return "", r.Expected(want)
	}
	start := r.pos
	if r.data[r.pos] == '-' {
		r.pos++
	}
	switch {
	case r.pos < len(r.data) && r.data[r.pos] == '0':
		r.pos++
	case !r.digits():
		return "", r.syntax("invalid number")
	}
	if r.pos < len(r.data) && r.data[r.pos] == '.' {
		r.pos++
		if !r.digits() {
			return "", r.syntax("invalid number")
		}
	}
	if r.pos < len(r.data) && (r.data[r.pos] == 'e' || r.data[r.pos] == 'E') {
		r.pos++
		if r.pos < len(r.data) && (r.data[r.pos] == '+' || r.data[r.pos] == '-') {
			r.pos++
		}
		if !r.digits() {
			return "", r.syntax("invalid number")
		}
	}
	return string(r.data[start:r.pos]), nil
}

func (r *Reader) digits() bool {
	start := r.pos
	for r.pos < len(r.data) && '0' <= r.data[r.pos] && r.data[r.pos] <= '9' {
		r.pos++
	}
	return r.pos > start
}

// Float reads a number; one beyond float64 is refused.
func (r *Reader) Float() (float64, error) {
	lit, err := r.literal("a number")
	if err != nil {
		return 0, err
	}
	f, err := strconv.ParseFloat(lit, 64)
	if err != nil {
		return 0, r.Refuse("is a number out of range")
	}
	return f, nil
}

// Int reads an integer; 1.0 and 1e2 are integers.
func (r *Reader) Int() (int64, error) {
	lit, err := r.literal("an integer")
	if err != nil {
		return 0, err
	}
	if n, err := strconv.ParseInt(lit, 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(lit, 64)
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
	if err := r.enter(); err != nil {
		return err
	}
	seen := keySet{}
	for first := true; ; first = false {
		done, err := r.next('}', first)
		if done || err != nil {
			return err
		}
		if r.Kind() != StringKind {
			return r.unexpected()
		}
		key, err := r.String()
		if err != nil {
			return err
		}
		if r.space(); r.pos >= len(r.data) || r.data[r.pos] != ':' {
			return r.unexpected()
		}
		r.pos++
		r.path = append(r.path, step{key: key, index: -1})
		switch {
		case !seen.add(key):
			return r.Refuse("is given twice")
		case seen.len() > maxKeys:
			return r.RefuseParent("has more than %d keys", maxKeys)
		}
		if err := visit(key); err != nil {
			return err
		}
		r.path = r.path[:len(r.path)-1]
	}
}

// Array reads an array; visit reads each element.
func (r *Reader) Array(want string, visit func(i int) error) error {
	if r.Kind() != ArrayKind {
		return r.Expected(want)
	}
	if err := r.enter(); err != nil {
		return err
	}
	for i := 0; ; i++ {
		done, err := r.next(']', i == 0)
		if done || err != nil {
			return err
		}
		r.path = append(r.path, step{index: i})
		if err := visit(i); err != nil {
			return err
		}
		r.path = r.path[:len(r.path)-1]
	}
}

// enter steps over an opening bracket.
func (r *Reader) enter() error {
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

// Skip reads a value of any type and keeps nothing.
func (r *Reader) Skip() error {
	switch r.Kind() {
	case NullKind:
		return r.word("null")
	case BoolKind:
		_, err := r.Bool()
		return err
	case NumberKind:
		_, err := r.literal("a number")
		return err
	case StringKind:
		_, err := r.String()
		return err
	case ArrayKind:
		return r.Array("an array", func(int) error { return r.Skip() })
	case ObjectKind:
		return r.Object(func(string) error { return r.Skip() })
	}
	return r.unexpected()
}

// End checks that nothing follows the value read.
func (r *Reader) End() error {
	if r.space(); r.pos < len(r.data) {
		return r.syntax("unexpected data after the end")
	}
	return nil
}

// keySet finds duplicate keys: a scan while there are few, a map beyond.
type keySet struct {
	few  []string
	many map[string]struct{}
}

func (s *keySet) len() int { return max(len(s.few), len(s.many)) }

// add reports whether key is new.
func (s *keySet) add(key string) bool {
	const few = 16
	if s.many != nil {
		n := len(s.many)
		s.many[key] = struct{}{}
		return len(s.many) > n
	}
	for _, k := range s.few {
		if k == key {
			return false
		}
	}
	s.few = append(s.few, key)
	if len(s.few) > few {
		s.many = make(map[string]struct{}, 2*few)
		for _, k := range s.few {
			s.many[k] = struct{}{}
		}
		s.few = nil
	}
	return true
}
