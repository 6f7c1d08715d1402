package parse

import "strings"

// mistralMachine reads what follows [TOOL_CALLS]: an array of call objects, or in the newer form
// NAME[CALL_ID]ID[ARGS]{…} once for each marker, where ID and [ARGS] are optional.
type mistralMachine struct {
	objects *objectMachine
	header  markerSet
	phase   mistralPhase
	buf     []byte
	name    string
	v       valueScanner
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

func newMistralMachine() callMachine {
	return &mistralMachine{
		objects: newObjectMachine(),
		header:  newMarkerSet(markerRule{"[ARGS]", actArgs, 0}, markerRule{"[CALL_ID]", actCallID, 0}),
	}
}

func (m *mistralMachine) openCalls(p *Parser, _ int) {
	p.current, p.markers = m, &noMarkers
	m.phase, m.buf, m.name = mistralStart, m.buf[:0], ""
}

func (m *mistralMachine) readByte(p *Parser, c byte) {
	switch m.phase {
	case mistralStart:
		switch {
		case isSpace(c):
		case c == '[' || c == '{':
			m.objects.openCalls(p, 0)
			m.objects.readByte(p, c)
		default:
			m.phase, p.markers = mistralName, &m.header
			m.buf = append(m.buf, c)
		}
	case mistralName, mistralID:
		if c == '{' {
			if m.beginCall(p) {
				m.readByte(p, c)
			}
			return
		}
		if m.buf = append(m.buf, c); len(m.buf) > maxName || c == '\n' {
			p.abandonCall()
		}
	case mistralWant:
		if isSpace(c) {
			return
		}
		m.phase, m.v = mistralBody, valueScanner{}
		fallthrough
	case mistralBody:
		part, done := m.v.scanByte(c)
		if part {
			p.emitText(Arguments, c)
		}
		if done {
			p.finishCall()
			p.leaveCalls()
			if !part {
				p.unreadByte(c)
			}
		}
	}
}

// beginCall begins the call of the header and reports whether it did.
func (m *mistralMachine) beginCall(p *Parser) bool {
	text := strings.TrimSpace(string(m.buf))
	name, id := m.name, text
	if m.phase == mistralName {
		name, id = text, ""
	}
	if name == "" {
		p.abandonCall()
		return false
	}
	if !p.beginCall(name, id) {
		return false
	}
	m.phase, p.markers = mistralWant, &noMarkers
	return true
}

func (m *mistralMachine) readMarker(p *Parser, l markerRule) {
	if l.act == actCallID && m.phase == mistralName {
		m.name, m.phase, m.buf = strings.TrimSpace(string(m.buf)), mistralID, m.buf[:0]
		return
	}
	m.beginCall(p)
}

func (m *mistralMachine) endText(*Parser) {}

func (m *mistralMachine) markerSets() []*markerSet { return []*markerSet{&m.header} }
