package jinja

import "strings"

// A chat template is one file: the environment has no loader, so nothing can be extended, included or
// imported. As in Jinja2 that is an error when it is run, not when it is compiled. Blocks behave as in a
// template which is not extended: they run in place, and again where self names them.
type (
	blockStmt struct {
		line     int
		name     string
		body     []stmt
		scoped   bool // it sees the names around it, not only the template's own
		frame    *frame
		required bool // an extending template must define it; there is none
	}
	loadStmt struct {
		line    int
		of      expr
		lenient bool // an include that ignores what is missing
	}
	scopeStmt struct {
		body  []stmt
		frame *frame
	}
)

func (b *blockStmt) exec(s *renderState, sc *scope) jump {
	s.payStep()
	if s.line = b.line; b.required {
		throw("Required block '%s' not found", b.name)
	}
	if !b.scoped {
		sc = s.top
	}
	s.runNested(func() { s.runBody(b.body, b.frame.openScope(s.exportedScope(sc))) })
	return jumpNone
}

func (l *loadStmt) exec(s *renderState, sc *scope) jump {
	s.payStep()
	v := l.of.eval(s, sc)
	s.line = l.line
	requireDefined(v)
	if _, isName := v.(string); l.lenient && !isName && !isTruthy(v) {
		return jumpNone // ignoring that no template was found
	}
	throw("no loader for this environment specified: a chat template is one file")
	return jumpNone
}

func (b *scopeStmt) exec(s *renderState, sc *scope) jump {
	return s.runBody(b.body, b.frame.openScope(sc))
}

// selfVar is the variable self: its attributes are the blocks.
type selfVar struct{ blocks map[string]*blockStmt }

func (b *selfVar) getAttr(name string) (any, bool) {
	block, ok := b.blocks[name]
	if !ok {
		return nil, false
	}
	return &functionValue{name, func(s *renderState, a *callArgs) any {
		a.bindParams()
		return s.captureOutput(func() {
			s.runNested(func() { s.runBody(block.body, block.frame.openScope(s.exportedScope(s.top))) })
		})
	}}, true
}

func (p *parser) parseBlock(t lexeme) stmt {
	b := &blockStmt{line: t.line, name: p.expectKind(tokName, "the block's name").text}
	if _, twice := p.blocks[b.name]; twice {
		p.failAt(t, "block '%s' defined twice", b.name)
	}
	p.blocks[b.name] = b
	b.scoped = p.skipName("scoped")
	b.required = p.skipName("required")
	loops, used := p.loops, p.used
	p.loops, p.used = 0, nil
	outer := p.frame
	p.frame = nil // it knows the template's variables only
	b.frame = p.parseFrame(func() { b.body, _ = p.parseTagBody("endblock") })
	p.frame = outer
	p.loops, p.used = loops, used
	if b.required && !isBlank(b.body) {
		p.failAt(t, "Required blocks can only contain comments or whitespace")
	}
	p.skipName(b.name)
	return b
}

func isBlank(body []stmt) bool {
	for _, s := range body {
		if t, ok := s.(*textStmt); !ok || strings.TrimFunc(t.text, isSpace) != "" {
			return false
		}
	}
	return true
}

func (p *parser) parseLoad(t lexeme) stmt {
	l := &loadStmt{line: t.line, of: p.parseExpr()}
	switch t.text {
	case "include":
		if p.current().isName("ignore") && p.lookAhead().isName("missing") {
			l.lenient = true
			p.nextToken()
			p.nextToken()
		}
		p.skipContext()
	case "import":
		p.expectName("as")
		p.parseTarget()
		p.skipContext()
	case "from":
		p.expectName("import")
		p.parseImported()
	}
	return l
}

// skipContext skips "with context" or "without context".
func (p *parser) skipContext() bool {
	if c := p.current(); !c.isName("with") && !c.isName("without") || !p.lookAhead().isName("context") {
		return false
	}
	p.nextToken()
	p.nextToken()
	return true
}

// parseImported parses the names of a from tag.
func (p *parser) parseImported() {
	for n := 0; ; n++ {
		if n > 0 {
			p.expectOp(",")
		}
		if p.current().kind != tokName {
			p.expectKind(tokName, "a name")
		}
		if p.skipContext() {
			return
		}
		t := p.current()
		if p.parseTarget(); t.text[0] == '_' {
			p.failAt(t, "names starting with an underline can not be imported")
		}
		if p.skipName("as") {
			p.parseTarget()
		}
		if p.skipContext() || !p.current().isOp(",") {
			return
		}
	}
}

// parseAutoescape parses that tag, which may only disable escaping.
func (p *parser) parseAutoescape(t lexeme) stmt {
	c, ok := p.parseExpr().(constExpr)
	if !ok || isTruthy(c.value) {
		p.failAt(t, "autoescape is not supported: a prompt is no HTML")
	}
	s := new(scopeStmt)
	s.frame = p.parseFrame(func() { s.body, _ = p.parseTagBody("endautoescape") })
	return s
}
