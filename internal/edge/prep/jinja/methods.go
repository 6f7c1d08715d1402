package jinja

import (
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// getAttr is the attribute of a value: a field, or a method bound to it. As in Python's immutable sandbox,
// names which begin with an underscore, and methods which change their object, exist and may not be used.
func (s *renderState) getAttr(v any, name string) (any, bool) {
	if strings.HasPrefix(name, "_") || len(name) > maxHint {
		return nil, false
	}
	switch v := v.(type) {
	case *loopVar:
		return v.getAttr(name)
	case *selfVar:
		return v.getAttr(name)
	case *functionValue:
		if v.name == "dict" && name == "fromkeys" {
			return &functionValue{name, fromKeys}, true
		}
	case *namespaceValue:
		return v.attrs.getKey(name)
	case *macroValue:
		switch name {
		case "name":
			if v.name == "" { // as a call block passes it
				return nil, true
			}
			return v.name, true
		case "arguments":
			out := &tupleValue{}
			for _, p := range v.def.params {
				out.items = append(out.items, p)
			}
			return out, true
		case "caller":
			return v.def.caller, true
		case "catch_kwargs":
			return v.def.kwargs, true
		case "catch_varargs":
			return v.def.varargs, true
		}
		return nil, false
	case *groupPair:
		switch name {
		case "grouper":
			return v.grouper, true
		case "list":
			return v.list, true
		}
	}
	call, ok := s.methodsOf(v)[name]
	switch {
	case !ok:
		return nil, false
	case call == nil:
		return &undefinedValue{hint: "access to attribute '" + name + "' of '" + typeName(v) + "' object is unsafe."}, true
	}
	return &functionValue{name, func(s *renderState, a *callArgs) any { return call(s, v, a) }}, true
}

// methodsOf returns the methods of a value; nil if it has none.
func (s *renderState) methodsOf(v any) map[string]filterFunc {
	switch v.(type) {
	case string:
		return s.builtins.text
	case *Dict:
		return s.builtins.dict
	case *listValue:
		return s.builtins.list
	case *tupleValue, *rangeValue, *groupPair:
		return s.builtins.tuple
	case float64:
		return s.builtins.float
	case int64, *big.Int, bool:
		return s.builtins.integer
	}
	return nil
}

// eachEqual calls found with the positions of the items of a sequence which are equal to want, until it
// returns false.
func (s *renderState) eachEqual(v, want any, found func(i int) bool) {
	items, ok := sequenceItems(v)
	if !ok { // a range
		items = s.collectItems(v)
	}
	for i, item := range items {
		if s.isEqual(item, want, 0) && !found(i) {
			return
		}
	}
}

func countItem(s *renderState, v any, b []any) any {
	n := int64(0)
	s.eachEqual(v, b[0], func(int) bool { n++; return true })
	return n
}

func indexItem(s *renderState, v any, b []any) any {
	at := int64(-1)
	s.eachEqual(v, b[0], func(i int) bool { at = int64(i); return false })
	if at < 0 {
		throw("the value is not in the list")
	}
	return at
}

func isWholeFloat(_ *renderState, v any, _ *callArgs) any {
	f := v.(float64)
	return f == math.Trunc(f) && !math.IsInf(f, 0)
}

func bitLength(_ *renderState, v any, _ *callArgs) any {
	n, _ := toBigInt(v)
	return int64(n.BitLen())
}

func stripMethod(left, right bool) filterFunc {
	return ofText(func(s *renderState, t string, b []any) any { return s.stripText(t, b[0], left, right) }, "chars")
}

// stripText removes characters, space unless some are given, from the ends of a text.
func (s *renderState) stripText(t string, chars any, left, right bool) any {
	in := isSpace
	if chars = orDefault(chars, nil); chars == nil {
		s.payRead(slowly * len(t))
	} else {
		set := textArg(chars)
		if len(t) > s.steps*16/(len(set)+1) {
			throw("the template takes too long: too many characters to strip")
		}
		s.steps -= len(t) * len(set) / 16
		in = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	if left {
		t = strings.TrimLeftFunc(t, in)
	}
	if right {
		t = strings.TrimRightFunc(t, in)
	}
	return t
}

func splitMethod(right bool) filterFunc {
	return ofText(func(s *renderState, t string, b []any) any {
		n := indexArg(orDefault(b[1], int64(-1)))
		s.payRead(slowly * len(t))
		return s.textList(splitText(t, orDefault(b[0], nil), n, right))
	}, "sep", "maxsplit")
}

// affixMethod tests the start or the end of a text, for one text or any in a tuple.
func affixMethod(has func(t, affix string) bool) filterFunc {
	return ofText(func(s *renderState, t string, b []any) any {
		options, ok := b[0].(*tupleValue)
		if !ok {
			options = &tupleValue{[]any{b[0]}}
		}
		t, _, inside := s.searchWindow(t, b[1], b[2])
		for _, o := range options.items {
			if affix := textArg(o); inside && has(t, affix) {
				return true
			}
		}
		return false
	}, "prefix!", "start", "end")
}

func countText(s *renderState, t string, b []any) any {
	part, _, inside := s.searchWindow(t, b[1], b[2])
	n := strings.Count(part, textArg(b[0]))
	if !inside {
		n = 0
	}
	return int64(n)
}

func joinTexts(s *renderState, t string, b []any) any {
	var out strings.Builder
	for i, item := range s.collectItems(b[0]) {
		if i > 0 {
			out.WriteString(t)
		}
		piece, ok := item.(string)
		if !ok {
			throw("sequence item %d: expected str instance, %s found", i, typeName(item))
		}
		out.WriteString(piece)
		s.checkRoom(out.Len())
	}
	s.payBytes(out.Len())
	return out.String()
}

func formatMethod(s *renderState, v any, a *callArgs) any {
	t := v.(string)
	s.payRead(len(t))
	return s.formatText(t, a)
}

func formatMap(s *renderState, t string, b []any) any {
	d, ok := b[0].(*Dict)
	if !ok {
		throw("str.format_map is supported for dictionaries only")
	}
	return s.formatText(t, &callArgs{kw: d})
}

// indexArg returns an argument which must be an integer.
func indexArg(v any) int64 {
	n, ok := toInteger(v)
	if !ok {
		throw("'%s' object cannot be interpreted as an integer", typeName(v))
	}
	return n
}

// textList makes and pays for a list of texts.
func (s *renderState) textList(parts []string) any {
	s.payBytes(16 * len(parts))
	out := &listValue{make([]any, len(parts))}
	for i, p := range parts {
		out.items[i] = p
	}
	return out
}

// substring is t[start:end].
func (s *renderState) substring(t string, start, end any) string {
	start, end = orDefault(start, nil), orDefault(end, nil)
	if start == nil && end == nil {
		return t
	}
	return s.sliceValue(t, &sliceRange{[3]any{start, end, nil}}).(string)
}

// searchWindow is t[start:end] and its start; inside is false if that is outside of t, where not even an
// empty text is found.
func (s *renderState) searchWindow(t string, start, end any) (part string, from int64, inside bool) {
	start, end = orDefault(start, nil), orDefault(end, nil)
	if start == nil && end == nil {
		return t, 0, true
	}
	n := s.lengthOf(t)
	from, _, count, ok := (&sliceRange{[3]any{start, end, nil}}).resolveRange(n)
	if !ok {
		throw("slice indices must be integers or None or have an __index__ method")
	}
	if i, given := toInteger(start); given && i > n {
		return "", 0, false
	}
	_, _, before, _ := (&sliceRange{[3]any{nil, end, nil}}).resolveRange(n)
	if from > before {
		return "", 0, false
	}
	s.payBytes(len(t))
	return sliceText(t, from, 1, count, n), from, true
}

// findMethod searches for a text, which must be there if required is set.
func findMethod(find func(t, sub string) int, required bool) filterFunc {
	return ofText(func(s *renderState, t string, b []any) any {
		sub := textArg(b[0])
		part, from, inside := s.searchWindow(t, b[1], b[2])
		at := find(part, sub)
		switch {
		case at >= 0 && inside:
			return from + int64(utf8.RuneCountInString(part[:at]))
		case required:
			throw("substring not found")
		}
		return int64(-1)
	}, "sub!", "start", "end")
}

// splitText is str.split and str.rsplit; a nil separator is any run of space.
func splitText(t string, sep any, n int64, right bool) []string {
	if sep == nil {
		return splitSpace(t, n, right)
	}
	by := textArg(sep)
	if by == "" {
		throw("empty separator")
	}
	if n < 0 || n > int64(len(t)) {
		return strings.Split(t, by)
	}
	if !right {
		return strings.SplitN(t, by, int(n)+1)
	}
	var tail []string
	for ; n > 0; n-- {
		at := strings.LastIndex(t, by)
		if at < 0 {
			break
		}
		tail = append(tail, t[at+len(by):])
		t = t[:at]
	}
	tail = append(tail, t)
	slices.Reverse(tail)
	return tail
}

func splitSpace(t string, n int64, right bool) []string {
	if n < 0 {
		return strings.FieldsFunc(t, isSpace)
	}
	var out []string
	if right {
		t = strings.TrimRightFunc(t, isSpace)
	} else {
		t = strings.TrimLeftFunc(t, isSpace)
	}
	for ; t != "" && n > 0; n-- {
		if right {
			at := strings.LastIndexFunc(t, isSpace)
			if at < 0 {
				break
			}
			_, size := utf8.DecodeRuneInString(t[at:])
			out = append(out, t[at+size:])
			t = strings.TrimRightFunc(t[:at], isSpace)
		} else {
			at := strings.IndexFunc(t, isSpace)
			if at < 0 {
				break
			}
			out = append(out, t[:at])
			t = strings.TrimLeftFunc(t[at:], isSpace)
		}
	}
	if t != "" {
		out = append(out, t)
	}
	if right {
		slices.Reverse(out)
	}
	return out
}

// splitLines splits at Python's line ends, which are kept if keep is set.
func splitLines(t string, keep bool) []string {
	var out []string
	for t != "" {
		at := strings.IndexFunc(t, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
		})
		if at < 0 {
			return append(out, t)
		}
		_, size := utf8.DecodeRuneInString(t[at:])
		if strings.HasPrefix(t[at:], "\r\n") {
			size = 2
		}
		if keep {
			out = append(out, t[:at+size])
		} else {
			out = append(out, t[:at])
		}
		t = t[at+size:]
	}
	return out
}

// replaceText is str.replace; it pays for the result before making it.
func (s *renderState) replaceText(t, old, with string, n int64) any {
	s.payRead(len(t))
	count := int64(strings.Count(t, old))
	if n >= 0 && n < count {
		count = n
	}
	if grow := int64(len(with) - len(old)); grow > 0 && count > int64(s.bytes)/grow {
		s.checkRoom(-1)
	}
	s.payBytes(len(t) + int(count)*max(0, len(with)-len(old)))
	return strings.Replace(t, old, with, int(count))
}

// expandTabs replaces tabs by spaces up to the next column which is a multiple of the size.
func expandTabs(s *renderState, t string, b []any) any {
	n := indexArg(orDefault(b[0], int64(8)))
	s.payRead(slowly * len(t))
	s.payBytes(len(t))
	var out strings.Builder
	column := int64(0)
	for _, r := range t {
		switch {
		case r != '\t':
			out.WriteRune(r)
			if column++; r == '\n' || r == '\r' {
				column = 0
			}
		case n > 0:
			fill := n - column%n
			column += fill
			out.WriteString(s.repeatText(" ", fill).(string))
		}
	}
	return out.String()
}

func padMethod(how string) filterFunc {
	return ofText(func(s *renderState, t string, b []any) any { return s.padText(t, how, b) }, "width!", "fillchar")
}

// padText pads a text to a width, b[0], with a character, b[1].
func (s *renderState) padText(t, how string, b []any) any {
	width := indexArg(b[0])
	fill := textArg(orDefault(b[1], " "))
	if utf8.RuneCountInString(fill) != 1 {
		throw("The fill character must be exactly one character long")
	}
	n := width - s.lengthOf(t)
	if n <= 0 {
		return t
	}
	switch how {
	case "zfill":
		zeros := s.repeatText("0", n).(string)
		if t != "" && (t[0] == '+' || t[0] == '-') {
			return t[:1] + zeros + t[1:]
		}
		return zeros + t
	case "ljust":
		return t + s.repeatText(fill, n).(string)
	case "rjust":
		return s.repeatText(fill, n).(string) + t
	}
	left := n/2 + n&width&1
	return s.repeatText(fill, left).(string) + t + s.repeatText(fill, n-left).(string)
}

func partitionMethod(right bool) filterFunc {
	return ofText(func(_ *renderState, t string, b []any) any { return partitionText(t, textArg(b[0]), right) }, "sep!")
}

func partitionText(t, sep string, right bool) any {
	if sep == "" {
		throw("empty separator")
	}
	at := strings.Index(t, sep)
	if right {
		at = strings.LastIndex(t, sep)
	}
	switch {
	case at >= 0:
		return &tupleValue{[]any{t[:at], sep, t[at+len(sep):]}}
	case right:
		return &tupleValue{[]any{"", "", t}}
	}
	return &tupleValue{[]any{t, "", ""}}
}

// isIdentifier is str.isidentifier.
func isIdentifier(t string) bool {
	begins := func(r rune) bool { return r == '_' || unicode.In(r, unicode.L, unicode.Nl, unicode.Other_ID_Start) }
	return t != "" && begins(firstRune(t)) && strings.IndexFunc(t, func(r rune) bool {
		return !begins(r) && !unicode.In(r, unicode.Mn, unicode.Mc, unicode.Nd, unicode.Pc, unicode.Other_ID_Continue)
	}) < 0
}
