package jinja

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The types which only templates make. See the package comment for the others.
type (
	list  struct{ items []any }
	tuple struct{ items []any }

	// undefinedValue is a missing name or attribute. It prints as nothing and is an empty sequence; hint is
	// the error of any other use.
	undef struct {
		hint  string
		unset bool // a name that its frame has not set yet
	}

	// namespaceValue is the only value whose attributes a template may set.
	namespace struct{ attrs *Dict }

	// iterator is a Python generator: it can be iterated once.
	iterator struct {
		next func() (any, bool)
		name string
	}

	// dictView is the result of items, keys and values of a dictionary.
	view struct {
		name string
		d    *Dict
	}

	span struct{ start, stop, step int64 } // range()

	// functionValue is a callable; the callee binds the arguments.
	function struct {
		name string
		call func(s *state, a *args) any
	}

	// groupPair is an item of groupby: a pair with names.
	group struct {
		grouper any
		list    *list
	}
)

// List makes a value of items.
func List(items ...any) any { return &list{items} }

// Items returns the items of a value of List, or of a JSON array; nil for others. The caller does not change
// them.
func Items(v any) []any {
	items, _ := sequence(v)
	return items
}

func (v *view) item(i int) any {
	switch v.name {
	case "dict_keys":
		return v.d.keys[i]
	case "dict_values":
		return v.d.vals[i]
	}
	return &tuple{[]any{v.d.keys[i], v.d.vals[i]}}
}

func (r *span) len() int64 {
	switch {
	case r.step > 0 && r.start < r.stop:
		return (r.stop-r.start-1)/r.step + 1
	case r.step < 0 && r.start > r.stop:
		return (r.start-r.stop-1)/-r.step + 1
	}
	return 0
}

func (r *span) at(i int64) any { return r.start + i*r.step }

func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case *list:
		return "list"
	case *tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case *undef:
		return "Undefined"
	case *namespace:
		return "Namespace"
	case *iterator:
		return "generator"
	case *view:
		return v.name
	case *span:
		return "range"
	case *macro:
		return "Macro"
	case *loop:
		return "LoopContext"
	case *group:
		return "_GroupTuple"
	case *slicing:
		return "slice"
	case *self:
		return "TemplateReference"
	}
	return "function"
}

// isTruthy is Python's bool().
func truth(v any) bool {
	switch v := v.(type) {
	case nil, *undef:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case *big.Int:
		return v.Sign() != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *list:
		return len(v.items) > 0
	case *tuple:
		return len(v.items) > 0
	case *Dict:
		return v.Len() > 0
	case *view:
		return v.d.Len() > 0
	case *span:
		return v.len() > 0
	}
	return true
}

// toString is Python's str().
func (s *state) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case *undef:
		return ""
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case int64:
		return strconv.FormatInt(v, 10)
	}
	var b strings.Builder
	s.repr(&b, v, 0)
	s.spend(b.Len())
	return b.String()
}

// writeRepr is Python's repr().
func (s *state) repr(b *strings.Builder, v any, depth int) {
	if depth > maxDepth {
		throw("maximum recursion depth exceeded while getting the repr of an object")
	}
	s.step()
	s.room(b.Len())
	sequence := func(items []any, open, end string) {
		b.WriteString(open)
		for i, item := range items {
			if i > 0 {
				b.WriteString(", ")
			}
			s.repr(b, item, depth+1)
		}
		b.WriteString(end)
	}
	switch v := v.(type) {
	case string:
		s.read(slowly * len(v))
		s.room(b.Len() + len(v))
		reprString(b, v)
	case nil, bool, int64:
		b.WriteString(s.str(v))
	case *big.Int:
		s.read(v.BitLen() * slowly)
		b.WriteString(v.String())
	case float64:
		b.WriteString(formatFloat(v))
	case *undef:
		b.WriteString("Undefined")
	case *list:
		sequence(v.items, "[", "]")
	case *tuple:
		if len(v.items) == 1 {
			sequence(v.items, "(", ",)")
		} else {
			sequence(v.items, "(", ")")
		}
	case *group:
		sequence([]any{v.grouper, v.list}, "(", ")")
	case *Dict:
		s.reprDict(b, v, depth)
	case *namespace:
		b.WriteString("<Namespace ")
		s.reprDict(b, v.attrs, depth)
		b.WriteString(">")
	case *view:
		items := make([]any, v.d.Len())
		for i := range items {
			items[i] = v.item(i)
		}
		sequence(items, v.name+"([", "])")
	case *span:
		if v.step == 1 {
			fmt.Fprintf(b, "range(%d, %d)", v.start, v.stop)
		} else {
			fmt.Fprintf(b, "range(%d, %d, %d)", v.start, v.stop, v.step)
		}
	case *macro:
		if v.name == "" {
			b.WriteString("<Macro anonymous>")
		} else {
			b.WriteString("<Macro ")
			reprString(b, v.name)
			b.WriteString(">")
		}
	case *self:
		b.WriteString("<TemplateReference None>")
	case *loop:
		fmt.Fprintf(b, "<LoopContext %d/%d>", v.index+1, v.length())
	default:
		fmt.Fprintf(b, "<%s object>", typeName(v))
	}
}

func (s *state) reprDict(b *strings.Builder, d *Dict, depth int) {
	b.WriteByte('{')
	for i, k := range d.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		s.repr(b, k, depth+1)
		b.WriteString(": ")
		s.repr(b, d.vals[i], depth+1)
	}
	b.WriteByte('}')
}

// reprString writes a string as Python source: in single quotes unless only those occur in it.
func reprString(b *strings.Builder, v string) {
	quote := '\''
	if strings.Contains(v, "'") && !strings.Contains(v, `"`) {
		quote = '"'
	}
	b.WriteRune(quote)
	for _, r := range v {
		switch {
		case r == quote || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x80 && (r < ' ' || r == 0x7f), r < 0x100 && !unicode.IsPrint(r):
			fmt.Fprintf(b, `\x%02x`, r)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}
	b.WriteRune(quote)
}

// formatFloat is the repr of a float: the shortest digits which read back, with an exponent below 1e-4 and
// from 1e16.
func formatFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// toInteger returns v as an int if Python would accept it as an index.
func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case *big.Int:
		if v.Sign() < 0 {
			return math.MinInt64, true
		}
		return math.MaxInt64, true
	}
	return 0, false
}

// toNumber returns v as a float if it is a number.
func number(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		return f, true
	}
	i, ok := integer(v)
	return float64(i), ok
}

// toBigInt returns v as a big integer if it is an integer.
func bigInt(v any) (*big.Int, bool) {
	if b, ok := v.(*big.Int); ok {
		return b, true
	}
	if i, ok := integer(v); ok {
		return big.NewInt(i), true
	}
	return nil, false
}

// normalizeInt returns b as an int64 value if it fits.
func small(b *big.Int) any {
	if b.IsInt64() {
		return b.Int64()
	}
	if b.BitLen() > maxIntBits {
		throw("integer too large: more than %d bits", maxIntBits)
	}
	return b
}

// isEqual is Python's ==.
func (s *state) equal(a, b any, depth int) bool {
	if depth > maxDepth {
		throw("maximum recursion depth exceeded in comparison")
	}
	s.step()
	if x, ok := a.(string); ok {
		y, ok := b.(string)
		if !ok || len(x) != len(y) {
			return false
		}
		s.read(len(x))
		return x == y
	}
	if x, ok := number(a); ok {
		y, ok := number(b)
		if !ok {
			return false
		}
		return compareNumbers(a, b, x, y) == 0
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case *undef:
		_, ok := b.(*undef)
		return ok
	case *list:
		b, ok := b.(*list)
		return ok && s.equalItems(a.items, b.items, depth)
	case *tuple, *group:
		x, _ := sequence(a)
		y, ok := sequence(b)
		_, isList := b.(*list)
		return ok && !isList && s.equalItems(x, y, depth)
	case *span:
		b, ok := b.(*span)
		return ok && *a == *b
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || a.Len() != b.Len() {
			return false
		}
		for i, k := range a.keys {
			v, ok := b.get(k)
			if !ok || !s.equal(a.vals[i], v, depth+1) {
				return false
			}
		}
		return true
	}
	return a == b
}

// unordered is the result of comparing with NaN.
const unordered = 2

// compareNumbers compares a and b exactly; x and y are their approximate values.
func compareNumbers(a, b any, x, y float64) int {
	if i, ok := a.(int64); ok {
		if j, ok := b.(int64); ok {
			return cmp.Compare(i, j)
		}
	}
	p, pok := bigInt(a)
	q, qok := bigInt(b)
	switch {
	case math.IsNaN(x) || math.IsNaN(y):
		return unordered
	case pok && qok:
		return p.Cmp(q)
	case pok && !math.IsInf(y, 0):
		return new(big.Float).SetInt(p).Cmp(big.NewFloat(y))
	case qok && !math.IsInf(x, 0):
		return big.NewFloat(x).Cmp(new(big.Float).SetInt(q))
	}
	return cmp.Compare(x, y)
}

func (s *state) equalItems(a, b []any, depth int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !s.equal(a[i], b[i], depth+1) {
			return false
		}
	}
	return true
}

// compareOrder is the sign of a - b where Python orders the two; it throws otherwise.
func (s *state) compare(op string, a, b any) int {
	s.step()
	if x, ok := a.(string); ok {
		if y, ok := b.(string); ok {
			s.read(min(len(x), len(y)))
			return strings.Compare(x, y)
		}
	}
	if x, ok := number(a); ok {
		if y, ok := number(b); ok {
			return compareNumbers(a, b, x, y)
		}
	}
	x, xok := sequence(a)
	y, yok := sequence(b)
	if xok && yok && typeName(a) == typeName(b) {
		for i := range min(len(x), len(y)) {
			if !s.equal(x[i], y[i], 0) {
				return s.compare(op, x[i], y[i])
			}
		}
		return len(x) - len(y)
	}
	undefined(a)
	undefined(b)
	throw("'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	return 0
}

// sequenceItems returns the items of a list or tuple.
func sequence(v any) ([]any, bool) {
	switch v := v.(type) {
	case *list:
		return v.items, true
	case *tuple:
		return v.items, true
	case *group:
		return []any{v.grouper, v.list}, true
	}
	return nil, false
}

// requireDefined throws if v is the undefined value.
func undefined(v any) {
	if u, ok := v.(*undef); ok {
		throw("%s", u.hint)
	}
}

// lengthOf is Python's len().
func (s *state) length(v any) int64 {
	switch v := v.(type) {
	case *undef:
		return 0
	case string:
		s.read(len(v))
		return int64(utf8.RuneCountInString(v))
	case *Dict:
		return int64(v.Len())
	case *view:
		return int64(v.d.Len())
	case *span:
		return v.len()
	case *loop:
		return v.length()
	}
	items, ok := sequence(v)
	if !ok {
		throw("object of type '%s' has no len()", typeName(v))
	}
	return int64(len(items))
}

// iterateValue is Python's iter(). It throws if v is not iterable.
func (s *state) iterate(v any) func() (any, bool) {
	i := -1
	over := func(n int, at func(i int) any) func() (any, bool) {
		return func() (any, bool) {
			s.step()
			if i++; i >= n {
				return nil, false
			}
			return at(i), true
		}
	}
	switch v := v.(type) {
	case *undef:
		return over(0, nil)
	case string:
		return func() (any, bool) {
			s.step()
			if v == "" {
				return nil, false
			}
			_, n := utf8.DecodeRuneInString(v)
			c := v[:n]
			v = v[n:]
			return c, true
		}
	case *Dict:
		return over(v.Len(), func(i int) any { return v.keys[i] })
	case *view:
		return over(v.d.Len(), v.item)
	case *span:
		return over(int(v.len()), func(i int) any { return v.at(int64(i)) })
	case *iterator:
		return func() (item any, ok bool) {
			s.nested(func() { item, ok = v.next() }) // generators iterate over generators
			return item, ok
		}
	case *loop:
		return v.iterate(s)
	}
	items, ok := sequence(v)
	if !ok {
		throw("'%s' object is not iterable", typeName(v))
	}
	return over(len(items), func(i int) any { return items[i] })
}

// collectItems is Python's list().
func (s *state) collect(v any) []any {
	if items, ok := sequence(v); ok {
		s.spend(8 * len(items))
		return append([]any(nil), items...)
	}
	var items []any
	next := s.iterate(v)
	for item, ok := next(); ok; item, ok = next() {
		s.spend(16)
		items = append(items, item)
	}
	return items
}

// newIterator returns a one-time iterator over the results of next.
func generate(next func() (any, bool)) *iterator { return &iterator{next: next, name: "generator"} }

// containsItem is Python's in.
func (s *state) contains(container, v any) bool {
	switch c := container.(type) {
	case string:
		text, ok := v.(string)
		if !ok {
			undefined(v)
			throw("'in <string>' requires string as left operand, not %s", typeName(v))
		}
		s.read(len(c))
		return strings.Contains(c, text)
	case *Dict:
		s.readKey(v)
		_, ok := c.get(v)
		return ok
	case *view:
		if c.name == "dict_keys" {
			_, ok := c.d.get(v)
			return ok
		}
	case *namespace:
		throw("argument of type 'Namespace' is not iterable")
	}
	next := s.iterate(container)
	for item, ok := next(); ok; item, ok = next() {
		if s.equal(item, v, 0) {
			return true
		}
	}
	return false
}
