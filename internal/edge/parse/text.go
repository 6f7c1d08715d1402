package parse

// textMachine reads content or reasoning; its value is the kind of events which it emits.
type text Kind

const (
	content   = text(Content)
	reasoning = text(Reasoning)
)

func (t text) char(p *Parser, c byte) {
	if isSpace(c) {
		if p.touch {
			return
		}
		if p.space = append(p.space, c); len(p.space) > maxSpace {
			t.end(p)
		}
		return
	}
	p.touch = false
	p.set = &p.mid
	if t == reasoning {
		p.set = &p.think
	}
	t.end(p)
	p.emit(Kind(t), c)
}

func (t text) marker(p *Parser, l literal) {
	switch l.act {
	case actThink:
		if p.set == &p.start && !p.touch { // no output before
			p.space = p.space[:0]
		}
		p.before, p.space = p.space, p.before[:0]
		p.mach, p.set, p.touch = reasoning, &p.rethink, true
	case actEndThink:
		p.endReasoning()
		p.mach, p.set, p.touch = content, &p.start, true
	case actTool, actUnclosed:
		p.unclosed = l.act == actUnclosed
		p.suppose(l.text)
		p.tool.open(p, l.arg)
	case actAnswer:
		p.space = p.space[:0]
		p.answered, p.touch = true, true
	case actEndAnswer:
		if !p.answered {
			t.mention(p, l.text)
			return
		}
		p.space = append(p.space, l.text...) // content if more follows
		p.ended = true
	case actStray:
		if !p.isToken || !p.tokens[l.text] {
			t.mention(p, l.text)
		}
	}
}

// emitMarker emits a marker which has no meaning here, as text.
func (t text) mention(p *Parser, marker string) {
	p.touch, p.set = false, &p.mid
	t.end(p)
	p.emit(Kind(t), []byte(marker)...)
}

// endText emits the white space which is not next to markup.
func (t text) end(p *Parser) {
	p.emit(Kind(t), p.space...)
	p.space, p.ended = p.space[:0], false
}

// endReasoning drops the white space at the end of reasoning. It restores that of the content before the
// reasoning, which is kept if content follows.
func (p *Parser) endReasoning() { p.space, p.before = p.before, p.space[:0] }

// holdMarkup holds what follows, starting with markup, until it proves to be a call.
func (p *Parser) suppose(markup string) {
	p.tentative = true
	p.raw = append(p.raw[:0], markup...)
}

// abandonCall emits what was held as text: it is not a call.
func (p *Parser) giveUp() {
	t, s := content, &p.mid
	if p.unclosed {
		t, s = reasoning, &p.think
	}
	t.end(p)
	n := len(p.raw)
	for n > 0 && isSpace(p.raw[n-1]) && len(p.raw)-n < maxSpace { // may be next to markup
		n--
	}
	p.emit(Kind(t), p.raw[:n]...)
	p.space = append(p.space, p.raw[n:]...)
	p.tentative, p.unclosed, p.raw = false, false, p.raw[:0]
	p.mach, p.set, p.touch = t, s, false
}

// leaveCalls returns to content after calls.
func (p *Parser) leave() {
	p.mach, p.set, p.touch = content, &p.after, true
}

// handleStrayByte handles a byte where markup should be: either what was held is not a call, or the calls
// have ended and content continues.
func (p *Parser) stray(c byte) {
	if p.tentative { // heldMarkup contains c
		p.giveUp()
		return
	}
	p.leave()
	p.unread(c)
}
