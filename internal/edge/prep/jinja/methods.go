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
func (s *state) attr(v any, name string) (any, bool) {
	if strings.HasPrefix(name, "_") || len(name) > maxHint {
		return nil, false
	}
	switch v := v.(type) {
	case *loop:
		return v.attr(name)
	case *self:
		return v.attr(name)
	case *function:
		if v.name == "dict" && name == "fromkeys" {
			return &function{name, fromKeys}, true
		}
	case *namespace:
		return v.attrs.get(name)
	case *macro:
		switch name {
		case "name":
			if v.name == "" { // as a call block passes it
				return nil, true
			}
			return v.name, true
		case "arguments":
			out := &tuple{}
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
	case *group:
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
	if changes(v, name) {
		return &undef{hint: "access to attribute '" + name + "' of '" + typeName(v) + "' object is unsafe."}, true
	}
	return &function{name, func(s *state, a *args) any { return s.method(v, name, a) }}, true
}

func changes(v any, name string) bool {
	switch v.(type) {
	case *list:
		return listChanges[name]
	case *Dict:
		return dictChanges[name]
	}
	return false
}

// The methods; some are refused when they are called.
var (
	textMethods = names("strip lstrip rstrip split rsplit splitlines startswith endswith replace upper lower title capitalize swapcase casefold " +
		"find rfind index rindex count join format zfill center ljust rjust isdigit isdecimal isnumeric isalpha isalnum isspace isupper islower " +
		"istitle isascii isidentifier partition rpartition removeprefix removesuffix expandtabs isprintable format_map encode")
	dictChanges  = names("clear pop popitem setdefault update")
	dictMethods  = names("items keys values get copy clear pop popitem setdefault update")
	listChanges  = names("append clear extend insert pop remove reverse sort")
	listMethods  = names("index count copy append clear extend insert pop remove reverse sort")
	tupleMethods = names("index count")
	floatMethods = names("is_integer")
	intMethods   = names("bit_length")
)

func names(list string) map[string]bool {
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
	case *list:
		return listMethods[name]
	case *tuple, *span, *group:
		return tupleMethods[name]
	case float64:
		return floatMethods[name]
	case int64, *big.Int, bool:
		return intMethods[name]
	}
	return false
}

// callMethod calls a method of v which hasMethod knows.
func (s *state) method(v any, name string, a *args) any {
	switch v := v.(type) {
	case string:
		s.read(len(v))
		return s.textMethod(v, name, a)
	case *Dict:
		switch name {
		case "items", "keys", "values":
			a.bind()
			return &view{"dict_" + name, v}
		case "copy":
			a.bind()
			s.spend(64 * v.Len())
			return v.without("\x00")
		case "get":
			b := a.bind("key!", "default")
			s.readKey(b[0])
			if out, ok := v.get(b[0]); ok {
				return out
			}
			return or(b[1], nil)
		}
	case *list, *tuple, *group:
		items, _ := sequence(v)
		switch name {
		case "copy":
			return &list{s.collect(v)}
		case "index", "count":
			want := a.bind("value!")[0]
			n := int64(0)
			for i, item := range items {
				if s.equal(item, want, 0) {
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
	case *span:
		if name == "count" || name == "index" {
			return s.method(&list{s.collect(v)}, name, a)
		}
	case float64:
		return v == math.Trunc(v) && !math.IsInf(v, 0)
	case int64, *big.Int, bool:
		n, _ := bigInt(v)
		return int64(n.BitLen())
	}
	throw("'%s' of '%s' is not supported", name, typeName(v))
	return nil
}

func (s *state) textMethod(t, name string, a *args) any {
	switch name {
	case "strip", "lstrip", "rstrip":
		chars := or(a.bind("chars")[0], nil)
		in := space
		if chars == nil {
			s.read(slowly * len(t))
		} else {
			set := text(chars)
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
		b := a.bind("sep", "maxsplit")
		n := index(or(b[1], int64(-1)))
		s.read(slowly * len(t))
		parts := split(t, or(b[0], nil), n, name == "rsplit")
		s.spend(16 * len(parts))
		return texts(parts)
	case "splitlines":
		s.read(slowly * len(t))
		lines := splitLines(t, flag(a.bind("keepends")[0]))
		s.spend(16 * len(lines))
		return texts(lines)
	case "startswith", "endswith":
		b := a.bind("prefix!", "start", "end")
		options, ok := b[0].(*tuple)
		if !ok {
			options = &tuple{[]any{b[0]}}
		}
		t, _, inside := s.window(t, b[1], b[2])
		for _, o := range options.items {
			if prefix := text(o); inside && (name == "startswith" && strings.HasPrefix(t, prefix) || name == "endswith" && strings.HasSuffix(t, prefix)) {
				return true
			}
		}
		return false
	case "replace":
		b := a.bind("old!", "new!", "count")
		n := index(or(b[2], int64(-1)))
		return s.replace(t, text(b[0]), text(b[1]), n)
	case "upper", "lower", "capitalize":
		a.bind()
		return changeCase(s, name, t)
	case "casefold":
		a.bind()
		s.spend(3 * len(t))
		s.read(slowly * len(t))
		return caseFold(t)
	case "title":
		a.bind()
		s.spend(3 * len(t))
		s.read(slowly * len(t))
		return titled(t)
	case "swapcase":
		a.bind()
		s.spend(3 * len(t))
		s.read(slowly * len(t))
		return swapCase(t)
	case "find", "rfind", "index", "rindex":
		return s.find(t, name, a.bind("sub!", "start", "end"))
	case "count":
		b := a.bind("sub!", "start", "end")
		part, _, inside := s.window(t, b[1], b[2])
		n := strings.Count(part, text(b[0]))
		if !inside {
			n = 0
		}
		return int64(n)
	case "join":
		var out strings.Builder
		for i, item := range s.collect(a.bind("iterable!")[0]) {
			if i > 0 {
				out.WriteString(t)
			}
			piece, ok := item.(string)
			if !ok {
				throw("sequence item %d: expected str instance, %s found", i, typeName(item))
			}
			out.WriteString(piece)
			s.room(out.Len())
		}
		s.spend(out.Len())
		return out.String()
	case "format":
		return s.format(t, a)
	case "format_map":
		d, ok := a.bind("mapping!")[0].(*Dict)
		if !ok {
			throw("str.format_map is supported for dictionaries only")
		}
		return s.format(t, &args{kw: d})
	case "expandtabs":
		return s.expandTabs(t, or(a.bind("tabsize")[0], int64(8)))
	case "zfill", "center", "ljust", "rjust":
		return s.pad(t, name, a.bind("width!", "fillchar"))
	case "partition", "rpartition":
		return partition(t, text(a.bind("sep!")[0]), name == "rpartition")
	case "removeprefix":
		return strings.TrimPrefix(t, text(a.bind("prefix!")[0]))
	case "removesuffix":
		return strings.TrimSuffix(t, text(a.bind("suffix!")[0]))
	}
	if is := charTest(name); is != nil {
		a.bind()
		s.read(slowly * len(t))
		return is(t)
	}
	throw("'str.%s' is not supported", name)
	return nil
}

// indexArg returns an argument which must be an integer.
func index(v any) int64 {
	n, ok := integer(v)
	if !ok {
		throw("'%s' object cannot be interpreted as an integer", typeName(v))
	}
	return n
}

func texts(parts []string) any {
	out := &list{make([]any, len(parts))}
	for i, p := range parts {
		out.items[i] = p
	}
	return out
}

// substring is t[start:end].
func (s *state) part(t string, start, end any) string {
	start, end = or(start, nil), or(end, nil)
	if start == nil && end == nil {
		return t
	}
	return s.slice(t, &slicing{[3]any{start, end, nil}}).(string)
}

// searchWindow is t[start:end] and its start; inside is false if that is outside of t, where not even an
// empty text is found.
func (s *state) window(t string, start, end any) (part string, from int64, inside bool) {
	start, end = or(start, nil), or(end, nil)
	if start == nil && end == nil {
		return t, 0, true
	}
	n := s.length(t)
	from, _, count, ok := (&slicing{[3]any{start, end, nil}}).resolve(n)
	if !ok {
		throw("slice indices must be integers or None or have an __index__ method")
	}
	if i, given := integer(start); given && i > n {
		return "", 0, false
	}
	_, _, before, _ := (&slicing{[3]any{nil, end, nil}}).resolve(n)
	if from > before {
		return "", 0, false
	}
	s.spend(len(t))
	return cutText(t, from, 1, count, n), from, true
}

func (s *state) find(t, name string, b []any) any {
	sub := text(b[0])
	part, from, inside := s.window(t, b[1], b[2])
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
func split(t string, sep any, n int64, right bool) []string {
	if sep == nil {
		return splitSpace(t, n, right)
	}
	by := text(sep)
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
		return strings.FieldsFunc(t, space)
	}
	var out []string
	if right {
		t = strings.TrimRightFunc(t, space)
	} else {
		t = strings.TrimLeftFunc(t, space)
	}
	for ; t != "" && n > 0; n-- {
		if right {
			at := strings.LastIndexFunc(t, space)
			if at < 0 {
				break
			}
			_, size := utf8.DecodeRuneInString(t[at:])
			out = append(out, t[at+size:])
			t = strings.TrimRightFunc(t[:at], space)
		} else {
			at := strings.IndexFunc(t, space)
			if at < 0 {
				break
			}
			out = append(out, t[:at])
			t = strings.TrimLeftFunc(t[at:], space)
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
func (s *state) replace(t, old, with string, n int64) any {
	s.read(len(t))
	count := int64(strings.Count(t, old))
	if n >= 0 && n < count {
		count = n
	}
	if grow := int64(len(with) - len(old)); grow > 0 && count > int64(s.bytes)/grow {
		s.room(-1)
	}
	s.spend(len(t) + int(count)*max(0, len(with)-len(old)))
	return strings.Replace(t, old, with, int(count))
}

// expandTabs replaces tabs by spaces up to the next column which is a multiple of size.
func (s *state) expandTabs(t string, size any) any {
	n, ok := integer(size)
	if !ok {
		throw("'%s' object cannot be interpreted as an integer", typeName(size))
	}
	s.read(slowly * len(t))
	s.spend(len(t))
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
			out.WriteString(s.repeat(" ", fill).(string))
		}
	}
	return out.String()
}

func (s *state) pad(t, how string, b []any) any {
	width, ok := integer(b[0])
	if !ok {
		throw("'%s' object cannot be interpreted as an integer", typeName(b[0]))
	}
	fill := text(or(b[1], " "))
	if utf8.RuneCountInString(fill) != 1 {
		throw("The fill character must be exactly one character long")
	}
	n := width - s.length(t)
	if n <= 0 {
		return t
	}
	switch how {
	case "zfill":
		zeros := s.repeat("0", n).(string)
		if t != "" && (t[0] == '+' || t[0] == '-') {
			return t[:1] + zeros + t[1:]
		}
		return zeros + t
	case "ljust":
		return t + s.repeat(fill, n).(string)
	case "rjust":
		return s.repeat(fill, n).(string) + t
	}
	left := n/2 + n&width&1
	return s.repeat(fill, left).(string) + t + s.repeat(fill, n-left).(string)
}

func partition(t, sep string, right bool) any {
	if sep == "" {
		throw("empty separator")
	}
	at := strings.Index(t, sep)
	if right {
		at = strings.LastIndex(t, sep)
	}
	switch {
	case at >= 0:
		return &tuple{[]any{t[:at], sep, t[at+len(sep):]}}
	case right:
		return &tuple{[]any{"", "", t}}
	}
	return &tuple{[]any{t, "", ""}}
}

// charPredicate returns the methods which test every character.
func charTest(name string) func(t string) bool {
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
		return all(func(r rune) bool { return unicode.IsNumber(r) || strings.ContainsRune(numerals, r) })
	case "isalpha":
		return all(unicode.IsLetter)
	case "isalnum":
		return all(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })
	case "isspace":
		return all(space)
	case "isupper":
		return func(t string) bool { return cased(t, true) }
	case "islower":
		return func(t string) bool { return cased(t, false) }
	case "istitle":
		return isTitled
	case "isascii":
		return func(t string) bool { return strings.IndexFunc(t, func(r rune) bool { return r > 127 }) < 0 }
	case "isprintable":
		return func(t string) bool { return strings.IndexFunc(t, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 }
	case "isidentifier":
		begins := func(r rune) bool { return r == '_' || unicode.In(r, unicode.L, unicode.Nl, unicode.Other_ID_Start) }
		return func(t string) bool {
			return t != "" && begins(first(t)) && strings.IndexFunc(t, func(r rune) bool {
				return !begins(r) && !unicode.In(r, unicode.Mn, unicode.Mc, unicode.Nd, unicode.Pc, unicode.Other_ID_Continue)
			}) < 0
		}
	}
	return nil
}
