package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"

	"penstock/internal/strictjson"
)

// jsonEncoder is json.dumps with its arguments.
type jsonEncoder struct {
	s          *renderState
	b          strings.Builder
	ascii      bool
	indent     string
	multiline  bool // indent is given
	item, pair string
	sort       bool
}

func filterToJSON(s *renderState, v any, b []any) any {
	e := &jsonEncoder{s: s, ascii: isTruthy(orDefault(b[0], false)), item: ", ", pair: ": ", sort: isTruthy(orDefault(b[3], false))}
	switch indent := orDefault(b[1], nil).(type) {
	case nil:
	case string:
		e.multiline, e.indent, e.item = true, indent, ","
	default:
		n, ok := toInteger(indent)
		if !ok {
			throw("can't multiply sequence by non-int of type '%s'", typeName(indent))
		}
		e.multiline, e.indent, e.item = true, s.repeatText(" ", n).(string), ","
	}
	if separators := orDefault(b[2], nil); separators != nil {
		parts := s.collectItems(separators)
		if len(parts) != 2 {
			throw("separators must be two strings")
		}
		e.item, e.pair = textArg(parts[0]), textArg(parts[1])
	}
	e.writeValue(v, 0)
	s.payBytes(e.b.Len())
	return e.b.String()
}

func (e *jsonEncoder) writeNewline(depth int) {
	if e.multiline {
		e.b.WriteByte('\n')
		for range depth {
			e.b.WriteString(e.indent)
			e.s.checkRoom(e.b.Len())
		}
	}
}

func (e *jsonEncoder) writeValue(v any, depth int) {
	if depth > maxDepth {
		throw("maximum recursion depth exceeded while encoding a JSON object")
	}
	e.s.payStep()
	e.s.checkRoom(e.b.Len())
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
		e.writeText(v)
	case *Dict:
		e.writeDict(v, depth)
	default:
		items, ok := sequenceItems(v)
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
			e.writeNewline(depth + 1)
			e.writeValue(item, depth+1)
		}
		e.writeNewline(depth)
		e.b.WriteByte(']')
	}
}

func (e *jsonEncoder) writeDict(d *Dict, depth int) {
	if d.Len() == 0 {
		e.b.WriteString("{}")
		return
	}
	keys := d.keys
	if e.sort {
		keys = e.s.sortItems(keys, func(v any) any { return v }, false).(*listValue).items
	}
	e.b.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			e.b.WriteString(e.item)
		}
		e.writeNewline(depth + 1)
		e.writeKey(k)
		e.b.WriteString(e.pair)
		v, _ := d.getKey(k)
		e.writeValue(v, depth+1)
	}
	e.writeNewline(depth)
	e.b.WriteByte('}')
}

func (e *jsonEncoder) writeKey(k any) {
	switch k := k.(type) {
	case string:
		e.writeText(k)
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

func (e *jsonEncoder) writeText(t string) {
	e.s.checkRoom(e.b.Len() + len(t))
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

// FromJSON reads one JSON value and keeps the order of its keys; for a duplicate key the last value counts,
// in the first place, as in Python. Values nested deeper than templates can print, and integers longer than
// they can compute with, are refused.
func FromJSON(data []byte) (any, error) {
	c := strictjson.NewCursor(data)
	v, err := readValue(&c, 0)
	switch {
	case c.Err() != nil:
		err = c.Err()
	case err == nil && c.End() != nil:
		err = errors.New("more than one value")
	}
	if err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	return v, nil
}

// readValue reads a value. The error is one of a limit; that of the syntax is the cursor's.
func readValue(c *strictjson.Cursor, depth int) (v any, err error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested more than %d levels deep", maxDepth)
	}
	switch c.Peek() {
	case '{':
		out := NewDict()
		for c.Open('{'); err == nil && c.More('}'); {
			k := c.ReadKey()
			v, err = readValue(c, depth+1)
			out.putKey(k, v)
		}
		return out, err
	case '[':
		out := &listValue{}
		for c.Open('['); err == nil && c.More(']'); {
			v, err = readValue(c, depth+1)
			out.items = append(out.items, v)
		}
		return out, err
	case '"':
		return c.ReadString(), nil
	case 't', 'f':
		return c.ReadBool(), nil
	case 'n':
		c.SkipNull()
		return nil, nil
	}
	return parseNumber(string(c.ReadNumber()))
}

// parseNumber parses a number: an integer unless it has a fraction or an exponent.
func parseNumber(text string) (any, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	if strings.ContainsAny(text, ".eE") {
		f, _ := strconv.ParseFloat(text, 64) // infinite if out of range, as in Python
		return f, nil
	}
	if len(text) > maxIntBits/4 {
		return nil, errors.New("integer too large")
	}
	n, _ := new(big.Int).SetString(text, 10)
	return n, nil
}
