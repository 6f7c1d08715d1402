package jinja

import (
	"slices"
	"strings"
)

// parser makes the tree of a template from its tokens: recursive descent with the precedences of Jinja2,
// which differ from Python's in places.
type parser struct {
	tokens []lexeme
	pos    int
	depth  int
	loops  int // enclosing loops, in this macro or call block
	frames int // enclosing frames: 0 in the template's own

	// used are the names read in each enclosing macro, the innermost last.
	used []map[string]bool
	// unknownNames are filters and tests which do not exist, unless a condition in the same frame may prevent
	// their use.
	unknown []unknown
	blocks  map[string]*blockStmt
	frame   *frame // the innermost
	all     []*frame
	// branches is how many conditions of the frame enclose the position.
	branches int
	survey   survey
}

// unknownName is the name of an unknown filter or test, and its frame.
type unknown struct {
	lexeme
	frame int
}

// excuseUnknown drops the unknown names since the mark which are in this frame.
func (p *parser) excuse(mark int) {
	kept := p.unknown[:mark]
	for _, u := range p.unknown[mark:] {
		if u.frame != p.frames {
			kept = append(kept, u)
		}
	}
	p.unknown = kept
}

func parse(source string) *Template {
	p := &parser{tokens: lex(source), blocks: map[string]*blockStmt{}, frames: -1}
	t := &Template{blocks: p.blocks, globals: globals()}
	t.frame = p.within(func() { t.body = p.body() })
	if t := p.cur(); t.kind != tokEOF {
		p.fail(t, "unexpected %s", t)
	}
	if len(p.unknown) > 0 {
		t := p.unknown[0].lexeme
		p.fail(t, "No filter or test named '%s'", t.text)
	}
	for _, f := range p.all {
		f.settle()
	}
	t.survey = p.survey
	return t
}

func (p *parser) cur() lexeme { return p.tokens[p.pos] }

func (p *parser) look() lexeme { return p.tokens[min(p.pos+1, len(p.tokens)-1)] }

func (p *parser) next() lexeme {
	t := p.tokens[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

func (p *parser) fail(t lexeme, format string, a ...any) { throwAt(t.line, format, a...) }

func (p *parser) skipOp(op string) bool {
	if p.cur().is(op) {
		p.next()
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.cur().name(name) {
		p.next()
		return true
	}
	return false
}

func (p *parser) expectOp(op string) lexeme {
	if !p.cur().is(op) {
		p.fail(p.cur(), "expected token '%s', got %s", op, p.cur())
	}
	return p.next()
}

func (p *parser) expectName(name string) lexeme {
	if !p.cur().name(name) {
		p.fail(p.cur(), "expected token '%s', got %s", name, p.cur())
	}
	return p.next()
}

func (p *parser) expect(k kind, what string) lexeme {
	if p.cur().kind != k {
		p.fail(p.cur(), "expected %s, got %s", what, p.cur())
	}
	return p.next()
}

// enterLevel bounds the depth of the tree; its result undoes it.
func (p *parser) enter() func() {
	if p.depth++; p.depth > maxDepth {
		p.fail(p.cur(), "nested too deeply: more than %d levels", maxDepth)
	}
	return func() { p.depth-- }
}

// parseBody parses text and tags up to a tag whose name is among ends; that name is then the current token.
func (p *parser) body(ends ...string) []stmt {
	defer p.enter()()
	var body []stmt
	for {
		t := p.cur()
		switch t.kind {
		case tokEOF:
			if len(ends) > 0 {
				p.fail(t, "unexpected end of template, expected '%s'", ends[len(ends)-1])
			}
			return body
		case tokData:
			p.next()
			body = append(body, &textStmt{t.text})
		case tokVarBegin:
			p.next()
			body = append(body, &printStmt{t.line, p.tuple(true)})
			p.expect(tokVarEnd, "end of print statement")
		case tokBlockBegin:
			p.next()
			name := p.cur()
			if name.kind != tokName {
				p.fail(name, "tag name expected")
			}
			if slices.Contains(ends, name.text) {
				return body
			}
			body = append(body, p.statement())
			p.expect(tokBlockEnd, "end of statement block")
		default:
			p.fail(t, "unexpected %s", t)
		}
	}
}

// parseTagBody parses the rest of a tag and its body up to one of ends, which it consumes.
func (p *parser) block(ends ...string) (body []stmt, end string) {
	p.skipOp(":")
	p.expect(tokBlockEnd, "end of statement block")
	body = p.body(ends...)
	return body, p.next().text
}

func (p *parser) statement() stmt {
	t := p.next()
	switch t.text {
	case "for":
		return p.forStmt(t)
	case "if":
		return p.ifStmt()
	case "set":
		return p.set(t)
	case "macro":
		name := p.target()
		n, ok := name.(*nameExpr)
		if !ok {
			p.fail(t, "expected the macro's name")
		}
		var m *macroDef
		p.sets(n.name)
		f := p.within(func() {
			m = p.signature(n.name, t.line)
			p.survey.inMacro(m, func() { p.expectBody(m, "endmacro") })
		})
		m.frame = f
		return &macroStmt{m}
	case "call":
		return p.call(t)
	case "filter":
		s := new(filterStmt)
		s.frame = p.within(func() {
			s.filter = p.filters(p.filter(nil))
			s.body, _ = p.block("endfilter")
		})
		return s
	case "with":
		return p.with()
	case "print":
		s := &groupStmt{}
		for p.cur().kind != tokBlockEnd {
			if len(s.body) > 0 {
				p.expectOp(",")
			}
			s.body = append(s.body, &printStmt{t.line, p.expr()})
		}
		return s
	case "generation":
		s := new(generationStmt)
		loops := p.loops
		p.loops = 0
		s.frame = p.within(func() { s.body, _ = p.block("endgeneration") })
		p.loops = loops
		return s
	case "break", "continue":
		if p.loops == 0 {
			p.fail(t, "'%s' outside loop", t.text)
		}
		if t.text == "break" {
			return jumpStmt(breaking)
		}
		return jumpStmt(continuing)
	case "block":
		return p.blockStmt(t)
	case "extends":
		if p.frames > 0 {
			p.fail(t, "cannot use extend from a non top-level scope")
		}
		return p.load(t)
	case "include", "import", "from":
		return p.load(t)
	case "autoescape":
		return p.autoescape(t)
	}
	p.fail(t, "Encountered unknown tag '%s'.", t.text)
	return nil
}

func (p *parser) forStmt(t lexeme) stmt {
	f := &forStmt{line: t.line}
	f.target = p.targets(false)
	p.expectName("in")
	f.iter = p.tuple(false)
	p.within(func() {
		p.setsAll(f.target)
		if p.skipName("if") {
			f.test = p.expr()
		}
	})
	p.survey.addLoop(f)
	f.recursive = p.skipName("recursive")
	p.loops++
	var end string
	f.frame = p.within(func() {
		p.setsAll(f.target)
		f.body, end = p.block("endfor", "else")
	})
	p.loops--
	f.elseFrame = f.frame
	if end == "else" {
		f.elseFrame = p.within(func() { f.otherwise, _ = p.block("endfor") })
	}
	return f
}

func (p *parser) ifStmt() stmt {
	marked := len(p.unknown)
	s := &ifStmt{}
	for {
		test := p.tuple(false)
		p.branches++
		body, end := p.block("elif", "else", "endif")
		p.branches--
		s.tests = append(s.tests, test)
		s.bodies = append(s.bodies, body)
		if end == "elif" {
			continue
		}
		if end == "else" {
			p.branches++
			s.otherwise, _ = p.block("endif")
			p.branches--
		}
		p.excuse(marked)
		return s
	}
}

func (p *parser) set(t lexeme) stmt {
	target := p.targets(true)
	if p.skipOp("=") {
		s := &setStmt{t.line, target, p.tuple(true)}
		p.setsAll(target)
		p.survey.sets = append(p.survey.sets, s)
		return s
	}
	s := &setBlockStmt{line: t.line, target: target}
	p.setsAll(target)
	s.frame = p.within(func() {
		if p.skipOp("|") {
			s.filter = p.filters(p.filter(nil))
		}
		s.body, _ = p.block("endset")
	})
	return s
}

// parseFilters parses further filters after one.
func (p *parser) filters(f *filterExpr) *filterExpr {
	for n := 0; p.skipOp("|"); {
		p.chained(&n)
		f = p.filter(f)
	}
	return f
}

func (p *parser) with() stmt {
	s := &withStmt{}
	for p.cur().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			p.expectOp(",")
		}
		s.targets = append(s.targets, p.targets(false))
		p.expectOp("=")
		s.values = append(s.values, p.expr())
	}
	s.frame = p.within(func() {
		for _, target := range s.targets {
			p.setsAll(target)
		}
		s.body, _ = p.block("endwith")
	})
	return s
}

func (p *parser) call(t lexeme) stmt {
	m := &macroDef{line: t.line, name: "caller"}
	if p.cur().is("(") {
		p.within(func() { m = p.signature("caller", t.line) })
	}
	call, ok := p.expr().(*callExpr)
	if !ok {
		p.fail(t, "expected call")
	}
	m.frame = p.within(func() { p.expectBody(m, "endcall") })
	return &callStmt{t.line, call, m}
}

// parseSignature parses the parameters of a macro.
func (p *parser) signature(name string, line int) *macroDef {
	m := &macroDef{line: line, name: name}
	p.expectOp("(")
	for !p.cur().is(")") {
		if len(m.params) > 0 {
			p.expectOp(",")
		}
		t := p.cur()
		n, ok := p.target().(*nameExpr)
		if !ok {
			p.fail(t, "expected the name of a parameter")
		}
		var value expr
		if p.skipOp("=") {
			value = p.expr()
		} else if k := len(m.defaults); k > 0 && m.defaults[k-1] != nil {
			p.fail(t, "non-default argument follows default argument")
		}
		p.sets(n.name)
		m.params = append(m.params, n.name)
		m.defaults = append(m.defaults, value)
	}
	p.expectOp(")")
	return m
}

// parseMacroBody parses the body of a macro, and records which of the special names it reads: it accepts only
// those.
func (p *parser) expectBody(m *macroDef, end string) {
	loops := p.loops
	p.loops = 0
	p.used = append(p.used, map[string]bool{})
	m.body, _ = p.block(end)
	used := p.used[len(p.used)-1]
	p.used = p.used[:len(p.used)-1]
	p.loops = loops
	m.caller, m.kwargs, m.varargs = used["caller"], used["kwargs"], used["varargs"]
	for name := range used {
		p.pass(name)
	}
}

func (p *parser) use(name string) {
	p.frame.known[name] = true
	p.pass(name)
}

// noteMacroRead records a name which the enclosing macro reads.
func (p *parser) pass(name string) {
	if n := len(p.used); n > 0 {
		p.used[n-1][name] = true
	}
}

// parseTarget parses a single assignable name.
func (p *parser) target() expr {
	t := p.expect(tokName, "a name")
	p.assignable(t)
	return &nameExpr{t.line, t.text}
}

func (p *parser) assignable(t lexeme) {
	switch t.text {
	case "true", "false", "none", "True", "False", "None":
		p.fail(t, "can't assign to 'const'")
	}
}

// parseTargets parses the target of a loop or a set.
func (p *parser) targets(attributes bool) expr {
	defer p.enter()()
	var items []expr
	for {
		if len(items) > 0 && p.tupleEnd() {
			return &tupleExpr{items}
		}
		var item expr
		if p.skipOp("(") {
			item = p.targets(false)
			p.expectOp(")")
		} else {
			t := p.expect(tokName, "a name to assign to")
			p.assignable(t)
			item = &nameExpr{t.line, t.text}
			if attributes && p.cur().is(".") {
				p.next()
				item = &nsExpr{t.line, t.text, p.expect(tokName, "a name").text}
			}
		}
		if !p.cur().is(",") {
			if items == nil {
				return item
			}
			return &tupleExpr{append(items, item)}
		}
		p.next()
		items = append(items, item)
	}
}

func (p *parser) tupleEnd() bool {
	t := p.cur()
	return t.kind == tokVarEnd || t.kind == tokBlockEnd || t.is(")")
}

// parseTuple parses an expression, or several separated by commas.
func (p *parser) tuple(conditional bool) expr {
	one := p.or
	if conditional {
		one = p.expr
	}
	var items []expr
	for {
		if p.tupleEnd() {
			if items == nil {
				p.fail(p.cur(), "Expected an expression, got %s", p.cur())
			}
			return &tupleExpr{items}
		}
		e := one()
		if !p.cur().is(",") {
			if items == nil {
				return e
			}
			return &tupleExpr{append(items, e)}
		}
		p.next()
		items = append(items, e)
	}
}

func (p *parser) expr() expr {
	defer p.enter()()
	marked := len(p.unknown)
	e, n := p.or(), 0
	for p.cur().name("if") {
		p.chained(&n)
		line := p.next().line
		c := &condExpr{line: line, then: e, test: p.or()}
		if p.skipName("else") {
			c.otherwise = p.expr()
		}
		e = c
		p.excuse(marked)
	}
	return e
}

func (p *parser) or() expr {
	e, n := p.and(), 0
	for p.skipName("or") {
		p.chained(&n)
		e = &logicExpr{or: true, a: e, b: p.and()}
	}
	return e
}

func (p *parser) and() expr {
	e, n := p.not(), 0
	for p.skipName("and") {
		p.chained(&n)
		e = &logicExpr{a: e, b: p.not()}
	}
	return e
}

func (p *parser) not() expr {
	defer p.enter()()
	if p.skipName("not") {
		return &notExpr{p.not()}
	}
	return p.comparison()
}

func (p *parser) comparison() expr {
	c := &compareExpr{line: p.cur().line, first: p.sum()}
	for {
		t := p.cur()
		op := ""
		switch {
		case t.kind == tokOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			op = t.text
		case t.name("in"):
			op = "in"
		case t.name("not") && p.look().name("in"):
			p.next()
			op = "not in"
		}
		if op == "" {
			break
		}
		p.next()
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.sum())
	}
	if c.ops == nil {
		return c.first
	}
	return c
}

// countChained bounds the number of consecutive operators: each is a level of the tree.
func (p *parser) chained(n *int) {
	if *n++; *n > maxChain {
		p.fail(p.cur(), "more than %d operators in a row", maxChain)
	}
}

// parseBinary parses left-associative operators of one precedence.
func (p *parser) binary(operand func() expr, ops ...string) expr {
	e, n := operand(), 0
	for p.cur().kind == tokOp && slices.Contains(ops, p.cur().text) {
		p.chained(&n)
		t := p.next()
		e = &binaryExpr{t.line, t.text, e, operand()}
	}
	return e
}

func (p *parser) sum() expr { return p.binary(p.concat, "+", "-") }

func (p *parser) concat() expr {
	e := p.product()
	if !p.cur().is("~") {
		return e
	}
	items := []expr{e}
	for p.skipOp("~") {
		items = append(items, p.product())
	}
	return &concatExpr{items}
}

func (p *parser) product() expr { return p.binary(p.power, "*", "/", "//", "%") }

func (p *parser) power() expr { return p.binary(func() expr { return p.unary(true) }, "**") }

func (p *parser) unary(filters bool) expr {
	defer p.enter()()
	t := p.cur()
	var e expr
	if t.is("-") || t.is("+") {
		p.next()
		e = &signExpr{t.line, t.text == "-", p.unary(false)}
	} else {
		e = p.primary()
	}
	e = p.postfix(e)
	for n := 0; filters; {
		p.chained(&n)
		switch t := p.cur(); {
		case t.is("|"):
			p.next()
			e = p.filter(e)
		case t.name("is"):
			e = p.test(e)
		case t.is("("):
			e = p.callOf(e)
		default:
			return e
		}
	}
	return e
}

func (p *parser) primary() expr {
	t := p.next()
	switch {
	case t.kind == tokName:
		switch t.text {
		case "true", "True":
			return constExpr{true}
		case "false", "False":
			return constExpr{false}
		case "none", "None":
			return constExpr{nil}
		}
		p.use(t.text)
		return &nameExpr{t.line, t.text}
	case t.kind == tokString:
		if p.cur().kind != tokString {
			return constExpr{t.text}
		}
		text := new(strings.Builder)
		for text.WriteString(t.text); p.cur().kind == tokString; {
			text.WriteString(p.next().text)
		}
		return constExpr{text.String()}
	case t.kind == tokNumber:
		return constExpr{t.num}
	case t.is("("):
		if p.skipOp(")") {
			return &tupleExpr{}
		}
		e := p.tuple(true)
		p.expectOp(")")
		return e
	case t.is("["):
		e := &listExpr{}
		for !p.cur().is("]") {
			if e.items != nil {
				if p.expectOp(","); p.cur().is("]") {
					break
				}
			}
			e.items = append(e.items, p.expr())
		}
		p.expectOp("]")
		return e
	case t.is("{"):
		e := &dictExpr{}
		for !p.cur().is("}") {
			if e.keys != nil {
				if p.expectOp(","); p.cur().is("}") {
					break
				}
			}
			e.keys = append(e.keys, p.expr())
			p.expectOp(":")
			e.vals = append(e.vals, p.expr())
		}
		p.expectOp("}")
		return e
	}
	p.fail(t, "unexpected %s", t)
	return nil
}

func (p *parser) postfix(e expr) expr {
	for n := 0; ; {
		p.chained(&n)
		switch t := p.cur(); {
		case t.is("."):
			p.next()
			name := p.next()
			switch {
			case name.kind == tokName:
				e = &attrExpr{t.line, e, name.text}
			case name.kind == tokNumber && typeName(name.num) == "int":
				e = &itemExpr{t.line, e, constExpr{name.num}}
			default:
				p.fail(name, "expected name or number")
			}
		case t.is("["):
			p.next()
			e = &itemExpr{t.line, e, p.subscript()}
		case t.is("("):
			e = p.callOf(e)
		default:
			return e
		}
	}
}

func (p *parser) subscript() expr {
	var items []expr
	for !p.cur().is("]") {
		if items != nil {
			p.expectOp(",")
		}
		items = append(items, p.subscribed())
	}
	p.expectOp("]")
	if len(items) == 1 {
		return items[0]
	}
	return &tupleExpr{items}
}

func (p *parser) subscribed() expr {
	s := &sliceExpr{}
	if !p.cur().is(":") {
		s.parts[0] = p.expr()
		if !p.cur().is(":") {
			return s.parts[0]
		}
	}
	for i := 1; i <= 2 && p.skipOp(":"); i++ {
		if t := p.cur(); !t.is(":") && !t.is("]") && !t.is(",") {
			s.parts[i] = p.expr()
		}
	}
	return s
}

func (p *parser) callOf(callee expr) expr {
	line := p.cur().line
	call := &callExpr{line, callee, p.arguments()}
	p.survey.calls = append(p.survey.calls, call)
	return call
}

func (p *parser) arguments() argList {
	var a argList
	open := p.expectOp("(")
	ensure := func(ok bool) {
		if !ok {
			p.fail(open, "invalid syntax for function call expression")
		}
	}
	for first := true; !p.cur().is(")"); first = false {
		if !first {
			if p.expectOp(","); p.cur().is(")") {
				break
			}
		}
		switch {
		case p.cur().is("*"):
			ensure(a.star == nil && a.stars == nil)
			p.next()
			a.star = p.expr()
		case p.cur().is("**"):
			ensure(a.stars == nil)
			p.next()
			a.stars = p.expr()
		case p.cur().kind == tokName && p.look().is("="):
			ensure(a.stars == nil)
			name := p.next().text
			p.next()
			ensure(!slices.Contains(a.names, name))
			a.names = append(a.names, name)
			a.named = append(a.named, p.expr())
		default:
			ensure(a.star == nil && a.stars == nil && a.names == nil)
			a.items = append(a.items, p.expr())
		}
	}
	p.expectOp(")")
	return a
}

// parseDottedName parses the name of a filter or test.
func (p *parser) dotted() lexeme {
	t := p.expect(tokName, "a name")
	for p.skipOp(".") {
		t.text += "." + p.expect(tokName, "a name").text
	}
	return t
}

// parseFilter parses one filter, after the bar; of is nil for the body of a block.
func (p *parser) filter(of expr) *filterExpr {
	defer p.enter()()
	t := p.dotted()
	f := &filterExpr{line: t.line, name: t.text, of: of, call: filterNamed(t.text)}
	if f.call == nil {
		p.unknown = append(p.unknown, unknown{t, p.frames})
	}
	if p.cur().is("(") {
		f.args = p.arguments()
	}
	return f
}

func (p *parser) test(of expr) expr {
	p.next()
	negated := p.skipName("not")
	t := p.dotted()
	e := &testExpr{line: t.line, name: t.text, of: of, call: testNamed(t.text)}
	if e.call == nil {
		p.unknown = append(p.unknown, unknown{t, p.frames})
	}
	switch c := p.cur(); {
	case c.is("("):
		e.args = p.arguments()
	case c.kind == tokName && !c.name("else") && !c.name("or") && !c.name("and"), c.kind == tokString, c.kind == tokNumber, c.is("["), c.is("{"):
		if c.name("is") {
			p.fail(c, "You cannot chain multiple tests with is")
		}
		e.args.items = []expr{p.postfix(p.primary())}
	}
	if negated {
		return &notExpr{e}
	}
	return e
}
