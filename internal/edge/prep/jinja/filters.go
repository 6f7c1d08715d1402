package jinja

import (
	"html"
	"math"
	"math/big"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// orDefault returns v, or otherwise for a missing argument.
func orDefault(v, otherwise any) any {
	if isGiven(v) {
		return v
	}
	return otherwise
}

// textArg returns a string argument.
func textArg(v any) string {
	t, ok := v.(string)
	if !ok {
		requireDefined(v)
		throw("expected str, got %s", typeName(v))
	}
	return t
}

// attributeGetter returns a function which gets an attribute ("a.b", a number), in lower case unless
// sensitive. otherwise replaces a missing one, unless it is nil or absent.
func (s *renderState) attributeGetter(attribute, sensitive, otherwise any) func(v any) any {
	path := attributePath(orDefault(attribute, nil))
	otherwise = orDefault(otherwise, nil)
	fold := !isTruthy(orDefault(sensitive, false))
	return func(v any) any {
		for _, part := range path {
			v = s.getItem(v, part)
			if _, none := v.(*undefinedValue); none && otherwise != nil {
				v = otherwise
			}
		}
		if t, ok := v.(string); ok && fold {
			s.payBytes(len(t))
			s.payRead(slowly * len(t))
			return toLower(t)
		}
		return v
	}
}

// attributePath splits the name of an attribute at its points.
func attributePath(attribute any) []any {
	switch attribute := attribute.(type) {
	case nil:
		return nil
	case string:
		var path []any
		for _, part := range strings.Split(attribute, ".") {
			if i, err := strconv.ParseInt(part, 10, 64); err == nil && isDigits(part) {
				path = append(path, i)
			} else {
				path = append(path, part)
			}
		}
		return path
	}
	return []any{attribute}
}

// sortKeyGetter is attributeGetter for several attributes separated by commas: a list.
func (s *renderState) sortKeyGetter(attribute, sensitive any) func(v any) any {
	each := []any{orDefault(attribute, nil)}
	if t, ok := each[0].(string); ok {
		each = nil
		for _, one := range strings.Split(t, ",") {
			each = append(each, one)
		}
	}
	keys := make([]func(any) any, len(each))
	for i, one := range each {
		keys[i] = s.attributeGetter(one, sensitive, nil)
	}
	return func(v any) any {
		s.payBytes(16 * len(keys))
		out := make([]any, len(keys))
		for i, key := range keys {
			out[i] = key(v)
		}
		return &listValue{out}
	}
}

// iterateLazily iterates over v, starting at the first call.
func (s *renderState) iterateLazily(v any) func() (any, bool) {
	var next func() (any, bool)
	return func() (any, bool) {
		if next == nil {
			next = s.iterateValue(v)
		}
		return next()
	}
}

// boolArg is an argument which Python accepts as true or false if it is an integer.
func boolArg(v any) bool {
	n, ok := toInteger(orDefault(v, false))
	if !ok {
		throw("'%s' object cannot be interpreted as an integer", typeName(v))
	}
	return n != 0
}

// sortItems sorts stably.
func (s *renderState) sortItems(items []any, key func(any) any, reverse bool) any {
	keys := make([]any, len(items))
	order := make([]int, len(items))
	for i, item := range items {
		keys[i], order[i] = key(item), i
	}
	sort.SliceStable(order, func(i, j int) bool {
		if reverse {
			return s.compareOrder("<", keys[order[j]], keys[order[i]]) < 0
		}
		return s.compareOrder("<", keys[order[i]], keys[order[j]]) < 0
	})
	out := make([]any, len(items))
	for i, from := range order {
		out[i] = items[from]
	}
	return &listValue{out}
}

func filterDictsort(s *renderState, v any, b []any) any {
	d, ok := v.(*Dict)
	if !ok {
		requireDefined(v)
		throw("'%s' object has no attribute 'items'", typeName(v))
	}
	at := int64(0)
	switch orDefault(b[1], "key") {
	case "key":
	case "value":
		at = 1
	default:
		throw(`You can only sort by either "key" or "value"`)
	}
	return s.sortItems(s.collectItems(&dictView{"dict_items", d}), s.attributeGetter(at, b[0], nil), boolArg(b[2]))
}

func filterGroupby(s *renderState, v any, b []any) any {
	folded, plain := s.attributeGetter(b[0], b[2], b[1]), s.attributeGetter(b[0], true, b[1])
	out := &listValue{}
	var last any
	for _, item := range s.sortItems(s.collectItems(v), folded, false).(*listValue).items {
		key := folded(item)
		if n := len(out.items); n > 0 && s.isEqual(last, key, 0) {
			g := out.items[n-1].(*groupPair)
			g.list.items = append(g.list.items, item)
			continue
		}
		last = key
		out.items = append(out.items, &groupPair{plain(item), &listValue{[]any{item}}})
	}
	return out
}

// iterateReversed is Python's reversed().
func (s *renderState) iterateReversed(v any) func() (any, bool) {
	items := s.collectItems(v)
	i := len(items)
	return func() (any, bool) {
		s.payStep()
		if i--; i < 0 {
			return nil, false
		}
		return items[i], true
	}
}

func filterBatch(s *renderState, v any, b []any) any {
	n, _ := toInteger(b[0])
	next := s.iterateLazily(v)
	done := false
	return newIterator(func() (any, bool) {
		var row []any
		for !done && int64(len(row)) < n {
			item, ok := next()
			if done = !ok; ok {
				row = append(row, item)
			}
		}
		if row == nil {
			return nil, false
		}
		if fill := orDefault(b[1], nil); fill != nil && int64(len(row)) < n {
			row = append(row, s.repeatItems([]any{fill}, n-int64(len(row)))...)
		}
		return &listValue{row}, true
	})
}

func filterSlice(s *renderState, v any, b []any) any {
	var items []any
	var n, size, extra int64
	i, at := int64(-1), int64(0)
	return newIterator(func() (any, bool) {
		s.payStep()
		if i++; i == 0 {
			var ok bool
			items = s.collectItems(v)
			if n, ok = toInteger(b[0]); !ok || n == 0 {
				throw("slices must be a number that is not 0")
			}
			size, extra = floorDivide(int64(len(items)), n)
		}
		if i >= n {
			return nil, false
		}
		end := at + size
		if i < extra {
			end++
		}
		row := append([]any(nil), items[at:end]...)
		if fill := orDefault(b[1], nil); fill != nil && i >= extra {
			row = append(row, fill)
		}
		at = end
		return &listValue{row}, true
	})
}

// floorDivide divides as Python does.
func floorDivide(a, n int64) (quotient, rest int64) {
	if quotient, rest = a/n, a%n; rest != 0 && (rest < 0) != (n < 0) {
		quotient, rest = quotient-1, rest+n
	}
	return quotient, rest
}

// changeCase pays for a change of case and makes it.
func (s *renderState) changeCase(t string, change func(string) string) any {
	s.payBytes(3 * len(t))
	s.payRead(slowly * len(t))
	return change(t)
}

// capitalizeWords is the filter title: runs of characters which may precede a word, and words, separately.
func capitalizeWords(t string) string {
	var b strings.Builder
	for t != "" {
		end := strings.IndexFunc(t, func(r rune) bool { return isBeforeWord(r) != isBeforeWord(firstRune(t)) })
		if end < 0 {
			end = len(t)
		}
		n := utf8.RuneLen(firstRune(t))
		b.WriteString(toUpper(t[:n]) + toLower(t[n:end]))
		t = t[end:]
	}
	return b.String()
}

func firstRune(t string) rune {
	r, _ := utf8.DecodeRuneInString(t)
	return r
}

func isBeforeWord(r rune) bool { return strings.ContainsRune("-({[<", r) || isSpace(r) }

func toFloat(v any) (float64, bool) {
	t, ok := v.(string)
	if !ok {
		return toNumber(v)
	}
	t = strings.ReplaceAll(strings.TrimFunc(t, isSpace), "_", "")
	if strings.ContainsAny(t, "xXpP") {
		return 0, false
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

func filterInt(s *renderState, v any, b []any) any {
	s.payKeyRead(v)
	requireDefined(v)
	base, _ := toInteger(orDefault(b[1], int64(10)))
	if t, ok := v.(string); ok && base >= 0 && base <= 36 && base != 1 && len(t) < 1000 {
		t = strings.ToLower(strings.TrimFunc(t, isSpace))
		prefix := map[int64]string{2: "0b", 8: "0o", 16: "0x"}[base]
		if prefix != "" {
			t = strings.Replace(t, prefix, "", 1)
		}
		if n, ok := new(big.Int).SetString(t, int(base)); ok && !strings.Contains(t, "_") {
			return normalizeInt(n)
		}
	}
	if n, ok := toBigInt(v); ok {
		return normalizeInt(n)
	}
	if f, ok := toFloat(v); ok && !math.IsInf(f, 0) && !math.IsNaN(f) {
		n, _ := new(big.Float).SetFloat64(f).Int(nil)
		return normalizeInt(n)
	}
	return orDefault(b[0], int64(0))
}

func filterJoin(s *renderState, v any, b []any) any {
	sep := s.toString(orDefault(b[0], ""))
	key := func(v any) any { return v }
	if orDefault(b[1], nil) != nil {
		key = s.attributeGetter(b[1], true, nil)
	}
	var out strings.Builder
	next := s.iterateValue(v)
	for first := true; ; first = false {
		item, ok := next()
		if !ok {
			s.payBytes(out.Len())
			return out.String()
		}
		if !first {
			out.WriteString(sep)
		}
		out.WriteString(s.toString(key(item)))
		s.checkRoom(out.Len())
	}
}

func filterIndent(s *renderState, v any, b []any) any {
	pad := ""
	switch w := orDefault(b[0], int64(4)).(type) {
	case string:
		pad = w
	default:
		n, ok := toInteger(w)
		if !ok {
			throw("can't multiply sequence by non-int of type '%s'", typeName(w))
		}
		pad = s.repeatText(" ", n).(string)
	}
	s.payRead(slowly * len(textArg(v)))
	s.payBytes(16 * strings.Count(textArg(v), "\n"))
	lines := splitLines(textArg(v)+"\n", false)
	var out strings.Builder
	for i, line := range lines {
		if i > 0 {
			out.WriteByte('\n')
		}
		if i == 0 && isTruthy(orDefault(b[1], false)) || i > 0 && (line != "" || isTruthy(orDefault(b[2], false))) {
			out.WriteString(pad)
		}
		out.WriteString(line)
		s.checkRoom(out.Len())
	}
	s.payBytes(out.Len())
	return out.String()
}

func filterMap(s *renderState, v any, a *callArgs) any {
	return s.generateMapped(v, func() func(item any) (any, bool) {
		f := s.mapFunction(a)
		return func(item any) (any, bool) { return f(item), true }
	})
}

// generateMapped is a generator over the results of prepare's function for the items of v. As in Python
// nothing is computed or checked before it is iterated, and nothing at all if v is false.
func (s *renderState) generateMapped(v any, prepare func() func(item any) (any, bool)) any {
	var next func() (any, bool)
	var f func(item any) (any, bool)
	return newIterator(func() (any, bool) {
		if !isTruthy(v) {
			return nil, false
		}
		if next == nil {
			f = prepare()
			next = s.iterateValue(v)
		}
		for {
			item, ok := next()
			if !ok {
				return nil, false
			}
			if out, keep := f(item); keep {
				return out, true
			}
		}
	})
}

func (s *renderState) mapFunction(a *callArgs) func(v any) any {
	if attribute, ok := a.kw.getKey("attribute"); ok && len(a.pos) == 0 {
		for _, k := range a.kw.keys {
			if k != "attribute" && k != "default" {
				throw("Unexpected keyword argument '%s'", k)
			}
		}
		otherwise, _ := a.kw.getKey("default")
		return s.attributeGetter(attribute, true, otherwise)
	}
	if len(a.pos) == 0 {
		throw("map requires a filter argument")
	}
	name := textArg(a.pos[0])
	filter := s.builtins.filters[name]
	rest := &callArgs{a.pos[1:], a.kw}
	return func(v any) any {
		s.payStep()
		if filter == nil {
			throw("No filter named '%s'", name)
		}
		return filter(s, v, rest)
	}
}

// selectItems keeps the items for which a test, the first argument, is as wanted: of the item or, if byAttr is
// set, of the attribute which is named before the test.
func (s *renderState) selectItems(v any, a *callArgs, keep, byAttr bool) any {
	return s.generateMapped(v, func() func(item any) (any, bool) {
		key := func(v any) any { return v }
		pos := a.pos
		if byAttr {
			if len(pos) == 0 {
				throw("Missing parameter for attribute name")
			}
			key = s.attributeGetter(pos[0], true, nil)
			pos = pos[1:]
		}
		holds := isTruthy
		if len(pos) > 0 {
			name := textArg(pos[0])
			test := s.builtins.tests[name]
			rest := &callArgs{pos[1:], a.kw}
			holds = func(v any) bool {
				s.payStep()
				if test == nil {
					throw("No test named '%s'", name)
				}
				return test(s, v, rest)
			}
		}
		return func(item any) (any, bool) { return item, holds(key(item)) == keep }
	})
}

// pickBy returns the filter which keeps the item with the key that compares so with all others.
func pickBy(op string) filterFunc {
	return bound(func(s *renderState, v any, b []any) any {
		next, key := s.iterateValue(v), s.attributeGetter(b[1], b[0], nil)
		best, ok := next()
		if !ok {
			return &undefinedValue{hint: "No aggregated item, sequence was empty."}
		}
		least := key(best)
		for item, ok := next(); ok; item, ok = next() {
			if k := key(item); s.compareValues(op, k, least) {
				best, least = item, k
			}
		}
		return best
	}, "case_sensitive", "attribute")
}

func filterUnique(s *renderState, v any, b []any) any {
	next, key := s.iterateLazily(v), s.attributeGetter(b[1], b[0], nil)
	seen := NewDict()
	return newIterator(func() (any, bool) {
		for {
			item, ok := next()
			if !ok {
				return nil, false
			}
			k := key(item)
			s.payKeyRead(k)
			if _, dup := seen.getKey(k); !dup {
				s.payBytes(64)
				seen.putKey(k, true)
				return item, true
			}
		}
	})
}

func filterRound(s *renderState, v any, b []any) any {
	n, ok := toInteger(orDefault(b[0], int64(0)))
	x, isNumber := toNumber(v)
	if !ok || !isNumber || n > 300 || n < -300 {
		requireDefined(v)
		throw("cannot round %s", typeName(v))
	}
	scale := math.Pow(10, float64(n))
	switch orDefault(b[1], "common") {
	case "common":
		if i, ok := toBigInt(v); ok {
			return normalizeInt(roundInt(i, n))
		}
		if n > 0 {
			f, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'f', int(n), 64), 64)
			return f
		}
		return math.RoundToEven(x*scale) / scale
	case "ceil":
		return (math.Ceil(requireFinite(x)*scale) + 0) / scale
	case "floor":
		return (math.Floor(requireFinite(x)*scale) + 0) / scale
	}
	throw("method must be common, ceil or floor")
	return nil
}

// roundInt rounds to a power of ten, halves to even.
func roundInt(i *big.Int, precision int64) *big.Int {
	if precision >= 0 {
		return i
	}
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(-precision), nil)
	whole := integerOp("//", i, scale)
	rest := integerOp("%", i, scale)
	switch rest.Lsh(rest, 1).Cmp(scale) {
	case 1:
		whole.Add(whole, big.NewInt(1))
	case 0:
		whole.Add(whole, big.NewInt(int64(whole.Bit(0))))
	}
	return whole.Mul(whole, scale)
}

func requireFinite(x float64) float64 {
	if math.IsInf(x, 0) || math.IsNaN(x) {
		throw("cannot convert float infinity or NaN to integer")
	}
	return x
}

func stripTags(t string) string {
	var b strings.Builder
	for t != "" {
		at := strings.IndexByte(t, '<')
		if at < 0 {
			break
		}
		close := ">"
		if strings.HasPrefix(t[at:], "<!--") {
			close = "-->"
		}
		end := strings.Index(t[at:], close)
		if end < 0 {
			break
		}
		b.WriteString(t[:at])
		t = t[at+end+len(close):]
	}
	b.WriteString(t)
	return html.UnescapeString(strings.Join(strings.FieldsFunc(b.String(), isSpace), " "))
}

func filterTruncate(s *renderState, v any, b []any) any {
	limit, ok := toNumber(orDefault(b[0], int64(255)))
	if !ok {
		throw("the length must be a number, not %s", typeName(b[0]))
	}
	leeway := 5.0
	if orDefault(b[3], nil) != nil {
		if leeway, ok = toNumber(b[3]); !ok {
			throw("the leeway must be a number, not %s", typeName(b[3]))
		}
	}
	end := orDefault(b[2], "...")
	if limit < float64(s.lengthOf(end)) || leeway < 0 {
		throw("expected length >= %d, got %v", s.lengthOf(end), limit)
	}
	size := s.lengthOf(v)
	if float64(size) <= limit+leeway {
		return v
	}
	n := indexArg(orDefault(b[0], int64(255)))
	if _, isText := v.(string); !isText && isTruthy(orDefault(b[1], false)) {
		return s.applyOperator("+", s.sliceValue(v, &sliceRange{[3]any{nil, n - s.lengthOf(end), nil}}), end)
	}
	t := textArg(v)
	t = sliceText(t, 0, 1, min(n-s.lengthOf(end), size), size)
	if at := strings.LastIndexByte(t, ' '); at >= 0 && !isTruthy(orDefault(b[1], false)) {
		t = t[:at]
	}
	return t + textArg(end)
}

func filterURLEncode(s *renderState, v any, _ []any) any {
	quote := func(v any, plus bool) string {
		out := strings.ReplaceAll(url.QueryEscape(s.toString(v)), "%7E", "~")
		if !plus {
			out = strings.ReplaceAll(strings.ReplaceAll(out, "+", "%20"), "%2F", "/")
		}
		s.payBytes(len(out))
		return out
	}
	if t, ok := v.(string); ok {
		return quote(t, false)
	}
	if d, ok := v.(*Dict); ok {
		v = &dictView{"dict_items", d}
	}
	if !isIterable(v) {
		return quote(v, false)
	}
	var parts []string
	for _, item := range s.collectItems(v) {
		pair := s.collectItems(item)
		if len(pair) != 2 {
			throw("not enough values to unpack (expected 2, got %d)", len(pair))
		}
		parts = append(parts, quote(pair[0], true)+"="+quote(pair[1], true))
	}
	return strings.Join(parts, "&")
}

func filterFilesizeFormat(s *renderState, v any, b []any) any {
	n, ok := toFloat(v)
	if !ok {
		requireDefined(v)
		throw("could not convert %s to float", typeName(v))
	}
	base, suffix := 1000.0, "B"
	prefixes := "kMGTPEZY"
	if isTruthy(orDefault(b[0], false)) {
		base, suffix, prefixes = 1024, "iB", "KMGTPEZY"
	}
	switch {
	case n == 1:
		return "1 Byte"
	case n < base:
		return strconv.FormatFloat(math.Trunc(requireFinite(n))+0, 'f', 0, 64) + " Bytes"
	}
	unit := base
	for i := range prefixes {
		// Above 10^22 products of thousands are not the nearest floats.
		if unit *= base; base == 1000 {
			unit = math.Pow10(3 * (i + 2))
		}
		if n < unit || i == len(prefixes)-1 {
			return s.formatValue(base*n/unit, ".1f") + " " + prefixes[i:i+1] + suffix
		}
	}
	return ""
}

func filterAttr(s *renderState, v any, b []any) any {
	name := textArg(b[0])
	if !strings.HasPrefix(name, "__") || !strings.HasSuffix(name, "__") {
		requireDefined(v)
	}
	if out, ok := s.getAttr(v, name); ok {
		return out
	}
	return missingAttr(v, name)
}

// firstItem returns the filter of the first item which an iteration returns.
func firstItem(which string, iterate func(*renderState, any) func() (any, bool)) filterFunc {
	return bound(func(s *renderState, v any, _ []any) any {
		if item, ok := iterate(s, v)(); ok {
			return item
		}
		return &undefinedValue{hint: "No " + which + " item, sequence was empty."}
	})
}

// filterFloat checks its arguments only if it needs them.
func filterFloat(s *renderState, v any, a *callArgs) any {
	s.payKeyRead(v)
	if f, ok := toFloat(v); ok {
		return f
	}
	requireDefined(v)
	return orDefault(a.bindParams("default")[0], 0.0)
}

func filterFormat(s *renderState, v any, a *callArgs) any {
	if a.kw.Len() > 0 {
		return s.formatPercent(s.toString(v), a.kw)
	}
	return s.formatPercent(s.toString(v), &tupleValue{a.pos})
}

func filterItems(_ *renderState, v any, _ []any) any {
	d, ok := v.(*Dict)
	if !ok {
		if _, none := v.(*undefinedValue); !none {
			return newIterator(func() (any, bool) {
				throw("Can only get item pairs from a mapping.")
				return nil, false
			})
		}
		d = NewDict()
	}
	i := -1
	return newIterator(func() (any, bool) {
		if i++; i >= d.Len() {
			return nil, false
		}
		return &tupleValue{[]any{d.keys[i], d.vals[i]}}, true
	})
}

func filterReplace(s *renderState, v any, b []any) any {
	n := int64(-1)
	if orDefault(b[2], nil) != nil {
		n = indexArg(b[2])
	}
	return s.replaceText(s.toString(v), s.toString(b[0]), s.toString(b[1]), n)
}

func filterReverse(s *renderState, v any, _ []any) any {
	switch v := v.(type) {
	case string:
		s.payBytes(len(v))
		s.payRead(slowly * len(v))
		return sliceText(v, s.lengthOf(v)-1, -1, s.lengthOf(v), s.lengthOf(v))
	case *iterator, *loopVar:
		items := s.collectItems(v)
		slices.Reverse(items)
		return &listValue{items}
	}
	return newIterator(s.iterateReversed(v))
}

func filterSum(s *renderState, v any, b []any) any {
	total := orDefault(b[1], int64(0))
	if _, ok := total.(string); ok {
		throw("sum() can't sum strings [use ''.join(seq) instead]")
	}
	next, key := s.iterateValue(v), s.attributeGetter(b[0], true, nil)
	for item, ok := next(); ok; item, ok = next() {
		total = s.applyOperator("+", total, key(item))
	}
	return total
}

// payWords pays for reading a text by characters and for what is made of its words.
func (s *renderState) payWords(t string) string {
	s.payRead(slowly * len(t))
	s.payBytes(8 * len(t))
	return t
}

func filterLength(s *renderState, v any, _ []any) any { return s.lengthOf(v) }

func filterDefault(_ *renderState, v any, b []any) any {
	if isOf[*undefinedValue](v) || isTruthy(orDefault(b[1], false)) && !isTruthy(v) {
		return orDefault(b[0], "")
	}
	return v
}

func escapeText(s *renderState, t string) any { return s.escapeHTML(t) }
