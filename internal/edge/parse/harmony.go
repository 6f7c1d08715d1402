package parse

import "strings"

// harmonyMachine reads the channels of gpt-oss. A message is a header and a body:
//
//	<|start|>assistant<|channel|>analysis<|message|>…<|end|>
//	<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
//	<|start|>assistant<|channel|>final<|message|>…<|return|>
//
// The channel analysis is reasoning. A recipient makes a tool call in any channel. Everything else is
// content, including text outside of messages.
type harmony struct {
	calls bool // recipients make calls; otherwise they are content
	phase harmonyPhase
	kind  Kind // of the body
	buf   []byte
	wrote bool
}

// harmonyPhase is the state of a harmonyMachine:
//
//	harmonyIdle    outside of messages
//	harmonyHeader  reads a header
//	harmonyBody    reads a body
type harmonyPhase uint8

const (
	harmonyIdle harmonyPhase = iota
	harmonyHeader
	harmonyBody
)

const (
	actHeader = actFormat + iota
	actMessage
	actMessageEnd
	actWord // part of a header
)

var (
	harmonyBetween = newSet(literal{"<|start|>", actHeader, 0}, literal{"<|channel|>", actHeader, 0}, literal{"<|message|>", actMessage, 0},
		literal{"<|end|>", actMessageEnd, 0}, literal{"<|return|>", actMessageEnd, 0}, literal{"<|call|>", actMessageEnd, 0})
	harmonyInHeader = newSet(literal{"<|message|>", actMessage, 0}, literal{"<|channel|>", actWord, 0}, literal{"<|constrain|>", actWord, 0},
		literal{"<|start|>", actWord, 0})
	harmonyInBody = newSet(literal{"<|end|>", actMessageEnd, 0}, literal{"<|return|>", actMessageEnd, 0}, literal{"<|call|>", actMessageEnd, 0},
		literal{"<|start|>", actHeader, 0}, literal{"<|channel|>", actHeader, 0})
)

func (h *harmony) idle(p *Parser) {
	h.phase, h.kind = harmonyIdle, Content
	p.mach, p.set, p.touch = h, &harmonyBetween, true
}

func (h *harmony) char(p *Parser, c byte) {
	switch h.phase {
	case harmonyHeader:
		if h.buf = append(h.buf, c); len(h.buf) > 2*maxName {
			p.giveUp()
			content.end(p)
			h.idle(p)
			p.touch = false
		}
	case harmonyIdle:
		if p.touch && isSpace(c) {
			return
		}
		p.touch = false
		p.emit(Content, c)
	case harmonyBody:
		if h.kind != Arguments {
			p.emit(h.kind, c)
			return
		}
		if isSpace(c) { // around the arguments it has no meaning
			if h.wrote {
				if p.space = append(p.space, c); len(p.space) > maxSpace {
					h.end(p)
				}
			}
			return
		}
		h.end(p)
		h.wrote = true
		p.emit(Arguments, c)
	}
}

func (h *harmony) marker(p *Parser, l literal) {
	switch l.act {
	case actWord:
		h.buf = append(h.buf, l.text...)
	case actMessage:
		h.message(p)
	case actHeader:
		h.finish(p)
		p.suppose(l.text)
		h.phase, h.buf = harmonyHeader, append(h.buf[:0], l.text...)
		p.set = &harmonyInHeader
	case actMessageEnd:
		h.finish(p)
		h.idle(p)
	}
}

// beginMessage parses the complete header and begins the body.
func (h *harmony) message(p *Parser) {
	header := string(h.buf)
	if h.phase == harmonyIdle {
		header = ""
	}
	p.tentative, p.raw = false, p.raw[:0]
	h.phase, h.kind, h.wrote = harmonyBody, Content, false
	p.set, p.touch = &harmonyInBody, false
	_, channel, _ := strings.Cut(header, "<|channel|>")
	if _, to, ok := strings.Cut(header, "to="); ok && h.calls {
		if i := strings.IndexAny(to, " <\n\t"); i >= 0 {
			to = to[:i]
		}
		if name := strings.TrimPrefix(to, "functions."); name != "" {
			h.kind = Arguments
			p.space = p.space[:0]
			p.call(name, "")
			return
		}
	}
	if strings.HasPrefix(strings.TrimSpace(channel), "analysis") {
		h.kind = Reasoning
	}
}

// finishCall ends the open call, if there is one.
func (h *harmony) finish(p *Parser) {
	if h.phase == harmonyBody && h.kind == Arguments {
		if !h.wrote {
			p.emit(Arguments, '{', '}')
		}
		p.finish()
	}
	p.space = p.space[:0]
}

// endText emits the white space within the arguments.
func (h *harmony) end(p *Parser) {
	p.emit(Arguments, p.space...)
	p.space = p.space[:0]
}
