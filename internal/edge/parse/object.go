package parse

import "slices"

// objectMachine reads tool calls which are JSON objects, {"name": …, "arguments": …}: one or more, with or
// without an array, between markers or bare.
type objectMachine struct {
	section, inText markerSet // the markers between values, and inside strings
	bare            bool      // no marker proves that this is a call

	phase          objectPhase
	array          bool
	level          int    // of {"function": {…}}
	buf            []byte // a key, a name or an id, in quotes
	key            string
	earlyArguments []byte // arguments before the name
	v              valueScanner
	esc            []byte // an incomplete escape inside arguments which are a string
	id             string
	hasName        bool
	hasArguments   bool
}

// objectPhase is the state of an objectMachine:
//
//	wantItem     before an object
//	wantKey      before a key or the closing brace
//	inKey        reads a key
//	wantColon    after a key
//	wantValue    before a value
//	inString     reads a name or an id
//	inArguments  reads arguments: an object or an array
//	inEncoded    reads arguments which are a JSON string
//	inOther      reads an ignored value
//	afterValue   after a value
type objectPhase uint8

const (
	wantItem objectPhase = iota
	wantKey
	inKey
	wantColon
	wantValue
	inString
	inArguments
	inEncoded
	inOther
	afterValue
)

// callKeys are the keys which a call may have before its name.
var callKeys = []string{"name", "function", "id", "type", "arguments", "parameters", "args"}

const actClose = actFormat

// newObjectMachine returns a machine for calls which end at one of the markers ends; without markers they end
// with the value.
func newObjectMachine(ends ...string) *objectMachine {
	o := &objectMachine{}
	for _, m := range ends {
		o.section.addMarker(markerRule{m, actClose, 0})
	}
	return o
}

func (o *objectMachine) openCalls(p *Parser, arg int) {
	o.bare = arg < 0
	o.array = false
	p.current = o
	o.startItem(p)
	if arg < 0 { // the marker was the bracket
		o.readByte(p, p.heldMarkup[len(p.heldMarkup)-1])
	}
}

func (o *objectMachine) startItem(p *Parser) {
	o.phase, o.level, o.id, o.hasName, o.hasArguments, o.earlyArguments = wantItem, 0, "", false, false, o.earlyArguments[:0]
	p.markers = &o.section
}

func (o *objectMachine) readByte(p *Parser, c byte) {
	switch o.phase {
	case inKey, inString:
		o.buf = append(o.buf, c)
		if len(o.buf) > maxName*8 {
			o.abandonObject(p, c)
			return
		}
		if _, done := o.v.scanByte(c); !done {
			return
		}
		if o.phase == inKey {
			o.key, o.phase = unquoteJSON(o.buf), wantColon
			if (o.bare || p.callInReasoning) && !o.hasName && !slices.Contains(callKeys, o.key) { // a JSON answer need not be held
				p.abandonCall()
			}
			return
		}
		o.finishString(p)
		return
	case inArguments:
		part, done := o.v.scanByte(c)
		if part {
			o.addArgumentByte(p, c)
		}
		o.selectMarkers(p)
		if done {
			o.phase = afterValue
		}
		return
	case inEncoded:
		o.readEncodedByte(p, c)
		return
	case inOther:
		part, done := o.v.scanByte(c)
		o.selectMarkers(p)
		if !done {
			return
		}
		o.phase = afterValue
		if part {
			return
		}
	}
	if isSpace(c) {
		return
	}
	switch o.phase {
	case wantItem:
		o.beginItem(p, c)
	case wantKey:
		switch c {
		case '"':
			o.phase, o.buf, o.v = inKey, append(o.buf[:0], c), valueScanner{inString: true}
		case '}':
			o.closeObject(p)
		case ',':
		default:
			o.abandonObject(p, c)
		}
	case wantColon:
		if c != ':' {
			o.abandonObject(p, c)
			return
		}
		o.phase = wantValue
	case wantValue:
		o.beginValue(p, c)
	case afterValue:
		switch c {
		case ',':
			o.phase = wantKey
		case '}':
			o.closeObject(p)
		default:
			o.abandonObject(p, c)
		}
	}
}

// selectMarkers selects the markers for the current position: inside strings none count.
func (o *objectMachine) selectMarkers(p *Parser) {
	p.markers = &o.section
	if o.v.inString {
		p.markers = &o.inText
	}
}

// beginItem reads c where an object should start.
func (o *objectMachine) beginItem(p *Parser, c byte) {
	switch {
	case c == '{':
		if !p.tentative {
			p.holdMarkup("{")
		}
		o.phase, o.level = wantKey, 1
	case c == '[' && !o.array:
		o.array = true
	case c == ']' && o.array && !p.tentative:
		o.array = false
		if len(o.section.literals) == 0 || o.bare {
			p.leaveCalls()
		}
	case (c == ',' || c == ';' || c == '}' || c == ']') && !p.tentative:
	default:
		p.handleStrayByte(c)
	}
}

// beginValue reads the first byte of the value of o.key.
func (o *objectMachine) beginValue(p *Parser, c byte) {
	o.v = valueScanner{}
	o.v.scanByte(c)
	isText := c == '"'
	switch o.key {
	case "name", "function", "id":
		if isText && !(o.hasName && o.key != "id") {
			o.phase, o.buf = inString, append(o.buf[:0], c)
			return
		}
		if o.key == "function" && c == '{' {
			o.level++
			o.phase = wantKey
			return
		}
	case "arguments", "parameters", "args":
		switch {
		case o.hasArguments:
		case isText:
			o.phase, o.hasArguments, o.esc = inEncoded, true, o.esc[:0]
			p.markers = &o.inText
			return
		case c == '{' || c == '[':
			o.phase, o.hasArguments = inArguments, true
			o.addArgumentByte(p, c)
			return
		}
	}
	o.phase = inOther
	o.selectMarkers(p)
	if c == '}' || c == ']' || c == ',' || c == ':' {
		o.abandonObject(p, c)
	}
}

// finishString handles a complete name or id.
func (o *objectMachine) finishString(p *Parser) {
	s := unquoteJSON(o.buf)
	o.phase = afterValue
	if o.key == "id" {
		if !o.hasName {
			o.id = s
		}
		return
	}
	if s == "" || o.bare && len(p.known) > 0 && !p.known[s] {
		p.abandonCall()
		return
	}
	if o.hasName = p.beginCall(s, o.id); o.hasName {
		p.emitText(Arguments, o.earlyArguments...)
	}
}

// addArgumentByte emits a byte of the arguments, or keeps it until the name is known.
func (o *objectMachine) addArgumentByte(p *Parser, c byte) {
	if o.hasName {
		p.emitText(Arguments, c)
		return
	}
	o.earlyArguments = append(o.earlyArguments, c)
}

// readEncodedByte reads a byte of arguments which are a JSON string.
func (o *objectMachine) readEncodedByte(p *Parser, c byte) {
	if len(o.esc) == 0 && c != '\\' {
		if c == '"' {
			o.phase = afterValue
			p.markers = &o.section
			return
		}
		o.addArgumentByte(p, c)
		return
	}
	o.esc = append(o.esc, c)
	if !isCompleteEscape(o.esc) {
		return
	}
	for _, c := range []byte(unquoteJSON(slices.Concat([]byte{'"'}, o.esc, []byte{'"'}))) {
		o.addArgumentByte(p, c)
	}
	o.esc = o.esc[:0]
}

// isCompleteEscape reports whether b is a complete JSON escape, including the second half of a surrogate pair
// if one may follow.
func isCompleteEscape(b []byte) bool {
	switch {
	case len(b) < 2:
		return false
	case b[1] != 'u':
		return true
	case len(b) < 6:
		return false
	case len(b) == 6:
		return !(b[2]|0x20 == 'd' && (b[3] >= '8' && b[3] <= '9' || b[3]|0x20 == 'a' || b[3]|0x20 == 'b'))
	}
	return len(b) >= 12 || len(b) == 7 && b[6] != '\\' || len(b) == 8 && b[7] != 'u'
}

// closeObject reads the closing brace of an object.
func (o *objectMachine) closeObject(p *Parser) {
	if o.level--; o.level > 0 {
		o.phase = afterValue
		return
	}
	if !o.hasName {
		p.abandonCall()
		return
	}
	o.finishCall(p)
	o.startItem(p)
	if !o.array && (len(o.section.literals) == 0 || o.bare) {
		p.leaveCalls()
	}
}

// finishCall ends the open call.
func (o *objectMachine) finishCall(p *Parser) {
	if !o.hasArguments {
		p.emitText(Arguments, '{', '}')
	}
	p.finishCall()
	o.hasName = false
}

// abandonObject stops at c: an object without a name is not a call, and one with a name ends here.
func (o *objectMachine) abandonObject(p *Parser, c byte) {
	if o.hasName {
		o.finishCall(p)
		o.startItem(p)
	}
	p.handleStrayByte(c)
}

func (o *objectMachine) readMarker(p *Parser, _ markerRule) {
	if p.tentative {
		p.abandonCall()
		return
	}
	if o.hasName {
		o.finishCall(p)
	}
	p.leaveCalls()
}

func (o *objectMachine) endText(p *Parser) {
	if o.hasName {
		p.emitText(Arguments, o.esc...)
	}
}

func (o *objectMachine) markerSets() []*markerSet { return []*markerSet{&o.section, &o.inText} }
