package guide

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// formatRule is the meaning of a format: a pattern of strings, or limits of numbers.
type format struct {
	name    string
	kind    kind
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
var formats = []format{
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
func formatOf(v *value, t kind) (*format, error) {
	named := v.get("format")
	if named == nil {
		return nil, nil
	}
	i := slices.IndexFunc(formats, func(f format) bool { return f.name == named.text })
	if named.kind != kindString || i < 0 {
		var names []string
		for _, f := range formats {
			names = append(names, f.name)
		}
		return nil, refuse(v, "format", "is %.40q, and there are %s; leave it out", named.text, strings.Join(names, ", "))
	}
	if f := &formats[i]; (f.kind == kindString) == (t == kindString) {
		return f, nil
	}
	return nil, nil
}

// formatKind is the type to which a format applies.
func formatKind(name string) kind {
	for i := range formats {
		if formats[i].name == name {
			return formats[i].kind
		}
	}
	return kindString
}

// compileString emits a string and continues at next.
func (c *compiler) text(v *value, next int32) (int32, error) {
	least, most, err := bounds(v, "minLength", "maxLength")
	if err != nil {
		return 0, err
	}
	x := text{min: least, max: most}
	if x.dfa, err = c.strings(v, least, most); err != nil {
		return 0, err
	}
	c.g.texts = append(c.g.texts, x)
	return c.literal(`"`, c.emit(instr{op: opText, x: int32(len(c.g.texts) - 1), next: next})), nil
}

// stringDFA returns the automaton of v's strings with least to most characters; nil if there is neither a
// format nor a pattern. If both are present, both apply: clients which know a format often send its pattern
// too.
func (c *compiler) strings(v *value, least, most uint32) (*dfa, error) {
	f, err := formatOf(v, kindString)
	if err != nil {
		return nil, err
	}
	var d *dfa
	key := "format"
	if f != nil {
		if d, err = c.automaton(f.pattern); err != nil {
			return nil, refuse(v, key, "%w", err)
		}
	}
	if p := v.get("pattern"); p != nil {
		key = "pattern"
		if p.kind != kindString {
			return nil, refuse(v, key, "must be a string")
		}
		if d, err = c.also(d, p.text); err != nil {
			return nil, refuse(v, key, "%w", err)
		}
	}
	if d == nil || least == 0 && most == unlimited {
		return d, nil
	}
	if d, err = d.limit(least, most, &c.budget); err != nil {
		return nil, refuse(v, key, "%w", err)
	}
	return d, nil
}

// intersectPattern returns the automaton of the strings of d which also match pattern. A nil d is all
// strings.
func (c *compiler) also(d *dfa, pattern string) (*dfa, error) {
	e, err := c.automaton(pattern)
	if err != nil || d == nil {
		return e, err
	}
	return both(d, e, &c.budget)
}

// patternDFA returns the automaton of a pattern. It is cached, because schemas repeat patterns.
func (c *compiler) automaton(pattern string) (*dfa, error) {
	if d := c.patterns[pattern]; d != nil {
		return d, nil
	}
	d, err := newPattern(pattern, &c.budget)
	if err != nil {
		return nil, err
	}
	c.patterns[pattern] = d
	return d, nil
}

// compileNumber emits an integer or a number and continues at next.
func (c *compiler) number(v *value, t kind, next int32) (int32, error) {
	low, err := limitOf(v, "minimum", "exclusiveMinimum", 1)
	if err != nil {
		return 0, err
	}
	high, err := limitOf(v, "maximum", "exclusiveMaximum", -1)
	if err != nil {
		return 0, err
	}
	f, err := formatOf(v, t)
	if err != nil {
		return 0, err
	}
	if f != nil && f.kind == kindInteger {
		t = kindInteger
	}
	if f != nil && f.low != "" {
		low, high = tighter(low, exactly(f.low), 1), tighter(high, exactly(f.high), -1)
	}
	n, ok := integers(low, high)
	if t == kindNumber {
		n, ok = decimals(low, high)
	}
	if !ok {
		return 0, refuse(v, "", "allows no number that can be written here: its bounds exclude each other, or have more than 18 digits before or %d after the point", maxBoundDigits)
	}
	c.g.numbers = append(c.g.numbers, n)
	return c.emit(instr{op: opNumber, x: int32(len(c.g.numbers) - 1), next: next}), nil
}

func exactly(s string) *limit {
	d, _ := parseDecimal(s)
	return &limit{decimal: d}
}

// limitFor returns the tighter of the limits which two keywords set; nil if there is none. direction is 1
// for lower limits and -1 for upper ones.
func limitOf(v *value, closed, open string, direction int) (*limit, error) {
	var found *limit
	for _, key := range []string{closed, open} {
		item := v.get(key)
		if item == nil {
			continue
		}
		if item.kind != kindNumber {
			return nil, refuse(v, key, "must be a number")
		}
		d, ok := parseDecimal(item.text)
		if !ok {
			return nil, refuse(v, key, "has too many digits")
		}
		found = tighter(found, &limit{decimal: d, open: key == open}, direction)
	}
	return found, nil
}

// tighterLimit returns the tighter of two limits; nil is no limit.
func tighter(a, b *limit, direction int) *limit {
	if a == nil {
		return b
	}
	order := a.compare(b.decimal) * direction
	if order > 0 || order == 0 && a.open {
		return a
	}
	return b
}

// emitSpelling writes one text. A character beyond ASCII is inside a string, and may be escaped there.
func (c *compiler) spell(s string, next int32) int32 {
	end := len(s)
	for end > 0 && !c.full() {
		start := end
		for start > 0 && s[start-1] < utf8.RuneSelf {
			start--
		}
		if start < end {
			next, end = c.literal(s[start:end], next), start
			continue
		}
		r, size := utf8.DecodeLastRuneInString(s[:end])
		start = end - size
		next, end = c.split(c.literal(s[start:end], next), c.literal(escaped(r), next)), start
	}
	return next
}

// escapeRune returns the escape of a character beyond ASCII.
func escaped(r rune) string {
	const hex = "0123456789abcdef"
	unit := func(u rune) string {
		return string([]byte{'\\', 'u', hex[u>>12&15], hex[u>>8&15], hex[u>>4&15], hex[u&15]})
	}
	if r < beyond {
		return unit(r)
	}
	r -= beyond
	return unit(highFirst+r>>10) + unit(lowFirst+r&0x3FF)
}

// emitSpellings writes one of texts, which are sorted, distinct, and equal up to from. A common prefix of
// several is written once, so that there are never more readings than possible next characters.
func (c *compiler) spellings(texts []string, from int, next int32) int32 {
	if c.full() {
		return next
	}
	common := shared(texts[0][from:], texts[len(texts)-1][from:])
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
		targets = append(targets, c.spellings(rest[:n], at, next))
		rest = rest[n:]
	}
	return c.spell(texts[0][from:at], c.split(targets...))
}

// commonPrefixLen returns the length of the common prefix of a and b in bytes, in whole characters.
func shared(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	for n > 0 && n < len(a) && !utf8.RuneStart(a[n]) {
		n--
	}
	return n
}
