package jinja

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

func (e constExpr) eval(*state, *scope) any { return e.value }

func (e *nameExpr) eval(s *state, sc *scope) any {
	s.step()
	if v, ok := sc.get(e.name); ok {
		return v
	}
	return &undef{hint: "'" + e.name + "' is undefined"}
}

func (e *nsExpr) eval(*state, *scope) any { return nil }

func (s *state) evalAll(items []expr, sc *scope) []any {
	s.spend(16 * len(items))
	out := make([]any, len(items))
	for i, item := range items {
		out[i] = item.eval(s, sc)
	}
	return out
}

func (e *tupleExpr) eval(s *state, sc *scope) any { return &tuple{s.evalAll(e.items, sc)} }

func (e *listExpr) eval(s *state, sc *scope) any { return &list{s.evalAll(e.items, sc)} }

func (e *dictExpr) eval(s *state, sc *scope) any {
	s.spend(64 * (1 + len(e.keys)))
	d := NewDict()
	for i, k := range e.keys {
		key := k.eval(s, sc)
		d.put(key, e.vals[i].eval(s, sc))
	}
	return d
}

func (e *condExpr) eval(s *state, sc *scope) any {
	switch {
	case truth(e.test.eval(s, sc)):
		return e.then.eval(s, sc)
	case e.otherwise != nil:
		return e.otherwise.eval(s, sc)
	}
	return &undef{hint: "the inline if-expression evaluated to false and no else section was defined"}
}

func (e *logicExpr) eval(s *state, sc *scope) any {
	if a := e.a.eval(s, sc); truth(a) == e.or {
		return a
	}
	return e.b.eval(s, sc)
}

func (e *notExpr) eval(s *state, sc *scope) any { return !truth(e.of.eval(s, sc)) }

func (e *compareExpr) eval(s *state, sc *scope) any {
	s.line = e.line
	a := e.first.eval(s, sc)
	for i, op := range e.ops {
		b := e.rest[i].eval(s, sc)
		if !s.holds(op, a, b) {
			return false
		}
		a = b
	}
	return true
}

func (s *state) holds(op string, a, b any) bool {
	switch op {
	case "==":
		return s.equal(a, b, 0)
	case "!=":
		return !s.equal(a, b, 0)
	case "in":
		return s.contains(b, a)
	case "not in":
		return !s.contains(b, a)
	}
	c := s.compare(op, a, b)
	if x, ok := a.(float64); ok && math.IsNaN(x) {
		return false
	}
	if x, ok := b.(float64); ok && math.IsNaN(x) {
		return false
	}
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

func (e *concatExpr) eval(s *state, sc *scope) any {
	parts := make([]string, len(e.items))
	size := 0
	for i, item := range e.items {
		parts[i] = s.str(item.eval(s, sc))
		size += len(parts[i])
	}
	s.spend(size)
	return strings.Join(parts, "")
}

func (e *signExpr) eval(s *state, sc *scope) any {
	s.line = e.line
	v := e.of.eval(s, sc)
	if f, ok := v.(float64); ok {
		if e.minus {
			return -f
		}
		return f
	}
	b, ok := bigInt(v)
	if !ok {
		undefined(v)
		throw("bad operand type for unary sign: '%s'", typeName(v))
	}
	if e.minus {
		b = new(big.Int).Neg(b)
	}
	return small(b)
}

func (e *binaryExpr) eval(s *state, sc *scope) any {
	if e.op == "+" {
		return e.sum(s, sc)
	}
	a := e.a.eval(s, sc)
	b := e.b.eval(s, sc)
	s.line = e.line
	return s.arith(e.op, a, b)
}

// applyOperator is Python's arithmetic on numbers and its operators on sequences.
func (s *state) arith(op string, a, b any) any {
	s.step()
	undefined(a)
	switch x := a.(type) {
	case string:
		switch op {
		case "+":
			if y, ok := b.(string); ok {
				s.spend(len(x) + len(y))
				return x + y
			}
		case "*":
			if n, ok := times(b); ok {
				return s.repeat(x, n)
			}
		case "%":
			return s.percent(x, b)
		}
	case *list, *tuple:
		items, _ := sequence(x)
		switch op {
		case "+":
			if more, ok := sequence(b); ok && typeName(a) == typeName(b) {
				s.spend(16 * (len(items) + len(more)))
				return same(a, append(append([]any(nil), items...), more...))
			}
		case "*":
			if n, ok := times(b); ok {
				return same(a, s.repeatItems(items, n))
			}
		}
	default:
		_, isInt := integer(a)
		switch b.(type) {
		case string, *list, *tuple:
			if isInt && op == "*" {
				return s.arith(op, b, a)
			}
		}
		if v, ok := s.numeric(op, a, b); ok {
			return v
		}
	}
	undefined(b)
	throw("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	return nil
}

// repeatCount is the count of a repetition.
func times(v any) (int64, bool) {
	if _, ok := v.(*big.Int); ok {
		throw("cannot fit 'int' into an index-sized integer")
	}
	return integer(v)
}

// likeSequence returns items as the same kind of sequence as like.
func same(like any, items []any) any {
	if _, ok := like.(*tuple); ok {
		return &tuple{items}
	}
	return &list{items}
}

func (s *state) repeat(text string, n int64) any {
	if n <= 0 || text == "" {
		return ""
	}
	if n > int64(s.bytes/len(text)) {
		s.room(-1)
	}
	s.spend(len(text) * int(n))
	return strings.Repeat(text, int(n))
}

func (s *state) repeatItems(items []any, n int64) []any {
	if n <= 0 || len(items) == 0 {
		return nil
	}
	if n > int64(s.bytes/16/len(items)) {
		s.room(-1)
	}
	s.spend(16 * len(items) * int(n))
	out := make([]any, 0, len(items)*int(n))
	for range n {
		out = append(out, items...)
	}
	return out
}

// applyNumeric computes on two numbers; ok is false for other values.
func (s *state) numeric(op string, a, b any) (v any, ok bool) {
	if x, ok := a.(int64); ok {
		if y, ok := b.(int64); ok && op == "+" && x < 1<<62 && y < 1<<62 && x > -1<<62 && y > -1<<62 {
			return x + y, true
		}
	}
	p, pok := bigInt(a)
	q, qok := bigInt(b)
	if pok && qok && op != "/" && (op != "**" || q.Sign() >= 0) {
		return small(integers(op, p, q)), true
	}
	if pok && qok && op == "/" && q.Sign() != 0 && max(p.BitLen(), q.BitLen()) > 53 {
		s.read(slowly * slowly * max(p.BitLen(), q.BitLen()))
		f, _ := new(big.Rat).SetFrac(p, q).Float64()
		if p.Sign() == 0 && q.Sign() < 0 {
			f = math.Copysign(0, -1)
		}
		if math.IsInf(f, 0) {
			throw("integer division result too large for a float")
		}
		return f, true
	}
	x, xok := number(a)
	y, yok := number(b)
	if !xok || !yok {
		return nil, false
	}
	return floats(op, x, y), true
}

// integerOp computes on integers; division rounds down, as in Python.
func integers(op string, a, b *big.Int) *big.Int {
	z := new(big.Int)
	switch op {
	case "+":
		return z.Add(a, b)
	case "-":
		return z.Sub(a, b)
	case "*":
		return z.Mul(a, b)
	case "**":
		if a.BitLen() > 1 && (!b.IsInt64() || b.Int64()*int64(a.BitLen()-1) > maxIntBits) {
			throw("integer too large: more than %d bits", maxIntBits)
		}
		if a.BitLen() <= 1 && b.Sign() > 0 { // -1, 0 or 1
			if a.Sign() < 0 && b.Bit(0) == 0 {
				return big.NewInt(1)
			}
			return a
		}
		return z.Exp(a, b, nil)
	}
	if b.Sign() == 0 {
		throw("integer division or modulo by zero")
	}
	m := new(big.Int)
	z.QuoRem(a, b, m)
	if m.Sign() != 0 && m.Sign() != b.Sign() {
		z.Sub(z, big.NewInt(1))
		m.Add(m, b)
	}
	if op == "%" {
		return m
	}
	return z
}

func floats(op string, x, y float64) float64 {
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "**":
		if x == 0 && y < 0 {
			throw("0.0 cannot be raised to a negative power")
		}
		z := math.Pow(x, y)
		if math.IsInf(z, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
			throw("numerical result out of range")
		}
		if math.IsNaN(z) && !math.IsNaN(x) && !math.IsNaN(y) {
			throw("complex numbers are not supported")
		}
		return z
	}
	if y == 0 {
		throw("division by zero")
	}
	if op == "/" {
		return x / y
	}
	// The remainder has the sign of y, and the quotient is computed without it.
	m := math.Mod(x, y)
	whole := (x - m) / y
	if m == 0 {
		m = math.Copysign(0, y)
	} else if (m < 0) != (y < 0) {
		m += y
		whole--
	}
	if op == "%" {
		return m
	}
	if whole == 0 {
		return math.Copysign(0, x/y)
	}
	down := math.Floor(whole)
	if whole-down > 0.5 {
		down++
	}
	return down
}

func (e *attrExpr) eval(s *state, sc *scope) any {
	of := e.of.eval(s, sc)
	s.line = e.line
	s.step()
	undefined(of)
	if v, ok := s.attr(of, e.name); ok {
		return v
	}
	if d, ok := of.(*Dict); ok {
		if v, ok := d.get(e.name); ok {
			return v
		}
	}
	return missing(of, e.name)
}

func missing(of any, name string) any {
	if len(name) > maxHint {
		name = name[:maxHint]
	}
	return &undef{hint: "'" + typeName(of) + " object' has no attribute '" + name + "'"}
}

// maxHint bounds a name in an error.
const maxHint = 100

func (e *itemExpr) eval(s *state, sc *scope) any {
	of := e.of.eval(s, sc)
	key := e.key.eval(s, sc)
	s.line = e.line
	s.step()
	return s.item(of, key)
}

// getItem is of[key], or the attribute of that name.
func (s *state) item(of, key any) any {
	undefined(of)
	if cut, ok := key.(*slicing); ok {
		return s.slice(of, cut)
	}
	if d, ok := of.(*Dict); ok {
		switch key.(type) {
		case *list, *Dict:
			return &undef{hint: "dict object has no such element"}
		}
		s.readKey(key)
		if v, ok := d.get(key); ok {
			return v
		}
	} else if i, ok := integer(key); ok {
		if v, ok := s.at(of, i); ok {
			return v
		}
	}
	if name, ok := key.(string); ok {
		if v, ok := s.attr(of, name); ok {
			return v
		}
		return missing(of, name)
	}
	return &undef{hint: typeName(of) + " object has no such element"}
}

// itemAt is the item of a sequence at i, counted from the end if negative.
func (s *state) at(of any, i int64) (any, bool) {
	switch of := of.(type) {
	case string:
		if i < 0 {
			i += s.length(of)
		}
		if i < 0 || i >= int64(len(of)) {
			return nil, false
		}
		s.read(slowly * int(i))
		for _, r := range of {
			if i == 0 {
				return string(r), true
			}
			i--
		}
		return nil, false
	case *span:
		if i < 0 {
			i += of.len()
		}
		if i < 0 || i >= of.len() {
			return nil, false
		}
		return of.at(i), true
	}
	items, ok := sequence(of)
	if !ok {
		return nil, false
	}
	if i < 0 {
		i += int64(len(items))
	}
	if i < 0 || i >= int64(len(items)) {
		return nil, false
	}
	return items[i], true
}

// sliceRange is the value of start:stop:step.
type slicing struct{ parts [3]any }

func (e *sliceExpr) eval(s *state, sc *scope) any {
	cut := new(slicing)
	for i, p := range e.parts {
		if p != nil {
			cut.parts[i] = p.eval(s, sc)
		}
	}
	return cut
}

// sliceValue slices a sequence; strings by characters.
func (s *state) slice(of any, cut *slicing) any {
	var n int64
	text, isText := of.(string)
	items, isItems := sequence(of)
	r, isSpan := of.(*span)
	switch {
	case isText:
		s.read(slowly * len(text))
		s.spend(len(text))
		n = int64(utf8.RuneCountInString(text))
	case isItems:
		n = int64(len(items))
	case isSpan:
		n = r.len()
	default:
		throw("'%s' object is not subscriptable with a slice", typeName(of))
	}
	start, step, count, ok := cut.resolve(n)
	if !ok {
		throw("slice indices must be integers or None")
	}
	if isText {
		return cutText(text, start, step, count, n)
	}
	if isSpan {
		from, by := r.start+start*r.step, r.step*step
		return &span{from, from + count*by, by}
	}
	s.spend(16 * int(count))
	out := make([]any, count)
	for i := range out {
		out[i] = items[start+int64(i)*step]
	}
	return same(of, out)
}

// sliceText takes count of the n characters in text, from start by step.
func cutText(text string, start, step, count, n int64) string {
	if count == 0 {
		return ""
	}
	if n == int64(len(text)) && step == 1 {
		return text[start : start+count]
	}
	runes := []rune(text)
	out := make([]rune, count)
	for i := range out {
		out[i] = runes[start+int64(i)*step]
	}
	return string(out)
}

// resolveRange returns the start, the step and the length of a slice of n items.
func (c *slicing) resolve(n int64) (start, step, count int64, ok bool) {
	step = 1
	if c.parts[2] != nil {
		if step, ok = integer(c.parts[2]); !ok {
			return 0, 0, 0, false
		}
		if step == 0 {
			throw("slice step cannot be zero")
		}
	}
	step = max(-1<<40, min(step, 1<<40))
	low, high := int64(0), n
	start, stop := low, high
	if step < 0 {
		low, high = -1, n-1
		start, stop = high, low
	}
	for i, to := range []*int64{&start, &stop} {
		if c.parts[i] == nil {
			continue
		}
		v, ok := integer(c.parts[i])
		if !ok {
			return 0, 0, 0, false
		}
		if v < 0 {
			v += n
		}
		*to = max(low, min(v, high))
	}
	r := span{start, stop, step}
	return start, step, r.len(), true
}

// callArgs are the arguments of a call.
type args struct {
	pos []any
	kw  *Dict
}

func (a *argList) eval(s *state, sc *scope) *args {
	out := &args{kw: NewDict()}
	if len(a.items) > 0 {
		out.pos = s.evalAll(a.items, sc)
	}
	for i, name := range a.names {
		out.kw.put(name, a.named[i].eval(s, sc))
	}
	if a.star != nil {
		out.pos = append(out.pos, s.collect(a.star.eval(s, sc))...)
	}
	if a.stars != nil {
		v := a.stars.eval(s, sc)
		d, ok := v.(*Dict)
		if !ok {
			throw("argument after ** must be a mapping, not %s", typeName(v))
		}
		for i, k := range d.keys {
			name, ok := k.(string)
			if !ok {
				throw("keywords must be strings")
			}
			if _, dup := out.kw.get(name); dup {
				throw("got multiple values for keyword argument '%s'", name)
			}
			out.kw.put(name, d.vals[i])
		}
	}
	return out
}

// bindParams matches arguments to parameters as Python does; missing ones are absentArg. A name which ends in
// "!" is required.
func (a *args) bind(names ...string) []any {
	out := make([]any, len(names))
	if len(a.pos) > len(names) {
		throw("takes at most %d arguments (%d given)", len(names), len(a.pos))
	}
	used := 0
	for i, name := range names {
		name, required := strings.CutSuffix(name, "!")
		v, named := a.kw.get(name)
		switch {
		case named && i < len(a.pos):
			throw("got multiple values for argument '%s'", name)
		case named:
			used++
			out[i] = v
		case i < len(a.pos):
			out[i] = a.pos[i]
		case required:
			throw("missing required argument '%s'", name)
		default:
			out[i] = absent{}
		}
	}
	if used < a.kw.Len() {
		for _, k := range a.kw.keys {
			if !listed(names, k.(string)) {
				throw("got an unexpected keyword argument '%s'", k)
			}
		}
	}
	return out
}

func listed(names []string, name string) bool {
	for _, n := range names {
		if strings.TrimSuffix(n, "!") == name {
			return true
		}
	}
	return false
}

// absentArg is an argument which was not given.
type absent struct{}

func given(v any) bool {
	_, none := v.(absent)
	return !none
}

func (e *callExpr) eval(s *state, sc *scope) any {
	callee := e.callee.eval(s, sc)
	a := e.args.eval(s, sc)
	s.line = e.line
	return s.call(callee, a)
}

func (s *state) call(callee any, a *args) any {
	s.step()
	switch f := callee.(type) {
	case *function:
		return f.call(s, a)
	case *macro:
		return f.call(s, a)
	case *loop:
		if f.again == nil {
			throw("The loop must have the 'recursive' marker to be called recursively.")
		}
		return f.again(a.bind("iterable!")[0], f.depth+1)
	}
	undefined(callee)
	throw("'%s' object is not callable", typeName(callee))
	return nil
}

func (e *filterExpr) eval(s *state, sc *scope) any { return e.apply(s, sc, e.of.eval(s, sc)) }

// applyFilter runs the filter on v, or on the result of its own operand for v.
func (e *filterExpr) apply(s *state, sc *scope, v any) any {
	if inner, ok := e.of.(*filterExpr); ok && inner.open() {
		v = inner.apply(s, sc, v)
	}
	a := e.args.eval(s, sc)
	s.line = e.line
	s.step()
	if e.call == nil {
		throw("No filter named '%s'", e.name)
	}
	return e.call(s, v, a)
}

// isOpenChain reports whether the chain of filters starts with the body of a block.
func (e *filterExpr) open() bool {
	for e.of != nil {
		inner, ok := e.of.(*filterExpr)
		if !ok {
			return false
		}
		e = inner
	}
	return true
}

func (e *testExpr) eval(s *state, sc *scope) any {
	v := e.of.eval(s, sc)
	a := e.args.eval(s, sc)
	s.line = e.line
	s.step()
	if e.call == nil {
		throw("No test named '%s'", e.name)
	}
	return e.call(s, v, a)
}
