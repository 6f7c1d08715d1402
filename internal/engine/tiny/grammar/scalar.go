package grammar

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// formatRule is the meaning of a format: a pattern of strings, or limits of numbers.
type formatRule struct {
	name    string
	kind    jsonKind
	pattern string
	low     string
	high    string
}

const (
	datePattern = `[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))`
	timePattern = `([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])`
	atomPattern = `[A-Za-z0-9!#$%&'*+/=?^_{|}~-]+`
	namePattern = `[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?`
	hostPattern = namePattern + `(\.` + namePattern + `){0,2}`
	bytePattern = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
)

// formats are the enforced formats. Each pattern allows only strings which the format's standard allows:
// RFC 3339, RFC 4122, RFC 5321, RFC 2673, RFC 4291, RFC 1123 and RFC 3986.
var formats = []formatRule{
	{name: "date", kind: kindString, pattern: `^` + datePattern + `$`},
	{name: "time", kind: kindString, pattern: `^` + timePattern + `$`},
	{name: "date-time", kind: kindString, pattern: `^` + datePattern + `T` + timePattern + `$`},
	{name: "uuid", kind: kindString, pattern: `^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`},
	{name: "email", kind: kindString, pattern: `^` + atomPattern + `(\.` + atomPattern + `)*@` + namePattern + `(\.` + namePattern + `)+$`},
	{name: "ipv4", kind: kindString, pattern: `^(` + bytePattern + `\.){3}` + bytePattern + `$`},
	{name: "ipv6", kind: kindString, pattern: `^[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}$`},
	{name: "hostname", kind: kindString, pattern: `^` + hostPattern + `$`},
	{name: "uri", kind: kindString, pattern: `^https?://` + hostPattern + `(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~-]*)*(\?[A-Za-z0-9._~=&-]*)?(#[A-Za-z0-9._~-]*)?$`},
	{name: "duration", kind: kindString, pattern: `^P([0-9]{1,4}W|[0-9]{1,4}D|([0-9]{1,4}D)?T([0-9]{1,4}H([0-9]{1,2}M([0-9]{1,2}S)?)?|[0-9]{1,4}M([0-9]{1,2}S)?|[0-9]{1,4}S))$`},
	{name: "int32", kind: kindInteger, low: "-2147483648", high: "2147483647"},
	{name: "int64", kind: kindInteger},
	{name: "float", kind: kindNumber},
	{name: "double", kind: kindNumber},
}

// formatFor returns the format which v names, if it applies to values of type t; otherwise nil.
func formatFor(v *jsonValue, t jsonKind) (*formatRule, error) {
	named := v.member("format")
	if named == nil {
		return nil, nil
	}
	i := slices.IndexFunc(formats, func(f formatRule) bool { return f.name == named.text })
	if named.kind != kindString || i < 0 {
		var names []string
		for _, f := range formats {
			names = append(names, f.name)
		}
		return nil, refuseKeyword(v, "format", "is %.40q, and there are %s; leave it out", named.text, strings.Join(names, ", "))
	}
	if f := &formats[i]; (f.kind == kindString) == (t == kindString) {
		return f, nil
	}
	return nil, nil
}

// formatKind is the type to which a format applies.
func formatKind(name string) jsonKind {
	for i := range formats {
		if formats[i].name == name {
			return formats[i].kind
		}
	}
	return kindString
}

// compileString emits a string and continues at next.
func (c *compiler) compileString(v *jsonValue, next int32) (int32, error) {
	least, most, err := countBounds(v, "minLength", "maxLength")
	if err != nil {
		return 0, err
	}
	x := stringRule{min: least, max: most}
	if x.dfa, err = c.stringDFA(v, least, most); err != nil {
		return 0, err
	}
	c.g.strings = append(c.g.strings, x)
	return c.emitLiteral(`"`, c.emitInstr(instr{op: opText, x: int32(len(c.g.strings) - 1), next: next})), nil
}

// stringDFA returns the automaton of v's strings with least to most characters; nil if there is neither a
// format nor a pattern. If both are present, both apply: clients which know a format often send its pattern
// too.
func (c *compiler) stringDFA(v *jsonValue, least, most uint32) (*dfa, error) {
	f, err := formatFor(v, kindString)
	if err != nil {
		return nil, err
	}
	var d *dfa
	key := "format"
	if f != nil {
		if d, err = c.patternDFA(f.pattern); err != nil {
			return nil, refuseKeyword(v, key, "%w", err)
		}
	}
	if p := v.member("pattern"); p != nil {
		key = "pattern"
		if p.kind != kindString {
			return nil, refuseKeyword(v, key, "must be a string")
		}
		if d, err = c.intersectPattern(d, p.text); err != nil {
			return nil, refuseKeyword(v, key, "%w", err)
		}
	}
	if d == nil || least == 0 && most == unlimited {
		return d, nil
	}
	if d, err = d.limitLength(least, most, &c.budget); err != nil {
		return nil, refuseKeyword(v, key, "%w", err)
	}
	return d, nil
}

// intersectPattern returns the automaton of the strings of d which also match pattern. A nil d is all
// strings.
func (c *compiler) intersectPattern(d *dfa, pattern string) (*dfa, error) {
	e, err := c.patternDFA(pattern)
	if err != nil || d == nil {
		return e, err
	}
	return intersectDFA(d, e, &c.budget)
}

// patternDFA returns the automaton of a pattern. It is cached, because schemas repeat patterns.
func (c *compiler) patternDFA(pattern string) (*dfa, error) {
	if d := c.patterns[pattern]; d != nil {
		return d, nil
	}
	d, err := compilePattern(pattern, &c.budget)
	if err != nil {
		return nil, err
	}
	c.patterns[pattern] = d
	return d, nil
}

// compileNumber emits an integer or a number and continues at next.
func (c *compiler) compileNumber(v *jsonValue, t jsonKind, next int32) (int32, error) {
	low, err := limitFor(v, "minimum", "exclusiveMinimum", 1)
	if err != nil {
		return 0, err
	}
	high, err := limitFor(v, "maximum", "exclusiveMaximum", -1)
	if err != nil {
		return 0, err
	}
	f, err := formatFor(v, t)
	if err != nil {
		return 0, err
	}
	if f != nil && f.kind == kindInteger {
		t = kindInteger
	}
	if f != nil && f.low != "" {
		low, high = tighterLimit(low, newLimit(f.low), 1), tighterLimit(high, newLimit(f.high), -1)
	}
	n, ok := integerRange(low, high)
	if t == kindNumber {
		n, ok = decimalRange(low, high)
	}
	if !ok {
		return 0, refuseKeyword(v, "", "allows no number that can be written here: its bounds exclude each other, or have more than 18 digits before or %d after the point", maxBoundDigits)
	}
	c.g.numbers = append(c.g.numbers, n)
	return c.emitInstr(instr{op: opNumber, x: int32(len(c.g.numbers) - 1), next: next}), nil
}

func newLimit(s string) *numberLimit {
	d, _ := parseDecimal(s)
	return &numberLimit{decimal: d}
}

// limitFor returns the tighter of the limits which two keywords set; nil if there is none. direction is 1
// for lower limits and -1 for upper ones.
func limitFor(v *jsonValue, closed, open string, direction int) (*numberLimit, error) {
	var found *numberLimit
	for _, key := range []string{closed, open} {
		item := v.member(key)
		if item == nil {
			continue
		}
		if item.kind != kindNumber {
			return nil, refuseKeyword(v, key, "must be a number")
		}
		d, ok := parseDecimal(item.text)
		if !ok {
			return nil, refuseKeyword(v, key, "has too many digits")
		}
		found = tighterLimit(found, &numberLimit{decimal: d, open: key == open}, direction)
	}
	return found, nil
}

// tighterLimit returns the tighter of two limits; nil is no limit.
func tighterLimit(a, b *numberLimit, direction int) *numberLimit {
	if a == nil {
		return b
	}
	order := a.compareTo(b.decimal) * direction
	if order > 0 || order == 0 && a.open {
		return a
	}
	return b
}

// emitSpelling writes one text. A character beyond ASCII is inside a string, and may be escaped there.
func (c *compiler) emitSpelling(s string, next int32) int32 {
	end := len(s)
	for end > 0 && !c.isFull() {
		start := end
		for start > 0 && s[start-1] < utf8.RuneSelf {
			start--
		}
		if start < end {
			next, end = c.emitLiteral(s[start:end], next), start
			continue
		}
		r, size := utf8.DecodeLastRuneInString(s[:end])
		start = end - size
		next, end = c.emitSplit(c.emitLiteral(s[start:end], next), c.emitLiteral(escapeRune(r), next)), start
	}
	return next
}

// escapeRune returns the escape of a character beyond ASCII.
func escapeRune(r rune) string {
	const hex = "0123456789abcdef"
	unit := func(u rune) string {
		return string([]byte{'\\', 'u', hex[u>>12&15], hex[u>>8&15], hex[u>>4&15], hex[u&15]})
	}
	if r < firstSupplementary {
		return unit(r)
	}
	r -= firstSupplementary
	return unit(highFirst+r>>10) + unit(lowFirst+r&0x3FF)
}

// emitSpellings writes one of texts, which are sorted, distinct, and equal up to from. A common prefix of
// several is written once, so that there are never more readings than possible next characters.
func (c *compiler) emitSpellings(texts []string, from int, next int32) int32 {
	if c.isFull() {
		return next
	}
	common := commonPrefixLen(texts[0][from:], texts[len(texts)-1][from:])
	at := from + common
	var targets []int32
	rest := texts
	if len(rest[0]) == at {
		targets = append(targets, next)
		rest = rest[1:]
	}
	for len(rest) > 0 {
		_, size := utf8.DecodeRuneInString(rest[0][at:])
		n := 1
		for n < len(rest) && len(rest[n]) >= at+size && rest[n][at:at+size] == rest[0][at:at+size] {
			n++
		}
		targets = append(targets, c.emitSpellings(rest[:n], at, next))
		rest = rest[n:]
	}
	return c.emitSpelling(texts[0][from:at], c.emitSplit(targets...))
}

// commonPrefixLen returns the length of the common prefix of a and b in bytes, in whole characters.
func commonPrefixLen(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	for n > 0 && n < len(a) && !utf8.RuneStart(a[n]) {
		n--
	}
	return n
}
