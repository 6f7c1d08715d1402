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

// maxWidth bounds the width and precision of a formatted value.
const maxWidth = 10_000

// parseLeadingInt takes a leading number, 0 if there is none.
func parseLeadingInt(t string) (n int, rest string) {
	for t != "" && t[0] >= '0' && t[0] <= '9' {
		if n = n*10 + int(t[0]-'0'); n > maxWidth {
			throw("width or precision above %d", maxWidth)
		}
		t = t[1:]
	}
	return n, t
}

// textFormatter is one call of str.format.
type textFormatter struct {
	s      *renderState
	args   *callArgs
	auto   int64 // the next field without a number
	manual bool  // fields have numbers
}

func (s *renderState) formatText(t string, a *callArgs) any {
	out := (&textFormatter{s: s, args: a}).expandFields(t, 3)
	s.payBytes(len(out))
	return out
}

// expandFields replaces the fields in t, and those in their specifications up to depth.
func (f *textFormatter) expandFields(t string, depth int) string {
	if depth == 0 {
		throw("Max string recursion exceeded")
	}
	var out strings.Builder
	for {
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
		if c == '}' || t == "" {
			throw("Single '%c' encountered in format string", c)
		}
		var field string
		field, t = cutBraced(t)
		out.WriteString(f.formatField(field, depth))
		f.s.payStep()
		f.s.checkRoom(out.Len())
	}
	out.WriteString(t)
	return out.String()
}

// cutBraced takes the text up to the closing brace of a field.
func cutBraced(t string) (field, rest string) {
	depth := 1
	bracket, inSpec := false, false
	for i, c := range []byte(t) {
		switch {
		case c == '[' && !inSpec:
			bracket = true
		case c == ']' && !inSpec:
			bracket = false
		case (c == ':' || c == '!') && !bracket:
			inSpec = true
		case c == '{' && !inSpec:
			throw("unexpected '{' in field name")
		case c == '{':
			depth++
		case c == '}' && !bracket:
			if depth--; depth == 0 {
				return t[:i], t[i+1:]
			}
		}
	}
	throw("expected '}' before end of string")
	return "", ""
}

// formatField formats one field: a name, a conversion and a specification.
func (f *textFormatter) formatField(field string, depth int) string {
	end, bracket := 0, false
	for end < len(field) && (bracket || field[end] != ':' && field[end] != '!') {
		if field[end] == '[' {
			bracket = true
		} else if field[end] == ']' {
			bracket = false
		}
		end++
	}
	name, rest := field[:end], field[end:]
	var conversion byte
	if after, ok := strings.CutPrefix(rest, "!"); ok {
		if after == "" || len(after) > 1 && after[1] != ':' {
			throw("expected ':' after conversion specifier")
		}
		conversion, rest = after[0], after[1:]
	}
	v := f.lookupField(name)
	switch conversion {
	case 0:
	case 's':
		v = f.s.toString(v)
	case 'r', 'a':
		v = f.s.convertRepr(v, conversion)
	default:
		throw("Unknown conversion specifier %c", conversion)
	}
	return f.s.formatValue(v, f.expandFields(strings.TrimPrefix(rest, ":"), depth-1))
}

// convertRepr is the repr, or ascii, of v.
func (s *renderState) convertRepr(v any, verb byte) string {
	var b strings.Builder
	s.writeRepr(&b, v, 0)
	s.payBytes(b.Len())
	if verb == 'r' {
		return b.String()
	}
	var out strings.Builder
	for _, r := range b.String() {
		switch {
		case r < 0x80:
			out.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&out, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			fmt.Fprintf(&out, `\U%08x`, r)
		}
	}
	return out.String()
}

// lookupField returns the value of a field: an argument, and attributes and items of it.
func (f *textFormatter) lookupField(field string) any {
	end := strings.IndexAny(field, ".[")
	if end < 0 {
		end = len(field)
	}
	name, rest := field[:end], field[end:]
	number := isDigits(name)
	if field == "" || number && rest == "" {
		if field != "" && f.auto > 0 || field == "" && f.manual {
			throw("cannot switch between manual field specification and automatic field numbering")
		}
		f.manual = field != ""
	}
	var v any
	switch {
	case field == "", number:
		i := f.auto
		if field == "" {
			f.auto++
		} else if n, err := strconv.ParseInt(name, 10, 64); err != nil {
			throw("Too many decimal digits in format string")
		} else {
			i = n
		}
		if i >= int64(len(f.args.pos)) {
			throw("Replacement index %d out of range for positional args tuple", i)
		}
		v = f.args.pos[i]
	default:
		var ok bool
		if v, ok = f.args.kw.getKey(name); !ok {
			throw("str.format has no argument of that name")
		}
	}
	for rest != "" {
		v, rest = f.lookupPart(v, rest)
	}
	return v
}

// lookupPart returns the attribute or item of v at the start of rest.
func (f *textFormatter) lookupPart(v any, rest string) (any, string) {
	if rest[0] == '[' {
		key, tail, ok := strings.Cut(rest[1:], "]")
		if !ok {
			throw("Missing ']' in format string")
		}
		if key == "" {
			throw("Empty attribute in format string")
		}
		if tail != "" && tail[0] != '.' && tail[0] != '[' {
			throw("Only '.' or '[' may follow ']' in format field specifier")
		}
		if n, err := strconv.ParseInt(key, 10, 64); err == nil && isDigits(key) {
			return f.s.getItem(v, n), tail
		}
		return f.s.getItem(v, key), tail
	}
	end := strings.IndexAny(rest[1:], ".[") + 1
	if end == 0 {
		end = len(rest)
	}
	if end == 1 {
		throw("Empty attribute in format string")
	}
	requireDefined(v)
	found, ok := f.s.getAttr(v, rest[1:end])
	if !ok {
		found = f.s.getItem(v, rest[1:end])
	}
	return found, rest[end:]
}

func isDigits(t string) bool { return t != "" && strings.Trim(t, "0123456789") == "" }

// formatSpec is a format specification: [[fill]align][sign][#][0][width][groupPair][.precision][verb].
type formatSpec struct {
	fill      string
	align     byte // '<', '>', '^' or '='; 0 for the default of the kind of value
	sign      byte // '+' or ' ' for non-negative numbers
	alternate bool
	width     int
	group     byte // ',' or '_' between groups of digits
	precision int  // -1 if there is none
	verb      byte // 0 if there is none
}

// formatValue is Python's format().
func (s *renderState) formatValue(v any, text string) string {
	if text == "" {
		return s.toString(v)
	}
	f := parseFormatSpec(text)
	switch v := v.(type) {
	case string:
		return f.formatText(s, v)
	case float64:
		return f.formatFloatValue(s, v)
	}
	n, ok := toBigInt(v)
	if !ok {
		throw("unsupported format string passed to %s.__format__", typeName(v))
	}
	if f.verb != 0 && strings.IndexByte("eEfFgG%", f.verb) >= 0 {
		x, _ := toNumber(v)
		return f.formatFloatValue(s, x)
	}
	if f.precision >= 0 {
		throw("Precision not allowed in integer format specifier")
	}
	if f.verb == 'c' {
		i, ok := v.(int64)
		if !ok || f.sign != 0 || f.alternate {
			throw("%%c arg not in range, or with a sign")
		}
		f.align = cmp.Or(f.align, '<')
		return f.padTo(s, "", codePointString(i))
	}
	return f.formatInteger(s, n)
}

func parseFormatSpec(text string) formatSpec {
	f := formatSpec{fill: " ", precision: -1}
	filled := false
	_, size := utf8.DecodeRuneInString(text)
	if len(text) > size && strings.IndexByte("<>^=", text[size]) >= 0 {
		f.fill, f.align = text[:size], text[size]
		text = text[size+1:]
		filled = true
	} else if strings.IndexByte("<>^=", text[0]) >= 0 {
		f.align, text = text[0], text[1:]
	}
	if text != "" && strings.IndexByte("+- ", text[0]) >= 0 {
		f.sign, text = text[0], text[1:]
	}
	text, f.alternate = strings.CutPrefix(text, "#")
	if rest, zero := strings.CutPrefix(text, "0"); zero && !filled {
		text = rest
		if f.fill = "0"; f.align == 0 {
			f.align = '0' // '=' for numbers
		}
	}
	f.width, text = parseLeadingInt(text)
	if text != "" && (text[0] == ',' || text[0] == '_') {
		f.group, text = text[0], text[1:]
	}
	if rest, ok := strings.CutPrefix(text, "."); ok {
		if rest == "" || rest[0] < '0' || rest[0] > '9' {
			throw("Format specifier missing precision")
		}
		f.precision, text = parseLeadingInt(rest)
	}
	if len(text) > 1 {
		throw("Invalid format specifier")
	}
	if text != "" {
		f.verb = text[0]
	}
	return f
}

// padTo pads to the width; prefix is the sign and similar, which "=" keeps first.
func (f *formatSpec) padTo(s *renderState, prefix, body string) string {
	n := int64(f.width) - s.lengthOf(prefix) - s.lengthOf(body)
	if n <= 0 {
		return prefix + body
	}
	left := int64(0)
	switch f.align {
	case '>':
		left = n
	case '^':
		left = n / 2
	case '=', '0':
		return prefix + s.repeatText(f.fill, n).(string) + body
	}
	return s.repeatText(f.fill, left).(string) + prefix + body + s.repeatText(f.fill, n-left).(string)
}

func (f *formatSpec) formatText(s *renderState, t string) string {
	if f.verb != 0 && f.verb != 's' {
		throw("Unknown format code '%c' for object of type 'str'", f.verb)
	}
	if f.sign != 0 || f.alternate || f.align == '=' || f.group != 0 {
		throw("sign, '#', '=' and groups are not allowed in string format specifier")
	}
	if f.align == '0' {
		f.align = '<'
	}
	if f.precision >= 0 {
		t = s.substring(t, nil, int64(f.precision))
	}
	return f.padTo(s, "", t)
}

// signPrefix returns the text before the digits of a number.
func (f *formatSpec) signPrefix(negative bool) string {
	switch {
	case negative:
		return "-"
	case f.sign == '+' || f.sign == ' ':
		return string(f.sign)
	}
	return ""
}

func (f *formatSpec) formatInteger(s *renderState, n *big.Int) string {
	base, size := 10, 3
	prefix := ""
	switch f.verb {
	case 0, 'd', 'n':
		if f.verb == 'n' && f.group != 0 {
			throw("Cannot specify a group with 'n'.")
		}
	case 'b', 'o', 'x', 'X':
		if f.group == ',' {
			throw("Cannot specify ',' with '%c'.", f.verb)
		}
		base, size = map[byte]int{'b': 2, 'o': 8, 'x': 16, 'X': 16}[f.verb], 4
		if f.alternate {
			prefix = "0" + string(f.verb)
		}
	default:
		throw("Unknown format code '%c' for object of type 'int'", f.verb)
	}
	text := new(big.Int).Abs(n).Text(base)
	if f.verb == 'X' {
		text = strings.ToUpper(text)
	}
	if f.precision > len(text) {
		text = strings.Repeat("0", f.precision-len(text)) + text
	}
	return f.padNumber(s, f.signPrefix(n.Sign() < 0)+prefix, text, "", size)
}

// padNumber groups the whole part of a number and pads it.
func (f *formatSpec) padNumber(s *renderState, prefix, whole, rest string, size int) string {
	if f.group != 0 {
		if f.fill == "0" && (f.align == '=' || f.align == '0') {
			for have := len(prefix) + len(rest); have+len(groupDigits(whole, f.group, size)) < f.width; {
				s.payBytes(1)
				whole = "0" + whole
			}
		}
		whole = groupDigits(whole, f.group, size)
	}
	f.align = cmp.Or(f.align, '>')
	return f.padTo(s, prefix, whole+rest)
}

func groupDigits(whole string, with byte, size int) string {
	var b strings.Builder
	for i, c := range []byte(whole) {
		if i > 0 && (len(whole)-i)%size == 0 {
			b.WriteByte(with)
		}
		b.WriteByte(c)
	}
	return b.String()
}

func (f *formatSpec) formatFloatValue(s *renderState, x float64) string {
	verb, precision := f.verb, f.precision
	prefix := f.signPrefix(math.Signbit(x) && !math.IsNaN(x))
	x = math.Abs(x)
	tail := ""
	dot := false // a whole number is shown as a float
	switch verb {
	case 0:
		if verb, dot = 'g', true; precision < 0 {
			text := formatFloat(x)
			if math.IsInf(x, 0) || math.IsNaN(x) {
				return f.padNumber(s, prefix, text, "", 3)
			}
			return f.padSplitNumber(s, prefix, text)
		}
	case 'n':
		verb = 'g'
	case '%':
		verb, tail, x = 'f', "%", x*100
	case 'e', 'E', 'f', 'F', 'g', 'G':
	default:
		throw("Unknown format code '%c' for object of type 'float'", verb)
	}
	if precision < 0 {
		precision = 6
	}
	var text string
	switch {
	case math.IsInf(x, 0):
		text = "inf"
	case math.IsNaN(x):
		text = "nan"
	case verb|0x20 == 'g':
		text = formatGeneral(x, max(1, precision), f.alternate, dot)
	default:
		text = strconv.FormatFloat(x, verb|0x20, precision, 64)
		if f.alternate && precision == 0 {
			if at := strings.IndexByte(text, 'e'); at >= 0 {
				text = text[:at] + "." + text[at:]
			} else {
				text += "."
			}
		}
	}
	s.payBytes(len(text))
	if verb < 'a' {
		text = strings.ToUpper(text)
	}
	return f.padSplitNumber(s, prefix, text+tail)
}

// padSplitNumber pads a number whose digits before the point may be grouped.
func (f *formatSpec) padSplitNumber(s *renderState, prefix, text string) string {
	end := len(text) - len(strings.TrimLeft(text, "0123456789"))
	return f.padNumber(s, prefix, text[:end], text[end:], 3)
}

// formatGeneral is the form g: precision digits, with an exponent where that is shorter, and trailing zeros
// only if all is set. dot keeps one digit after the point.
func formatGeneral(x float64, precision int, all, dot bool) string {
	text := strconv.FormatFloat(x, 'e', precision-1, 64)
	at := strings.IndexByte(text, 'e')
	exponent, _ := strconv.Atoi(text[at+1:])
	limit := precision
	if dot {
		limit--
	}
	if exponent < -4 || exponent >= limit && x != 0 {
		head, tail := text[:at], text[at:]
		if !all && strings.Contains(head, ".") {
			head = strings.TrimRight(strings.TrimRight(head, "0"), ".")
		} else if all && !strings.Contains(head, ".") {
			head += "."
		}
		return head + tail
	}
	text = strconv.FormatFloat(x, 'f', max(0, precision-1-exponent), 64)
	if !all && strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	} else if all && !strings.Contains(text, ".") {
		text += "."
	}
	if dot && !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// codePointString is the character of a code point.
func codePointString(n int64) string {
	if n < 0 || n > unicode.MaxRune {
		throw("%%c arg not in range(0x110000)")
	}
	return string(rune(n))
}
