package parse

// markerAction says what a marker of content or reasoning does. The machines of formats number their own
// actions from actFormat.
type act uint8

const (
	actDrop act = iota
	actThink
	actEndThink
	actTool
	actUnclosed // a call inside reasoning
	actStray    // an end marker of reasoning amid content
	actAnswer
	actEndAnswer
	actFormat // first number for the machines' own actions
)

// markerRule is a marker and its action.
type literal struct {
	text string
	act  act
	arg  int
}

// markerSet holds the markers of one state. No marker is a prefix of another.
type set struct {
	literals []literal
	first    [256]bool
}

// noMarkers is the set of states without markup.
var noMarkers set

func newSet(ls ...literal) set {
	var s set
	for _, l := range ls {
		s.add(l)
	}
	return s
}

// addMarker appends l unless the set already has its text.
func (s *set) add(l literal) {
	for _, o := range s.literals {
		if o.text == l.text {
			return
		}
	}
	s.literals = append(s.literals, l)
	s.first[l.text[0]] = true
}

// matchMarker returns the marker equal to b, or whether b is a proper prefix of one.
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

// feedByte reads one byte.
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

// matchHeld returns the marker equal to the held bytes, or whether they are a prefix of one. While markup
// inside reasoning is held, the markers of reasoning count in addition to the machine's.
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

// unreadByte puts c back before the held bytes, for another machine to read.
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

// readPlainText reads plain text from the start of b, without the machines. It returns the number of bytes
// read; the effect is the same as feeding them.
func (p *Parser) run(b []byte) int {
	t, ok := p.mach.(text)
	if !ok || p.touch || len(p.hold) > 0 || len(p.space) > 0 || p.set != &p.mid && p.set != &p.think {
		return 0
	}
	n := 0
	for n < len(b) && !p.set.first[b[n]] && (b[n] == ' ' || !isSpace(b[n])) {
		n++
	}
	for n > 0 && b[n-1] == ' ' { // may be next to markup
		n--
	}
	p.emit(Kind(t), b[:n]...)
	return n
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }
