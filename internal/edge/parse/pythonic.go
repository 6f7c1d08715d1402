package parse

// pythonic reads a list of Python calls with keyword arguments,
// [f(a=1, b='x'), g()].
type pythonic struct {
	bare   bool
	phase  pythonicPhase
	array  bool
	buf    []byte
	name   string
	params int
	l      python
	out    []byte
}

type pythonicPhase uint8

const (
	pythonicStart pythonicPhase = iota // a bracket or a name
	pythonicName
	pythonicKey
	pythonicValue
	pythonicPast // behind a call
)

func (y *pythonic) open(p *Parser, arg int) {
	y.bare, y.array = arg < 0, arg < 0
	y.phase, y.buf = pythonicStart, y.buf[:0]
	p.mach, p.set = y, &noMarkers
}

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
			y.phase, y.buf = pythonicKey, y.buf[:0]
		default:
			p.giveUp()
		}
	case pythonicKey:
		y.key(p, c)
	case pythonicValue:
		if y.l.depth == 0 && !y.l.inside(c) && (c == ',' || c == ')') {
			p.emit(Arguments, y.l.flush(nil)...)
			y.phase, y.buf = pythonicKey, y.buf[:0]
			if c == ')' {
				y.close(p)
			}
			return
		}
		y.out = y.l.step(y.out[:0], c)
		p.emit(Arguments, y.out...)
	case pythonicPast:
		switch {
		case isSpace(c):
		case c == ',' || c == ';':
			y.phase = pythonicStart
		case c == ']' && y.array:
			p.leave()
		default:
			p.stray(c)
		}
	}
}

func isName(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' || c == '.' || c == '-' || c >= 0x80
}

// key reads up to the '=' behind a keyword, or the end of the call. An argument
// without a keyword cannot be passed on: the call is text, or ends.
func (y *pythonic) key(p *Parser, c byte) {
	switch {
	case isSpace(c):
	case isName(c) && len(y.buf) < maxName:
		y.buf = append(y.buf, c)
	case c == '=' && len(y.buf) > 0:
		sep := byte(',')
		if y.params == 0 {
			p.call(y.name, "")
			sep = '{'
		}
		y.params++
		p.emit(Arguments, append(appendQuoted([]byte{sep}, y.buf), ':')...)
		y.phase, y.l = pythonicValue, python{}
	case c == ')' && len(y.buf) == 0:
		if y.params == 0 {
			p.call(y.name, "")
		}
		y.close(p)
	case p.tentative:
		p.giveUp()
	default:
		y.close(p)
		p.stray(c)
	}
}

// close ends the call.
func (y *pythonic) close(p *Parser) {
	if y.params == 0 {
		p.emit(Arguments, '{')
	}
	p.emit(Arguments, '}')
	p.finish()
	y.phase = pythonicPast
	if !y.array {
		p.leave()
	}
}

func (y *pythonic) marker(*Parser, literal) {}

func (y *pythonic) sets() []*set { return nil }

// end says the word or the quotes that waited for the next byte.
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
