package parse

import (
	"bytes"
	"strings"
)

// xmlForm holds the tags of a format with an element for each parameter.
type xmlForm struct {
	sectionEnd         string
	call, callEnd      string // call is "" if the name follows the section's tag
	param, valueEnd    string
	keyEnd, valueBegin string // "" if the key is an attribute, up to '>'
	// lines says that values are on lines of their own: one newline at either end is layout. Otherwise all
	// white space belongs to a string.
	lines bool
}

var (
	qwenCoder = newLineForm("</tool_call>")
	seedOSS   = newLineForm("</seed:tool_call>")
	miMo      = newAttributeForm("</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>")
	miniMax   = newAttributeForm("</minimax:tool_call>", "<invoke name=", "</invoke>", "<parameter name=", "</parameter>")
	dsml      = newDSMLForm("function_calls", "")
	dsmlV4    = newDSMLForm("tool_calls", "")
	dsmlV41   = newDSMLForm(" calls", " ")

	glm = xmlForm{
		sectionEnd: "</tool_call>", param: "<arg_key>", keyEnd: "</arg_key>", valueBegin: "<arg_value>", valueEnd: "</arg_value>",
	}
)

// newAttributeForm returns a form with the names of functions and parameters in attributes.
func newAttributeForm(sectionEnd, call, callEnd, param, valueEnd string) xmlForm {
	return xmlForm{sectionEnd: sectionEnd, call: call, callEnd: callEnd, param: param, valueEnd: valueEnd}
}

// newLineForm returns the form of Qwen3-Coder with another section.
func newLineForm(sectionEnd string) xmlForm {
	f := newAttributeForm(sectionEnd, "<function=", "</function>", "<parameter=", "</parameter>")
	f.lines = true
	return f
}

// newDSMLForm returns a form of DeepSeek since V3.2; space precedes each tag's word.
func newDSMLForm(section, space string) xmlForm {
	const open, end = "<｜DSML｜", "</｜DSML｜"
	return newAttributeForm(end+section+">", open+space+"invoke name=", end+space+"invoke>",
		open+space+"parameter name=", end+space+"parameter>")
}

// elementMachine reads tool calls whose parameters are elements.
type elementMachine struct {
	section, name, body, key, gap, value, closing markerSet
	glm, lines                                    bool

	phase     elementPhase
	buf       []byte
	fn        string
	params    int
	typ       typeMask
	callOpen  bool // a call is open
	first     bool // no byte of the value was read
	blank     bool // only white space of the value was read
	line      bool // a newline is held: the value may end after it
	object    bool // the arguments are one object
	json      valueScanner
	within    elementPhase // the phase before elementClosing
	heldBytes []byte       // the bytes read in elementClosing
}

// elementPhase is the state of an elementMachine:
//
//	elementSection  outside of calls
//	elementName     reads the name of a function
//	elementBody     between parameters
//	elementJSON     reads arguments which are one JSON object
//	elementKey      reads the key of a parameter
//	elementGap      between key and value
//	elementText     reads a string value
//	elementValue    reads a value which must be complete before it is emitted
//	elementClosing  after the call's end marker inside a value, whose own end may be missing
type elementPhase uint8

const (
	elementSection elementPhase = iota
	elementName
	elementBody
	elementJSON
	elementKey
	elementGap
	elementText
	elementValue
	elementClosing
)

const (
	actCall = actFormat + iota
	actCallEnd
	actParam
	actKeyEnd
	actValueBegin
	actValueEnd
	actElementsEnd
)

func newElementMachine(f xmlForm) *elementMachine {
	e := &elementMachine{glm: f.call == "", lines: f.lines}
	fill := func(s *markerSet, text string, a markerAction) {
		if text != "" {
			s.addMarker(markerRule{text, a, 0})
		}
	}
	for _, s := range []*markerSet{&e.section, &e.name, &e.body} {
		fill(s, f.sectionEnd, actElementsEnd)
	}
	fill(&e.section, f.call, actCall)
	fill(&e.body, f.callEnd, actCallEnd)
	fill(&e.body, f.param, actParam)
	fill(&e.name, f.param, actParam)
	fill(&e.key, f.keyEnd, actKeyEnd)
	fill(&e.gap, f.valueBegin, actValueBegin)
	fill(&e.value, f.valueEnd, actValueEnd)
	if !e.glm { // the name is an attribute
		e.name = markerSet{}
		fill(&e.body, f.call, actCall)
		fill(&e.value, f.param, actParam)
		fill(&e.value, f.callEnd, actCallEnd)
		for _, l := range e.value.literals {
			e.closing.addMarker(l)
		}
		fill(&e.closing, f.call, actCall)
		fill(&e.closing, f.sectionEnd, actElementsEnd)
	}
	return e
}

func (e *elementMachine) openCalls(p *Parser, arg int) {
	p.current = e
	e.callOpen = false
	e.enterPhase(p, elementSection, &e.section)
	if arg == 1 || e.glm {
		e.enterPhase(p, elementName, &e.name)
	}
}

func (e *elementMachine) enterPhase(p *Parser, ph elementPhase, s *markerSet) {
	e.phase, p.markers, e.buf = ph, s, e.buf[:0]
}

func (e *elementMachine) readByte(p *Parser, c byte) {
	switch e.phase {
	case elementSection:
		if !isSpace(c) {
			p.handleStrayByte(c)
		}
	case elementName:
		switch {
		case e.glm && c == '\n' && len(bytes.TrimSpace(e.buf)) == 0:
		case e.glm && c == '\n', !e.glm && c == '>':
			e.beginCall(p)
		case !e.glm && (c == '\n' || c == '<') && len(e.buf) > 0: // the header has no end
			p.abandonCall()
		default:
			if e.buf = append(e.buf, c); len(e.buf) > maxName {
				p.abandonCall()
			}
		}
	case elementBody:
		if c == '{' && e.params == 0 {
			e.phase, e.json, e.object = elementJSON, valueScanner{}, true
			e.params++
			e.readByte(p, c)
		}
	case elementJSON:
		part, done := e.json.scanByte(c)
		if part {
			p.emitText(Arguments, c)
		}
		p.markers = &e.body
		switch {
		case done:
			e.phase = elementBody
		case e.json.inString:
			p.markers = &noMarkers
		}
	case elementKey:
		switch {
		case !e.glm && c == '>':
			e.beginAttributeValue(p)
			return
		case !e.glm && c == '<' && bytes.Count(e.buf, []byte{'"'})%2 == 0: // the header has no end, and means nothing
			e.enterPhase(p, elementBody, &e.body)
			p.unreadByte(c)
			return
		}
		if len(e.buf) < maxHeld {
			e.buf = append(e.buf, c)
		}
	case elementText:
		e.writeTextByte(p, c)
	case elementValue:
		e.buf = append(e.buf, c)
		if len(e.buf) > maxHeld || e.mustBeString(c) {
			e.spillValue(p)
		}
	case elementClosing:
		if isSpace(c) && len(e.heldBytes) < maxSpace {
			e.heldBytes = append(e.heldBytes, c)
			return
		}
		e.resumeValue(p)
		e.readByte(p, c)
	}
}

// holdCallEnd holds the end of a call which is inside a value. It ends the value too if more call markup or
// the end of the text follows; otherwise it is text.
func (e *elementMachine) holdCallEnd(p *Parser, end string) {
	e.within, e.phase, p.markers = e.phase, elementClosing, &e.closing
	e.heldBytes = append(e.heldBytes[:0], end...)
}

// resumeValue continues the value: the held end of a call is part of it.
func (e *elementMachine) resumeValue(p *Parser) {
	e.phase, p.markers = e.within, &e.value
	for _, c := range e.heldBytes {
		e.readByte(p, c)
	}
	e.heldBytes = e.heldBytes[:0]
}

// beginCall begins the call named in buf.
func (e *elementMachine) beginCall(p *Parser) {
	e.fn, _ = parseAttribute(e.buf)
	if e.fn == "" {
		p.abandonCall()
		return
	}
	if !p.beginCall(e.fn, "") {
		return
	}
	e.params, e.callOpen, e.object, e.json = 0, true, false, valueScanner{}
	e.enterPhase(p, elementBody, &e.body)
}

// parseAttribute parses a value with or without quotes, and returns it and the rest.
func parseAttribute(b []byte) (value, rest string) {
	s := strings.TrimSpace(string(b))
	if s == "" || s[0] != '"' && s[0] != '\'' {
		return s, ""
	}
	value, rest, _ = strings.Cut(s[1:], s[:1])
	return value, rest
}

// beginAttributeValue begins a value. buf contains its key, and possibly its type.
func (e *elementMachine) beginAttributeValue(p *Parser) {
	key, rest := parseAttribute(e.buf)
	e.writeKey(p, key)
	if allowsString := e.typ == 0 || e.typ&typeString != 0; allowsString && strings.Contains(rest, `string="true"`) {
		e.typ = typeString
	}
	e.beginValue(p)
}

// writeKey emits key.
func (e *elementMachine) writeKey(p *Parser, key string) {
	sep := byte(',')
	if e.params == 0 {
		sep = '{'
	}
	e.params++
	e.typ = p.types[e.fn][key]
	p.emitText(Arguments, append(appendQuoted([]byte{sep}, []byte(key)), ':')...)
}

// beginValue begins a value.
func (e *elementMachine) beginValue(p *Parser) {
	e.first, e.blank, e.line = true, true, false
	e.enterPhase(p, elementValue, &e.value)
	if e.typ == typeString {
		e.phase = elementText
		p.emitText(Arguments, '"')
	}
}

// writeTextByte emits a byte of a string.
func (e *elementMachine) writeTextByte(p *Parser, c byte) {
	if !e.lines {
		var b [6]byte
		p.emitText(Arguments, appendEscaped(b[:0], c)...)
		return
	}
	if c == '\n' && e.first {
		e.first = false
		return
	}
	e.first = false
	if e.line {
		p.emitText(Arguments, '\\', 'n')
	}
	if e.line = c == '\n'; !e.line {
		var b [6]byte
		p.emitText(Arguments, appendEscaped(b[:0], c)...)
	}
}

// mustBeString reports whether c, the next byte of the value, shows that the value is a string: it may be one,
// and no value of another type begins with c.
func (e *elementMachine) mustBeString(c byte) bool {
	if !e.blank || isSpace(c) {
		return false
	}
	e.blank = false
	return (e.typ == 0 || e.typ&typeString != 0) && strings.IndexByte("{[(-+.0123456789tfnTFN", c) < 0
}

// spillValue writes the held value as the beginning of a string.
func (e *elementMachine) spillValue(p *Parser) {
	p.emitText(Arguments, '"')
	for _, c := range e.buf {
		e.writeTextByte(p, c)
	}
	e.phase, e.buf = elementText, e.buf[:0]
}

func (e *elementMachine) readMarker(p *Parser, l markerRule) {
	if e.phase == elementClosing {
		switch l.act {
		case actCall, actElementsEnd:
			e.phase = e.within
			e.closeValue(p)
		default:
			e.resumeValue(p)
		}
	}
	switch l.act {
	case actCall:
		e.finishCall(p)
		if !p.tentative {
			p.holdMarkup(l.text)
		}
		e.enterPhase(p, elementName, &e.name)
	case actParam:
		if e.phase == elementName { // GLM without a newline
			if e.beginCall(p); !e.callOpen {
				return
			}
		}
		if e.object { // has all arguments
			return
		}
		if e.isInValue() { // its end is missing
			e.closeValue(p)
		}
		e.enterPhase(p, elementKey, &e.key)
	case actKeyEnd:
		e.writeKey(p, string(bytes.TrimSpace(e.buf)))
		e.enterPhase(p, elementGap, &e.gap)
	case actValueBegin:
		e.beginValue(p)
	case actValueEnd:
		e.closeValue(p)
	case actCallEnd:
		if e.isInValue() {
			e.holdCallEnd(p, l.text)
			return
		}
		e.finishCall(p)
		e.enterPhase(p, elementSection, &e.section)
	case actElementsEnd:
		if e.phase == elementName && len(bytes.TrimSpace(e.buf)) > 0 {
			e.beginCall(p)
		}
		if p.tentative {
			p.abandonCall()
			return
		}
		e.finishCall(p)
		if p.current == stateMachine(e) {
			p.leaveCalls()
		}
	}
}

// isInValue reports whether a value is being read.
func (e *elementMachine) isInValue() bool { return e.phase == elementText || e.phase == elementValue }

// closeValue ends the current value.
func (e *elementMachine) closeValue(p *Parser) {
	if e.phase == elementText {
		p.emitText(Arguments, '"')
	} else {
		p.emitText(Arguments, appendTyped(nil, e.trimLayout(e.buf), e.typ)...)
	}
	e.enterPhase(p, elementBody, &e.body)
}

// finishCall ends the open call, if there is one.
func (e *elementMachine) finishCall(p *Parser) {
	if !e.callOpen {
		return
	}
	e.callOpen = false
	switch {
	case e.params == 0:
		p.emitText(Arguments, '{', '}')
	case !e.object:
		p.emitText(Arguments, '}')
	}
	p.finishCall()
}

// endText emits the incomplete value, without its closing quote.
func (e *elementMachine) endText(p *Parser) {
	switch e.phase {
	case elementClosing:
		e.phase = e.within
		e.closeValue(p)
		e.finishCall(p)
	case elementText:
		if e.line {
			p.emitText(Arguments, '\\', 'n')
		}
	case elementValue:
		v := e.trimLayout(e.buf)
		switch {
		case len(v) == 0:
		case matchesType(bytes.TrimSpace(v), e.typ), e.typ != 0 && e.typ&typeString == 0:
			p.emitText(Arguments, bytes.TrimSpace(v)...)
		default:
			q := appendQuoted(nil, v)
			p.emitText(Arguments, q[:len(q)-1]...)
		}
	case elementKey:
		q := appendQuoted([]byte{','}, e.buf)
		if e.params == 0 {
			q[0] = '{'
		}
		p.emitText(Arguments, q[:len(q)-1]...)
	}
}

func (e *elementMachine) markerSets() []*markerSet {
	return []*markerSet{&e.section, &e.name, &e.body, &e.key, &e.gap, &e.value}
}

// trimLayout removes the layout of a value: one newline at either end.
func (e *elementMachine) trimLayout(b []byte) []byte {
	if !e.lines {
		return b
	}
	return bytes.TrimSuffix(bytes.TrimPrefix(b, []byte("\n")), []byte("\n"))
}
