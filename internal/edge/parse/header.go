package parse

import "strings"

// The markers of headerMachine.
const (
	actSection = actFormat + iota
	actBegin
	actSeparator
	actEnd
	actSectionEnd
)

// headerMachine reads tool calls with the name in a header before the arguments:
//
//	section begin ( call begin, header, separator, arguments, call end )* section end
//
// The markers are tokens which text cannot contain, so they count everywhere.
type headed struct {
	between, header, body set
	// name parses the name and the id from a header. ok is false if the name is on a line after the
	// separator.
	name func(header string) (name, id string, ok bool)

	phase headedPhase
	buf   []byte
	v     value
	began bool // a call has begun
	wrote bool
}

// headedPhase is the state of a headerMachine:
//
//	wantCall       before a call marker
//	inHeader       reads the header, up to the separator
//	wantBody       DeepSeek: before the arguments, or a line with the name
//	inLine         reads the line with the name
//	wantFence      between that line and the arguments
//	wantArguments  before the arguments
//	inBody         reads the arguments
//	pastBody       after the arguments
type headedPhase uint8

const (
	wantCall headedPhase = iota
	inHeader
	wantBody
	inLine
	wantFence
	wantArguments
	inBody
	pastBody
)

// newHeaderMachine returns a machine; its markers are given in the order of the text.
func newHeaded(name func(string) (string, string, bool), section, begin, separator, end, sectionEnd string) *headed {
	b, e, se := literal{begin, actBegin, 0}, literal{end, actEnd, 0}, literal{sectionEnd, actSectionEnd, 0}
	return &headed{
		name:    name,
		between: newSet(b, se, literal{section, actSection, 0}),
		header:  newSet(literal{separator, actSeparator, 0}, b, e, se),
		body:    newSet(b, e, se),
	}
}

// openCalls starts after the section's marker (arg 0) or a call's (arg 1).
func (h *headed) open(p *Parser, arg int) {
	p.mach = h
	h.to(p, wantCall)
	if arg == 1 {
		h.to(p, inHeader)
	}
}

func (h *headed) to(p *Parser, ph headedPhase) {
	h.phase, h.buf = ph, h.buf[:0]
	switch ph {
	case wantCall:
		h.began = false
		p.set = &h.between
	case inHeader:
		p.set = &h.header
	default:
		p.set = &h.body
	}
}

func (h *headed) char(p *Parser, c byte) {
	switch h.phase {
	case wantCall:
		switch {
		case isSpace(c):
		case !p.tentative || p.unclosed:
			p.stray(c)
		default: // between a section's marker and its first call: not content if the call follows
			if h.buf = append(h.buf, c); len(h.buf) > maxName {
				p.giveUp()
			}
		}
	case inHeader:
		if h.buf = append(h.buf, c); len(h.buf) > maxName {
			p.giveUp()
		}
	case wantBody:
		switch {
		case isSpace(c):
		case c == '{':
			if h.begin(p, string(h.buf), "") {
				h.char(p, c)
			}
		default:
			h.phase = inLine
			h.buf = append(h.buf[:0], c)
		}
	case inLine:
		if c != '\n' {
			if h.buf = append(h.buf, c); len(h.buf) > maxName {
				p.giveUp()
			}
			return
		}
		if h.begin(p, strings.TrimSpace(string(h.buf)), "") {
			h.phase = wantFence
		}
	case wantFence:
		if c == '{' || c == '[' {
			h.phase = wantArguments
			h.char(p, c)
		}
	case wantArguments:
		if isSpace(c) {
			return
		}
		h.phase, h.v, h.wrote = inBody, value{}, true
		fallthrough
	case inBody:
		part, done := h.v.step(c)
		if part {
			p.emit(Arguments, c)
		}
		if done {
			h.phase = pastBody
		}
	}
}

// beginCall begins the call and reports whether it did.
func (h *headed) begin(p *Parser, name, id string) bool {
	h.wrote = false
	h.began = p.call(name, id)
	h.phase = wantArguments
	return h.began
}

func (h *headed) marker(p *Parser, l literal) {
	if l.act == actSeparator {
		name, id, ok := h.name(strings.TrimSpace(string(h.buf)))
		switch {
		case name == "":
			p.giveUp()
		case ok:
			h.to(p, wantArguments)
			h.begin(p, name, id)
		default:
			h.to(p, wantBody)
			h.buf = append(h.buf, name...)
		}
		return
	}
	if h.phase == inLine || h.phase == wantBody && string(h.buf) != "function" { // a call without arguments
		if !h.begin(p, strings.TrimSpace(string(h.buf)), "") {
			return
		}
	}
	if h.began {
		if !h.wrote {
			p.emit(Arguments, '{', '}')
		}
		p.finish()
		h.began = false
	} else if p.tentative && !(h.phase == wantCall && (l.act == actBegin || l.act == actSection)) {
		p.giveUp()
		return
	}
	switch l.act {
	case actBegin:
		if !p.tentative {
			p.suppose(l.text)
		}
		h.to(p, inHeader)
	case actSectionEnd:
		p.leave()
	default:
		h.to(p, wantCall)
	}
}

// endText ends a call with complete arguments: some models omit the markers after the last one.
func (h *headed) end(p *Parser) {
	if h.began && h.phase == pastBody {
		p.finish()
	}
}

func (h *headed) sets() []*set { return []*set{&h.between, &h.header, &h.body} }

// parseKimiHeader parses "functions.NAME:INDEX", which is also the id.
func kimiName(header string) (name, id string, ok bool) {
	name = strings.TrimPrefix(header, "functions.")
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		name = name[:i]
	}
	return name, header, true
}

// parseDeepSeekHeader returns the name, or the type of the tool, which the name follows.
func deepseekName(header string) (name, id string, ok bool) { return header, "", false }
