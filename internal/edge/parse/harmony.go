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
type harmonyMachine struct {
	calls bool // recipients make calls; otherwise they are content
	phase harmonyPhase
	kind  EventKind // of the body
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
	harmonyBetween = newMarkerSet(markerRule{"<|start|>", actHeader, 0}, markerRule{"<|channel|>", actHeader, 0}, markerRule{"<|message|>", actMessage, 0},
		markerRule{"<|end|>", actMessageEnd, 0}, markerRule{"<|return|>", actMessageEnd, 0}, markerRule{"<|call|>", actMessageEnd, 0})
	harmonyInHeader = newMarkerSet(markerRule{"<|message|>", actMessage, 0}, markerRule{"<|channel|>", actWord, 0}, markerRule{"<|constrain|>", actWord, 0},
		markerRule{"<|start|>", actWord, 0})
	harmonyInBody = newMarkerSet(markerRule{"<|end|>", actMessageEnd, 0}, markerRule{"<|return|>", actMessageEnd, 0}, markerRule{"<|call|>", actMessageEnd, 0},
		markerRule{"<|start|>", actHeader, 0}, markerRule{"<|channel|>", actHeader, 0})
)

func (h *harmonyMachine) enterIdle(p *Parser) {
	h.phase, h.kind = harmonyIdle, Content
	p.current, p.markers, p.afterMarkup = h, &harmonyBetween, true
}

func (h *harmonyMachine) readByte(p *Parser, c byte) {
	switch h.phase {
	case harmonyHeader:
		if h.buf = append(h.buf, c); len(h.buf) > 2*maxName {
			p.abandonCall()
			contentMachine.endText(p)
			h.enterIdle(p)
			p.afterMarkup = false
		}
	case harmonyIdle:
		if p.afterMarkup && isSpace(c) {
			return
		}
		p.afterMarkup = false
		p.emitText(Content, c)
	case harmonyBody:
		if h.kind != Arguments {
			p.emitText(h.kind, c)
			return
		}
		if isSpace(c) { // around the arguments it has no meaning
			if h.wrote {
				if p.space = append(p.space, c); len(p.space) > maxSpace {
					h.endText(p)
				}
			}
			return
		}
		h.endText(p)
		h.wrote = true
		p.emitText(Arguments, c)
	}
}

func (h *harmonyMachine) readMarker(p *Parser, l markerRule) {
	switch l.act {
	case actWord:
		h.buf = append(h.buf, l.text...)
	case actMessage:
		h.beginMessage(p)
	case actHeader:
		h.finishCall(p)
		p.holdMarkup(l.text)
		h.phase, h.buf = harmonyHeader, append(h.buf[:0], l.text...)
		p.markers = &harmonyInHeader
	case actMessageEnd:
		h.finishCall(p)
		h.enterIdle(p)
	}
}

// beginMessage parses the complete header and begins the body.
func (h *harmonyMachine) beginMessage(p *Parser) {
	header := string(h.buf)
	if h.phase == harmonyIdle {
		header = ""
	}
	p.tentative, p.heldMarkup = false, p.heldMarkup[:0]
	h.phase, h.kind, h.wrote = harmonyBody, Content, false
	p.markers, p.afterMarkup = &harmonyInBody, false
	_, channel, _ := strings.Cut(header, "<|channel|>")
	if _, to, ok := strings.Cut(header, "to="); ok && h.calls {
		if i := strings.IndexAny(to, " <\n\t"); i >= 0 {
			to = to[:i]
		}
		if name := strings.TrimPrefix(to, "functions."); name != "" {
			h.kind = Arguments
			p.space = p.space[:0]
			p.beginCall(name, "")
			return
		}
	}
	if strings.HasPrefix(strings.TrimSpace(channel), "analysis") {
		h.kind = Reasoning
	}
}

// finishCall ends the open call, if there is one.
func (h *harmonyMachine) finishCall(p *Parser) {
	if h.phase == harmonyBody && h.kind == Arguments {
		if !h.wrote {
			p.emitText(Arguments, '{', '}')
		}
		p.finishCall()
	}
	p.space = p.space[:0]
}

// endText emits the white space within the arguments.
func (h *harmonyMachine) endText(p *Parser) {
	p.emitText(Arguments, p.space...)
	p.space = p.space[:0]
}
