package parse

// pythonicMachine reads Python calls with keyword arguments: a list, [f(a=1, b='x'), g()], or one call per
// line up to a marker.
type pythonic struct {
	close  set // the marker after the calls
	bare   bool
	phase  pythonicPhase
	array  bool
	buf    []byte
	name   string
	params int
	l      python
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

func (y *pythonic) open(p *Parser, arg int) {
	y.bare, y.array = arg < 0, arg < 0
	p.mach = y
	y.to(p, pythonicStart)
}

// newPythonicMachine returns a machine for calls in lines up to the marker end; if end is "", for a list.
func newPythonic(end string) *pythonic {
	y := &pythonic{}
	if end != "" {
		y.close.add(literal{end, actClose, 0})
	}
	return y
}

func (y *pythonic) to(p *Parser, ph pythonicPhase) {
	y.phase, y.buf, p.set = ph, y.buf[:0], &y.close
}

// hasLines reports whether calls follow each other without a list.
func (y *pythonic) lines() bool { return len(y.close.literals) > 0 }

func (y *pythonic) char(p *Parser, c byte) {
	switch y.phase {
	case pythonicStart:
		switch {
		case isSpace(c):
		case c == '[' && !y.array:
			y.array = true
		case isName(c):
			if !p.tentative {
				p.suppose(string(c))
			}
			y.phase, y.buf = pythonicName, append(y.buf[:0], c)
		case c == ']' && !p.tentative:
			p.leave()
		default:
			p.stray(c)
		}
	case pythonicName:
		switch {
		case isName(c) && len(y.buf) < maxName:
			y.buf = append(y.buf, c)
		case c == '(' && !(y.bare && len(p.known) > 0 && !p.known[string(y.buf)]):
			y.name, y.params = string(y.buf), 0
			y.to(p, pythonicKey)
		default:
			p.giveUp()
		}
	case pythonicKey:
		y.key(p, c)
	case pythonicValue:
		if y.l.depth == 0 && !y.l.inside(c) && (c == ',' || c == ')') {
			p.emit(Arguments, y.l.flush(nil)...)
			y.to(p, pythonicKey)
			if c == ')' {
				y.finish(p)
			}
			return
		}
		y.out = y.l.step(y.out[:0], c)
		p.emit(Arguments, y.out...)
		if p.set = &y.close; y.l.quote != 0 { // markers inside strings are text
			p.set = &noMarkers
		}
	case pythonicPast:
		switch {
		case isSpace(c):
		case c == ',' || c == ';':
			y.phase = pythonicStart
		case c == ']' && y.array:
			if y.array = false; !y.lines() {
				p.leave()
			}
		case y.lines() && isName(c):
			y.phase = pythonicStart
			y.char(p, c)
		default:
			p.stray(c)
		}
	}
}

func isName(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c == '.' || c == '-' || c >= 0x80
}

// readKey reads up to the '=' after a keyword, or to the end of the call. An argument without a keyword
// cannot be represented: the call is text, or ends.
func (y *pythonic) key(p *Parser, c byte) {
	switch {
	case isSpace(c):
	case isName(c) && len(y.buf) < maxName:
		y.buf = append(y.buf, c)
	case c == '=' && len(y.buf) > 0:
		sep := byte(',')
		if y.params == 0 {
			if !p.call(y.name, "") {
				return
			}
			sep = '{'
		}
		y.params++
		p.emit(Arguments, append(appendQuoted([]byte{sep}, y.buf), ':')...)
		y.phase, y.l = pythonicValue, python{}
	case c == ')' && len(y.buf) == 0:
		if y.params > 0 || p.call(y.name, "") {
			y.finish(p)
		}
	case p.tentative:
		p.giveUp()
	default:
		y.finish(p)
		p.stray(c)
	}
}

// finishCall ends the call.
func (y *pythonic) finish(p *Parser) {
	if y.params == 0 {
		p.emit(Arguments, '{')
	}
	p.emit(Arguments, '}')
	p.finish()
	y.to(p, pythonicPast)
	if !y.array && !y.lines() {
		p.leave()
	}
}

// readMarker handles the end of all calls.
func (y *pythonic) marker(p *Parser, _ literal) {
	if p.tentative {
		p.giveUp()
		return
	}
	switch y.phase {
	case pythonicValue:
		p.emit(Arguments, y.l.flush(nil)...)
		y.finish(p)
	case pythonicKey:
		y.finish(p)
	}
	p.leave()
}

func (y *pythonic) sets() []*set { return []*set{&y.close} }

// endText emits the word or the quotes which waited for the next byte.
func (y *pythonic) end(p *Parser) {
	switch y.phase {
	case pythonicValue:
		p.emit(Arguments, y.l.flush(nil)...)
	case pythonicKey:
		if len(y.buf) > 0 {
			q := appendQuoted([]byte{','}, y.buf)
			p.emit(Arguments, q[:len(q)-1]...)
		}
	}
}
