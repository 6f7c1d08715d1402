package jinja

func (s *renderState) runBody(body []stmt, sc *scope) jump {
	for _, st := range body {
		if j := st.exec(s, sc); j != jumpNone {
			return j
		}
	}
	return jumpNone
}

func (t *textStmt) exec(s *renderState, _ *scope) jump {
	s.payStep()
	s.writeOutput(t.text)
	return jumpNone
}

func (p *printStmt) exec(s *renderState, sc *scope) jump {
	s.payStep()
	s.line = p.line
	s.writeOutput(s.toString(p.of.eval(s, sc)))
	return jumpNone
}

func (g *groupStmt) exec(s *renderState, sc *scope) jump { return s.runBody(g.body, sc) }

func (j jumpStmt) exec(s *renderState, _ *scope) jump {
	s.payStep()
	return jump(j)
}

func (i *ifStmt) exec(s *renderState, sc *scope) jump {
	s.payStep()
	for n, test := range i.tests {
		if isTruthy(test.eval(s, sc)) {
			return s.runBody(i.bodies[n], sc)
		}
	}
	return s.runBody(i.otherwise, sc)
}

func (t *setStmt) exec(s *renderState, sc *scope) jump {
	s.payStep()
	s.line = t.line
	s.assignTarget(t.target, t.value.eval(s, sc), sc)
	return jumpNone
}

func (t *setBlockStmt) exec(s *renderState, sc *scope) jump {
	s.line = t.line
	var j jump
	inner := t.frame.openScope(sc)
	var v any = s.captureOutput(func() { j = s.runBody(t.body, inner) })
	if j != jumpNone { // a break or continue leaves the block early
		return j
	}
	if t.filter != nil {
		v = t.filter.applyFilter(s, inner, v)
	}
	s.assignTarget(t.target, v, sc)
	return j
}

// assignTarget assigns v to target, a name, an attribute or a tuple of such.
func (s *renderState) assignTarget(target expr, v any, sc *scope) {
	switch t := target.(type) {
	case *nameExpr:
		sc.setName(t.name, v)
	case *nsExpr:
		o, _ := sc.lookupName(t.name)
		ns, ok := o.(*namespaceValue)
		if !ok {
			throw("cannot assign attribute on non-namespace object")
		}
		checkStorable(t.attr)
		s.payBytes(16)
		ns.attrs.putKey(t.attr, v)
	case *tupleExpr:
		items := s.collectItems(v)
		if len(items) > len(t.items) {
			throw("too many values to unpack (expected %d)", len(t.items))
		}
		if len(items) < len(t.items) {
			throw("not enough values to unpack (expected %d, got %d)", len(t.items), len(items))
		}
		for i, item := range t.items {
			s.assignTarget(item, items[i], sc)
		}
	}
}

func (w *withStmt) exec(s *renderState, sc *scope) jump {
	inner := w.frame.openScope(sc)
	vals := make([]any, len(w.values))
	for i, v := range w.values {
		vals[i] = v.eval(s, sc)
	}
	for i, t := range w.targets {
		s.assignTarget(t, vals[i], inner)
	}
	return s.runBody(w.body, inner)
}

func (f *filterStmt) exec(s *renderState, sc *scope) jump {
	var j jump
	inner := f.frame.openScope(sc)
	text := s.captureOutput(func() { j = s.runBody(f.body, inner) })
	if j != jumpNone {
		return j
	}
	s.writeText(f.filter.applyFilter(s, inner, text))
	return j
}

// writeText writes the result of a filter or a call on a block, which must be a text.
func (s *renderState) writeText(v any) {
	t, ok := v.(string)
	if !ok {
		throw("sequence item 0: expected str instance, %s found", typeName(v))
	}
	s.writeOutput(t)
}

func (g *generationStmt) exec(s *renderState, sc *scope) jump {
	s.runNested(func() { s.runBody(g.body, g.frame.openScope(sc)) })
	return jumpNone
}

func (m *macroStmt) exec(s *renderState, sc *scope) jump {
	s.payBytes(64)
	sc.setName(m.def.name, &macroValue{m.def.name, m.def, sc})
	return jumpNone
}

func (c *callStmt) exec(s *renderState, sc *scope) jump {
	s.line = c.line
	caller := &macroValue{"", c.def, sc}
	a := c.call.args.eval(s, sc)
	a.kw.putKey("caller", caller)
	s.writeText(s.callValue(c.call.callee.eval(s, sc), a))
	return jumpNone
}

// macroValue is a macro and the scope in which it was defined.
type macroValue struct {
	name string
	def  *macroDef
	sc   *scope
}

func (m *macroValue) callMacro(s *renderState, a *callArgs) any {
	d := m.def
	sc := d.frame.openScope(m.sc)
	given := 0
	explicit := false
	for i, name := range d.params {
		explicit = explicit || name == "caller"
		if i < len(a.pos) {
			sc.setName(name, a.pos[i])
			continue
		}
		v, ok := a.kw.getKey(name)
		switch {
		case ok:
			given++
			sc.setName(name, v)
		case d.defaults[i] != nil:
			sc.setName(name, d.defaults[i].eval(s, sc))
		default:
			sc.setName(name, &undefinedValue{hint: "parameter '" + name + "' was not provided"})
		}
	}
	rest := NewDict()
	for i, k := range a.kw.keys {
		if name := k.(string); !isTakenParam(d.params, len(a.pos), name) {
			rest.putKey(name, a.kw.vals[i])
		}
	}
	if d.caller && !explicit {
		caller, ok := rest.getKey("caller")
		if !ok {
			caller = &undefinedValue{hint: "No caller defined"}
		}
		sc.setName("caller", caller)
		rest = rest.withoutKey("caller")
	}
	if d.kwargs {
		sc.setName("kwargs", rest)
	} else if rest.Len() > 0 {
		throw("macro '%s' takes no keyword argument '%s'", m.name, rest.keys[0])
	}
	if d.varargs {
		sc.setName("varargs", &tupleValue{a.pos[min(len(d.params), len(a.pos)):]})
	} else if len(a.pos) > len(d.params) {
		throw("macro '%s' takes not more than %d argument(s)", m.name, len(d.params))
	}
	var text string
	s.runNested(func() { text = s.captureOutput(func() { s.runBody(d.body, sc) }) })
	return text
}

// isTakenParam reports whether name is a parameter which no positional argument fills.
func isTakenParam(params []string, positional int, name string) bool {
	for i, p := range params {
		if p == name {
			return i >= positional
		}
	}
	return false
}

func (d *Dict) withoutKey(key string) *Dict {
	out := NewDict()
	for i, k := range d.keys {
		if k != key {
			out.putKey(k, d.vals[i])
		}
	}
	return out
}
