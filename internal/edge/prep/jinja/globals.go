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
func globals() *scope {
	sc := new(scope)
	for name, f := range map[string]func(s *state, a *args) any{
		"range": newRange,
		"dict": func(s *state, a *args) any {
			return s.newDict(a)
		},
		"namespace": func(s *state, a *args) any {
			d := s.newDict(a)
			for _, k := range d.keys {
				storable(k)
			}
			return &namespace{d}
		},
		"cycler": newCycler,
		"joiner": func(s *state, a *args) any {
			sep := or(a.bind("sep")[0], ", ")
			used := false
			return &function{"joiner", func(_ *state, a *args) any {
				a.bind()
				if !used {
					used = true
					return ""
				}
				return sep
			}}
		},
		"raise_exception": func(s *state, a *args) any {
			message := s.str(a.bind("message!")[0])
			if len(message) > maxRaised {
				message = strings.ToValidUTF8(message[:maxRaised], "") + "…"
			}
			panic(&failure{message: message, raised: true})
		},
		"strftime_now": func(s *state, a *args) any {
			format := text(a.bind("format!")[0])
			s.read(slowly * slowly * len(format))
			out := strftime(s.now, format)
			s.spend(len(out))
			return out
		},
	} {
		sc.set(name, &function{name, f})
	}
	return sc
}

func newRange(_ *state, a *args) any {
	var n [3]int64
	for i, v := range a.pos {
		x, ok := integer(v)
		if !ok || i > 2 {
			undefined(v)
			throw("'%s' object cannot be interpreted as an integer", typeName(v))
		}
		n[i] = max(-1<<40, min(x, 1<<40))
	}
	r := &span{0, n[0], 1}
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
	if r.len() > maxRange {
		throw("Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", maxRange)
	}
	return r
}

// newDict is Python's dict(): a mapping or pairs, and names.
func (s *state) newDict(a *args) *Dict {
	d := NewDict()
	if len(a.pos) > 1 {
		throw("dict expected at most 1 argument, got %d", len(a.pos))
	}
	s.spend(64)
	if len(a.pos) == 1 {
		from := a.pos[0]
		undefined(from)
		if m, ok := from.(*Dict); ok {
			from = &view{"dict_items", m}
		}
		for _, item := range s.collect(from) {
			pair := s.collect(item)
			if len(pair) != 2 {
				throw("dictionary update sequence element has length %d; 2 is required", len(pair))
			}
			s.spend(64)
			d.put(pair[0], pair[1])
		}
	}
	for i, k := range a.kw.keys {
		d.put(k, a.kw.vals[i])
	}
	return d
}

// fromKeys is Python's dict.fromkeys.
func fromKeys(s *state, a *args) any {
	b := a.bind("iterable!", "value")
	d := NewDict()
	for _, k := range s.collect(b[0]) {
		s.spend(64)
		d.put(k, or(b[1], nil))
	}
	return d
}

// checkStorable throws if a namespace may not have an attribute of that name.
func storable(name any) {
	if t, ok := name.(string); ok && strings.HasPrefix(t, "_") {
		throw("names that begin with an underscore cannot be stored in a namespace")
	}
}

func newCycler(_ *state, a *args) any {
	if len(a.pos) == 0 {
		throw("at least one item has to be provided")
	}
	at := 0
	n := &namespace{NewDict()}
	n.attrs.put("current", a.pos[0])
	n.attrs.put("next", &function{"next", func(*state, *args) any {
		v := a.pos[at]
		at = (at + 1) % len(a.pos)
		n.attrs.put("current", a.pos[at])
		return v
	}})
	n.attrs.put("reset", &function{"reset", func(*state, *args) any {
		at = 0
		n.attrs.put("current", a.pos[0])
		return nil
	}})
	return n
}

// formatStrftime formats a time in the C locale.
func strftime(t time.Time, format string) string {
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
