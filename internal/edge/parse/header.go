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
type headerMachine struct {
	between, header, body markerSet
	// name parses the name and the id from a header. ok is false if the name is on a line after the
	// separator.
	name func(header string) (name, id string, ok bool)

	phase    headedPhase
	buf      []byte
	v        valueScanner
	callOpen bool // a call has begun
	wrote    bool
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
func newHeaderMachine(name func(string) (string, string, bool), section, begin, separator, end, sectionEnd string) *headerMachine {
	b, e, se := markerRule{begin, actBegin, 0}, markerRule{end, actEnd, 0}, markerRule{sectionEnd, actSectionEnd, 0}
	return &headerMachine{
		name:    name,
		between: newMarkerSet(b, se, markerRule{section, actSection, 0}),
		header:  newMarkerSet(markerRule{separator, actSeparator, 0}, b, e, se),
		body:    newMarkerSet(b, e, se),
	}
}

// openCalls starts after the section's marker (arg 0) or a call's (arg 1).
func (h *headerMachine) openCalls(p *Parser, arg int) {
	p.current = h
	h.enterPhase(p, wantCall)
	if arg == 1 {
		h.enterPhase(p, inHeader)
	}
}

func (h *headerMachine) enterPhase(p *Parser, ph headedPhase) {
	h.phase, h.buf = ph, h.buf[:0]
	switch ph {
	case wantCall:
		h.callOpen = false
		p.markers = &h.between
	case inHeader:
		p.markers = &h.header
	default:
		p.markers = &h.body
	}
}

func (h *headerMachine) readByte(p *Parser, c byte) {
	switch h.phase {
	case wantCall:
		switch {
		case isSpace(c):
		case !p.tentative || p.callInReasoning:
			p.handleStrayByte(c)
		default: // between a section's marker and its first call: not content if the call follows
			if h.buf = append(h.buf, c); len(h.buf) > maxName {
				p.abandonCall()
			}
		}
	case inHeader:
		if h.buf = append(h.buf, c); len(h.buf) > maxName {
			p.abandonCall()
		}
	case wantBody:
		switch {
		case isSpace(c):
		case c == '{':
			if h.beginCall(p, string(h.buf), "") {
				h.readByte(p, c)
			}
		default:
			h.phase = inLine
			h.buf = append(h.buf[:0], c)
		}
	case inLine:
		if c != '\n' {
			if h.buf = append(h.buf, c); len(h.buf) > maxName {
				p.abandonCall()
			}
			return
		}
		if h.beginCall(p, strings.TrimSpace(string(h.buf)), "") {
			h.phase = wantFence
		}
	case wantFence:
		if c == '{' || c == '[' {
			h.phase = wantArguments
			h.readByte(p, c)
		}
	case wantArguments:
		if isSpace(c) {
			return
		}
		h.phase, h.v, h.wrote = inBody, valueScanner{}, true
		fallthrough
	case inBody:
		part, done := h.v.scanByte(c)
		if part {
			p.emitText(Arguments, c)
		}
		if done {
			h.phase = pastBody
		}
	}
}

// beginCall begins the call and reports whether it did.
func (h *headerMachine) beginCall(p *Parser, name, id string) bool {
	h.wrote = false
	h.callOpen = p.beginCall(name, id)
	h.phase = wantArguments
	return h.callOpen
}

func (h *headerMachine) readMarker(p *Parser, l markerRule) {
	if l.act == actSeparator {
		name, id, ok := h.name(strings.TrimSpace(string(h.buf)))
		switch {
		case name == "":
			p.abandonCall()
		case ok:
			h.enterPhase(p, wantArguments)
			h.beginCall(p, name, id)
		default:
			h.enterPhase(p, wantBody)
			h.buf = append(h.buf, name...)
		}
		return
	}
	if h.phase == inLine || h.phase == wantBody && string(h.buf) != "function" { // a call without arguments
		if !h.beginCall(p, strings.TrimSpace(string(h.buf)), "") {
			return
		}
	}
	if h.callOpen {
		if !h.wrote {
			p.emitText(Arguments, '{', '}')
		}
		p.finishCall()
		h.callOpen = false
	} else if p.tentative && !(h.phase == wantCall && (l.act == actBegin || l.act == actSection)) {
		p.abandonCall()
		return
	}
	switch l.act {
	case actBegin:
		if !p.tentative {
			p.holdMarkup(l.text)
		}
		h.enterPhase(p, inHeader)
	case actSectionEnd:
		p.leaveCalls()
	default:
		h.enterPhase(p, wantCall)
	}
}

// endText ends a call with complete arguments: some models omit the markers after the last one.
func (h *headerMachine) endText(p *Parser) {
	if h.callOpen && h.phase == pastBody {
		p.finishCall()
	}
}

func (h *headerMachine) markerSets() []*markerSet {
	return []*markerSet{&h.between, &h.header, &h.body}
}

// parseKimiHeader parses "functions.NAME:INDEX", which is also the id.
func parseKimiHeader(header string) (name, id string, ok bool) {
	name = strings.TrimPrefix(header, "functions.")
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		name = name[:i]
	}
	return name, header, true
}

// parseDeepSeekHeader returns the name, or the type of the tool, which the name follows.
func parseDeepSeekHeader(header string) (name, id string, ok bool) { return header, "", false }
