package jinja

import (
	"cmp"
	"math"
	"math/big"
	"strings"
)

// formatPercent is Python's str % value.
func (s *renderState) formatPercent(t string, v any) any {
	p := &percentFormatter{s: s, rest: t, v: v, single: true}
	switch args := v.(type) {
	case *tupleValue:
		p.args, p.single = args.items, false
	case *groupPair:
		p.args, p.single = []any{args.grouper, args.list}, false
	default:
		p.args = []any{v}
	}
	var out strings.Builder
	for {
		at := strings.IndexByte(p.rest, '%')
		if at < 0 {
			break
		}
		out.WriteString(p.rest[:at])
		p.rest = p.rest[at+1:]
		out.WriteString(p.formatOne())
		s.payStep()
		s.checkRoom(out.Len())
	}
	out.WriteString(p.rest)
	if len(p.args) > 0 && !p.isMapping() {
		throw("not all arguments converted during string formatting")
	}
	s.payBytes(out.Len())
	return out.String()
}

// percentFormatter is one use of the operator.
type percentFormatter struct {
	s      *renderState
	rest   string // of the format
	v      any
	args   []any // not yet used
	single bool  // v is the only argument, not a tuple of them
}

// isMapping reports whether v supports item access: then it need not be used.
func (p *percentFormatter) isMapping() bool {
	switch p.v.(type) {
	case *Dict, *listValue, *rangeValue, *undefinedValue:
		return p.single
	}
	return false
}

func (p *percentFormatter) nextArg() any {
	if len(p.args) == 0 {
		throw("not enough arguments for format string")
	}
	v := p.args[0]
	p.args = p.args[1:]
	return v
}

// formatOne formats the conversion after a percent sign.
func (p *percentFormatter) formatOne() string {
	if rest, ok := strings.CutPrefix(p.rest, "%"); ok {
		p.rest = rest
		return "%"
	}
	var arg any
	named := strings.HasPrefix(p.rest, "(")
	if named {
		arg = p.namedArg()
	}
	f := formatSpec{fill: " ", precision: -1}
	zero := false
	flags := len(p.rest) - len(strings.TrimLeft(p.rest, "-+ 0#"))
	for _, flag := range []byte(p.rest[:flags]) {
		switch flag {
		case '-':
			f.align = '<'
		case '0':
			zero = true
		case '#':
			f.alternate = true
		case '+':
			f.sign = '+'
		case ' ':
			f.sign = cmp.Or(f.sign, ' ')
		}
	}
	p.rest = p.rest[flags:]
	if f.width = p.parseWidth(); f.width < 0 {
		f.align, f.width = '<', -f.width
	}
	if rest, ok := strings.CutPrefix(p.rest, "."); ok {
		p.rest = rest
		f.precision = max(0, p.parseWidth())
	}
	if p.rest != "" && strings.IndexByte("hlL", p.rest[0]) >= 0 {
		p.rest = p.rest[1:]
	}
	if p.rest == "" {
		throw("incomplete format")
	}
	f.verb = p.rest[0]
	p.rest = p.rest[1:]
	if !named {
		arg = p.nextArg()
	}
	if f.align == 0 {
		if f.align = '>'; zero && strings.IndexByte("diuoxXeEfFgG", f.verb) >= 0 {
			f.fill, f.align = "0", '='
		}
	}
	return p.s.formatPercentArg(f, arg)
}

// namedArg takes the name of an argument in parentheses, which may be nested, and returns the argument.
func (p *percentFormatter) namedArg() any {
	d, ok := p.v.(*Dict)
	if !ok {
		throw("format requires a mapping")
	}
	depth := 0
	for i, c := range []byte(p.rest) {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 {
			arg, ok := d.getKey(p.rest[1:i])
			if !ok {
				throw("the mapping has no such key as the format names")
			}
			p.rest = p.rest[i+1:]
			return arg
		}
	}
	throw("incomplete format key")
	return nil
}

// parseWidth takes a width or precision, possibly from an argument.
func (p *percentFormatter) parseWidth() (n int) {
	if rest, ok := strings.CutPrefix(p.rest, "*"); ok {
		p.rest = rest
		i, ok := p.nextArg().(int64)
		if !ok {
			throw("* wants int")
		}
		if i > maxWidth || i < -maxWidth {
			throw("width or precision above %d", maxWidth)
		}
		return int(i)
	}
	n, p.rest = parseLeadingInt(p.rest)
	return n
}

// formatPercentArg formats v as % does.
func (s *renderState) formatPercentArg(f formatSpec, v any) string {
	switch f.verb {
	case 's', 'r', 'a':
		text := s.toString(v)
		if f.verb != 's' {
			text = s.convertRepr(v, f.verb)
		}
		if f.precision >= 0 {
			text = s.substring(text, nil, int64(f.precision))
		}
		return f.padTo(s, "", text)
	case 'd', 'i', 'u':
		if x, ok := v.(float64); ok && !math.IsNaN(x) && !math.IsInf(x, 0) {
			v, _ = new(big.Float).SetFloat64(x).Int(nil)
		}
		n, ok := toBigInt(v)
		if !ok {
			throw("%%%c format: a real number is required, not %s", f.verb, typeName(v))
		}
		f.verb = 'd'
		return f.formatInteger(s, n)
	case 'x', 'X', 'o':
		n, ok := toBigInt(v)
		if !ok {
			throw("%%%c format: an integer is required, not %s", f.verb, typeName(v))
		}
		return f.formatInteger(s, n)
	case 'f', 'F', 'e', 'E', 'g', 'G':
		x, ok := toNumber(v)
		if !ok {
			throw("must be real number, not %s", typeName(v))
		}
		return f.formatFloatValue(s, x)
	case 'c':
		if text, ok := v.(string); ok {
			if s.lengthOf(text) != 1 {
				throw("%%c requires int or char")
			}
			return f.padTo(s, "", text)
		}
		n, ok := toInteger(v)
		if !ok {
			throw("%%c requires int or char")
		}
		return f.padTo(s, "", codePointString(n))
	}
	throw("unsupported format character '%c'", f.verb)
	return ""
}
