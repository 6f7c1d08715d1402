package parse

// text reads content or reasoning, and is the Kind that it reads.
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
		if p.set == &p.start && !p.touch { // nothing was said before
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

// mention says a marker that is none here.
func (t text) mention(p *Parser, marker string) {
	p.touch, p.set = false, &p.mid
	t.end(p)
	p.emit(Kind(t), []byte(marker)...)
}

// end says the white space that did not touch markup.
func (t text) end(p *Parser) {
	p.emit(Kind(t), p.space...)
	p.space, p.ended = p.space[:0], false
}

// endReasoning drops the white space that ends reasoning. That which content before
// reasoning ended with is kept if content follows.
func (p *Parser) endReasoning() { p.space, p.before = p.before, p.space[:0] }

// suppose holds what follows, with markup first, until it proves to be a call.
func (p *Parser) suppose(markup string) {
	p.tentative = true
	p.raw = append(p.raw[:0], markup...)
}

// giveUp says what was held: it is no call.
func (p *Parser) giveUp() {
	t, s := content, &p.mid
	if p.unclosed {
		t, s = reasoning, &p.think
	}
	t.end(p)
	n := len(p.raw)
	for n > 0 && isSpace(p.raw[n-1]) && len(p.raw)-n < maxSpace { // may touch markup
		n--
	}
	p.emit(Kind(t), p.raw[:n]...)
	p.space = append(p.space, p.raw[n:]...)
	p.tentative, p.unclosed, p.raw = false, false, p.raw[:0]
	p.mach, p.set, p.touch = t, s, false
}

// leave goes back to content behind calls.
func (p *Parser) leave() {
	p.mach, p.set, p.touch = content, &p.after, true
}

// stray handles a byte where markup should be: what was held is no call, or
// the calls have ended and content goes on.
func (p *Parser) stray(c byte) {
	if p.tentative { // raw has c
		p.giveUp()
		return
	}
	p.leave()
	p.unread(c)
}
