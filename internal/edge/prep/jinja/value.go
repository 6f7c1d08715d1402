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
	listValue  struct{ items []any }
	tupleValue struct{ items []any }

	// undefinedValue is a missing name or attribute. It prints as nothing and is an empty sequence; hint is
	// the error of any other use.
	undefinedValue struct {
		hint  string
		unset bool // a name that its frame has not set yet
	}

	// namespaceValue is the only value whose attributes a template may set.
	namespaceValue struct{ attrs *Dict }

	// iterator is a Python generator: it can be iterated once.
	iterator struct {
		next func() (any, bool)
		name string
	}

	// dictView is the result of items, keys and values of a dictionary.
	dictView struct {
		name string
		d    *Dict
	}

	rangeValue struct{ start, stop, step int64 } // range()

	// functionValue is a callable; the callee binds the arguments.
	functionValue struct {
		name string
		call func(s *renderState, a *callArgs) any
	}

	// groupPair is an item of groupby: a pair with names.
	groupPair struct {
		grouper any
		list    *listValue
	}
)

// List makes a value of items.
func List(items ...any) any { return &listValue{items} }

// Items returns the items of a value of List, or of a JSON array; nil for others. The caller does not change
// them.
func Items(v any) []any {
	items, _ := sequenceItems(v)
	return items
}

func (v *dictView) itemAt(i int) any {
	switch v.name {
	case "dict_keys":
		return v.d.keys[i]
	case "dict_values":
		return v.d.vals[i]
	}
	return &tupleValue{[]any{v.d.keys[i], v.d.vals[i]}}
}

func (r *rangeValue) itemCount() int64 {
	switch {
	case r.step > 0 && r.start < r.stop:
		return (r.stop-r.start-1)/r.step + 1
	case r.step < 0 && r.start > r.stop:
		return (r.start-r.stop-1)/-r.step + 1
	}
	return 0
}

func (r *rangeValue) itemAt(i int64) any { return r.start + i*r.step }

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
	case *listValue:
		return "list"
	case *tupleValue:
		return "tuple"
	case *Dict:
		return "dict"
	case *undefinedValue:
		return "Undefined"
	case *namespaceValue:
		return "Namespace"
	case *iterator:
		return "generator"
	case *dictView:
		return v.name
	case *rangeValue:
		return "range"
	case *macroValue:
		return "Macro"
	case *loopVar:
		return "LoopContext"
	case *groupPair:
		return "_GroupTuple"
	case *sliceRange:
		return "slice"
	case *selfVar:
		return "TemplateReference"
	}
	return "function"
}

// isTruthy is Python's bool().
func isTruthy(v any) bool {
	switch v := v.(type) {
	case nil, *undefinedValue:
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
	case *listValue:
		return len(v.items) > 0
	case *tupleValue:
		return len(v.items) > 0
	case *Dict:
		return v.Len() > 0
	case *dictView:
		return v.d.Len() > 0
	case *rangeValue:
		return v.itemCount() > 0
	}
	return true
}

// toString is Python's str().
func (s *renderState) toString(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case *undefinedValue:
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
	s.writeRepr(&b, v, 0)
	s.payBytes(b.Len())
	return b.String()
}

// writeRepr is Python's repr().
func (s *renderState) writeRepr(b *strings.Builder, v any, depth int) {
	if depth > maxDepth {
		throw("maximum recursion depth exceeded while getting the repr of an object")
	}
	s.payStep()
	s.checkRoom(b.Len())
	sequence := func(items []any, open, end string) {
		b.WriteString(open)
		for i, item := range items {
			if i > 0 {
				b.WriteString(", ")
			}
			s.writeRepr(b, item, depth+1)
		}
		b.WriteString(end)
	}
	switch v := v.(type) {
	case string:
		s.payRead(slowly * len(v))
		s.checkRoom(b.Len() + len(v))
		reprString(b, v)
	case nil, bool, int64:
		b.WriteString(s.toString(v))
	case *big.Int:
		s.payRead(v.BitLen() * slowly)
		b.WriteString(v.String())
	case float64:
		b.WriteString(formatFloat(v))
	case *undefinedValue:
		b.WriteString("Undefined")
	case *listValue:
		sequence(v.items, "[", "]")
	case *tupleValue:
		if len(v.items) == 1 {
			sequence(v.items, "(", ",)")
		} else {
			sequence(v.items, "(", ")")
		}
	case *groupPair:
		sequence([]any{v.grouper, v.list}, "(", ")")
	case *Dict:
		s.writeReprDict(b, v, depth)
	case *namespaceValue:
		b.WriteString("<Namespace ")
		s.writeReprDict(b, v.attrs, depth)
		b.WriteString(">")
	case *dictView:
		items := make([]any, v.d.Len())
		for i := range items {
			items[i] = v.itemAt(i)
		}
		sequence(items, v.name+"([", "])")
	case *rangeValue:
		if v.step == 1 {
			fmt.Fprintf(b, "range(%d, %d)", v.start, v.stop)
		} else {
			fmt.Fprintf(b, "range(%d, %d, %d)", v.start, v.stop, v.step)
		}
	case *macroValue:
		if v.name == "" {
			b.WriteString("<Macro anonymous>")
		} else {
			b.WriteString("<Macro ")
			reprString(b, v.name)
			b.WriteString(">")
		}
	case *selfVar:
		b.WriteString("<TemplateReference None>")
	case *loopVar:
		fmt.Fprintf(b, "<LoopContext %d/%d>", v.index+1, v.totalLength())
	default:
		fmt.Fprintf(b, "<%s object>", typeName(v))
	}
}

func (s *renderState) writeReprDict(b *strings.Builder, d *Dict, depth int) {
	b.WriteByte('{')
	for i, k := range d.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		s.writeRepr(b, k, depth+1)
		b.WriteString(": ")
		s.writeRepr(b, d.vals[i], depth+1)
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
func toInteger(v any) (int64, bool) {
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
func toNumber(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		return f, true
	}
	i, ok := toInteger(v)
	return float64(i), ok
}

// toBigInt returns v as a big integer if it is an integer.
func toBigInt(v any) (*big.Int, bool) {
	if b, ok := v.(*big.Int); ok {
		return b, true
	}
	if i, ok := toInteger(v); ok {
		return big.NewInt(i), true
	}
	return nil, false
}

// normalizeInt returns b as an int64 value if it fits.
func normalizeInt(b *big.Int) any {
	if b.IsInt64() {
		return b.Int64()
	}
	if b.BitLen() > maxIntBits {
		throw("integer too large: more than %d bits", maxIntBits)
	}
	return b
}

// isEqual is Python's ==.
func (s *renderState) isEqual(a, b any, depth int) bool {
	if depth > maxDepth {
		throw("maximum recursion depth exceeded in comparison")
	}
	s.payStep()
	if x, ok := a.(string); ok {
		y, ok := b.(string)
		if !ok || len(x) != len(y) {
			return false
		}
		s.payRead(len(x))
		return x == y
	}
	if x, ok := toNumber(a); ok {
		y, ok := toNumber(b)
		if !ok {
			return false
		}
		return compareNumbers(a, b, x, y) == 0
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case *undefinedValue:
		_, ok := b.(*undefinedValue)
		return ok
	case *listValue:
		b, ok := b.(*listValue)
		return ok && s.equalItems(a.items, b.items, depth)
	case *tupleValue, *groupPair:
		x, _ := sequenceItems(a)
		y, ok := sequenceItems(b)
		_, isList := b.(*listValue)
		return ok && !isList && s.equalItems(x, y, depth)
	case *rangeValue:
		b, ok := b.(*rangeValue)
		return ok && *a == *b
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || a.Len() != b.Len() {
			return false
		}
		for i, k := range a.keys {
			v, ok := b.getKey(k)
			if !ok || !s.isEqual(a.vals[i], v, depth+1) {
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
	p, pok := toBigInt(a)
	q, qok := toBigInt(b)
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

func (s *renderState) equalItems(a, b []any, depth int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !s.isEqual(a[i], b[i], depth+1) {
			return false
		}
	}
	return true
}

// compareOrder is the sign of a - b where Python orders the two; it throws otherwise.
func (s *renderState) compareOrder(op string, a, b any) int {
	s.payStep()
	if x, ok := a.(string); ok {
		if y, ok := b.(string); ok {
			s.payRead(min(len(x), len(y)))
			return strings.Compare(x, y)
		}
	}
	if x, ok := toNumber(a); ok {
		if y, ok := toNumber(b); ok {
			return compareNumbers(a, b, x, y)
		}
	}
	x, xok := sequenceItems(a)
	y, yok := sequenceItems(b)
	if xok && yok && typeName(a) == typeName(b) {
		for i := range min(len(x), len(y)) {
			if !s.isEqual(x[i], y[i], 0) {
				return s.compareOrder(op, x[i], y[i])
			}
		}
		return len(x) - len(y)
	}
	requireDefined(a)
	requireDefined(b)
	throw("'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	return 0
}

// sequenceItems returns the items of a list or tuple.
func sequenceItems(v any) ([]any, bool) {
	switch v := v.(type) {
	case *listValue:
		return v.items, true
	case *tupleValue:
		return v.items, true
	case *groupPair:
		return []any{v.grouper, v.list}, true
	}
	return nil, false
}

// requireDefined throws if v is the undefined value.
func requireDefined(v any) {
	if u, ok := v.(*undefinedValue); ok {
		throw("%s", u.hint)
	}
}

// lengthOf is Python's len().
func (s *renderState) lengthOf(v any) int64 {
	switch v := v.(type) {
	case *undefinedValue:
		return 0
	case string:
		s.payRead(len(v))
		return int64(utf8.RuneCountInString(v))
	case *Dict:
		return int64(v.Len())
	case *dictView:
		return int64(v.d.Len())
	case *rangeValue:
		return v.itemCount()
	case *loopVar:
		return v.totalLength()
	}
	items, ok := sequenceItems(v)
	if !ok {
		throw("object of type '%s' has no len()", typeName(v))
	}
	return int64(len(items))
}

// iterateValue is Python's iter(). It throws if v is not iterable.
func (s *renderState) iterateValue(v any) func() (any, bool) {
	i := -1
	over := func(n int, at func(i int) any) func() (any, bool) {
		return func() (any, bool) {
			s.payStep()
			if i++; i >= n {
				return nil, false
			}
			return at(i), true
		}
	}
	switch v := v.(type) {
	case *undefinedValue:
		return over(0, nil)
	case string:
		return func() (any, bool) {
			s.payStep()
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
	case *dictView:
		return over(v.d.Len(), v.itemAt)
	case *rangeValue:
		return over(int(v.itemCount()), func(i int) any { return v.itemAt(int64(i)) })
	case *iterator:
		return func() (item any, ok bool) {
			s.runNested(func() { item, ok = v.next() }) // generators iterate over generators
			return item, ok
		}
	case *loopVar:
		return v.iterateLoop(s)
	}
	items, ok := sequenceItems(v)
	if !ok {
		throw("'%s' object is not iterable", typeName(v))
	}
	return over(len(items), func(i int) any { return items[i] })
}

// collectItems is Python's list().
func (s *renderState) collectItems(v any) []any {
	if items, ok := sequenceItems(v); ok {
		s.payBytes(8 * len(items))
		return append([]any(nil), items...)
	}
	var items []any
	next := s.iterateValue(v)
	for item, ok := next(); ok; item, ok = next() {
		s.payBytes(16)
		items = append(items, item)
	}
	return items
}

// newIterator returns a one-time iterator over the results of next.
func newIterator(next func() (any, bool)) *iterator { return &iterator{next: next, name: "generator"} }

// containsItem is Python's in.
func (s *renderState) containsItem(container, v any) bool {
	switch c := container.(type) {
	case string:
		text, ok := v.(string)
		if !ok {
			requireDefined(v)
			throw("'in <string>' requires string as left operand, not %s", typeName(v))
		}
		s.payRead(len(c))
		return strings.Contains(c, text)
	case *Dict:
		s.payKeyRead(v)
		_, ok := c.getKey(v)
		return ok
	case *dictView:
		if c.name == "dict_keys" {
			_, ok := c.d.getKey(v)
			return ok
		}
	case *namespaceValue:
		throw("argument of type 'Namespace' is not iterable")
	}
	next := s.iterateValue(container)
	for item, ok := next(); ok; item, ok = next() {
		if s.isEqual(item, v, 0) {
			return true
		}
	}
	return false
}
