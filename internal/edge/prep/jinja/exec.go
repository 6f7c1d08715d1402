package jinja

func (s *state) run(body []stmt, sc *scope) jump {
	for _, st := range body {
		if j := st.exec(s, sc); j != onward {
			return j
		}
	}
	return onward
}

func (t *textStmt) exec(s *state, _ *scope) jump {
	s.step()
	s.write(t.text)
	return onward
}

func (p *printStmt) exec(s *state, sc *scope) jump {
	s.step()
	s.line = p.line
	s.write(s.str(p.of.eval(s, sc)))
	return onward
}

func (g *groupStmt) exec(s *state, sc *scope) jump { return s.run(g.body, sc) }

func (j jumpStmt) exec(s *state, _ *scope) jump {
	s.step()
	return jump(j)
}

func (i *ifStmt) exec(s *state, sc *scope) jump {
	s.step()
	for n, test := range i.tests {
		if truth(test.eval(s, sc)) {
			return s.run(i.bodies[n], sc)
		}
	}
	return s.run(i.otherwise, sc)
}

func (t *setStmt) exec(s *state, sc *scope) jump {
	s.step()
	s.line = t.line
	s.assign(t.target, t.value.eval(s, sc), sc)
	return onward
}

func (t *setBlockStmt) exec(s *state, sc *scope) jump {
	s.line = t.line
	var j jump
	inner := t.frame.scope(sc)
	var v any = s.capture(func() { j = s.run(t.body, inner) })
	if j != onward { // a break or continue leaves the block early
		return j
	}
	if t.filter != nil {
		v = t.filter.apply(s, inner, v)
	}
	s.assign(t.target, v, sc)
	return j
}

// assignTarget assigns v to target, a name, an attribute or a tuple of such.
func (s *state) assign(target expr, v any, sc *scope) {
	switch t := target.(type) {
	case *nameExpr:
		sc.set(t.name, v)
	case *nsExpr:
		o, _ := sc.get(t.name)
		ns, ok := o.(*namespace)
		if !ok {
			throw("cannot assign attribute on non-namespace object")
		}
		storable(t.attr)
		s.spend(16)
		ns.attrs.put(t.attr, v)
	case *tupleExpr:
		items := s.collect(v)
		if len(items) > len(t.items) {
			throw("too many values to unpack (expected %d)", len(t.items))
		}
		if len(items) < len(t.items) {
			throw("not enough values to unpack (expected %d, got %d)", len(t.items), len(items))
		}
		for i, item := range t.items {
			s.assign(item, items[i], sc)
		}
	}
}

func (w *withStmt) exec(s *state, sc *scope) jump {
	inner := w.frame.scope(sc)
	vals := make([]any, len(w.values))
	for i, v := range w.values {
		vals[i] = v.eval(s, sc)
	}
	for i, t := range w.targets {
		s.assign(t, vals[i], inner)
	}
	return s.run(w.body, inner)
}

func (f *filterStmt) exec(s *state, sc *scope) jump {
	var j jump
	inner := f.frame.scope(sc)
	text := s.capture(func() { j = s.run(f.body, inner) })
	if j != onward {
		return j
	}
	s.writeText(f.filter.apply(s, inner, text))
	return j
}

// writeText writes the result of a filter or a call on a block, which must be a text.
func (s *state) writeText(v any) {
	t, ok := v.(string)
	if !ok {
		throw("sequence item 0: expected str instance, %s found", typeName(v))
	}
	s.write(t)
}

func (g *generationStmt) exec(s *state, sc *scope) jump {
	s.nested(func() { s.run(g.body, g.frame.scope(sc)) })
	return onward
}

func (m *macroStmt) exec(s *state, sc *scope) jump {
	s.spend(64)
	sc.set(m.def.name, &macro{m.def.name, m.def, sc})
	return onward
}

func (c *callStmt) exec(s *state, sc *scope) jump {
	s.line = c.line
	caller := &macro{"", c.def, sc}
	a := c.call.args.eval(s, sc)
	a.kw.put("caller", caller)
	s.writeText(s.call(c.call.callee.eval(s, sc), a))
	return onward
}

// macroValue is a macro and the scope in which it was defined.
type macro struct {
	name string
	def  *macroDef
	sc   *scope
}

func (m *macro) call(s *state, a *args) any {
	d := m.def
	sc := d.frame.scope(m.sc)
	given := 0
	explicit := false
	for i, name := range d.params {
		explicit = explicit || name == "caller"
		if i < len(a.pos) {
			sc.set(name, a.pos[i])
			continue
		}
		v, ok := a.kw.get(name)
		switch {
		case ok:
			given++
			sc.set(name, v)
		case d.defaults[i] != nil:
			sc.set(name, d.defaults[i].eval(s, sc))
		default:
			sc.set(name, &undef{hint: "parameter '" + name + "' was not provided"})
		}
	}
	rest := NewDict()
	for i, k := range a.kw.keys {
		if name := k.(string); !taken(d.params, len(a.pos), name) {
			rest.put(name, a.kw.vals[i])
		}
	}
	if d.caller && !explicit {
		caller, ok := rest.get("caller")
		if !ok {
			caller = &undef{hint: "No caller defined"}
		}
		sc.set("caller", caller)
		rest = rest.without("caller")
	}
	if d.kwargs {
		sc.set("kwargs", rest)
	} else if rest.Len() > 0 {
		throw("macro '%s' takes no keyword argument '%s'", m.name, rest.keys[0])
	}
	if d.varargs {
		sc.set("varargs", &tuple{a.pos[min(len(d.params), len(a.pos)):]})
	} else if len(a.pos) > len(d.params) {
		throw("macro '%s' takes not more than %d argument(s)", m.name, len(d.params))
	}
	var text string
	s.nested(func() { text = s.capture(func() { s.run(d.body, sc) }) })
	return text
}

// isTakenParam reports whether name is a parameter which no positional argument fills.
func taken(params []string, positional int, name string) bool {
	for i, p := range params {
		if p == name {
			return i >= positional
		}
	}
	return false
}

func (d *Dict) without(key string) *Dict {
	out := NewDict()
	for i, k := range d.keys {
		if k != key {
			out.put(k, d.vals[i])
		}
	}
	return out
}
