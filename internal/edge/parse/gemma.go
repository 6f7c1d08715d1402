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
//	gemmaHeader  reads the word call and the name, up to { or, of a known function, the end
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
		name := g.headerName()
		if name == "" {
			p.abandonCall()
			return
		}
		if !p.beginCall(name, "") {
			return
		}
		g.phase, g.l, p.markers = gemmaBody, literalConverter{fillsKeys: true}, &g.body
		g.types, g.key = p.types[name], ""
		g.readByte(p, c)
	case gemmaBody:
		inside := g.l.isInString(c)
		g.out = g.rewriteByte(g.out[:0], c)
		p.emitText(Arguments, g.out...)
		if !inside && g.l.depth() == 0 {
			p.finishCall()
			g.phase, p.markers = gemmaPast, &g.header
		}
	case gemmaPast:
		if !isSpace(c) {
			p.handleStrayByte(c)
		}
	}
}

// headerName returns the name in the header; "" if what was read is not the header of a call.
func (g *gemmaMachine) headerName() string {
	word, name, ok := strings.Cut(string(g.buf), ":")
	if word = strings.TrimSpace(word); !ok || word != "" && word != "call" { // some checkpoints omit the word
		return ""
	}
	return strings.TrimSpace(name)
}

// rewriteByte reads a byte of the body. A value without quotes gets the type of its parameter in the schema.
func (g *gemmaMachine) rewriteByte(dst []byte, c byte) []byte {
	if g.l.depth() != 1 || g.l.quote != 0 {
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
	if p.tentative { // no arguments
		name := g.headerName()
		if !p.known[name] {
			p.abandonCall()
			return
		}
		p.beginCall(name, "")
		p.emitText(Arguments, '{', '}')
		p.finishCall()
	} else if g.phase == gemmaBody {
		p.emitText(Arguments, g.closeBody(g.out[:0])...)
		p.finishCall()
	}
	p.leaveCalls()
}

// closeBody ends the string and the brackets which are open.
func (g *gemmaMachine) closeBody(dst []byte) []byte {
	dst = g.l.closeString(dst)
	for g.l.depth() > 0 {
		dst = g.rewriteByte(dst, g.l.nextCloser())
	}
	return dst
}

func (g *gemmaMachine) endText(p *Parser) {
	if g.phase == gemmaBody {
		p.emitText(Arguments, g.l.flushWord(nil)...)
	}
}

func (g *gemmaMachine) markerSets() []*markerSet { return []*markerSet{&g.header, &g.body} }
