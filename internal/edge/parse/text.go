package parse

// textMachine reads content or reasoning; its value is the kind of events which it emits.
type textMachine EventKind

const (
	contentMachine   = textMachine(Content)
	reasoningMachine = textMachine(Reasoning)
)

func (t textMachine) readByte(p *Parser, c byte) {
	if isSpace(c) {
		switch {
		case !p.afterMarkup:
			p.space = append(p.space, c)
		case t == contentMachine && p.hasContent:
			p.spaceAfter = append(p.spaceAfter, c)
		}
		if len(p.space)+len(p.spaceAfter) > maxSpace {
			t.endText(p)
		}
		return
	}
	p.afterMarkup = false
	p.markers = &p.mid
	if t == reasoningMachine {
		p.markers = p.reasoningMarkers()
	}
	t.endText(p)
	p.emitText(EventKind(t), c)
}

func (t textMachine) readMarker(p *Parser, l markerRule) {
	switch l.act {
	case actDrop:
		p.spaceAfter = p.spaceAfter[:0]
	case actThink:
		if p.markers == &p.start && !p.afterMarkup { // no output before
			p.space = p.space[:0]
		}
		p.contentSpace, p.space, p.spaceAfter = p.space, p.contentSpace[:0], p.spaceAfter[:0]
		p.current, p.markers, p.afterMarkup = reasoningMachine, &p.rethink, true
	case actEndThink:
		p.endReasoning()
		p.current, p.markers, p.afterMarkup = contentMachine, &p.start, true
	case actTool, actUnclosed:
		p.callInReasoning = l.act == actUnclosed
		p.holdMarkup(l.text)
		p.tool.openCalls(p, l.arg)
	case actAnswer:
		p.space = p.space[:0]
		p.answerOpened, p.afterMarkup = true, true
	case actEndAnswer:
		if !p.answerOpened {
			t.emitMarker(p, l.text)
			return
		}
		p.space = append(append(p.space, p.spaceAfter...), l.text...) // content if more follows
		p.spaceAfter, p.answerEnded = p.spaceAfter[:0], true
	case actStray:
		if !p.isToken || !p.tokens[l.text] {
			t.emitMarker(p, l.text)
		}
	}
}

// emitMarker emits a marker which has no meaning here, as text.
func (t textMachine) emitMarker(p *Parser, marker string) {
	p.afterMarkup, p.markers = false, &p.mid
	t.endText(p)
	p.emitText(EventKind(t), []byte(marker)...)
}

// endText emits the white space which is not next to markup.
func (t textMachine) endText(p *Parser) {
	p.emitText(EventKind(t), p.space...)
	p.emitText(EventKind(t), p.spaceAfter...)
	p.space, p.spaceAfter, p.answerEnded = p.space[:0], p.spaceAfter[:0], false
}

// endReasoning drops the white space at the end of reasoning. It restores that of the content before the
// reasoning, which is kept if content follows.
func (p *Parser) endReasoning() {
	p.space, p.contentSpace = p.contentSpace, p.space[:0]
	p.inSection = false
}

// reasoningMarkers returns the markers amid reasoning.
func (p *Parser) reasoningMarkers() *markerSet {
	if p.inSection {
		return &p.section
	}
	return &p.think
}

// holdMarkup holds what follows, starting with markup, until it proves to be a call.
func (p *Parser) holdMarkup(markup string) {
	p.tentative = true
	p.heldMarkup = append(p.heldMarkup[:0], markup...)
}

// abandonCall emits what was held as text: it is not a call.
func (p *Parser) abandonCall() {
	t, s := contentMachine, &p.mid
	if p.callInReasoning {
		t, s = reasoningMachine, p.reasoningMarkers()
	}
	t.endText(p)
	n := len(p.heldMarkup)
	for n > 0 && isSpace(p.heldMarkup[n-1]) && len(p.heldMarkup)-n < maxSpace { // may be next to markup
		n--
	}
	p.emitText(EventKind(t), p.heldMarkup[:n]...)
	p.space = append(p.space, p.heldMarkup[n:]...)
	p.tentative, p.callInReasoning, p.heldMarkup = false, false, p.heldMarkup[:0]
	p.current, p.markers, p.afterMarkup = t, s, false
}

// leaveCalls returns to content after calls.
func (p *Parser) leaveCalls() {
	p.current, p.markers, p.afterMarkup = contentMachine, &p.after, true
}

// handleStrayByte handles a byte where markup should be: either what was held is not a call, or the calls
// have ended and content continues.
func (p *Parser) handleStrayByte(c byte) {
	if p.tentative { // heldMarkup contains c
		p.abandonCall()
		return
	}
	p.leaveCalls()
	p.unreadByte(c)
}
