package parse

import "slices"

// objectMachine reads tool calls which are JSON objects, {"name": …, "arguments": …}: one or more, with or
// without an array, between markers or bare.
type objects struct {
	section, inText set  // the markers between values, and inside strings
	bare            bool // no marker proves that this is a call

	phase  objectPhase
	array  bool
	level  int    // of {"function": {…}}
	buf    []byte // a key, a name or an id, in quotes
	key    string
	early  []byte // arguments before the name
	v      value
	esc    []byte // an incomplete escape inside arguments which are a string
	id     string
	named  bool
	argued bool
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
func newObjects(ends ...string) *objects {
	o := &objects{}
	for _, m := range ends {
		o.section.add(literal{m, actClose, 0})
	}
	return o
}

func (o *objects) open(p *Parser, arg int) {
	o.bare = arg < 0
	o.array = false
	p.mach = o
	o.item(p)
	if arg < 0 { // the marker was the bracket
		o.char(p, p.raw[len(p.raw)-1])
	}
}

func (o *objects) item(p *Parser) {
	o.phase, o.level, o.id, o.named, o.argued, o.early = wantItem, 0, "", false, false, o.early[:0]
	p.set = &o.section
}

func (o *objects) char(p *Parser, c byte) {
	switch o.phase {
	case inKey, inString:
		o.buf = append(o.buf, c)
		if len(o.buf) > maxName*8 {
			o.fail(p, c)
			return
		}
		if _, done := o.v.step(c); !done {
			return
		}
		if o.phase == inKey {
			o.key, o.phase = unquoted(o.buf), wantColon
			if (o.bare || p.unclosed) && !o.named && !slices.Contains(callKeys, o.key) { // a JSON answer need not be held
				p.giveUp()
			}
			return
		}
		o.string(p)
		return
	case inArguments:
		part, done := o.v.step(c)
		if part {
			o.argue(p, c)
		}
		o.look(p)
		if done {
			o.phase = afterValue
		}
		return
	case inEncoded:
		o.encoded(p, c)
		return
	case inOther:
		part, done := o.v.step(c)
		o.look(p)
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
		o.begin(p, c)
	case wantKey:
		switch c {
		case '"':
			o.phase, o.buf, o.v = inKey, append(o.buf[:0], c), value{inside: true}
		case '}':
			o.close(p)
		case ',':
		default:
			o.fail(p, c)
		}
	case wantColon:
		if c != ':' {
			o.fail(p, c)
			return
		}
		o.phase = wantValue
	case wantValue:
		o.value(p, c)
	case afterValue:
		switch c {
		case ',':
			o.phase = wantKey
		case '}':
			o.close(p)
		default:
			o.fail(p, c)
		}
	}
}

// selectMarkers selects the markers for the current position: inside strings none count.
func (o *objects) look(p *Parser) {
	p.set = &o.section
	if o.v.inside {
		p.set = &o.inText
	}
}

// beginItem reads c where an object should start.
func (o *objects) begin(p *Parser, c byte) {
	switch {
	case c == '{':
		if !p.tentative {
			p.suppose("{")
		}
		o.phase, o.level = wantKey, 1
	case c == '[' && !o.array:
		o.array = true
	case c == ']' && o.array && !p.tentative:
		o.array = false
		if len(o.section.literals) == 0 || o.bare {
			p.leave()
		}
	case (c == ',' || c == ';' || c == '}' || c == ']') && !p.tentative:
	default:
		p.stray(c)
	}
}

// beginValue reads the first byte of the value of o.key.
func (o *objects) value(p *Parser, c byte) {
	o.v = value{}
	o.v.step(c)
	isText := c == '"'
	switch o.key {
	case "name", "function", "id":
		if isText && !(o.named && o.key != "id") {
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
		case o.argued:
		case isText:
			o.phase, o.argued, o.esc = inEncoded, true, o.esc[:0]
			p.set = &o.inText
			return
		case c == '{' || c == '[':
			o.phase, o.argued = inArguments, true
			o.argue(p, c)
			return
		}
	}
	o.phase = inOther
	o.look(p)
	if c == '}' || c == ']' || c == ',' || c == ':' {
		o.fail(p, c)
	}
}

// finishString handles a complete name or id.
func (o *objects) string(p *Parser) {
	s := unquoted(o.buf)
	o.phase = afterValue
	if o.key == "id" {
		if !o.named {
			o.id = s
		}
		return
	}
	if s == "" || o.bare && len(p.known) > 0 && !p.known[s] {
		p.giveUp()
		return
	}
	if o.named = p.call(s, o.id); o.named {
		p.emit(Arguments, o.early...)
	}
}

// addArgumentByte emits a byte of the arguments, or keeps it until the name is known.
func (o *objects) argue(p *Parser, c byte) {
	if o.named {
		p.emit(Arguments, c)
		return
	}
	o.early = append(o.early, c)
}

// readEncodedByte reads a byte of arguments which are a JSON string.
func (o *objects) encoded(p *Parser, c byte) {
	if len(o.esc) == 0 && c != '\\' {
		if c == '"' {
			o.phase = afterValue
			p.set = &o.section
			return
		}
		o.argue(p, c)
		return
	}
	o.esc = append(o.esc, c)
	if !escapeDone(o.esc) {
		return
	}
	for _, c := range []byte(unquoted(slices.Concat([]byte{'"'}, o.esc, []byte{'"'}))) {
		o.argue(p, c)
	}
	o.esc = o.esc[:0]
}

// isCompleteEscape reports whether b is a complete JSON escape, including the second half of a surrogate pair
// if one may follow.
func escapeDone(b []byte) bool {
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
func (o *objects) close(p *Parser) {
	if o.level--; o.level > 0 {
		o.phase = afterValue
		return
	}
	if !o.named {
		p.giveUp()
		return
	}
	o.done(p)
	o.item(p)
	if !o.array && (len(o.section.literals) == 0 || o.bare) {
		p.leave()
	}
}

// finishCall ends the open call.
func (o *objects) done(p *Parser) {
	if !o.argued {
		p.emit(Arguments, '{', '}')
	}
	p.finish()
	o.named = false
}

// abandonObject stops at c: an object without a name is not a call, and one with a name ends here.
func (o *objects) fail(p *Parser, c byte) {
	if o.named {
		o.done(p)
		o.item(p)
	}
	p.stray(c)
}

func (o *objects) marker(p *Parser, _ literal) {
	if p.tentative {
		p.giveUp()
		return
	}
	if o.named {
		o.done(p)
	}
	p.leave()
}

func (o *objects) end(p *Parser) {
	if o.named {
		p.emit(Arguments, o.esc...)
	}
}

func (o *objects) sets() []*set { return []*set{&o.section, &o.inText} }
