package jinja

// frame is a construct with names of its own: the template, the body of a loop, of a macro and of most
// blocks, but not a condition. As in Jinja2 names belong to frames by position, not by execution: a name
// which a frame sets before it reads it, and which no outer frame knows, is undefined there until it is set,
// even if the template has a variable of that name.
type frame struct {
	outer    *frame
	known    map[string]bool // read or set here
	setFirst []string        // set before read, regardless of conditions
	names    []string        // names of setFirst which no outer frame knows
	vals     []any           // undefined, for each of names
}

// openScope returns a scope for one run of the frame.
func (f *frame) openScope(parent *scope) *scope {
	sc := newScope(parent, len(f.names)+4)
	sc.names, sc.vals = append(sc.names, f.names...), append(sc.vals, f.vals...)
	return sc
}

// exportedScope returns the scope which a block sees: the variables, and the set names from a scope up to the
// template's own.
func (s *renderState) exportedScope(from *scope) *scope {
	out := &scope{parent: s.top.parent}
	for sc := from; sc != s.top.parent; sc = sc.parent {
		s.payRead(perStep * len(sc.names))
		for i, name := range sc.names {
			if u, ok := sc.vals[i].(*undefinedValue); (!ok || !u.unset) && out.findName(name) < 0 {
				out.setName(name, sc.vals[i])
			}
		}
	}
	return out
}

// resolveNames finds the names of a frame once all outer frames have been parsed.
func (f *frame) resolveNames() {
	for _, name := range f.setFirst {
		if !f.outer.knowsName(name) {
			f.names = append(f.names, name)
			f.vals = append(f.vals, &undefinedValue{hint: "'" + name + "' is undefined", unset: true})
		}
	}
}

func (f *frame) knowsName(name string) bool {
	for ; f != nil; f = f.outer {
		if f.known[name] {
			return true
		}
	}
	return false
}

// parseFrame parses a construct with a frame of its own.
func (p *parser) parseFrame(parse func()) *frame {
	f := &frame{outer: p.frame, known: map[string]bool{}}
	p.all = append(p.all, f)
	branches := p.branches
	p.frame, p.branches = f, 0
	p.frames++
	parse()
	p.frames--
	p.frame, p.branches = f.outer, branches
	return f
}

// noteSet records that a name is set here.
func (p *parser) noteSet(name string) {
	if f := p.frame; !f.known[name] {
		f.known[name] = true
		if p.branches == 0 {
			f.setFirst = append(f.setFirst, name)
		}
	}
}

// noteTargets records the names which a target sets.
func (p *parser) noteTargets(target expr) {
	switch t := target.(type) {
	case *nameExpr:
		p.noteSet(t.name)
	case *tupleExpr:
		for _, item := range t.items {
			p.noteTargets(item)
		}
	}
}
