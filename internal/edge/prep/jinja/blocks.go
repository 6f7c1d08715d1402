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

func (b *blockStmt) exec(s *state, sc *scope) jump {
	s.step()
	if s.line = b.line; b.required {
		throw("Required block '%s' not found", b.name)
	}
	if !b.scoped {
		sc = s.top
	}
	s.nested(func() { s.run(b.body, b.frame.scope(s.exported(sc))) })
	return onward
}

func (l *loadStmt) exec(s *state, sc *scope) jump {
	s.step()
	v := l.of.eval(s, sc)
	s.line = l.line
	undefined(v)
	if _, isName := v.(string); l.lenient && !isName && !truth(v) {
		return onward // ignoring that no template was found
	}
	throw("no loader for this environment specified: a chat template is one file")
	return onward
}

func (b *scopeStmt) exec(s *state, sc *scope) jump { return s.run(b.body, b.frame.scope(sc)) }

// selfVar is the variable self: its attributes are the blocks.
type self struct{ blocks map[string]*blockStmt }

func (b *self) attr(name string) (any, bool) {
	block, ok := b.blocks[name]
	if !ok {
		return nil, false
	}
	return &function{name, func(s *state, a *args) any {
		a.bind()
		return s.capture(func() {
			s.nested(func() { s.run(block.body, block.frame.scope(s.exported(s.top))) })
		})
	}}, true
}

func (p *parser) blockStmt(t lexeme) stmt {
	b := &blockStmt{line: t.line, name: p.expect(tokName, "the block's name").text}
	if _, twice := p.blocks[b.name]; twice {
		p.fail(t, "block '%s' defined twice", b.name)
	}
	p.blocks[b.name] = b
	b.scoped = p.skipName("scoped")
	b.required = p.skipName("required")
	loops, used := p.loops, p.used
	p.loops, p.used = 0, nil
	outer := p.frame
	p.frame = nil // it knows the template's variables only
	b.frame = p.within(func() { b.body, _ = p.block("endblock") })
	p.frame = outer
	p.loops, p.used = loops, used
	if b.required && !blank(b.body) {
		p.fail(t, "Required blocks can only contain comments or whitespace")
	}
	p.skipName(b.name)
	return b
}

func blank(body []stmt) bool {
	for _, s := range body {
		if t, ok := s.(*textStmt); !ok || strings.TrimFunc(t.text, space) != "" {
			return false
		}
	}
	return true
}

func (p *parser) load(t lexeme) stmt {
	l := &loadStmt{line: t.line, of: p.expr()}
	switch t.text {
	case "include":
		if p.cur().name("ignore") && p.look().name("missing") {
			l.lenient = true
			p.next()
			p.next()
		}
		p.withContext()
	case "import":
		p.expectName("as")
		p.target()
		p.withContext()
	case "from":
		p.expectName("import")
		p.imported()
	}
	return l
}

// skipContext skips "with context" or "without context".
func (p *parser) withContext() bool {
	if c := p.cur(); !c.name("with") && !c.name("without") || !p.look().name("context") {
		return false
	}
	p.next()
	p.next()
	return true
}

// parseImported parses the names of a from tag.
func (p *parser) imported() {
	for n := 0; ; n++ {
		if n > 0 {
			p.expectOp(",")
		}
		if p.cur().kind != tokName {
			p.expect(tokName, "a name")
		}
		if p.withContext() {
			return
		}
		t := p.cur()
		if p.target(); t.text[0] == '_' {
			p.fail(t, "names starting with an underline can not be imported")
		}
		if p.skipName("as") {
			p.target()
		}
		if p.withContext() || !p.cur().is(",") {
			return
		}
	}
}

// parseAutoescape parses that tag, which may only disable escaping.
func (p *parser) autoescape(t lexeme) stmt {
	c, ok := p.expr().(constExpr)
	if !ok || truth(c.value) {
		p.fail(t, "autoescape is not supported: a prompt is no HTML")
	}
	s := new(scopeStmt)
	s.frame = p.within(func() { s.body, _ = p.block("endautoescape") })
	return s
}
