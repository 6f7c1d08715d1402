package parse

import "strings"

// mistralMachine reads what follows [TOOL_CALLS]: an array of call objects, or in the newer form
// NAME[CALL_ID]ID[ARGS]{…} once for each marker, where ID and [ARGS] are optional.
type mistral struct {
	objects *objects
	header  set
	phase   mistralPhase
	buf     []byte
	name    string
	v       value
}

// mistralPhase is the state of a mistralMachine:
//
//	mistralStart  after the marker
//	mistralName   reads the name
//	mistralID     reads the id
//	mistralWant   before the arguments
//	mistralBody   reads the arguments
type mistralPhase uint8

const (
	mistralStart mistralPhase = iota
	mistralName
	mistralID
	mistralWant
	mistralBody
)

const (
	actArgs = actFormat + iota
	actCallID
)

func newMistral() opener {
	return &mistral{
		objects: newObjects(),
		header:  newSet(literal{"[ARGS]", actArgs, 0}, literal{"[CALL_ID]", actCallID, 0}),
	}
}

func (m *mistral) open(p *Parser, _ int) {
	p.mach, p.set = m, &noMarkers
	m.phase, m.buf, m.name = mistralStart, m.buf[:0], ""
}

func (m *mistral) char(p *Parser, c byte) {
	switch m.phase {
	case mistralStart:
		switch {
		case isSpace(c):
		case c == '[' || c == '{':
			m.objects.open(p, 0)
			m.objects.char(p, c)
		default:
			m.phase, p.set = mistralName, &m.header
			m.buf = append(m.buf, c)
		}
	case mistralName, mistralID:
		if c == '{' {
			if m.begin(p) {
				m.char(p, c)
			}
			return
		}
		if m.buf = append(m.buf, c); len(m.buf) > maxName || c == '\n' {
			p.giveUp()
		}
	case mistralWant:
		if isSpace(c) {
			return
		}
		m.phase, m.v = mistralBody, value{}
		fallthrough
	case mistralBody:
		part, done := m.v.step(c)
		if part {
			p.emit(Arguments, c)
		}
		if done {
			p.finish()
			p.leave()
			if !part {
				p.unread(c)
			}
		}
	}
}

// beginCall begins the call of the header and reports whether it did.
func (m *mistral) begin(p *Parser) bool {
	text := strings.TrimSpace(string(m.buf))
	name, id := m.name, text
	if m.phase == mistralName {
		name, id = text, ""
	}
	if name == "" {
		p.giveUp()
		return false
	}
	if !p.call(name, id) {
		return false
	}
	m.phase, p.set = mistralWant, &noMarkers
	return true
}

func (m *mistral) marker(p *Parser, l literal) {
	if l.act == actCallID && m.phase == mistralName {
		m.name, m.phase, m.buf = strings.TrimSpace(string(m.buf)), mistralID, m.buf[:0]
		return
	}
	m.begin(p)
}

func (m *mistral) end(*Parser) {}

func (m *mistral) sets() []*set { return []*set{&m.header} }
