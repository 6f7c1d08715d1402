package parse

import "strings"

// gemmaMachine reads call:NAME{key:value,…} between markers. A token quotes strings; keys have no quotes.
type gemmaMachine struct {
	header, body markerSet
	phase        gemmaPhase
	buf          []byte
	l            literalConverter
	out          []byte
	types        map[string]typeMask // of the parameters
	key          string              // of the current value
}

// gemmaPhase is the state of a gemmaMachine:
//
//	gemmaHeader  reads the word call and the name, up to {
//	gemmaBody    reads the arguments
//	gemmaPast    after a call
type gemmaPhase uint8

const (
	gemmaHeader gemmaPhase = iota
	gemmaBody
	gemmaPast
)

const (
	actQuote = actFormat + iota
	actGemmaEnd
)

func newGemmaMachine(quote, end string) *gemmaMachine {
	e := markerRule{end, actGemmaEnd, 0}
	return &gemmaMachine{header: newMarkerSet(e), body: newMarkerSet(e, markerRule{quote, actQuote, 0})}
}

func (g *gemmaMachine) openCalls(p *Parser, _ int) {
	p.current, p.markers = g, &g.header
	g.phase, g.buf = gemmaHeader, g.buf[:0]
}

func (g *gemmaMachine) readByte(p *Parser, c byte) {
	switch g.phase {
	case gemmaHeader:
		if c != '{' {
			if g.buf = append(g.buf, c); len(g.buf) > maxName {
				p.abandonCall()
			}
			return
		}
		// Some checkpoints omit the word before the colon.
		word, name, ok := strings.Cut(string(g.buf), ":")
		word, name = strings.TrimSpace(word), strings.TrimSpace(name)
		if !ok || word != "" && word != "call" || name == "" {
			p.abandonCall()
			return
		}
		if !p.beginCall(name, "") {
			return
		}
		g.phase, g.l, p.markers = gemmaBody, literalConverter{}, &g.body
		g.types, g.key = p.types[name], ""
		g.readByte(p, c)
	case gemmaBody:
		inside := g.l.isInString(c)
		g.out = g.rewriteByte(g.out[:0], c)
		p.emitText(Arguments, g.out...)
		if !inside && g.l.depth == 0 {
			p.finishCall()
			g.phase, p.markers = gemmaPast, &g.header
		}
	case gemmaPast:
		if !isSpace(c) {
			p.handleStrayByte(c)
		}
	}
}

// rewriteByte reads a byte of the body. A value without quotes gets the type of its parameter in the schema.
func (g *gemmaMachine) rewriteByte(dst []byte, c byte) []byte {
	if g.l.depth != 1 || g.l.quote != 0 {
		return g.l.convertByte(dst, c)
	}
	switch c {
	case ':':
		g.key = string(g.l.word)
	case ',', '}':
		if typ := g.types[g.key]; typ != 0 && len(g.l.word) > 0 {
			dst = appendTyped(dst, g.l.word, typ)
			g.l.word, g.l.spaced = g.l.word[:0], false
		}
		g.key = ""
	}
	return g.l.convertByte(dst, c)
}

func (g *gemmaMachine) readMarker(p *Parser, l markerRule) {
	if l.act == actQuote {
		g.out = g.l.toggleRawString(g.out[:0])
		p.emitText(Arguments, g.out...)
		return
	}
	if p.tentative {
		p.abandonCall()
		return
	}
	if g.phase == gemmaBody {
		p.emitText(Arguments, g.l.flushWord(nil)...)
		p.finishCall()
	}
	p.leaveCalls()
}

func (g *gemmaMachine) endText(p *Parser) {
	if g.phase == gemmaBody {
		p.emitText(Arguments, g.l.flushWord(nil)...)
	}
}

func (g *gemmaMachine) markerSets() []*markerSet { return []*markerSet{&g.header, &g.body} }
