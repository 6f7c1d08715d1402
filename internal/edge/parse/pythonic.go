package parse

// pythonicMachine reads Python calls with keyword arguments: a list, [f(a=1, b='x'), g()], or one call per
// line up to a marker.
type pythonicMachine struct {
	close  markerSet // the marker after the calls
	bare   bool
	phase  pythonicPhase
	array  bool
	buf    []byte
	name   string
	params int
	l      literalConverter
	out    []byte
}

// pythonicPhase is the state of a pythonicMachine:
//
//	pythonicStart  before a bracket or a name
//	pythonicName   reads the name of a function
//	pythonicKey    reads a keyword
//	pythonicValue  reads a value
//	pythonicPast   after a call
type pythonicPhase uint8

const (
	pythonicStart pythonicPhase = iota
	pythonicName
	pythonicKey
	pythonicValue
	pythonicPast
)

func (y *pythonicMachine) openCalls(p *Parser, arg int) {
	y.bare, y.array = arg < 0, arg < 0
	p.current = y
	y.enterPhase(p, pythonicStart)
}

// newPythonicMachine returns a machine for calls in lines up to the marker end; if end is "", for a list.
func newPythonicMachine(end string) *pythonicMachine {
	y := &pythonicMachine{}
	if end != "" {
		y.close.addMarker(markerRule{end, actClose, 0})
	}
	return y
}

func (y *pythonicMachine) enterPhase(p *Parser, ph pythonicPhase) {
	y.phase, y.buf, p.markers = ph, y.buf[:0], &y.close
}

// hasLines reports whether calls follow each other without a list.
func (y *pythonicMachine) hasLines() bool { return len(y.close.literals) > 0 }

func (y *pythonicMachine) readByte(p *Parser, c byte) {
	switch y.phase {
	case pythonicStart:
		switch {
		case isSpace(c):
		case c == '[' && !y.array:
			y.array = true
		case isNameByte(c):
			if !p.tentative {
				p.holdMarkup(string(c))
			}
			y.phase, y.buf = pythonicName, append(y.buf[:0], c)
		case c == ']' && !p.tentative:
			p.leaveCalls()
		default:
			p.handleStrayByte(c)
		}
	case pythonicName:
		switch {
		case isNameByte(c) && len(y.buf) < maxName:
			y.buf = append(y.buf, c)
		case c == '(' && !(y.bare && len(p.known) > 0 && !p.known[string(y.buf)]):
			y.name, y.params = string(y.buf), 0
			y.enterPhase(p, pythonicKey)
		default:
			p.abandonCall()
		}
	case pythonicKey:
		y.readKey(p, c)
	case pythonicValue:
		if y.l.depth() == 0 && !y.l.isInString(c) && (c == ',' || c == ')') {
			p.emitText(Arguments, y.l.flushWord(nil)...)
			y.enterPhase(p, pythonicKey)
			if c == ')' {
				y.finishCall(p)
			}
			return
		}
		y.out = y.l.convertByte(y.out[:0], c)
		p.emitText(Arguments, y.out...)
		if p.markers = &y.close; y.l.quote != 0 { // markers inside strings are text
			p.markers = &noMarkers
		}
	case pythonicPast:
		switch {
		case isSpace(c):
		case c == ',' || c == ';':
			y.phase = pythonicStart
		case c == ']' && y.array:
			if y.array = false; !y.hasLines() {
				p.leaveCalls()
			}
		case y.hasLines() && isNameByte(c):
			y.phase = pythonicStart
			y.readByte(p, c)
		default:
			p.handleStrayByte(c)
		}
	}
}

func isNameByte(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c == '.' || c == '-' || c >= 0x80
}

// readKey reads up to the '=' after a keyword, or to the end of the call. An argument without a keyword
// cannot be represented: the call is text, or ends.
func (y *pythonicMachine) readKey(p *Parser, c byte) {
	switch {
	case isSpace(c):
	case isNameByte(c) && len(y.buf) < maxName:
		y.buf = append(y.buf, c)
	case c == '=' && len(y.buf) > 0:
		sep := byte(',')
		if y.params == 0 {
			if !p.beginCall(y.name, "") {
				return
			}
			sep = '{'
		}
		y.params++
		p.emitText(Arguments, append(appendQuoted([]byte{sep}, y.buf), ':')...)
		y.phase, y.l = pythonicValue, literalConverter{}
	case c == ')' && len(y.buf) == 0:
		if y.params > 0 || p.beginCall(y.name, "") {
			y.finishCall(p)
		}
	case p.tentative:
		p.abandonCall()
	default:
		y.finishCall(p)
		p.handleStrayByte(c)
	}
}

// finishCall ends the call.
func (y *pythonicMachine) finishCall(p *Parser) {
	if y.params == 0 {
		p.emitText(Arguments, '{')
	}
	p.emitText(Arguments, '}')
	p.finishCall()
	y.enterPhase(p, pythonicPast)
	if !y.array && !y.hasLines() {
		p.leaveCalls()
	}
}

// readMarker handles the end of all calls.
func (y *pythonicMachine) readMarker(p *Parser, _ markerRule) {
	if p.tentative {
		p.abandonCall()
		return
	}
	switch y.phase {
	case pythonicValue:
		p.emitText(Arguments, y.l.flushWord(nil)...)
		y.finishCall(p)
	case pythonicKey:
		y.finishCall(p)
	}
	p.leaveCalls()
}

func (y *pythonicMachine) markerSets() []*markerSet { return []*markerSet{&y.close} }

// endText emits the word or the quotes which waited for the next byte.
func (y *pythonicMachine) endText(p *Parser) {
	switch y.phase {
	case pythonicValue:
		p.emitText(Arguments, y.l.flushWord(nil)...)
	case pythonicKey:
		if len(y.buf) > 0 {
			q := appendQuoted([]byte{','}, y.buf)
			p.emitText(Arguments, q[:len(q)-1]...)
		}
	}
}
