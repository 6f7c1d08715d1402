package parse

import "strings"

// gemmaMachine reads call:NAME{key:value,…} between markers. A token quotes strings; keys have no quotes.
type gemma struct {
	header, body set
	phase        gemmaPhase
	buf          []byte
	l            python
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

func newGemma(quote, end string) *gemma {
	e := literal{end, actGemmaEnd, 0}
	return &gemma{header: newSet(e), body: newSet(e, literal{quote, actQuote, 0})}
}

func (g *gemma) open(p *Parser, _ int) {
	p.mach, p.set = g, &g.header
	g.phase, g.buf = gemmaHeader, g.buf[:0]
}

func (g *gemma) char(p *Parser, c byte) {
	switch g.phase {
	case gemmaHeader:
		if c != '{' {
			if g.buf = append(g.buf, c); len(g.buf) > maxName {
				p.giveUp()
			}
			return
		}
		// Some checkpoints omit the word before the colon.
		word, name, ok := strings.Cut(string(g.buf), ":")
		word, name = strings.TrimSpace(word), strings.TrimSpace(name)
		if !ok || word != "" && word != "call" || name == "" {
			p.giveUp()
			return
		}
		if !p.call(name, "") {
			return
		}
		g.phase, g.l, p.set = gemmaBody, python{}, &g.body
		g.types, g.key = p.types[name], ""
		g.char(p, c)
	case gemmaBody:
		inside := g.l.inside(c)
		g.out = g.step(g.out[:0], c)
		p.emit(Arguments, g.out...)
		if !inside && g.l.depth == 0 {
			p.finish()
			g.phase, p.set = gemmaPast, &g.header
		}
	case gemmaPast:
		if !isSpace(c) {
			p.stray(c)
		}
	}
}

// rewriteByte reads a byte of the body. A value without quotes gets the type of its parameter in the schema.
func (g *gemma) step(dst []byte, c byte) []byte {
	if g.l.depth != 1 || g.l.quote != 0 {
		return g.l.step(dst, c)
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
	return g.l.step(dst, c)
}

func (g *gemma) marker(p *Parser, l literal) {
	if l.act == actQuote {
		g.out = g.l.toggle(g.out[:0])
		p.emit(Arguments, g.out...)
		return
	}
	if p.tentative {
		p.giveUp()
		return
	}
	if g.phase == gemmaBody {
		p.emit(Arguments, g.l.flush(nil)...)
		p.finish()
	}
	p.leave()
}

func (g *gemma) end(p *Parser) {
	if g.phase == gemmaBody {
		p.emit(Arguments, g.l.flush(nil)...)
	}
}

func (g *gemma) sets() []*set { return []*set{&g.header, &g.body} }
