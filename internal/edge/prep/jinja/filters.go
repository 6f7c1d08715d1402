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

// filterFunc is a filter: v is the value before the bar.
type filterFunc func(s *state, v any, a *args) any

// lookupFilter returns a filter of the built-in set, nil if there is none.
func filterNamed(name string) filterFunc {
	switch name {
	case "abs":
		return func(s *state, v any, a *args) any {
			a.bind()
			if truth(s.holds("<", v, int64(0))) {
				return s.arith("-", int64(0), v)
			}
			return s.arith("+", v, int64(0))
		}
	case "attr":
		return func(s *state, v any, a *args) any {
			name := text(a.bind("name!")[0])
			if !strings.HasPrefix(name, "__") || !strings.HasSuffix(name, "__") {
				undefined(v)
			}
			if out, ok := s.attr(v, name); ok {
				return out
			}
			return missing(v, name)
		}
	case "batch":
		return batch
	case "capitalize", "upper", "lower", "title":
		return func(s *state, v any, a *args) any {
			a.bind()
			return changeCase(s, name, s.str(v))
		}
	case "center":
		return func(s *state, v any, a *args) any {
			b := a.bind("width")
			return s.method(s.str(v), "center", &args{pos: []any{or(b[0], int64(80))}, kw: NewDict()})
		}
	case "count", "length":
		return func(s *state, v any, a *args) any {
			a.bind()
			return s.length(v)
		}
	case "d", "default":
		return func(_ *state, v any, a *args) any {
			b := a.bind("default_value", "boolean")
			if _, ok := v.(*undef); ok || truth(or(b[1], false)) && !truth(v) {
				return or(b[0], "")
			}
			return v
		}
	case "dictsort":
		return dictsort
	case "e", "escape", "forceescape":
		return func(s *state, v any, a *args) any {
			a.bind()
			return s.escape(s.str(v))
		}
	case "first":
		return func(s *state, v any, a *args) any {
			a.bind()
			if item, ok := s.iterate(v)(); ok {
				return item
			}
			return &undef{hint: "No first item, sequence was empty."}
		}
	case "last":
		return func(s *state, v any, a *args) any {
			a.bind()
			next := s.reversed(v)
			if item, ok := next(); ok {
				return item
			}
			return &undef{hint: "No last item, sequence was empty."}
		}
	case "float":
		return func(s *state, v any, a *args) any {
			s.readKey(v)
			if f, ok := toFloat(v); ok {
				return f
			}
			undefined(v)
			return or(a.bind("default")[0], 0.0)
		}
	case "format":
		return func(s *state, v any, a *args) any {
			if a.kw.Len() > 0 {
				return s.percent(s.str(v), a.kw)
			}
			return s.percent(s.str(v), &tuple{a.pos})
		}
	case "groupby":
		return groupby
	case "indent":
		return indent
	case "int":
		return toInt
	case "join":
		return join
	case "list":
		return func(s *state, v any, a *args) any {
			a.bind()
			return &list{s.collect(v)}
		}
	case "items":
		return func(_ *state, v any, a *args) any {
			a.bind()
			d, ok := v.(*Dict)
			if !ok {
				if _, none := v.(*undef); !none {
					return generate(func() (any, bool) {
						throw("Can only get item pairs from a mapping.")
						return nil, false
					})
				}
				d = NewDict()
			}
			i := -1
			return generate(func() (any, bool) {
				if i++; i >= d.Len() {
					return nil, false
				}
				return &tuple{[]any{d.keys[i], d.vals[i]}}, true
			})
		}
	case "map":
		return mapped
	case "min", "max":
		return func(s *state, v any, a *args) any { return s.extreme(name, v, a) }
	case "pprint":
		return pprint
	case "select", "reject", "selectattr", "rejectattr":
		return func(s *state, v any, a *args) any {
			return selected(s, v, a, strings.HasPrefix(name, "select"), strings.HasSuffix(name, "attr"))
		}
	case "replace":
		return func(s *state, v any, a *args) any {
			b := a.bind("old!", "new!", "count")
			n, ok := integer(or(b[2], int64(-1)))
			if b[2] == nil {
				n, ok = -1, true
			}
			if !ok {
				throw("'%s' object cannot be interpreted as an integer", typeName(b[2]))
			}
			return s.replace(s.str(v), s.str(b[0]), s.str(b[1]), n)
		}
	case "reverse":
		return func(s *state, v any, a *args) any {
			a.bind()
			if t, ok := v.(string); ok {
				s.spend(len(t))
				s.read(slowly * len(t))
				return cutText(t, s.length(t)-1, -1, s.length(t), s.length(t))
			}
			switch v.(type) {
			case *iterator, *loop:
				items := s.collect(v)
				slices.Reverse(items)
				return &list{items}
			}
			return generate(s.reversed(v))
		}
	case "round":
		return round
	case "safe", "string":
		return func(s *state, v any, a *args) any {
			a.bind()
			return s.str(v)
		}
	case "slice":
		return sliced
	case "sort":
		return func(s *state, v any, a *args) any {
			b := a.bind("reverse", "case_sensitive", "attribute")
			return s.sorted(s.collect(v), s.sortKey(b[2], b[1]), flag(b[0]))
		}
	case "striptags":
		return func(s *state, v any, a *args) any {
			a.bind()
			t := s.str(v)
			s.read(slowly * len(t))
			s.spend(8 * len(t))
			return striptags(t)
		}
	case "sum":
		return func(s *state, v any, a *args) any {
			b := a.bind("attribute", "start")
			total := or(b[1], int64(0))
			if _, ok := total.(string); ok {
				throw("sum() can't sum strings [use ''.join(seq) instead]")
			}
			next, key := s.iterate(v), s.keyOf(b[0], true, nil)
			for item, ok := next(); ok; item, ok = next() {
				total = s.arith("+", total, key(item))
			}
			return total
		}
	case "tojson":
		return tojson
	case "trim":
		return func(s *state, v any, a *args) any {
			b := a.bind("chars")
			return s.method(s.str(v), "strip", &args{pos: []any{or(b[0], nil)}, kw: NewDict()})
		}
	case "truncate":
		return truncate
	case "unique":
		return unique
	case "urlencode":
		return urlencode
	case "urlize":
		return urlize
	case "wordwrap":
		return wordwrap
	case "xmlattr":
		return xmlattr
	case "wordcount":
		return func(s *state, v any, a *args) any {
			a.bind()
			t := s.str(v)
			s.read(slowly * len(t))
			s.spend(8 * len(t))
			return int64(len(strings.FieldsFunc(t, func(r rune) bool { return !wordRune(r) })))
		}
	case "filesizeformat":
		return filesize
	}
	return nil
}

// orDefault returns v, or otherwise for a missing argument.
func or(v, otherwise any) any {
	if given(v) {
		return v
	}
	return otherwise
}

// textArg returns a string argument.
func text(v any) string {
	t, ok := v.(string)
	if !ok {
		undefined(v)
		throw("expected str, got %s", typeName(v))
	}
	return t
}

// attributeGetter returns a function which gets an attribute ("a.b", a number), in lower case unless
// sensitive. otherwise replaces a missing one, unless it is nil or absent.
func (s *state) keyOf(attribute, sensitive, otherwise any) func(v any) any {
	path := attributePath(or(attribute, nil))
	otherwise = or(otherwise, nil)
	fold := !truth(or(sensitive, false))
	return func(v any) any {
		for _, part := range path {
			v = s.item(v, part)
			if _, none := v.(*undef); none && otherwise != nil {
				v = otherwise
			}
		}
		if t, ok := v.(string); ok && fold {
			s.spend(len(t))
			s.read(slowly * len(t))
			return lower(t)
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
			if i, err := strconv.ParseInt(part, 10, 64); err == nil && digits(part) {
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
func (s *state) sortKey(attribute, sensitive any) func(v any) any {
	each := []any{or(attribute, nil)}
	if t, ok := each[0].(string); ok {
		each = nil
		for _, one := range strings.Split(t, ",") {
			each = append(each, one)
		}
	}
	keys := make([]func(any) any, len(each))
	for i, one := range each {
		keys[i] = s.keyOf(one, sensitive, nil)
	}
	return func(v any) any {
		s.spend(16 * len(keys))
		out := make([]any, len(keys))
		for i, key := range keys {
			out[i] = key(v)
		}
		return &list{out}
	}
}

// iterateLazily iterates over v, starting at the first call.
func (s *state) lazy(v any) func() (any, bool) {
	var next func() (any, bool)
	return func() (any, bool) {
		if next == nil {
			next = s.iterate(v)
		}
		return next()
	}
}

// boolArg is an argument which Python accepts as true or false if it is an integer.
func flag(v any) bool {
	n, ok := integer(or(v, false))
	if !ok {
		throw("'%s' object cannot be interpreted as an integer", typeName(v))
	}
	return n != 0
}

// sortItems sorts stably.
func (s *state) sorted(items []any, key func(any) any, reverse bool) any {
	keys := make([]any, len(items))
	order := make([]int, len(items))
	for i, item := range items {
		keys[i], order[i] = key(item), i
	}
	sort.SliceStable(order, func(i, j int) bool {
		if reverse {
			return s.compare("<", keys[order[j]], keys[order[i]]) < 0
		}
		return s.compare("<", keys[order[i]], keys[order[j]]) < 0
	})
	out := make([]any, len(items))
	for i, from := range order {
		out[i] = items[from]
	}
	return &list{out}
}

func dictsort(s *state, v any, a *args) any {
	b := a.bind("case_sensitive", "by", "reverse")
	d, ok := v.(*Dict)
	if !ok {
		undefined(v)
		throw("'%s' object has no attribute 'items'", typeName(v))
	}
	at := int64(0)
	switch or(b[1], "key") {
	case "key":
	case "value":
		at = 1
	default:
		throw(`You can only sort by either "key" or "value"`)
	}
	return s.sorted(s.collect(&view{"dict_items", d}), s.keyOf(at, b[0], nil), flag(b[2]))
}

func groupby(s *state, v any, a *args) any {
	b := a.bind("attribute!", "default", "case_sensitive")
	folded, plain := s.keyOf(b[0], b[2], b[1]), s.keyOf(b[0], true, b[1])
	out := &list{}
	var last any
	for _, item := range s.sorted(s.collect(v), folded, false).(*list).items {
		key := folded(item)
		if n := len(out.items); n > 0 && s.equal(last, key, 0) {
			g := out.items[n-1].(*group)
			g.list.items = append(g.list.items, item)
			continue
		}
		last = key
		out.items = append(out.items, &group{plain(item), &list{[]any{item}}})
	}
	return out
}

// iterateReversed is Python's reversed().
func (s *state) reversed(v any) func() (any, bool) {
	items := s.collect(v)
	i := len(items)
	return func() (any, bool) {
		s.step()
		if i--; i < 0 {
			return nil, false
		}
		return items[i], true
	}
}

func batch(s *state, v any, a *args) any {
	b := a.bind("linecount!", "fill_with")
	n, _ := integer(b[0])
	next := s.lazy(v)
	done := false
	return generate(func() (any, bool) {
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
		if fill := or(b[1], nil); fill != nil && int64(len(row)) < n {
			row = append(row, s.repeatItems([]any{fill}, n-int64(len(row)))...)
		}
		return &list{row}, true
	})
}

func sliced(s *state, v any, a *args) any {
	b := a.bind("slices!", "fill_with")
	var items []any
	var n, size, extra int64
	i, at := int64(-1), int64(0)
	return generate(func() (any, bool) {
		s.step()
		if i++; i == 0 {
			var ok bool
			items = s.collect(v)
			if n, ok = integer(b[0]); !ok || n == 0 {
				throw("slices must be a number that is not 0")
			}
			size, extra = floorDiv(int64(len(items)), n)
		}
		if i >= n {
			return nil, false
		}
		end := at + size
		if i < extra {
			end++
		}
		row := append([]any(nil), items[at:end]...)
		if fill := or(b[1], nil); fill != nil && i >= extra {
			row = append(row, fill)
		}
		at = end
		return &list{row}, true
	})
}

// floorDivide divides as Python does.
func floorDiv(a, n int64) (quotient, rest int64) {
	if quotient, rest = a/n, a%n; rest != 0 && (rest < 0) != (n < 0) {
		quotient, rest = quotient-1, rest+n
	}
	return quotient, rest
}

func changeCase(s *state, how, t string) any {
	s.spend(3 * len(t))
	s.read(slowly * len(t))
	switch how {
	case "upper":
		return upper(t)
	case "lower":
		return lower(t)
	case "capitalize":
		return capital(t)
	}
	// Runs of characters which may precede a word, and words, separately.
	var b strings.Builder
	for t != "" {
		end := strings.IndexFunc(t, func(r rune) bool { return beforeWord(r) != beforeWord(first(t)) })
		if end < 0 {
			end = len(t)
		}
		n := utf8.RuneLen(first(t))
		b.WriteString(upper(t[:n]) + lower(t[n:end]))
		t = t[end:]
	}
	return b.String()
}

func first(t string) rune {
	r, _ := utf8.DecodeRuneInString(t)
	return r
}

func beforeWord(r rune) bool { return strings.ContainsRune("-({[<", r) || space(r) }

func toFloat(v any) (float64, bool) {
	t, ok := v.(string)
	if !ok {
		return number(v)
	}
	t = strings.ReplaceAll(strings.TrimFunc(t, space), "_", "")
	if strings.ContainsAny(t, "xXpP") {
		return 0, false
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

func toInt(s *state, v any, a *args) any {
	b := a.bind("default", "base")
	s.readKey(v)
	undefined(v)
	base, _ := integer(or(b[1], int64(10)))
	if t, ok := v.(string); ok && base >= 0 && base <= 36 && base != 1 && len(t) < 1000 {
		t = strings.ToLower(strings.TrimFunc(t, space))
		prefix := map[int64]string{2: "0b", 8: "0o", 16: "0x"}[base]
		if prefix != "" {
			t = strings.Replace(t, prefix, "", 1)
		}
		if n, ok := new(big.Int).SetString(t, int(base)); ok && !strings.Contains(t, "_") {
			return small(n)
		}
	}
	if n, ok := bigInt(v); ok {
		return small(n)
	}
	if f, ok := toFloat(v); ok && !math.IsInf(f, 0) && !math.IsNaN(f) {
		n, _ := new(big.Float).SetFloat64(f).Int(nil)
		return small(n)
	}
	return or(b[0], int64(0))
}

func join(s *state, v any, a *args) any {
	b := a.bind("d", "attribute")
	sep := s.str(or(b[0], ""))
	key := func(v any) any { return v }
	if or(b[1], nil) != nil {
		key = s.keyOf(b[1], true, nil)
	}
	var out strings.Builder
	next := s.iterate(v)
	for first := true; ; first = false {
		item, ok := next()
		if !ok {
			s.spend(out.Len())
			return out.String()
		}
		if !first {
			out.WriteString(sep)
		}
		out.WriteString(s.str(key(item)))
		s.room(out.Len())
	}
}

func indent(s *state, v any, a *args) any {
	b := a.bind("width", "first", "blank")
	pad := ""
	switch w := or(b[0], int64(4)).(type) {
	case string:
		pad = w
	default:
		n, ok := integer(w)
		if !ok {
			throw("can't multiply sequence by non-int of type '%s'", typeName(w))
		}
		pad = s.repeat(" ", n).(string)
	}
	s.read(slowly * len(text(v)))
	s.spend(16 * strings.Count(text(v), "\n"))
	lines := splitLines(text(v)+"\n", false)
	var out strings.Builder
	for i, line := range lines {
		if i > 0 {
			out.WriteByte('\n')
		}
		if i == 0 && truth(or(b[1], false)) || i > 0 && (line != "" || truth(or(b[2], false))) {
			out.WriteString(pad)
		}
		out.WriteString(line)
		s.room(out.Len())
	}
	s.spend(out.Len())
	return out.String()
}

func mapped(s *state, v any, a *args) any {
	return s.each(v, func() func(item any) (any, bool) {
		f := s.mapping(a)
		return func(item any) (any, bool) { return f(item), true }
	})
}

// generateMapped is a generator over the results of prepare's function for the items of v. As in Python
// nothing is computed or checked before it is iterated, and nothing at all if v is false.
func (s *state) each(v any, prepare func() func(item any) (any, bool)) any {
	var next func() (any, bool)
	var f func(item any) (any, bool)
	return generate(func() (any, bool) {
		if !truth(v) {
			return nil, false
		}
		if next == nil {
			f = prepare()
			next = s.iterate(v)
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

func (s *state) mapping(a *args) func(v any) any {
	if attribute, ok := a.kw.get("attribute"); ok && len(a.pos) == 0 {
		for _, k := range a.kw.keys {
			if k != "attribute" && k != "default" {
				throw("Unexpected keyword argument '%s'", k)
			}
		}
		otherwise, _ := a.kw.get("default")
		return s.keyOf(attribute, true, otherwise)
	}
	if len(a.pos) == 0 {
		throw("map requires a filter argument")
	}
	name := text(a.pos[0])
	filter := filterNamed(name)
	rest := &args{a.pos[1:], a.kw}
	return func(v any) any {
		s.step()
		if filter == nil {
			throw("No filter named '%s'", name)
		}
		return filter(s, v, rest)
	}
}

func selected(s *state, v any, a *args, keep, byAttr bool) any {
	return s.each(v, func() func(item any) (any, bool) {
		key := func(v any) any { return v }
		pos := a.pos
		if byAttr {
			if len(pos) == 0 {
				throw("Missing parameter for attribute name")
			}
			key = s.keyOf(pos[0], true, nil)
			pos = pos[1:]
		}
		holds := truth
		if len(pos) > 0 {
			name := text(pos[0])
			test := testNamed(name)
			rest := &args{pos[1:], a.kw}
			holds = func(v any) bool {
				s.step()
				if test == nil {
					throw("No test named '%s'", name)
				}
				return test(s, v, rest)
			}
		}
		return func(item any) (any, bool) { return item, holds(key(item)) == keep }
	})
}

func (s *state) extreme(name string, v any, a *args) any {
	b := a.bind("case_sensitive", "attribute")
	next, key := s.iterate(v), s.keyOf(b[1], b[0], nil)
	best, ok := next()
	if !ok {
		return &undef{hint: "No aggregated item, sequence was empty."}
	}
	op := map[string]string{"min": "<", "max": ">"}[name]
	least := key(best)
	for item, ok := next(); ok; item, ok = next() {
		if k := key(item); s.holds(op, k, least) {
			best, least = item, k
		}
	}
	return best
}

func unique(s *state, v any, a *args) any {
	b := a.bind("case_sensitive", "attribute")
	next, key := s.lazy(v), s.keyOf(b[1], b[0], nil)
	seen := NewDict()
	return generate(func() (any, bool) {
		for {
			item, ok := next()
			if !ok {
				return nil, false
			}
			k := key(item)
			s.readKey(k)
			if _, dup := seen.get(k); !dup {
				s.spend(64)
				seen.put(k, true)
				return item, true
			}
		}
	})
}

func round(s *state, v any, a *args) any {
	b := a.bind("precision", "method")
	n, ok := integer(or(b[0], int64(0)))
	x, isNumber := number(v)
	if !ok || !isNumber || n > 300 || n < -300 {
		undefined(v)
		throw("cannot round %s", typeName(v))
	}
	scale := math.Pow(10, float64(n))
	switch or(b[1], "common") {
	case "common":
		if i, ok := bigInt(v); ok {
			return small(roundInt(i, n))
		}
		if n > 0 {
			f, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'f', int(n), 64), 64)
			return f
		}
		return math.RoundToEven(x*scale) / scale
	case "ceil":
		return (math.Ceil(finite(x)*scale) + 0) / scale
	case "floor":
		return (math.Floor(finite(x)*scale) + 0) / scale
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
	whole := integers("//", i, scale)
	rest := integers("%", i, scale)
	switch rest.Lsh(rest, 1).Cmp(scale) {
	case 1:
		whole.Add(whole, big.NewInt(1))
	case 0:
		whole.Add(whole, big.NewInt(int64(whole.Bit(0))))
	}
	return whole.Mul(whole, scale)
}

func finite(x float64) float64 {
	if math.IsInf(x, 0) || math.IsNaN(x) {
		throw("cannot convert float infinity or NaN to integer")
	}
	return x
}

func striptags(t string) string {
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
	return html.UnescapeString(strings.Join(strings.FieldsFunc(b.String(), space), " "))
}

func truncate(s *state, v any, a *args) any {
	b := a.bind("length", "killwords", "end", "leeway")
	limit, ok := number(or(b[0], int64(255)))
	if !ok {
		throw("the length must be a number, not %s", typeName(b[0]))
	}
	leeway := 5.0
	if or(b[3], nil) != nil {
		if leeway, ok = number(b[3]); !ok {
			throw("the leeway must be a number, not %s", typeName(b[3]))
		}
	}
	end := or(b[2], "...")
	if limit < float64(s.length(end)) || leeway < 0 {
		throw("expected length >= %d, got %v", s.length(end), limit)
	}
	size := s.length(v)
	if float64(size) <= limit+leeway {
		return v
	}
	n := index(or(b[0], int64(255)))
	if _, isText := v.(string); !isText && truth(or(b[1], false)) {
		return s.arith("+", s.slice(v, &slicing{[3]any{nil, n - s.length(end), nil}}), end)
	}
	t := text(v)
	t = cutText(t, 0, 1, min(n-s.length(end), size), size)
	if at := strings.LastIndexByte(t, ' '); at >= 0 && !truth(or(b[1], false)) {
		t = t[:at]
	}
	return t + text(end)
}

func urlencode(s *state, v any, a *args) any {
	a.bind()
	quote := func(v any, plus bool) string {
		out := strings.ReplaceAll(url.QueryEscape(s.str(v)), "%7E", "~")
		if !plus {
			out = strings.ReplaceAll(strings.ReplaceAll(out, "+", "%20"), "%2F", "/")
		}
		s.spend(len(out))
		return out
	}
	if t, ok := v.(string); ok {
		return quote(t, false)
	}
	if d, ok := v.(*Dict); ok {
		v = &view{"dict_items", d}
	}
	if !kindTest("iterable")(v) {
		return quote(v, false)
	}
	var parts []string
	for _, item := range s.collect(v) {
		pair := s.collect(item)
		if len(pair) != 2 {
			throw("not enough values to unpack (expected 2, got %d)", len(pair))
		}
		parts = append(parts, quote(pair[0], true)+"="+quote(pair[1], true))
	}
	return strings.Join(parts, "&")
}

func filesize(s *state, v any, a *args) any {
	b := a.bind("binary")
	n, ok := toFloat(v)
	if !ok {
		undefined(v)
		throw("could not convert %s to float", typeName(v))
	}
	base, suffix := 1000.0, "B"
	prefixes := "kMGTPEZY"
	if truth(or(b[0], false)) {
		base, suffix, prefixes = 1024, "iB", "KMGTPEZY"
	}
	switch {
	case n == 1:
		return "1 Byte"
	case n < base:
		return strconv.FormatFloat(math.Trunc(finite(n))+0, 'f', 0, 64) + " Bytes"
	}
	unit := base
	for i := range prefixes {
		// Above 10^22 products of thousands are not the nearest floats.
		if unit *= base; base == 1000 {
			unit = math.Pow10(3 * (i + 2))
		}
		if n < unit || i == len(prefixes)-1 {
			return s.formatSpec(base*n/unit, ".1f") + " " + prefixes[i:i+1] + suffix
		}
	}
	return ""
}
