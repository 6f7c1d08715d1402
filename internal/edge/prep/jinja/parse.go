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
	unknownNames []unknownName
	blocks       map[string]*blockStmt
	frame        *frame // the innermost
	all          []*frame
	// branches is how many conditions of the frame enclose the position.
	branches int
	survey   templateSurvey
}

// unknownName is the name of an unknown filter or test, and its frame.
type unknownName struct {
	lexeme
	frame int
}

// excuseUnknown drops the unknown names since the mark which are in this frame.
func (p *parser) excuseUnknown(mark int) {
	kept := p.unknownNames[:mark]
	for _, u := range p.unknownNames[mark:] {
		if u.frame != p.frames {
			kept = append(kept, u)
		}
	}
	p.unknownNames = kept
}

func parseTemplate(source string) *Template {
	p := &parser{tokens: tokenize(source), blocks: map[string]*blockStmt{}, frames: -1}
	t := &Template{blocks: p.blocks, globals: newGlobals()}
	t.frame = p.parseFrame(func() { t.body = p.parseBody() })
	if t := p.current(); t.kind != tokEOF {
		p.failAt(t, "unexpected %s", t)
	}
	if len(p.unknownNames) > 0 {
		t := p.unknownNames[0].lexeme
		p.failAt(t, "No filter or test named '%s'", t.text)
	}
	for _, f := range p.all {
		f.resolveNames()
	}
	t.survey = p.survey
	return t
}

func (p *parser) current() lexeme { return p.tokens[p.pos] }

func (p *parser) lookAhead() lexeme { return p.tokens[min(p.pos+1, len(p.tokens)-1)] }

func (p *parser) nextToken() lexeme {
	t := p.tokens[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

func (p *parser) failAt(t lexeme, format string, a ...any) { throwAt(t.line, format, a...) }

func (p *parser) skipOp(op string) bool {
	if p.current().isOp(op) {
		p.nextToken()
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.current().isName(name) {
		p.nextToken()
		return true
	}
	return false
}

func (p *parser) expectOp(op string) lexeme {
	if !p.current().isOp(op) {
		p.failAt(p.current(), "expected token '%s', got %s", op, p.current())
	}
	return p.nextToken()
}

func (p *parser) expectName(name string) lexeme {
	if !p.current().isName(name) {
		p.failAt(p.current(), "expected token '%s', got %s", name, p.current())
	}
	return p.nextToken()
}

func (p *parser) expectKind(k tokenKind, what string) lexeme {
	if p.current().kind != k {
		p.failAt(p.current(), "expected %s, got %s", what, p.current())
	}
	return p.nextToken()
}

// enterLevel bounds the depth of the tree; its result undoes it.
func (p *parser) enterLevel() func() {
	if p.depth++; p.depth > maxDepth {
		p.failAt(p.current(), "nested too deeply: more than %d levels", maxDepth)
	}
	return func() { p.depth-- }
}

// parseBody parses text and tags up to a tag whose name is among ends; that name is then the current token.
func (p *parser) parseBody(ends ...string) []stmt {
	defer p.enterLevel()()
	var body []stmt
	for {
		t := p.current()
		switch t.kind {
		case tokEOF:
			if len(ends) > 0 {
				p.failAt(t, "unexpected end of template, expected '%s'", ends[len(ends)-1])
			}
			return body
		case tokData:
			p.nextToken()
			body = append(body, &textStmt{t.text})
		case tokVarBegin:
			p.nextToken()
			body = append(body, &printStmt{t.line, p.parseTuple(true)})
			p.expectKind(tokVarEnd, "end of print statement")
		case tokBlockBegin:
			p.nextToken()
			name := p.current()
			if name.kind != tokName {
				p.failAt(name, "tag name expected")
			}
			if slices.Contains(ends, name.text) {
				return body
			}
			body = append(body, p.parseStatement())
			p.expectKind(tokBlockEnd, "end of statement block")
		default:
			p.failAt(t, "unexpected %s", t)
		}
	}
}

// parseTagBody parses the rest of a tag and its body up to one of ends, which it consumes.
func (p *parser) parseTagBody(ends ...string) (body []stmt, end string) {
	p.skipOp(":")
	p.expectKind(tokBlockEnd, "end of statement block")
	body = p.parseBody(ends...)
	return body, p.nextToken().text
}

func (p *parser) parseStatement() stmt {
	t := p.nextToken()
	switch t.text {
	case "for":
		return p.parseFor(t)
	case "if":
		return p.parseIf()
	case "set":
		return p.parseSet(t)
	case "macro":
		name := p.parseTarget()
		n, ok := name.(*nameExpr)
		if !ok {
			p.failAt(t, "expected the macro's name")
		}
		var m *macroDef
		p.noteSet(n.name)
		f := p.parseFrame(func() {
			m = p.parseSignature(n.name, t.line)
			p.survey.parseWithin(m, func() { p.parseMacroBody(m, "endmacro") })
		})
		m.frame = f
		return &macroStmt{m}
	case "call":
		return p.parseCallBlock(t)
	case "filter":
		s := new(filterStmt)
		s.frame = p.parseFrame(func() {
			s.filter = p.parseFilters(p.parseFilter(nil))
			s.body, _ = p.parseTagBody("endfilter")
		})
		return s
	case "with":
		return p.parseWith()
	case "print":
		s := &groupStmt{}
		for p.current().kind != tokBlockEnd {
			if len(s.body) > 0 {
				p.expectOp(",")
			}
			s.body = append(s.body, &printStmt{t.line, p.parseExpr()})
		}
		return s
	case "generation":
		s := new(generationStmt)
		loops := p.loops
		p.loops = 0
		s.frame = p.parseFrame(func() { s.body, _ = p.parseTagBody("endgeneration") })
		p.loops = loops
		return s
	case "break", "continue":
		if p.loops == 0 {
			p.failAt(t, "'%s' outside loop", t.text)
		}
		if t.text == "break" {
			return jumpStmt(jumpBreak)
		}
		return jumpStmt(jumpContinue)
	case "block":
		return p.parseBlock(t)
	case "extends":
		if p.frames > 0 {
			p.failAt(t, "cannot use extend from a non top-level scope")
		}
		return p.parseLoad(t)
	case "include", "import", "from":
		return p.parseLoad(t)
	case "autoescape":
		return p.parseAutoescape(t)
	}
	p.failAt(t, "Encountered unknown tag '%s'.", t.text)
	return nil
}

func (p *parser) parseFor(t lexeme) stmt {
	f := &forStmt{line: t.line}
	f.target = p.parseTargets(false)
	p.expectName("in")
	f.iter = p.parseTuple(false)
	p.parseFrame(func() {
		p.noteTargets(f.target)
		if p.skipName("if") {
			f.test = p.parseExpr()
		}
	})
	p.survey.addLoop(f)
	f.recursive = p.skipName("recursive")
	p.loops++
	var end string
	f.frame = p.parseFrame(func() {
		p.noteTargets(f.target)
		f.body, end = p.parseTagBody("endfor", "else")
	})
	p.loops--
	f.elseFrame = f.frame
	if end == "else" {
		f.elseFrame = p.parseFrame(func() { f.otherwise, _ = p.parseTagBody("endfor") })
	}
	return f
}

func (p *parser) parseIf() stmt {
	marked := len(p.unknownNames)
	s := &ifStmt{}
	for {
		test := p.parseTuple(false)
		p.branches++
		body, end := p.parseTagBody("elif", "else", "endif")
		p.branches--
		s.tests = append(s.tests, test)
		s.bodies = append(s.bodies, body)
		if end == "elif" {
			continue
		}
		if end == "else" {
			p.branches++
			s.otherwise, _ = p.parseTagBody("endif")
			p.branches--
		}
		p.excuseUnknown(marked)
		return s
	}
}

func (p *parser) parseSet(t lexeme) stmt {
	target := p.parseTargets(true)
	if p.skipOp("=") {
		s := &setStmt{t.line, target, p.parseTuple(true)}
		p.noteTargets(target)
		p.survey.sets = append(p.survey.sets, s)
		return s
	}
	s := &setBlockStmt{line: t.line, target: target}
	p.noteTargets(target)
	s.frame = p.parseFrame(func() {
		if p.skipOp("|") {
			s.filter = p.parseFilters(p.parseFilter(nil))
		}
		s.body, _ = p.parseTagBody("endset")
	})
	return s
}

// parseFilters parses further filters after one.
func (p *parser) parseFilters(f *filterExpr) *filterExpr {
	for n := 0; p.skipOp("|"); {
		p.countChained(&n)
		f = p.parseFilter(f)
	}
	return f
}

func (p *parser) parseWith() stmt {
	s := &withStmt{}
	for p.current().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			p.expectOp(",")
		}
		s.targets = append(s.targets, p.parseTargets(false))
		p.expectOp("=")
		s.values = append(s.values, p.parseExpr())
	}
	s.frame = p.parseFrame(func() {
		for _, target := range s.targets {
			p.noteTargets(target)
		}
		s.body, _ = p.parseTagBody("endwith")
	})
	return s
}

func (p *parser) parseCallBlock(t lexeme) stmt {
	m := &macroDef{line: t.line, name: "caller"}
	if p.current().isOp("(") {
		p.parseFrame(func() { m = p.parseSignature("caller", t.line) })
	}
	call, ok := p.parseExpr().(*callExpr)
	if !ok {
		p.failAt(t, "expected call")
	}
	m.frame = p.parseFrame(func() { p.parseMacroBody(m, "endcall") })
	return &callStmt{t.line, call, m}
}

// parseSignature parses the parameters of a macro.
func (p *parser) parseSignature(name string, line int) *macroDef {
	m := &macroDef{line: line, name: name}
	p.expectOp("(")
	for !p.current().isOp(")") {
		if len(m.params) > 0 {
			p.expectOp(",")
		}
		t := p.current()
		n, ok := p.parseTarget().(*nameExpr)
		if !ok {
			p.failAt(t, "expected the name of a parameter")
		}
		var value expr
		if p.skipOp("=") {
			value = p.parseExpr()
		} else if k := len(m.defaults); k > 0 && m.defaults[k-1] != nil {
			p.failAt(t, "non-default argument follows default argument")
		}
		p.noteSet(n.name)
		m.params = append(m.params, n.name)
		m.defaults = append(m.defaults, value)
	}
	p.expectOp(")")
	return m
}

// parseMacroBody parses the body of a macro, and records which of the special names it reads: it accepts only
// those.
func (p *parser) parseMacroBody(m *macroDef, end string) {
	loops := p.loops
	p.loops = 0
	p.used = append(p.used, map[string]bool{})
	m.body, _ = p.parseTagBody(end)
	used := p.used[len(p.used)-1]
	p.used = p.used[:len(p.used)-1]
	p.loops = loops
	m.caller, m.kwargs, m.varargs = used["caller"], used["kwargs"], used["varargs"]
	for name := range used {
		p.noteMacroRead(name)
	}
}

func (p *parser) noteRead(name string) {
	p.frame.known[name] = true
	p.noteMacroRead(name)
}

// noteMacroRead records a name which the enclosing macro reads.
func (p *parser) noteMacroRead(name string) {
	if n := len(p.used); n > 0 {
		p.used[n-1][name] = true
	}
}

// parseTarget parses a single assignable name.
func (p *parser) parseTarget() expr {
	t := p.expectKind(tokName, "a name")
	p.checkAssignable(t)
	return &nameExpr{t.line, t.text}
}

func (p *parser) checkAssignable(t lexeme) {
	switch t.text {
	case "true", "false", "none", "True", "False", "None":
		p.failAt(t, "can't assign to 'const'")
	}
}

// parseTargets parses the target of a loop or a set.
func (p *parser) parseTargets(attributes bool) expr {
	defer p.enterLevel()()
	var items []expr
	for {
		if len(items) > 0 && p.isTupleEnd() {
			return &tupleExpr{items}
		}
		var item expr
		if p.skipOp("(") {
			item = p.parseTargets(false)
			p.expectOp(")")
		} else {
			t := p.expectKind(tokName, "a name to assign to")
			p.checkAssignable(t)
			item = &nameExpr{t.line, t.text}
			if attributes && p.current().isOp(".") {
				p.nextToken()
				item = &nsExpr{t.line, t.text, p.expectKind(tokName, "a name").text}
			}
		}
		if !p.current().isOp(",") {
			if items == nil {
				return item
			}
			return &tupleExpr{append(items, item)}
		}
		p.nextToken()
		items = append(items, item)
	}
}

func (p *parser) isTupleEnd() bool {
	t := p.current()
	return t.kind == tokVarEnd || t.kind == tokBlockEnd || t.isOp(")")
}

// parseTuple parses an expression, or several separated by commas.
func (p *parser) parseTuple(conditional bool) expr {
	one := p.parseOr
	if conditional {
		one = p.parseExpr
	}
	var items []expr
	for {
		if p.isTupleEnd() {
			if items == nil {
				p.failAt(p.current(), "Expected an expression, got %s", p.current())
			}
			return &tupleExpr{items}
		}
		e := one()
		if !p.current().isOp(",") {
			if items == nil {
				return e
			}
			return &tupleExpr{append(items, e)}
		}
		p.nextToken()
		items = append(items, e)
	}
}

func (p *parser) parseExpr() expr {
	defer p.enterLevel()()
	marked := len(p.unknownNames)
	e, n := p.parseOr(), 0
	for p.current().isName("if") {
		p.countChained(&n)
		line := p.nextToken().line
		c := &condExpr{line: line, then: e, test: p.parseOr()}
		if p.skipName("else") {
			c.otherwise = p.parseExpr()
		}
		e = c
		p.excuseUnknown(marked)
	}
	return e
}

func (p *parser) parseOr() expr {
	e, n := p.parseAnd(), 0
	for p.skipName("or") {
		p.countChained(&n)
		e = &logicExpr{or: true, a: e, b: p.parseAnd()}
	}
	return e
}

func (p *parser) parseAnd() expr {
	e, n := p.parseNot(), 0
	for p.skipName("and") {
		p.countChained(&n)
		e = &logicExpr{a: e, b: p.parseNot()}
	}
	return e
}

func (p *parser) parseNot() expr {
	defer p.enterLevel()()
	if p.skipName("not") {
		return &notExpr{p.parseNot()}
	}
	return p.parseComparison()
}

func (p *parser) parseComparison() expr {
	c := &compareExpr{line: p.current().line, first: p.parseSum()}
	for {
		t := p.current()
		op := ""
		switch {
		case t.kind == tokOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			op = t.text
		case t.isName("in"):
			op = "in"
		case t.isName("not") && p.lookAhead().isName("in"):
			p.nextToken()
			op = "not in"
		}
		if op == "" {
			break
		}
		p.nextToken()
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.parseSum())
	}
	if c.ops == nil {
		return c.first
	}
	return c
}

// countChained bounds the number of consecutive operators: each is a level of the tree.
func (p *parser) countChained(n *int) {
	if *n++; *n > maxChain {
		p.failAt(p.current(), "more than %d operators in a row", maxChain)
	}
}

// parseBinary parses left-associative operators of one precedence.
func (p *parser) parseBinary(operand func() expr, ops ...string) expr {
	e, n := operand(), 0
	for p.current().kind == tokOp && slices.Contains(ops, p.current().text) {
		p.countChained(&n)
		t := p.nextToken()
		e = &binaryExpr{t.line, t.text, e, operand()}
	}
	return e
}

func (p *parser) parseSum() expr { return p.parseBinary(p.parseConcat, "+", "-") }

func (p *parser) parseConcat() expr {
	e := p.parseProduct()
	if !p.current().isOp("~") {
		return e
	}
	items := []expr{e}
	for p.skipOp("~") {
		items = append(items, p.parseProduct())
	}
	return &concatExpr{items}
}

func (p *parser) parseProduct() expr { return p.parseBinary(p.parsePower, "*", "/", "//", "%") }

func (p *parser) parsePower() expr {
	return p.parseBinary(func() expr { return p.parseUnary(true) }, "**")
}

func (p *parser) parseUnary(filters bool) expr {
	defer p.enterLevel()()
	t := p.current()
	var e expr
	if t.isOp("-") || t.isOp("+") {
		p.nextToken()
		e = &signExpr{t.line, t.text == "-", p.parseUnary(false)}
	} else {
		e = p.parsePrimary()
	}
	e = p.parsePostfix(e)
	for n := 0; filters; {
		p.countChained(&n)
		switch t := p.current(); {
		case t.isOp("|"):
			p.nextToken()
			e = p.parseFilter(e)
		case t.isName("is"):
			e = p.parseTest(e)
		case t.isOp("("):
			e = p.parseCall(e)
		default:
			return e
		}
	}
	return e
}

func (p *parser) parsePrimary() expr {
	t := p.nextToken()
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
		p.noteRead(t.text)
		return &nameExpr{t.line, t.text}
	case t.kind == tokString:
		if p.current().kind != tokString {
			return constExpr{t.text}
		}
		text := new(strings.Builder)
		for text.WriteString(t.text); p.current().kind == tokString; {
			text.WriteString(p.nextToken().text)
		}
		return constExpr{text.String()}
	case t.kind == tokNumber:
		return constExpr{t.num}
	case t.isOp("("):
		if p.skipOp(")") {
			return &tupleExpr{}
		}
		e := p.parseTuple(true)
		p.expectOp(")")
		return e
	case t.isOp("["):
		e := &listExpr{}
		for !p.current().isOp("]") {
			if e.items != nil {
				if p.expectOp(","); p.current().isOp("]") {
					break
				}
			}
			e.items = append(e.items, p.parseExpr())
		}
		p.expectOp("]")
		return e
	case t.isOp("{"):
		e := &dictExpr{}
		for !p.current().isOp("}") {
			if e.keys != nil {
				if p.expectOp(","); p.current().isOp("}") {
					break
				}
			}
			e.keys = append(e.keys, p.parseExpr())
			p.expectOp(":")
			e.vals = append(e.vals, p.parseExpr())
		}
		p.expectOp("}")
		return e
	}
	p.failAt(t, "unexpected %s", t)
	return nil
}

func (p *parser) parsePostfix(e expr) expr {
	for n := 0; ; {
		p.countChained(&n)
		switch t := p.current(); {
		case t.isOp("."):
			p.nextToken()
			name := p.nextToken()
			switch {
			case name.kind == tokName:
				e = &attrExpr{t.line, e, name.text}
			case name.kind == tokNumber && typeName(name.num) == "int":
				e = &itemExpr{t.line, e, constExpr{name.num}}
			default:
				p.failAt(name, "expected name or number")
			}
		case t.isOp("["):
			p.nextToken()
			e = &itemExpr{t.line, e, p.parseSubscript()}
		case t.isOp("("):
			e = p.parseCall(e)
		default:
			return e
		}
	}
}

func (p *parser) parseSubscript() expr {
	var items []expr
	for !p.current().isOp("]") {
		if items != nil {
			p.expectOp(",")
		}
		items = append(items, p.parseSubscriptItem())
	}
	p.expectOp("]")
	if len(items) == 1 {
		return items[0]
	}
	return &tupleExpr{items}
}

func (p *parser) parseSubscriptItem() expr {
	s := &sliceExpr{}
	if !p.current().isOp(":") {
		s.parts[0] = p.parseExpr()
		if !p.current().isOp(":") {
			return s.parts[0]
		}
	}
	for i := 1; i <= 2 && p.skipOp(":"); i++ {
		if t := p.current(); !t.isOp(":") && !t.isOp("]") && !t.isOp(",") {
			s.parts[i] = p.parseExpr()
		}
	}
	return s
}

func (p *parser) parseCall(callee expr) expr {
	line := p.current().line
	call := &callExpr{line, callee, p.parseArguments()}
	p.survey.calls = append(p.survey.calls, call)
	return call
}

func (p *parser) parseArguments() argList {
	var a argList
	open := p.expectOp("(")
	ensure := func(ok bool) {
		if !ok {
			p.failAt(open, "invalid syntax for function call expression")
		}
	}
	for first := true; !p.current().isOp(")"); first = false {
		if !first {
			if p.expectOp(","); p.current().isOp(")") {
				break
			}
		}
		switch {
		case p.current().isOp("*"):
			ensure(a.star == nil && a.stars == nil)
			p.nextToken()
			a.star = p.parseExpr()
		case p.current().isOp("**"):
			ensure(a.stars == nil)
			p.nextToken()
			a.stars = p.parseExpr()
		case p.current().kind == tokName && p.lookAhead().isOp("="):
			ensure(a.stars == nil)
			name := p.nextToken().text
			p.nextToken()
			ensure(!slices.Contains(a.names, name))
			a.names = append(a.names, name)
			a.named = append(a.named, p.parseExpr())
		default:
			ensure(a.star == nil && a.stars == nil && a.names == nil)
			a.items = append(a.items, p.parseExpr())
		}
	}
	p.expectOp(")")
	return a
}

// parseDottedName parses the name of a filter or test.
func (p *parser) parseDottedName() lexeme {
	t := p.expectKind(tokName, "a name")
	for p.skipOp(".") {
		t.text += "." + p.expectKind(tokName, "a name").text
	}
	return t
}

// parseFilter parses one filter, after the bar; of is nil for the body of a block.
func (p *parser) parseFilter(of expr) *filterExpr {
	defer p.enterLevel()()
	t := p.parseDottedName()
	f := &filterExpr{line: t.line, name: t.text, of: of, call: builtins.filters[t.text]}
	if f.call == nil {
		p.unknownNames = append(p.unknownNames, unknownName{t, p.frames})
	}
	if p.current().isOp("(") {
		f.args = p.parseArguments()
	}
	return f
}

func (p *parser) parseTest(of expr) expr {
	p.nextToken()
	negated := p.skipName("not")
	t := p.parseDottedName()
	e := &testExpr{line: t.line, name: t.text, of: of, call: builtins.tests[t.text]}
	if e.call == nil {
		p.unknownNames = append(p.unknownNames, unknownName{t, p.frames})
	}
	switch c := p.current(); {
	case c.isOp("("):
		e.args = p.parseArguments()
	case c.kind == tokName && !c.isName("else") && !c.isName("or") && !c.isName("and"), c.kind == tokString, c.kind == tokNumber, c.isOp("["), c.isOp("{"):
		if c.isName("is") {
			p.failAt(c, "You cannot chain multiple tests with is")
		}
		e.args.items = []expr{p.parsePostfix(p.parsePrimary())}
	}
	if negated {
		return &notExpr{e}
	}
	return e
}
