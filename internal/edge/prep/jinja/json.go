package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"unicode/utf16"
)

// jsonEncoder is json.dumps with its arguments.
type encoder struct {
	s          *state
	b          strings.Builder
	ascii      bool
	indent     string
	lines      bool // indent is given
	item, pair string
	sort       bool
}

func tojson(s *state, v any, a *args) any {
	b := a.bind("ensure_ascii", "indent", "separators", "sort_keys")
	e := &encoder{s: s, ascii: truth(or(b[0], false)), item: ", ", pair: ": ", sort: truth(or(b[3], false))}
	switch indent := or(b[1], nil).(type) {
	case nil:
	case string:
		e.lines, e.indent, e.item = true, indent, ","
	default:
		n, ok := integer(indent)
		if !ok {
			throw("can't multiply sequence by non-int of type '%s'", typeName(indent))
		}
		e.lines, e.indent, e.item = true, s.repeat(" ", n).(string), ","
	}
	if separators := or(b[2], nil); separators != nil {
		parts := s.collect(separators)
		if len(parts) != 2 {
			throw("separators must be two strings")
		}
		e.item, e.pair = text(parts[0]), text(parts[1])
	}
	e.value(v, 0)
	s.spend(e.b.Len())
	return e.b.String()
}

func (e *encoder) newline(depth int) {
	if e.lines {
		e.b.WriteByte('\n')
		for range depth {
			e.b.WriteString(e.indent)
			e.s.room(e.b.Len())
		}
	}
}

func (e *encoder) value(v any, depth int) {
	if depth > maxDepth {
		throw("maximum recursion depth exceeded while encoding a JSON object")
	}
	e.s.step()
	e.s.room(e.b.Len())
	switch v := v.(type) {
	case nil:
		e.b.WriteString("null")
	case bool:
		fmt.Fprint(&e.b, v)
	case int64, *big.Int:
		fmt.Fprint(&e.b, v)
	case float64:
		e.b.WriteString(jsonFloat(v))
	case string:
		e.text(v)
	case *Dict:
		e.dict(v, depth)
	default:
		items, ok := sequence(v)
		if !ok {
			throw("Object of type %s is not JSON serializable", typeName(v))
		}
		if len(items) == 0 {
			e.b.WriteString("[]")
			return
		}
		e.b.WriteByte('[')
		for i, item := range items {
			if i > 0 {
				e.b.WriteString(e.item)
			}
			e.newline(depth + 1)
			e.value(item, depth+1)
		}
		e.newline(depth)
		e.b.WriteByte(']')
	}
}

func (e *encoder) dict(d *Dict, depth int) {
	if d.Len() == 0 {
		e.b.WriteString("{}")
		return
	}
	keys := d.keys
	if e.sort {
		keys = e.s.sorted(keys, func(v any) any { return v }, false).(*list).items
	}
	e.b.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			e.b.WriteString(e.item)
		}
		e.newline(depth + 1)
		e.key(k)
		e.b.WriteString(e.pair)
		v, _ := d.get(k)
		e.value(v, depth+1)
	}
	e.newline(depth)
	e.b.WriteByte('}')
}

func (e *encoder) key(k any) {
	switch k := k.(type) {
	case string:
		e.text(k)
	case nil:
		e.b.WriteString(`"null"`)
	case bool, int64, *big.Int:
		fmt.Fprintf(&e.b, `"%v"`, k)
	case float64:
		e.b.WriteString(`"` + jsonFloat(k) + `"`)
	default:
		throw("keys must be str, int, float, bool or None, not %s", typeName(k))
	}
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return formatFloat(f)
}

func (e *encoder) text(t string) {
	e.s.room(e.b.Len() + len(t))
	e.b.WriteByte('"')
	for _, r := range t {
		if at := strings.IndexRune("\"\\\n\r\t\f\b", r); at >= 0 {
			e.b.WriteString([...]string{`\"`, `\\`, `\n`, `\r`, `\t`, `\f`, `\b`}[at])
			continue
		}
		switch {
		case r < ' ', e.ascii && r >= 0x7f && r < 0x10000:
			fmt.Fprintf(&e.b, `\u%04x`, r)
		case e.ascii && r >= 0x10000:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&e.b, `\u%04x\u%04x`, hi, lo)
		default:
			e.b.WriteRune(r)
		}
	}
	e.b.WriteByte('"')
}
