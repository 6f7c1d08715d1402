package jinja

import (
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

func (e constExpr) eval(*renderState, *scope) any { return e.value }

func (e *nameExpr) eval(s *renderState, sc *scope) any {
	s.payStep()
	if v, ok := sc.lookupName(e.name); ok {
		return v
	}
	return &undefinedValue{hint: "'" + e.name + "' is undefined"}
}

func (e *nsExpr) eval(*renderState, *scope) any { return nil }

func (s *renderState) evalAll(items []expr, sc *scope) []any {
	s.payBytes(16 * len(items))
	out := make([]any, len(items))
	for i, item := range items {
		out[i] = item.eval(s, sc)
	}
	return out
}

func (e *tupleExpr) eval(s *renderState, sc *scope) any { return &tupleValue{s.evalAll(e.items, sc)} }

func (e *listExpr) eval(s *renderState, sc *scope) any { return &listValue{s.evalAll(e.items, sc)} }

func (e *dictExpr) eval(s *renderState, sc *scope) any {
	s.payBytes(64 * (1 + len(e.keys)))
	d := NewDict()
	for i, k := range e.keys {
		key := k.eval(s, sc)
		d.putKey(key, e.vals[i].eval(s, sc))
	}
	return d
}

func (e *condExpr) eval(s *renderState, sc *scope) any {
	switch {
	case isTruthy(e.test.eval(s, sc)):
		return e.then.eval(s, sc)
	case e.otherwise != nil:
		return e.otherwise.eval(s, sc)
	}
	return &undefinedValue{hint: "the inline if-expression evaluated to false and no else section was defined"}
}

func (e *logicExpr) eval(s *renderState, sc *scope) any {
	if a := e.a.eval(s, sc); isTruthy(a) == e.or {
		return a
	}
	return e.b.eval(s, sc)
}

func (e *notExpr) eval(s *renderState, sc *scope) any { return !isTruthy(e.of.eval(s, sc)) }

func (e *compareExpr) eval(s *renderState, sc *scope) any {
	s.line = e.line
	a := e.first.eval(s, sc)
	for i, op := range e.ops {
		b := e.rest[i].eval(s, sc)
		if !s.compareValues(op, a, b) {
			return false
		}
		a = b
	}
	return true
}

func (s *renderState) compareValues(op string, a, b any) bool {
	switch op {
	case "==":
		return s.isEqual(a, b, 0)
	case "!=":
		return !s.isEqual(a, b, 0)
	case "in":
		return s.containsItem(b, a)
	case "not in":
		return !s.containsItem(b, a)
	}
	c := s.compareOrder(op, a, b)
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

func (e *concatExpr) eval(s *renderState, sc *scope) any {
	parts := make([]string, len(e.items))
	size := 0
	for i, item := range e.items {
		parts[i] = s.toString(item.eval(s, sc))
		size += len(parts[i])
	}
	s.payBytes(size)
	return strings.Join(parts, "")
}

func (e *signExpr) eval(s *renderState, sc *scope) any {
	s.line = e.line
	v := e.of.eval(s, sc)
	if f, ok := v.(float64); ok {
		if e.minus {
			return -f
		}
		return f
	}
	b, ok := toBigInt(v)
	if !ok {
		requireDefined(v)
		throw("bad operand type for unary sign: '%s'", typeName(v))
	}
	if e.minus {
		b = new(big.Int).Neg(b)
	}
	return normalizeInt(b)
}

func (e *binaryExpr) eval(s *renderState, sc *scope) any {
	if e.op == "+" {
		return e.evalSum(s, sc)
	}
	a := e.a.eval(s, sc)
	b := e.b.eval(s, sc)
	s.line = e.line
	return s.applyOperator(e.op, a, b)
}

// applyOperator is Python's arithmetic on numbers and its operators on sequences.
func (s *renderState) applyOperator(op string, a, b any) any {
	s.payStep()
	requireDefined(a)
	switch x := a.(type) {
	case string:
		switch op {
		case "+":
			if y, ok := b.(string); ok {
				s.payBytes(len(x) + len(y))
				return x + y
			}
		case "*":
			if n, ok := repeatCount(b); ok {
				return s.repeatText(x, n)
			}
		case "%":
			return s.formatPercent(x, b)
		}
	case *listValue, *tupleValue:
		items, _ := sequenceItems(x)
		switch op {
		case "+":
			if more, ok := sequenceItems(b); ok && typeName(a) == typeName(b) {
				s.payBytes(16 * (len(items) + len(more)))
				return likeSequence(a, append(append([]any(nil), items...), more...))
			}
		case "*":
			if n, ok := repeatCount(b); ok {
				return likeSequence(a, s.repeatItems(items, n))
			}
		}
	default:
		_, isInt := toInteger(a)
		switch b.(type) {
		case string, *listValue, *tupleValue:
			if isInt && op == "*" {
				return s.applyOperator(op, b, a)
			}
		}
		if v, ok := s.applyNumeric(op, a, b); ok {
			return v
		}
	}
	requireDefined(b)
	throw("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	return nil
}

// repeatCount is the count of a repetition.
func repeatCount(v any) (int64, bool) {
	if _, ok := v.(*big.Int); ok {
		throw("cannot fit 'int' into an index-sized integer")
	}
	return toInteger(v)
}

// likeSequence returns items as the same kind of sequence as like.
func likeSequence(like any, items []any) any {
	if _, ok := like.(*tupleValue); ok {
		return &tupleValue{items}
	}
	return &listValue{items}
}

func (s *renderState) repeatText(text string, n int64) any {
	if n <= 0 || text == "" {
		return ""
	}
	if n > int64(s.bytes/len(text)) {
		s.checkRoom(-1)
	}
	s.payBytes(len(text) * int(n))
	return strings.Repeat(text, int(n))
}

func (s *renderState) repeatItems(items []any, n int64) []any {
	if n <= 0 || len(items) == 0 {
		return nil
	}
	if n > int64(s.bytes/16/len(items)) {
		s.checkRoom(-1)
	}
	s.payBytes(16 * len(items) * int(n))
	out := make([]any, 0, len(items)*int(n))
	for range n {
		out = append(out, items...)
	}
	return out
}

// applyNumeric computes on two numbers; ok is false for other values.
func (s *renderState) applyNumeric(op string, a, b any) (v any, ok bool) {
	if x, ok := a.(int64); ok {
		if y, ok := b.(int64); ok && op == "+" && x < 1<<62 && y < 1<<62 && x > -1<<62 && y > -1<<62 {
			return x + y, true
		}
	}
	p, pok := toBigInt(a)
	q, qok := toBigInt(b)
	if pok && qok && op != "/" && (op != "**" || q.Sign() >= 0) {
		return normalizeInt(integerOp(op, p, q)), true
	}
	if pok && qok && op == "/" && q.Sign() != 0 && max(p.BitLen(), q.BitLen()) > 53 {
		s.payRead(slowly * slowly * max(p.BitLen(), q.BitLen()))
		f, _ := new(big.Rat).SetFrac(p, q).Float64()
		if p.Sign() == 0 && q.Sign() < 0 {
			f = math.Copysign(0, -1)
		}
		if math.IsInf(f, 0) {
			throw("integer division result too large for a float")
		}
		return f, true
	}
	x, xok := toNumber(a)
	y, yok := toNumber(b)
	if !xok || !yok {
		return nil, false
	}
	return floatOp(op, x, y), true
}

// integerOp computes on integers; division rounds down, as in Python.
func integerOp(op string, a, b *big.Int) *big.Int {
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

func floatOp(op string, x, y float64) float64 {
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

func (e *attrExpr) eval(s *renderState, sc *scope) any {
	of := e.of.eval(s, sc)
	s.line = e.line
	s.payStep()
	requireDefined(of)
	if v, ok := s.getAttr(of, e.name); ok {
		return v
	}
	if d, ok := of.(*Dict); ok {
		if v, ok := d.getKey(e.name); ok {
			return v
		}
	}
	return missingAttr(of, e.name)
}

func missingAttr(of any, name string) any {
	if len(name) > maxHint {
		name = name[:maxHint]
	}
	return &undefinedValue{hint: "'" + typeName(of) + " object' has no attribute '" + name + "'"}
}

// maxHint bounds a name in an error.
const maxHint = 100

func (e *itemExpr) eval(s *renderState, sc *scope) any {
	of := e.of.eval(s, sc)
	key := e.key.eval(s, sc)
	s.line = e.line
	s.payStep()
	return s.getItem(of, key)
}

// getItem is of[key], or the attribute of that name.
func (s *renderState) getItem(of, key any) any {
	requireDefined(of)
	if cut, ok := key.(*sliceRange); ok {
		return s.sliceValue(of, cut)
	}
	if d, ok := of.(*Dict); ok {
		switch key.(type) {
		case *listValue, *Dict:
			return &undefinedValue{hint: "dict object has no such element"}
		}
		s.payKeyRead(key)
		if v, ok := d.getKey(key); ok {
			return v
		}
	} else if i, ok := toInteger(key); ok {
		if v, ok := s.itemAt(of, i); ok {
			return v
		}
	}
	if name, ok := key.(string); ok {
		if v, ok := s.getAttr(of, name); ok {
			return v
		}
		return missingAttr(of, name)
	}
	return &undefinedValue{hint: typeName(of) + " object has no such element"}
}

// itemAt is the item of a sequence at i, counted from the end if negative.
func (s *renderState) itemAt(of any, i int64) (any, bool) {
	switch of := of.(type) {
	case string:
		if i < 0 {
			i += s.lengthOf(of)
		}
		if i < 0 || i >= int64(len(of)) {
			return nil, false
		}
		s.payRead(slowly * int(i))
		for _, r := range of {
			if i == 0 {
				return string(r), true
			}
			i--
		}
		return nil, false
	case *rangeValue:
		if i < 0 {
			i += of.itemCount()
		}
		if i < 0 || i >= of.itemCount() {
			return nil, false
		}
		return of.itemAt(i), true
	}
	items, ok := sequenceItems(of)
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
type sliceRange struct{ parts [3]any }

func (e *sliceExpr) eval(s *renderState, sc *scope) any {
	cut := new(sliceRange)
	for i, p := range e.parts {
		if p != nil {
			cut.parts[i] = p.eval(s, sc)
		}
	}
	return cut
}

// sliceValue slices a sequence; strings by characters.
func (s *renderState) sliceValue(of any, cut *sliceRange) any {
	var n int64
	text, isText := of.(string)
	items, isItems := sequenceItems(of)
	r, isSpan := of.(*rangeValue)
	switch {
	case isText:
		s.payRead(slowly * len(text))
		s.payBytes(len(text))
		n = int64(utf8.RuneCountInString(text))
	case isItems:
		n = int64(len(items))
	case isSpan:
		n = r.itemCount()
	default:
		throw("'%s' object is not subscriptable with a slice", typeName(of))
	}
	start, step, count, ok := cut.resolveRange(n)
	if !ok {
		throw("slice indices must be integers or None")
	}
	if isText {
		return sliceText(text, start, step, count, n)
	}
	if isSpan {
		from, by := r.start+start*r.step, r.step*step
		return &rangeValue{from, from + count*by, by}
	}
	s.payBytes(16 * int(count))
	out := make([]any, count)
	for i := range out {
		out[i] = items[start+int64(i)*step]
	}
	return likeSequence(of, out)
}

// sliceText takes count of the n characters in text, from start by step.
func sliceText(text string, start, step, count, n int64) string {
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
func (c *sliceRange) resolveRange(n int64) (start, step, count int64, ok bool) {
	step = 1
	if c.parts[2] != nil {
		if step, ok = toInteger(c.parts[2]); !ok {
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
		v, ok := toInteger(c.parts[i])
		if !ok {
			return 0, 0, 0, false
		}
		if v < 0 {
			v += n
		}
		*to = max(low, min(v, high))
	}
	r := rangeValue{start, stop, step}
	return start, step, r.itemCount(), true
}

// callArgs are the arguments of a call.
type callArgs struct {
	pos []any
	kw  *Dict
}

func (a *argList) eval(s *renderState, sc *scope) *callArgs {
	out := &callArgs{kw: NewDict()}
	if len(a.items) > 0 {
		out.pos = s.evalAll(a.items, sc)
	}
	for i, name := range a.names {
		out.kw.putKey(name, a.named[i].eval(s, sc))
	}
	if a.star != nil {
		out.pos = append(out.pos, s.collectItems(a.star.eval(s, sc))...)
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
			if _, dup := out.kw.getKey(name); dup {
				throw("got multiple values for keyword argument '%s'", name)
			}
			out.kw.putKey(name, d.vals[i])
		}
	}
	return out
}

// bindParams matches arguments to parameters as Python does; missing ones are absentArg. A name which ends in
// "!" is required.
func (a *callArgs) bindParams(names ...string) []any {
	out := make([]any, len(names))
	if len(a.pos) > len(names) {
		throw("takes at most %d arguments (%d given)", len(names), len(a.pos))
	}
	used := 0
	for i, name := range names {
		name, required := strings.CutSuffix(name, "!")
		v, named := a.kw.getKey(name)
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
			out[i] = absentArg{}
		}
	}
	if used < a.kw.Len() {
		for _, k := range a.kw.keys {
			if !isListed(names, k.(string)) {
				throw("got an unexpected keyword argument '%s'", k)
			}
		}
	}
	return out
}

func isListed(names []string, name string) bool {
	for _, n := range names {
		if strings.TrimSuffix(n, "!") == name {
			return true
		}
	}
	return false
}

// absentArg is an argument which was not given.
type absentArg struct{}

func isGiven(v any) bool {
	_, none := v.(absentArg)
	return !none
}

func (e *callExpr) eval(s *renderState, sc *scope) any {
	callee := e.callee.eval(s, sc)
	a := e.args.eval(s, sc)
	s.line = e.line
	return s.callValue(callee, a)
}

func (s *renderState) callValue(callee any, a *callArgs) any {
	s.payStep()
	switch f := callee.(type) {
	case *functionValue:
		return f.call(s, a)
	case *macroValue:
		return f.callMacro(s, a)
	case *loopVar:
		if f.recurse == nil {
			throw("The loop must have the 'recursive' marker to be called recursively.")
		}
		return f.recurse(a.bindParams("iterable!")[0], f.depth+1)
	}
	requireDefined(callee)
	throw("'%s' object is not callable", typeName(callee))
	return nil
}

func (e *filterExpr) eval(s *renderState, sc *scope) any {
	return e.applyFilter(s, sc, e.of.eval(s, sc))
}

// applyFilter runs the filter on v, or on the result of its own operand for v.
func (e *filterExpr) applyFilter(s *renderState, sc *scope, v any) any {
	if inner, ok := e.of.(*filterExpr); ok && inner.isOpenChain() {
		v = inner.applyFilter(s, sc, v)
	}
	a := e.args.eval(s, sc)
	s.line = e.line
	s.payStep()
	if e.call == nil {
		throw("No filter named '%s'", e.name)
	}
	return e.call(s, v, a)
}

// isOpenChain reports whether the chain of filters starts with the body of a block.
func (e *filterExpr) isOpenChain() bool {
	for e.of != nil {
		inner, ok := e.of.(*filterExpr)
		if !ok {
			return false
		}
		e = inner
	}
	return true
}

func (e *testExpr) eval(s *renderState, sc *scope) any {
	v := e.of.eval(s, sc)
	a := e.args.eval(s, sc)
	s.line = e.line
	s.payStep()
	if e.call == nil {
		throw("No test named '%s'", e.name)
	}
	return e.call(s, v, a)
}
