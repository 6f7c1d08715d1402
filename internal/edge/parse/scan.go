package parse

// markerAction says what a marker of content or reasoning does. The machines of formats number their own
// actions from actFormat.
type markerAction uint8

const (
	actDrop markerAction = iota
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
type markerRule struct {
	text string
	act  markerAction
	arg  int
}

// markerSet holds the markers of one state. No marker is a prefix of another.
type markerSet struct {
	literals []markerRule
	first    [256]bool
}

// noMarkers is the set of states without markup.
var noMarkers markerSet

func newMarkerSet(ls ...markerRule) markerSet {
	var s markerSet
	for _, l := range ls {
		s.addMarker(l)
	}
	return s
}

// addMarker appends l unless the set already has its text.
func (s *markerSet) addMarker(l markerRule) {
	for _, o := range s.literals {
		if o.text == l.text {
			return
		}
	}
	s.literals = append(s.literals, l)
	s.first[l.text[0]] = true
}

// matchMarker returns the marker equal to b, or whether b is a proper prefix of one.
func (s *markerSet) matchMarker(b []byte) (l *markerRule, begins bool) {
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
func (p *Parser) feedByte(c byte) {
	if len(p.held) == 0 && !p.markers.first[c] && !(p.callInReasoning && p.think.first[c]) {
		p.dispatchByte(c)
		if len(p.held) == 0 {
			return
		}
	} else {
		p.held = append(p.held, c)
	}
	for len(p.held) > 0 {
		l, begins := p.matchHeld()
		if l != nil {
			p.held = p.held[:0]
			switch {
			case p.callInReasoning && l.act < actFormat: // of reasoning
				p.abandonCall()
			case p.tentative:
				p.heldMarkup = append(p.heldMarkup, l.text...)
			}
			p.current.readMarker(p, *l)
			return
		}
		if begins {
			return
		}
		c := p.held[0]
		p.held = p.held[:copy(p.held, p.held[1:])]
		p.dispatchByte(c)
	}
}

// matchHeld returns the marker equal to the held bytes, or whether they are a prefix of one. While markup
// inside reasoning is held, the markers of reasoning count in addition to the machine's.
func (p *Parser) matchHeld() (l *markerRule, begins bool) {
	l, begins = p.markers.matchMarker(p.held)
	if l == nil && p.callInReasoning {
		var b bool
		l, b = p.think.matchMarker(p.held)
		begins = begins || b
	}
	if l != nil && l.act == actUnclosed && p.tokens[l.text] && !p.isToken {
		return nil, false
	}
	return l, begins
}

// unreadByte puts c back before the held bytes, for another machine to read.
func (p *Parser) unreadByte(c byte) {
	p.held = append(p.held, 0)
	copy(p.held[1:], p.held)
	p.held[0] = c
}

func (p *Parser) dispatchByte(c byte) {
	if p.tentative {
		p.heldMarkup = append(p.heldMarkup, c)
		if len(p.heldMarkup) > maxHeld {
			p.abandonCall()
			return
		}
	}
	p.current.readByte(p, c)
}

// readPlainText reads plain text from the start of b, without the machines. It returns the number of bytes
// read; the effect is the same as feeding them.
func (p *Parser) readPlainText(b []byte) int {
	t, ok := p.current.(textMachine)
	if !ok || p.afterMarkup || len(p.held) > 0 || len(p.space) > 0 || p.markers != &p.mid && p.markers != p.reasoningMarkers() {
		return 0
	}
	n := 0
	for n < len(b) && !p.markers.first[b[n]] && (b[n] == ' ' || !isSpace(b[n])) {
		n++
	}
	for n > 0 && b[n-1] == ' ' { // may be next to markup
		n--
	}
	p.emitText(EventKind(t), b[:n]...)
	return n
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }
