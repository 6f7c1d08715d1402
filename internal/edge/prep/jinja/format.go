package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// maxWidth bounds the width and precision of a formatted value.
const maxWidth = 10_000

// percent is Python's str % value.
func (s *state) percent(t string, v any) any {
	var out strings.Builder
	positional, isTuple := v.(*tuple)
	if !isTuple {
		positional = &tuple{[]any{v}}
	}
	used := 0
	for {
		at := strings.IndexByte(t, '%')
		if at < 0 {
			break
		}
		out.WriteString(t[:at])
		t = t[at+1:]
		if rest, ok := strings.CutPrefix(t, "%"); ok {
			out.WriteByte('%')
			t = rest
			continue
		}
		var arg any
		named := false
		if strings.HasPrefix(t, "(") {
			end := strings.IndexByte(t, ')')
			d, ok := v.(*Dict)
			if end < 0 || !ok {
				throw("format requires a mapping")
			}
			if arg, named = d.get(t[1:end]); !named {
				throw("the mapping has no such key as the format names")
			}
			t = t[end+1:]
		}
		spec := len(t) - len(strings.TrimLeft(t, "-+ 0#"))
		flags := t[:spec]
		t = t[spec:]
		width, t2 := leadingInt(t)
		precision := -1
		if rest, ok := strings.CutPrefix(t2, "."); ok {
			precision, t2 = leadingInt(rest)
		}
		if t2 == "" {
			throw("incomplete format")
		}
		verb := t2[0]
		t = t2[1:]
		if !named {
			if used >= len(positional.items) {
				throw("not enough arguments for format string")
			}
			arg = positional.items[used]
			used++
		}
		out.WriteString(s.convert(verb, flags, width, precision, arg))
		s.room(out.Len())
	}
	out.WriteString(t)
	_, isDict := v.(*Dict)
	if used < len(positional.items) && (isTuple || !isDict) {
		throw("not all arguments converted during string formatting")
	}
	s.spend(out.Len())
	return out.String()
}

// leadingInt takes a number, 0 if there is none.
func leadingInt(t string) (n int, rest string) {
	for t != "" && t[0] >= '0' && t[0] <= '9' {
		if n = n*10 + int(t[0]-'0'); n > maxWidth {
			throw("width or precision above %d", maxWidth)
		}
		t = t[1:]
	}
	return n, t
}

func (s *state) convert(verb byte, flags string, width, precision int, arg any) string {
	text := ""
	switch verb {
	case 's', 'r':
		if text = s.str(arg); verb == 'r' {
			var b strings.Builder
			s.repr(&b, arg, 0)
			text = b.String()
		}
		if precision >= 0 {
			text = s.part(text, nil, int64(precision))
		}
		flags = strings.NewReplacer("0", "", "+", "", " ", "").Replace(flags)
	case 'd', 'i', 'u':
		n, ok := bigInt(arg)
		if f, isFloat := arg.(float64); isFloat && !math.IsNaN(f) && !math.IsInf(f, 0) {
			n, _ = new(big.Float).SetFloat64(f).Int(nil)
			ok = true
		}
		if !ok {
			throw("%%%c format: a real number is required, not %s", verb, typeName(arg))
		}
		text = n.String()
	case 'x', 'X', 'o':
		n, ok := bigInt(arg)
		if !ok {
			throw("%%%c format: an integer is required, not %s", verb, typeName(arg))
		}
		text = fmt.Sprintf("%"+string(rune(verb)), n)
	case 'f', 'F', 'e', 'E', 'g', 'G':
		f, ok := number(arg)
		if !ok {
			throw("must be real number, not %s", typeName(arg))
		}
		if precision < 0 {
			precision = 6
		}
		text = strconv.FormatFloat(f, verb|0x20, precision, 64)
		if verb|0x20 == 'g' {
			text = fmt.Sprintf("%.*g", precision, f)
		}
		if verb < 'a' {
			text = strings.ToUpper(text)
		}
	case 'c':
		if n, ok := integer(arg); ok {
			text = string(rune(n))
		} else {
			text = s.str(arg)
		}
	default:
		throw("unsupported format character '%c'", verb)
	}
	if text != "" && text[0] != '-' && strings.ContainsRune("difFeEgG", rune(verb)) {
		switch {
		case strings.Contains(flags, "+"):
			text = "+" + text
		case strings.Contains(flags, " "):
			text = " " + text
		}
	}
	n := int64(width) - s.length(text)
	switch {
	case n <= 0:
	case strings.Contains(flags, "-"):
		text += strings.Repeat(" ", int(n))
	case strings.Contains(flags, "0"):
		sign := ""
		if strings.ContainsAny(text[:1], "+- ") {
			sign, text = text[:1], text[1:]
		}
		text = sign + strings.Repeat("0", int(n)) + text
	default:
		text = strings.Repeat(" ", int(n)) + text
	}
	return text
}

// format is str.format, with fields by number and name, attributes and items.
func (s *state) format(t string, a *args) any {
	var out strings.Builder
	auto := int64(0)
	for t != "" {
		at := strings.IndexAny(t, "{}")
		if at < 0 {
			break
		}
		out.WriteString(t[:at])
		c := t[at]
		t = t[at+1:]
		if t != "" && t[0] == c {
			out.WriteByte(c)
			t = t[1:]
			continue
		}
		end := strings.IndexByte(t, '}')
		if c == '}' || end < 0 {
			throw("Single '%c' encountered in format string", c)
		}
		field := t[:end]
		t = t[end+1:]
		field, spec, _ := strings.Cut(field, ":")
		if strings.ContainsAny(field+spec, "{!") {
			throw("nested fields and conversions in str.format are not supported")
		}
		out.WriteString(s.formatSpec(s.field(field, a, &auto), spec))
		s.room(out.Len())
	}
	out.WriteString(t)
	s.spend(out.Len())
	return out.String()
}

func (s *state) field(field string, a *args, auto *int64) any {
	end := strings.IndexAny(field, ".[")
	if end < 0 {
		end = len(field)
	}
	name, rest := field[:end], field[end:]
	var v any
	i, err := strconv.ParseInt(name, 10, 64)
	switch {
	case name == "":
		i = *auto
		*auto++
		fallthrough
	case err == nil:
		if i < 0 || i >= int64(len(a.pos)) {
			throw("Replacement index %d out of range for positional args tuple", i)
		}
		v = a.pos[i]
	default:
		var ok bool
		if v, ok = a.kw.get(name); !ok {
			throw("str.format has no argument of that name")
		}
	}
	for rest != "" {
		if rest[0] == '[' {
			key, tail, ok := strings.Cut(rest[1:], "]")
			if !ok {
				throw("Missing ']' in format string")
			}
			if n, err := strconv.ParseInt(key, 10, 64); err == nil {
				v = s.item(v, n)
			} else {
				v = s.item(v, key)
			}
			rest = tail
			continue
		}
		end := strings.IndexAny(rest[1:], ".[") + 1
		if end == 0 {
			end = len(rest)
		}
		found, ok := s.attr(v, rest[1:end])
		if !ok {
			found = s.item(v, rest[1:end])
		}
		v, rest = found, rest[end:]
	}
	return v
}

// formatSpec is format(v, spec) for [[fill]align][sign][0][width][,][.precision][type].
func (s *state) formatSpec(v any, spec string) string {
	if spec == "" {
		return s.str(v)
	}
	fill, align := " ", byte(0)
	if r := []rune(spec); len(r) > 1 && strings.ContainsRune("<>^", r[1]) {
		fill, align = string(r[0]), byte(r[1])
		spec = string(r[2:])
	} else if strings.ContainsRune("<>^", r[0]) {
		align, spec = spec[0], spec[1:]
	}
	flags := spec[:len(spec)-len(strings.TrimLeft(spec, "+- 0"))]
	width, rest := leadingInt(spec[len(flags):])
	rest, comma := strings.CutPrefix(rest, ",")
	precision := -1
	if after, ok := strings.CutPrefix(rest, "."); ok {
		precision, rest = leadingInt(after)
	}
	_, isNumber := number(v)
	if _, isFloat := v.(float64); rest == "" && isFloat {
		if rest = "f"; precision < 0 {
			return s.pad(s.str(v), map[byte]string{0: "rjust", '<': "ljust", '>': "rjust", '^': "center"}[align], []any{int64(width), fill}).(string)
		}
	} else if rest == "" && isNumber {
		rest = "d"
	} else if rest == "" {
		rest = "s"
	}
	if len(rest) != 1 || comma || !isNumber && rest != "s" || isNumber && rest == "s" {
		throw("the format specifier is not supported")
	}
	if align == 0 && isNumber {
		return s.convert(rest[0], strings.ReplaceAll(flags, "-", ""), width, precision, v)
	}
	text := s.convert(rest[0], strings.NewReplacer("-", "", "0", "").Replace(flags), 0, precision, v)
	return s.pad(text, map[byte]string{0: "ljust", '<': "ljust", '>': "rjust", '^': "center"}[align], []any{int64(width), fill}).(string)
}
