package parse

// act says what a marker of content or reasoning does; the machines of formats
// number their own.
type act uint8

const (
	actDrop act = iota
	actThink
	actEndThink
	actTool
	actUnclosed // a call inside reasoning
	actStray    // an end of reasoning amid content
	actAnswer
	actEndAnswer
	actFormat // and above: the machines' own
)

// literal is a marker.
type literal struct {
	text string
	act  act
	arg  int
}

// set is the markers of one state. None is the beginning of another.
type set struct {
	literals []literal
	first    [256]bool
}

// noMarkers is where markup is not looked for.
var noMarkers set

func newSet(ls ...literal) set {
	var s set
	for _, l := range ls {
		s.add(l)
	}
	return s
}

// add appends l unless the set has its text already.
func (s *set) add(l literal) {
	for _, o := range s.literals {
		if o.text == l.text {
			return
		}
	}
	s.literals = append(s.literals, l)
	s.first[l.text[0]] = true
}

// match returns the marker that b is, or whether b begins one.
func (s *set) match(b []byte) (l *literal, begins bool) {
	for i := range s.literals {
		l := &s.literals[i]
		switch n := len(l.text); {
		case n < len(b):
		case n == len(b) && l.text == string(b):
			return l, false
		case l.text[:len(b)] == string(b):
			begins = true
		}
	}
	return nil, begins
}

// feed reads one byte.
func (p *Parser) feed(c byte) {
	if len(p.hold) == 0 && !p.set.first[c] && !(p.unclosed && p.think.first[c]) {
		p.char(c)
		if len(p.hold) == 0 {
			return
		}
	} else {
		p.hold = append(p.hold, c)
	}
	for len(p.hold) > 0 {
		l, begins := p.match()
		if l != nil {
			p.hold = p.hold[:0]
			switch {
			case p.unclosed && l.act < actFormat: // of reasoning
				p.giveUp()
			case p.tentative:
				p.raw = append(p.raw, l.text...)
			}
			p.mach.marker(p, *l)
			return
		}
		if begins {
			return
		}
		c := p.hold[0]
		p.hold = p.hold[:copy(p.hold, p.hold[1:])]
		p.char(c)
	}
}

// match returns the marker that hold is, or whether it begins one. While markup
// inside reasoning is held, the markers of reasoning count beside the machine's.
func (p *Parser) match() (l *literal, begins bool) {
	l, begins = p.set.match(p.hold)
	if l == nil && p.unclosed {
		var b bool
		l, b = p.think.match(p.hold)
		begins = begins || b
	}
	if l != nil && l.act == actUnclosed && p.tokens[l.text] && !p.isToken {
		return nil, false
	}
	return l, begins
}

// unread puts c back before the bytes that are held, for another machine to read.
func (p *Parser) unread(c byte) {
	p.hold = append(p.hold, 0)
	copy(p.hold[1:], p.hold)
	p.hold[0] = c
}

func (p *Parser) char(c byte) {
	if p.tentative {
		p.raw = append(p.raw, c)
		if len(p.raw) > maxHeld {
			p.giveUp()
			return
		}
	}
	p.mach.char(p, c)
}

// run reads what needs no machine from the beginning of b: plain text. It
// returns how much that was, and does what feeding it would.
func (p *Parser) run(b []byte) int {
	t, ok := p.mach.(text)
	if !ok || p.touch || len(p.hold) > 0 || len(p.space) > 0 || p.set != &p.mid && p.set != &p.think {
		return 0
	}
	n := 0
	for n < len(b) && !p.set.first[b[n]] && (b[n] == ' ' || !isSpace(b[n])) {
		n++
	}
	for n > 0 && b[n-1] == ' ' { // may touch markup
		n--
	}
	p.emit(Kind(t), b[:n]...)
	return n
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }
