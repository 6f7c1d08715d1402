package jinja

import (
	"fmt"
	"strings"
	"time"
)

// maxRaised bounds the message of a template's own error, in bytes.
const maxRaised = 4096

// newGlobals returns the names which every template has. The scope is not changed once it is made: a
// template's own names are in inner scopes, so that renderings may share it.
func newGlobals() *scope {
	sc := new(scope)
	for name, f := range map[string]func(s *renderState, a *callArgs) any{
		"range": newRange,
		"dict": func(s *renderState, a *callArgs) any {
			return s.newDict(a)
		},
		"namespace": func(s *renderState, a *callArgs) any {
			d := s.newDict(a)
			for _, k := range d.keys {
				checkStorable(k)
			}
			return &namespaceValue{d}
		},
		"cycler": newCycler,
		"joiner": func(s *renderState, a *callArgs) any {
			sep := orDefault(a.bindParams("sep")[0], ", ")
			used := false
			return &functionValue{"joiner", func(_ *renderState, a *callArgs) any {
				a.bindParams()
				if !used {
					used = true
					return ""
				}
				return sep
			}}
		},
		"raise_exception": func(s *renderState, a *callArgs) any {
			message := s.toString(a.bindParams("message!")[0])
			if len(message) > maxRaised {
				message = strings.ToValidUTF8(message[:maxRaised], "") + "…"
			}
			panic(&templateError{message: message, raised: true})
		},
		"strftime_now": func(s *renderState, a *callArgs) any {
			format := textArg(a.bindParams("format!")[0])
			s.payRead(slowly * slowly * len(format))
			out := formatStrftime(s.now, format)
			s.payBytes(len(out))
			return out
		},
	} {
		sc.setName(name, &functionValue{name, f})
	}
	return sc
}

func newRange(_ *renderState, a *callArgs) any {
	var n [3]int64
	for i, v := range a.pos {
		x, ok := toInteger(v)
		if !ok || i > 2 {
			requireDefined(v)
			throw("'%s' object cannot be interpreted as an integer", typeName(v))
		}
		n[i] = max(-1<<40, min(x, 1<<40))
	}
	r := &rangeValue{0, n[0], 1}
	switch {
	case len(a.pos) == 0 || a.kw.Len() > 0:
		throw("range expects 1 to 3 positional arguments")
	case len(a.pos) > 1:
		r.start, r.stop = n[0], n[1]
	}
	if len(a.pos) == 3 {
		if r.step = n[2]; r.step == 0 {
			throw("range() arg 3 must not be zero")
		}
	}
	if r.itemCount() > maxRange {
		throw("Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", maxRange)
	}
	return r
}

// newDict is Python's dict(): a mapping or pairs, and names.
func (s *renderState) newDict(a *callArgs) *Dict {
	d := NewDict()
	if len(a.pos) > 1 {
		throw("dict expected at most 1 argument, got %d", len(a.pos))
	}
	s.payBytes(64)
	if len(a.pos) == 1 {
		from := a.pos[0]
		requireDefined(from)
		if m, ok := from.(*Dict); ok {
			from = &dictView{"dict_items", m}
		}
		for _, item := range s.collectItems(from) {
			pair := s.collectItems(item)
			if len(pair) != 2 {
				throw("dictionary update sequence element has length %d; 2 is required", len(pair))
			}
			s.payBytes(64)
			d.putKey(pair[0], pair[1])
		}
	}
	for i, k := range a.kw.keys {
		d.putKey(k, a.kw.vals[i])
	}
	return d
}

// fromKeys is Python's dict.fromkeys.
func fromKeys(s *renderState, a *callArgs) any {
	b := a.bindParams("iterable!", "value")
	d := NewDict()
	for _, k := range s.collectItems(b[0]) {
		s.payBytes(64)
		d.putKey(k, orDefault(b[1], nil))
	}
	return d
}

// checkStorable throws if a namespace may not have an attribute of that name.
func checkStorable(name any) {
	if t, ok := name.(string); ok && strings.HasPrefix(t, "_") {
		throw("names that begin with an underscore cannot be stored in a namespace")
	}
}

func newCycler(_ *renderState, a *callArgs) any {
	if len(a.pos) == 0 {
		throw("at least one item has to be provided")
	}
	at := 0
	n := &namespaceValue{NewDict()}
	n.attrs.putKey("current", a.pos[0])
	n.attrs.putKey("next", &functionValue{"next", func(*renderState, *callArgs) any {
		v := a.pos[at]
		at = (at + 1) % len(a.pos)
		n.attrs.putKey("current", a.pos[at])
		return v
	}})
	n.attrs.putKey("reset", &functionValue{"reset", func(*renderState, *callArgs) any {
		at = 0
		n.attrs.putKey("current", a.pos[0])
		return nil
	}})
	return n
}

// formatStrftime formats a time in the C locale.
func formatStrftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		c := format[i]
		unpadded := c == '-' && i+1 < len(format)
		if unpadded {
			i++
			c = format[i]
		}
		layout, ok := map[byte]string{
			'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'y': "06",
			'b': "Jan", 'h': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday", 'j': "002", 'e': "_2",
			'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
		}[c]
		text := t.Format(layout)
		switch {
		case ok:
		case c == '%':
			text = "%"
		case c == 'n':
			text = "\n"
		case c == 't':
			text = "\t"
		case c == 'f':
			text = fmt.Sprintf("%06d", t.Nanosecond()/1000)
		case c == 'u':
			text = fmt.Sprint((int(t.Weekday())+6)%7 + 1)
		case c == 'w':
			text = fmt.Sprint(int(t.Weekday()))
		case c == 's':
			text = fmt.Sprint(t.Unix())
		case c == 'Z' || c == 'z': // a time without a zone has none
			text = ""
		default:
			throw("strftime_now: the directive %%%c is not supported", c)
		}
		if unpadded {
			if text = strings.TrimLeft(text, "0 "); text == "" {
				text = "0"
			}
		}
		b.WriteString(text)
	}
	return b.String()
}
