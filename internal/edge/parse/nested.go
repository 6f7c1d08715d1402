package parse

import (
	"bytes"
	"strings"
)

// tagPrefix precedes every tag of MiniMax M3's calls.
const tagPrefix = "]<]minimax[>["

// maxDepth bounds the nesting of parameters; deeper tags are text.
const maxDepth = 128

// nestedMachine reads tool calls whose parameters are elements which may nest. All tags have tagPrefix:
//
//	<tool_call> ( <invoke name="f"> ( <key>value</key> )* </invoke> )* </tool_call>
//
// A string parameter is emitted as it arrives. Any other is held until it is complete and another name
// follows, since repeated names form one array.
type nestedMachine struct {
	prefix markerSet
	phase  nestedPhase
	within nestedPhase // the phase before the tag
	tag    []byte      // with the prefix
	called bool        // the section has had a call

	args   *paramSchema // of the function; may be nil
	params int
	key    string   // of the open parameter
	inner  []string // the open elements inside it
	raw    []byte   // its text, held

	name    string // of the parameters in pending
	pending []*parameterElement
	size    int // of the text of pending
}

// nestedPhase is the state of a nestedMachine:
//
//	nestedSection  outside of calls
//	nestedTag      reads what follows tagPrefix
//	nestedBody     between the parameters of a call
//	nestedText     reads a string parameter
//	nestedValue    reads a parameter which must be complete before it is emitted
type nestedPhase uint8

const (
	nestedSection nestedPhase = iota
	nestedTag
	nestedBody
	nestedText
	nestedValue
)

const actPrefix = actFormat

func newNestedMachine() callMachine {
	return &nestedMachine{prefix: newMarkerSet(markerRule{tagPrefix, actPrefix, 0})}
}

func (n *nestedMachine) openCalls(p *Parser, _ int) {
	p.current, p.markers = n, &n.prefix
	n.phase, n.called = nestedSection, false
}

func (n *nestedMachine) markerSets() []*markerSet { return []*markerSet{&n.prefix} }

func (n *nestedMachine) readMarker(p *Parser, l markerRule) {
	if n.phase == nestedTag { // the previous prefix started no tag
		n.readFailedTag(p, n.within, n.tag)
		if n.within == nestedSection { // it was text, and so is this one
			return
		}
	} else {
		n.within = n.phase
	}
	if n.within == nestedSection && !p.tentative {
		p.holdMarkup(l.text)
	}
	n.phase, n.tag = nestedTag, append(n.tag[:0], l.text...)
}

func (n *nestedMachine) readByte(p *Parser, c byte) {
	switch n.phase {
	case nestedSection:
		if !isSpace(c) {
			p.handleStrayByte(c)
		}
	case nestedTag:
		n.tag = append(n.tag, c)
		switch at := len(n.tag) - len(tagPrefix); {
		case at == 1 && c != '<', at > maxName:
			n.phase = n.within
			n.readFailedTag(p, n.within, n.tag)
		case c == '>':
			n.phase = n.within
			n.readTag(p, string(n.tag[len(tagPrefix)+1:len(n.tag)-1]))
		}
	case nestedText:
		var b [6]byte
		p.emitText(Arguments, appendEscaped(b[:0], c)...)
	case nestedValue:
		n.holdText(p, c)
	}
}

// readFailedTag handles bytes which looked like a tag and are none, in phase ph.
func (n *nestedMachine) readFailedTag(p *Parser, ph nestedPhase, b []byte) {
	switch ph {
	case nestedSection:
		p.abandonCall() // the held markup contains b
	case nestedText:
		q := appendQuoted(nil, b)
		p.emitText(Arguments, q[1:len(q)-1]...)
	case nestedValue:
		n.holdText(p, b...)
	}
}

// readTag handles a complete tag.
func (n *nestedMachine) readTag(p *Parser, tag string) {
	switch n.phase {
	case nestedSection:
		n.readSectionTag(p, tag)
	case nestedBody:
		switch {
		case tag == "/invoke":
			n.finishCall(p)
		case strings.TrimSpace(tag) != "" && tag[0] != '/':
			n.beginParameter(p, tag)
		}
	case nestedText:
		switch tag {
		case "/" + n.key:
			p.emitText(Arguments, '"')
			n.phase = nestedBody
		case "/invoke":
			p.emitText(Arguments, '"')
			n.finishCall(p)
		default:
			n.readFailedTag(p, nestedText, n.tag)
		}
	case nestedValue:
		n.readValueTag(p, tag)
	}
}

// readSectionTag handles a tag outside of calls.
func (n *nestedMachine) readSectionTag(p *Parser, tag string) {
	header, ok := strings.CutPrefix(tag, "invoke name=")
	name, _ := parseAttribute([]byte(header))
	switch {
	case ok && name != "":
		if p.beginCall(name, "") {
			n.phase, n.called, n.args, n.params = nestedBody, true, p.schemas[name], 0
		}
	case tag == "tool_call": // repeated
	case tag == "/tool_call" && n.called:
		p.tentative, p.heldMarkup = false, p.heldMarkup[:0]
		p.leaveCalls()
	default:
		p.abandonCall()
	}
}

// beginParameter begins the parameter key.
func (n *nestedMachine) beginParameter(p *Parser, key string) {
	n.key, n.raw, n.inner = key, n.raw[:0], n.inner[:0]
	if key != n.name {
		n.flushPending(p)
	}
	if n.phase = nestedValue; n.args.propertySchema(key).allowedMask() == typeString {
		n.flushPending(p)
		n.writeKey(p, key)
		p.emitText(Arguments, '"')
		n.phase = nestedText
	}
}

// readValueTag handles a tag inside a held parameter.
func (n *nestedMachine) readValueTag(p *Parser, tag string) {
	depth := len(n.inner)
	switch {
	case tag == "/invoke":
		n.completeParameter(p)
		n.finishCall(p)
	case depth == 0 && tag == "/"+n.key:
		n.completeParameter(p)
	case depth > 0 && tag == "/"+n.inner[depth-1]:
		n.inner = n.inner[:depth-1]
		n.holdText(p, n.tag...)
	default:
		if tag != "" && tag[0] != '/' && depth < maxDepth {
			n.inner = append(n.inner, tag)
		}
		n.holdText(p, n.tag...)
	}
}

// holdText holds text of the open parameter. A parameter which is too long to hold becomes a string.
func (n *nestedMachine) holdText(p *Parser, text ...byte) {
	if n.raw = append(n.raw, text...); len(n.raw) <= maxHeld {
		return
	}
	n.flushPending(p)
	n.writeKey(p, n.key)
	q := appendQuoted(nil, n.raw)
	p.emitText(Arguments, q[:len(q)-1]...)
	n.phase, n.raw = nestedText, n.raw[:0]
}

// completeParameter ends the held parameter.
func (n *nestedMachine) completeParameter(p *Parser) {
	n.phase = nestedBody
	size := len(n.raw) + 1 // an empty one is held too
	if n.size += size; n.size > maxHeld {
		n.flushPending(p)
		n.size = size
	}
	n.name, n.pending = n.key, append(n.pending, parseElement(n.raw))
}

// flushPending emits the pending parameters.
func (n *nestedMachine) flushPending(p *Parser) {
	if len(n.pending) == 0 {
		return
	}
	n.writeKey(p, n.name)
	p.emitText(Arguments, appendMember(nil, n.pending, n.args.propertySchema(n.name))...)
	n.name, n.pending, n.size = "", nil, 0
}

// writeKey emits the key of a parameter.
func (n *nestedMachine) writeKey(p *Parser, key string) {
	sep := byte(',')
	if n.params == 0 {
		sep = '{'
	}
	n.params++
	p.emitText(Arguments, append(appendQuoted([]byte{sep}, []byte(key)), ':')...)
}

// finishCall ends the call.
func (n *nestedMachine) finishCall(p *Parser) {
	n.flushPending(p)
	if n.params == 0 {
		p.emitText(Arguments, '{')
	}
	p.emitText(Arguments, '}')
	p.finishCall()
	n.phase = nestedSection
}

// endText emits the incomplete arguments.
func (n *nestedMachine) endText(p *Parser) {
	if n.phase == nestedTag {
		n.phase = n.within
		n.readFailedTag(p, n.within, n.tag)
	}
	if n.phase == nestedSection {
		return
	}
	n.flushPending(p)
	if n.phase == nestedValue {
		n.writeKey(p, n.key)
		q := appendQuoted(nil, n.raw)
		p.emitText(Arguments, q[:len(q)-1]...)
	}
}

// parameterElement is a parameter or a part of one.
type parameterElement struct {
	name     string
	text     []byte
	children []*parameterElement
}

// parseElement parses the text of a parameter. Tags which do not match are text. An element which is not
// closed ends with the text.
func parseElement(raw []byte) *parameterElement {
	open := []*parameterElement{{}}
	for len(raw) > 0 {
		top := open[len(open)-1]
		text, rest, found := bytes.Cut(raw, []byte(tagPrefix+"<"))
		top.text = append(top.text, text...)
		if !found {
			break
		}
		tag, _, ok := bytes.Cut(rest[:min(len(rest), maxName)], []byte(">"))
		name, after := string(tag), rest[min(len(rest), len(tag)+1):]
		switch {
		case ok && len(open) > 1 && name == "/"+top.name:
			open, raw = open[:len(open)-1], after
		case ok && strings.TrimSpace(name) != "" && name[0] != '/' && len(open) <= maxDepth:
			child := &parameterElement{name: name}
			top.children = append(top.children, child)
			open, raw = append(open, child), after
		default:
			top.text, raw = append(top.text, tagPrefix+"<"...), rest
		}
	}
	return open[0]
}

// appendMember appends the value of the elements of one name.
func appendMember(dst []byte, es []*parameterElement, s *paramSchema) []byte {
	if len(es) == 1 {
		return es[0].appendJSON(dst, s)
	}
	if c, kind := s.containerSchema(); kind == typeArray { // each is an item
		s = c.items
	}
	return appendItems(dst, es, s)
}

func appendItems(dst []byte, es []*parameterElement, s *paramSchema) []byte {
	dst = append(dst, '[')
	for i, e := range es {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = e.appendJSON(dst, s)
	}
	return append(dst, ']')
}

// appendJSON appends e as JSON. Its children are the items of an array if s says so, whatever their names,
// and else the members of an object. Additional text becomes a member $text.
func (e *parameterElement) appendJSON(dst []byte, s *paramSchema) []byte {
	c, kind := s.containerSchema()
	blank := len(bytes.TrimSpace(e.text)) == 0
	switch {
	case len(e.children) > 0 && kind == typeArray:
		return appendItems(dst, e.children, c.items)
	case len(e.children) > 0:
		return e.appendObject(dst, c, blank)
	case blank && c != nil && s.allowedMask()&typeString == 0: // templates write empty values like this
		if kind == typeArray {
			return append(dst, "[]"...)
		}
		return append(dst, "{}"...)
	}
	return appendTyped(dst, e.text, s.allowedMask())
}

func (e *parameterElement) appendObject(dst []byte, s *paramSchema, blank bool) []byte {
	members := map[string][]*parameterElement{}
	var names []string
	for _, child := range e.children {
		if members[child.name] == nil {
			names = append(names, child.name)
		}
		members[child.name] = append(members[child.name], child)
	}
	if !blank {
		name := "$text"
		for members[name] != nil {
			name = "$" + name
		}
		names, members[name] = append(names, name), []*parameterElement{{text: e.text}}
	}
	for i, name := range names {
		sep := byte(',')
		if i == 0 {
			sep = '{'
		}
		dst = append(appendQuoted(append(dst, sep), []byte(name)), ':')
		dst = appendMember(dst, members[name], s.propertySchema(name))
	}
	return append(dst, '}')
}
