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
	if !hasMethod(v, name) {
		return nil, false
	}
	if isMutator(v, name) {
		return &undefinedValue{hint: "access to attribute '" + name + "' of '" + typeName(v) + "' object is unsafe."}, true
	}
	return &functionValue{name, func(s *renderState, a *callArgs) any { return s.callMethod(v, name, a) }}, true
}

func isMutator(v any, name string) bool {
	switch v.(type) {
	case *listValue:
		return listChanges[name]
	case *Dict:
		return dictChanges[name]
	}
	return false
}

// The methods; some are refused when they are called.
var (
	textMethods = nameSet("strip lstrip rstrip split rsplit splitlines startswith endswith replace upper lower title capitalize swapcase casefold " +
		"find rfind index rindex count join format zfill center ljust rjust isdigit isdecimal isnumeric isalpha isalnum isspace isupper islower " +
		"istitle isascii isidentifier partition rpartition removeprefix removesuffix expandtabs isprintable format_map encode")
	dictChanges  = nameSet("clear pop popitem setdefault update")
	dictMethods  = nameSet("items keys values get copy clear pop popitem setdefault update")
	listChanges  = nameSet("append clear extend insert pop remove reverse sort")
	listMethods  = nameSet("index count copy append clear extend insert pop remove reverse sort")
	tupleMethods = nameSet("index count")
	floatMethods = nameSet("is_integer")
	intMethods   = nameSet("bit_length")
)

func nameSet(list string) map[string]bool {
	out := map[string]bool{}
	for _, name := range strings.Fields(list) {
		out[name] = true
	}
	return out
}

func hasMethod(v any, name string) bool {
	switch v.(type) {
	case string:
		return textMethods[name]
	case *Dict:
		return dictMethods[name]
	case *listValue:
		return listMethods[name]
	case *tupleValue, *rangeValue, *groupPair:
		return tupleMethods[name]
	case float64:
		return floatMethods[name]
	case int64, *big.Int, bool:
		return intMethods[name]
	}
	return false
}

// callMethod calls a method of v which hasMethod knows.
func (s *renderState) callMethod(v any, name string, a *callArgs) any {
	switch v := v.(type) {
	case string:
		s.payRead(len(v))
		return s.callTextMethod(v, name, a)
	case *Dict:
		switch name {
		case "items", "keys", "values":
			a.bindParams()
			return &dictView{"dict_" + name, v}
		case "copy":
			a.bindParams()
			s.payBytes(64 * v.Len())
			return v.withoutKey("\x00")
		case "get":
			b := a.bindParams("key!", "default")
			s.payKeyRead(b[0])
			if out, ok := v.getKey(b[0]); ok {
				return out
			}
			return orDefault(b[1], nil)
		}
	case *listValue, *tupleValue, *groupPair:
		items, _ := sequenceItems(v)
		switch name {
		case "copy":
			return &listValue{s.collectItems(v)}
		case "index", "count":
			want := a.bindParams("value!")[0]
			n := int64(0)
			for i, item := range items {
				if s.isEqual(item, want, 0) {
					if n++; name == "index" {
						return int64(i)
					}
				}
			}
			if name == "index" {
				throw("the value is not in the list")
			}
			return n
		}
	case *rangeValue:
		if name == "count" || name == "index" {
			return s.callMethod(&listValue{s.collectItems(v)}, name, a)
		}
	case float64:
		return v == math.Trunc(v) && !math.IsInf(v, 0)
	case int64, *big.Int, bool:
		n, _ := toBigInt(v)
		return int64(n.BitLen())
	}
	throw("'%s' of '%s' is not supported", name, typeName(v))
	return nil
}

func (s *renderState) callTextMethod(t, name string, a *callArgs) any {
	switch name {
	case "strip", "lstrip", "rstrip":
		chars := orDefault(a.bindParams("chars")[0], nil)
		in := isSpace
		if chars == nil {
			s.payRead(slowly * len(t))
		} else {
			set := textArg(chars)
			if len(t) > s.steps*16/(len(set)+1) {
				throw("the template takes too long: too many characters to strip")
			}
			s.steps -= len(t) * len(set) / 16
			in = func(r rune) bool { return strings.ContainsRune(set, r) }
		}
		if name != "rstrip" {
			t = strings.TrimLeftFunc(t, in)
		}
		if name != "lstrip" {
			t = strings.TrimRightFunc(t, in)
		}
		return t
	case "split", "rsplit":
		b := a.bindParams("sep", "maxsplit")
		n := indexArg(orDefault(b[1], int64(-1)))
		s.payRead(slowly * len(t))
		parts := splitText(t, orDefault(b[0], nil), n, name == "rsplit")
		s.payBytes(16 * len(parts))
		return textList(parts)
	case "splitlines":
		s.payRead(slowly * len(t))
		lines := splitLines(t, boolArg(a.bindParams("keepends")[0]))
		s.payBytes(16 * len(lines))
		return textList(lines)
	case "startswith", "endswith":
		b := a.bindParams("prefix!", "start", "end")
		options, ok := b[0].(*tupleValue)
		if !ok {
			options = &tupleValue{[]any{b[0]}}
		}
		t, _, inside := s.searchWindow(t, b[1], b[2])
		for _, o := range options.items {
			if prefix := textArg(o); inside && (name == "startswith" && strings.HasPrefix(t, prefix) || name == "endswith" && strings.HasSuffix(t, prefix)) {
				return true
			}
		}
		return false
	case "replace":
		b := a.bindParams("old!", "new!", "count")
		n := indexArg(orDefault(b[2], int64(-1)))
		return s.replaceText(t, textArg(b[0]), textArg(b[1]), n)
	case "upper", "lower", "capitalize":
		a.bindParams()
		return changeCase(s, name, t)
	case "casefold":
		a.bindParams()
		s.payBytes(3 * len(t))
		s.payRead(slowly * len(t))
		return caseFold(t)
	case "title":
		a.bindParams()
		s.payBytes(3 * len(t))
		s.payRead(slowly * len(t))
		return toTitle(t)
	case "swapcase":
		a.bindParams()
		s.payBytes(3 * len(t))
		s.payRead(slowly * len(t))
		return swapCase(t)
	case "find", "rfind", "index", "rindex":
		return s.findText(t, name, a.bindParams("sub!", "start", "end"))
	case "count":
		b := a.bindParams("sub!", "start", "end")
		part, _, inside := s.searchWindow(t, b[1], b[2])
		n := strings.Count(part, textArg(b[0]))
		if !inside {
			n = 0
		}
		return int64(n)
	case "join":
		var out strings.Builder
		for i, item := range s.collectItems(a.bindParams("iterable!")[0]) {
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
	case "format":
		return s.formatText(t, a)
	case "format_map":
		d, ok := a.bindParams("mapping!")[0].(*Dict)
		if !ok {
			throw("str.format_map is supported for dictionaries only")
		}
		return s.formatText(t, &callArgs{kw: d})
	case "expandtabs":
		return s.expandTabs(t, orDefault(a.bindParams("tabsize")[0], int64(8)))
	case "zfill", "center", "ljust", "rjust":
		return s.padText(t, name, a.bindParams("width!", "fillchar"))
	case "partition", "rpartition":
		return partitionText(t, textArg(a.bindParams("sep!")[0]), name == "rpartition")
	case "removeprefix":
		return strings.TrimPrefix(t, textArg(a.bindParams("prefix!")[0]))
	case "removesuffix":
		return strings.TrimSuffix(t, textArg(a.bindParams("suffix!")[0]))
	}
	if is := charPredicate(name); is != nil {
		a.bindParams()
		s.payRead(slowly * len(t))
		return is(t)
	}
	throw("'str.%s' is not supported", name)
	return nil
}

// indexArg returns an argument which must be an integer.
func indexArg(v any) int64 {
	n, ok := toInteger(v)
	if !ok {
		throw("'%s' object cannot be interpreted as an integer", typeName(v))
	}
	return n
}

func textList(parts []string) any {
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

func (s *renderState) findText(t, name string, b []any) any {
	sub := textArg(b[0])
	part, from, inside := s.searchWindow(t, b[1], b[2])
	at := strings.Index(part, sub)
	if name[0] == 'r' {
		at = strings.LastIndex(part, sub)
	}
	if at < 0 || !inside {
		if strings.HasSuffix(name, "index") {
			throw("substring not found")
		}
		return int64(-1)
	}
	return from + int64(utf8.RuneCountInString(part[:at]))
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

// expandTabs replaces tabs by spaces up to the next column which is a multiple of size.
func (s *renderState) expandTabs(t string, size any) any {
	n, ok := toInteger(size)
	if !ok {
		throw("'%s' object cannot be interpreted as an integer", typeName(size))
	}
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

func (s *renderState) padText(t, how string, b []any) any {
	width, ok := toInteger(b[0])
	if !ok {
		throw("'%s' object cannot be interpreted as an integer", typeName(b[0]))
	}
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

// charPredicate returns the methods which test every character.
func charPredicate(name string) func(t string) bool {
	all := func(is func(r rune) bool) func(t string) bool {
		return func(t string) bool {
			return t != "" && strings.IndexFunc(t, func(r rune) bool { return !is(r) }) < 0
		}
	}
	switch name {
	case "isdecimal":
		return all(unicode.IsDigit)
	case "isdigit":
		return all(func(r rune) bool { return unicode.IsDigit(r) || unicode.Is(digitSigns, r) })
	case "isnumeric":
		return all(func(r rune) bool { return unicode.IsNumber(r) || strings.ContainsRune(hanNumerals, r) })
	case "isalpha":
		return all(unicode.IsLetter)
	case "isalnum":
		return all(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })
	case "isspace":
		return all(isSpace)
	case "isupper":
		return func(t string) bool { return isCased(t, true) }
	case "islower":
		return func(t string) bool { return isCased(t, false) }
	case "istitle":
		return isTitled
	case "isascii":
		return func(t string) bool { return strings.IndexFunc(t, func(r rune) bool { return r > 127 }) < 0 }
	case "isprintable":
		return func(t string) bool { return strings.IndexFunc(t, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 }
	case "isidentifier":
		begins := func(r rune) bool { return r == '_' || unicode.In(r, unicode.L, unicode.Nl, unicode.Other_ID_Start) }
		return func(t string) bool {
			return t != "" && begins(firstRune(t)) && strings.IndexFunc(t, func(r rune) bool {
				return !begins(r) && !unicode.In(r, unicode.Mn, unicode.Mc, unicode.Nd, unicode.Pc, unicode.Other_ID_Continue)
			}) < 0
		}
	}
	return nil
}
