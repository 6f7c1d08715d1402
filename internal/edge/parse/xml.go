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
	qwenCoder = lineForm("</tool_call>")
	seedOSS   = lineForm("</seed:tool_call>")
	miMo      = attributeForm("</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>")
	miniMax   = attributeForm("</minimax:tool_call>", "<invoke name=", "</invoke>", "<parameter name=", "</parameter>")
	dsml      = dsmlForm("function_calls", "")
	dsmlV4    = dsmlForm("tool_calls", "")
	dsmlV41   = dsmlForm(" calls", " ")

	glm = xmlForm{
		sectionEnd: "</tool_call>", param: "<arg_key>", keyEnd: "</arg_key>", valueBegin: "<arg_value>", valueEnd: "</arg_value>",
	}
)

// newAttributeForm returns a form with the names of functions and parameters in attributes.
func attributeForm(sectionEnd, call, callEnd, param, valueEnd string) xmlForm {
	return xmlForm{sectionEnd: sectionEnd, call: call, callEnd: callEnd, param: param, valueEnd: valueEnd}
}

// newLineForm returns the form of Qwen3-Coder with another section.
func lineForm(sectionEnd string) xmlForm {
	f := attributeForm(sectionEnd, "<function=", "</function>", "<parameter=", "</parameter>")
	f.lines = true
	return f
}

// newDSMLForm returns a form of DeepSeek since V3.2; space precedes each tag's word.
func dsmlForm(section, space string) xmlForm {
	const open, end = "<｜DSML｜", "</｜DSML｜"
	return attributeForm(end+section+">", open+space+"invoke name=", end+space+"invoke>",
		open+space+"parameter name=", end+space+"parameter>")
}

// elementMachine reads tool calls whose parameters are elements.
type elements struct {
	section, name, body, key, gap, value, closing set
	glm, lines                                    bool

	phase  elementPhase
	buf    []byte
	fn     string
	params int
	typ    typeMask
	begun  bool // a call is open
	first  bool // no byte of the value was read
	line   bool // a newline is held: the value may end after it
	object bool // the arguments are one object
	json   value
	within elementPhase // the phase before elementClosing
	pend   []byte       // the bytes read in elementClosing
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

func newElements(f xmlForm) *elements {
	e := &elements{glm: f.call == "", lines: f.lines}
	fill := func(s *set, text string, a act) {
		if text != "" {
			s.add(literal{text, a, 0})
		}
	}
	for _, s := range []*set{&e.section, &e.name, &e.body} {
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
		e.name = set{}
		fill(&e.body, f.call, actCall)
		fill(&e.value, f.param, actParam)
		fill(&e.value, f.callEnd, actCallEnd)
		for _, l := range e.value.literals {
			e.closing.add(l)
		}
		fill(&e.closing, f.call, actCall)
		fill(&e.closing, f.sectionEnd, actElementsEnd)
	}
	return e
}

func (e *elements) open(p *Parser, arg int) {
	p.mach = e
	e.begun = false
	e.to(p, elementSection, &e.section)
	if arg == 1 || e.glm {
		e.to(p, elementName, &e.name)
	}
}

func (e *elements) to(p *Parser, ph elementPhase, s *set) {
	e.phase, p.set, e.buf = ph, s, e.buf[:0]
}

func (e *elements) char(p *Parser, c byte) {
	switch e.phase {
	case elementSection:
		if !isSpace(c) {
			p.stray(c)
		}
	case elementName:
		switch {
		case e.glm && c == '\n' && len(bytes.TrimSpace(e.buf)) == 0:
		case e.glm && c == '\n', !e.glm && c == '>':
			e.call(p)
		case !e.glm && (c == '\n' || c == '<') && len(e.buf) > 0: // the header has no end
			p.giveUp()
		default:
			if e.buf = append(e.buf, c); len(e.buf) > maxName {
				p.giveUp()
			}
		}
	case elementBody:
		if c == '{' && e.params == 0 {
			e.phase, e.json, e.object = elementJSON, value{}, true
			e.params++
			e.char(p, c)
		}
	case elementJSON:
		part, done := e.json.step(c)
		if part {
			p.emit(Arguments, c)
		}
		p.set = &e.body
		switch {
		case done:
			e.phase = elementBody
		case e.json.inside:
			p.set = &noMarkers
		}
	case elementKey:
		if !e.glm && c == '>' {
			e.attribute(p)
			return
		}
		if len(e.buf) < maxHeld {
			e.buf = append(e.buf, c)
		}
	case elementText:
		e.text(p, c)
	case elementValue:
		if e.buf = append(e.buf, c); len(e.buf) > maxHeld {
			e.spill(p)
		}
	case elementClosing:
		if isSpace(c) && len(e.pend) < maxSpace {
			e.pend = append(e.pend, c)
			return
		}
		e.resume(p)
		e.char(p, c)
	}
}

// holdCallEnd holds the end of a call which is inside a value. It ends the value too if more call markup or
// the end of the text follows; otherwise it is text.
func (e *elements) suspect(p *Parser, end string) {
	e.within, e.phase, p.set = e.phase, elementClosing, &e.closing
	e.pend = append(e.pend[:0], end...)
}

// resumeValue continues the value: the held end of a call is part of it.
func (e *elements) resume(p *Parser) {
	e.phase, p.set = e.within, &e.value
	for _, c := range e.pend {
		e.char(p, c)
	}
	e.pend = e.pend[:0]
}

// beginCall begins the call named in buf.
func (e *elements) call(p *Parser) {
	e.fn, _ = attribute(e.buf)
	if e.fn == "" {
		p.giveUp()
		return
	}
	if !p.call(e.fn, "") {
		return
	}
	e.params, e.begun, e.object, e.json = 0, true, false, value{}
	e.to(p, elementBody, &e.body)
}

// parseAttribute parses a value with or without quotes, and returns it and the rest.
func attribute(b []byte) (value, rest string) {
	s := strings.TrimSpace(string(b))
	if s == "" || s[0] != '"' && s[0] != '\'' {
		return s, ""
	}
	value, rest, _ = strings.Cut(s[1:], s[:1])
	return value, rest
}

// beginAttributeValue begins a value. buf contains its key, and possibly its type.
func (e *elements) attribute(p *Parser) {
	key, rest := attribute(e.buf)
	e.write(p, key)
	if allowsString := e.typ == 0 || e.typ&typeString != 0; allowsString && strings.Contains(rest, `string="true"`) {
		e.typ = typeString
	}
	e.begin(p)
}

// writeKey emits key.
func (e *elements) write(p *Parser, key string) {
	sep := byte(',')
	if e.params == 0 {
		sep = '{'
	}
	e.params++
	e.typ = p.types[e.fn][key]
	p.emit(Arguments, append(appendQuoted([]byte{sep}, []byte(key)), ':')...)
}

// beginValue begins a value.
func (e *elements) begin(p *Parser) {
	e.first, e.line = true, false
	e.to(p, elementValue, &e.value)
	if e.typ == typeString {
		e.phase = elementText
		p.emit(Arguments, '"')
	}
}

// writeTextByte emits a byte of a string.
func (e *elements) text(p *Parser, c byte) {
	if !e.lines {
		var b [6]byte
		p.emit(Arguments, appendEscaped(b[:0], c)...)
		return
	}
	if c == '\n' && e.first {
		e.first = false
		return
	}
	e.first = false
	if e.line {
		p.emit(Arguments, '\\', 'n')
	}
	if e.line = c == '\n'; !e.line {
		var b [6]byte
		p.emit(Arguments, appendEscaped(b[:0], c)...)
	}
}

// spillValue converts a value which is too long to hold to a string.
func (e *elements) spill(p *Parser) {
	p.emit(Arguments, '"')
	for _, c := range e.buf {
		e.text(p, c)
	}
	e.phase, e.buf = elementText, e.buf[:0]
}

func (e *elements) marker(p *Parser, l literal) {
	if e.phase == elementClosing {
		switch l.act {
		case actCall, actElementsEnd:
			e.phase = e.within
			e.closeValue(p)
		default:
			e.resume(p)
		}
	}
	switch l.act {
	case actCall:
		e.finish(p)
		if !p.tentative {
			p.suppose(l.text)
		}
		e.to(p, elementName, &e.name)
	case actParam:
		if e.phase == elementName { // GLM without a newline
			if e.call(p); !e.begun {
				return
			}
		}
		if e.object { // has all arguments
			return
		}
		if e.valuing() { // its end is missing
			e.closeValue(p)
		}
		e.to(p, elementKey, &e.key)
	case actKeyEnd:
		e.write(p, string(bytes.TrimSpace(e.buf)))
		e.to(p, elementGap, &e.gap)
	case actValueBegin:
		e.begin(p)
	case actValueEnd:
		e.closeValue(p)
	case actCallEnd:
		if e.valuing() {
			e.suspect(p, l.text)
			return
		}
		e.finish(p)
		e.to(p, elementSection, &e.section)
	case actElementsEnd:
		if e.phase == elementName && len(bytes.TrimSpace(e.buf)) > 0 {
			e.call(p)
		}
		if p.tentative {
			p.giveUp()
			return
		}
		e.finish(p)
		if p.mach == machine(e) {
			p.leave()
		}
	}
}

// isInValue reports whether a value is being read.
func (e *elements) valuing() bool { return e.phase == elementText || e.phase == elementValue }

// closeValue ends the current value.
func (e *elements) closeValue(p *Parser) {
	if e.phase == elementText {
		p.emit(Arguments, '"')
	} else {
		p.emit(Arguments, appendTyped(nil, e.trim(e.buf), e.typ)...)
	}
	e.to(p, elementBody, &e.body)
}

// finishCall ends the open call, if there is one.
func (e *elements) finish(p *Parser) {
	if !e.begun {
		return
	}
	e.begun = false
	switch {
	case e.params == 0:
		p.emit(Arguments, '{', '}')
	case !e.object:
		p.emit(Arguments, '}')
	}
	p.finish()
}

// endText emits the incomplete value, without its closing quote.
func (e *elements) end(p *Parser) {
	switch e.phase {
	case elementClosing:
		e.phase = e.within
		e.closeValue(p)
		e.finish(p)
	case elementText:
		if e.line {
			p.emit(Arguments, '\\', 'n')
		}
	case elementValue:
		v := e.trim(e.buf)
		switch {
		case len(v) == 0:
		case fits(bytes.TrimSpace(v), e.typ), e.typ != 0 && e.typ&typeString == 0:
			p.emit(Arguments, bytes.TrimSpace(v)...)
		default:
			q := appendQuoted(nil, v)
			p.emit(Arguments, q[:len(q)-1]...)
		}
	case elementKey:
		q := appendQuoted([]byte{','}, e.buf)
		if e.params == 0 {
			q[0] = '{'
		}
		p.emit(Arguments, q[:len(q)-1]...)
	}
}

func (e *elements) sets() []*set {
	return []*set{&e.section, &e.name, &e.body, &e.key, &e.gap, &e.value}
}

// trimLayout removes the layout of a value: one newline at either end.
func (e *elements) trim(b []byte) []byte {
	if !e.lines {
		return b
	}
	return bytes.TrimSuffix(bytes.TrimPrefix(b, []byte("\n")), []byte("\n"))
}
