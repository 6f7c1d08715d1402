package jinja

// loopVar is the variable "loop". It reads ahead only as far as needed.
type loop struct {
	s       *state
	next    func() (any, bool)
	ahead   []any // read, not yet visited
	ended   bool
	index   int64 // of the current item, -1 before the first
	before  any
	current any
	depth   int64
	changed []any
	again   func(v any, depth int64) any // nil if the loop is not recursive
}

func (l *loop) peek() (any, bool) {
	if len(l.ahead) == 0 && !l.ended {
		v, ok := l.next()
		if l.ended = !ok; ok {
			l.ahead = append(l.ahead, v)
		}
	}
	if len(l.ahead) == 0 {
		return nil, false
	}
	return l.ahead[0], true
}

func (l *loop) advance() bool {
	v, ok := l.peek()
	if !ok {
		return false
	}
	l.ahead = l.ahead[1:]
	l.before, l.current = l.current, v
	l.index++
	return true
}

func (l *loop) iterate(*state) func() (any, bool) {
	return func() (any, bool) {
		if !l.advance() {
			return nil, false
		}
		return &tuple{[]any{l.current, l}}, true
	}
}

func (l *loop) length() int64 {
	for !l.ended {
		l.s.spend(16)
		if v, ok := l.next(); ok {
			l.ahead = append(l.ahead, v)
		} else {
			l.ended = true
		}
	}
	return l.index + 1 + int64(len(l.ahead))
}

func (l *loop) attr(name string) (any, bool) {
	switch name {
	case "index":
		return l.index + 1, true
	case "index0":
		return l.index, true
	case "revindex":
		return l.length() - l.index, true
	case "revindex0":
		return l.length() - l.index - 1, true
	case "first":
		return l.index == 0, true
	case "last":
		_, ok := l.peek()
		return !ok, true
	case "length":
		return l.length(), true
	case "depth":
		return l.depth + 1, true
	case "depth0":
		return l.depth, true
	case "previtem":
		if l.index == 0 {
			return &undef{hint: "there is no previous item"}, true
		}
		return l.before, true
	case "nextitem":
		if v, ok := l.peek(); ok {
			return v, true
		}
		return &undef{hint: "there is no next item"}, true
	case "cycle":
		return &function{"cycle", func(_ *state, a *args) any {
			if len(a.pos) == 0 {
				throw("no items for cycling given")
			}
			return a.pos[l.index%int64(len(a.pos))]
		}}, true
	case "changed":
		return &function{"changed", func(s *state, a *args) any {
			same := l.changed != nil && s.equalItems(l.changed, a.pos, 0)
			l.changed = append([]any{}, a.pos...)
			return !same
		}}, true
	}
	return nil, false
}

func (f *forStmt) exec(s *state, sc *scope) jump {
	s.line = f.line
	s.step()
	return f.walk(s, sc, f.iter.eval(s, sc), 0)
}

// runLoop runs the loop; a break in its else part is for the outer loop.
func (f *forStmt) walk(s *state, sc *scope, over any, depth int64) jump {
	next := s.iterate(over)
	if f.test != nil {
		all := next
		next = func() (any, bool) {
			for {
				item, ok := all()
				if !ok {
					return nil, false
				}
				inner := &scope{parent: sc}
				s.assign(f.target, item, inner)
				if truth(f.test.eval(s, inner)) {
					return item, true
				}
			}
		}
	}
	l := &loop{s: s, next: next, index: -1, depth: depth}
	if f.recursive {
		l.again = func(v any, depth int64) any {
			var text string
			s.nested(func() { text = s.capture(func() { f.walk(s, sc, v, depth) }) })
			return text
		}
	}
	// As in Jinja2 the else part runs if no item's body reached its end: break and continue do not count.
	ended := false
	for l.advance() {
		inner := f.frame.scope(sc)
		inner.set("loop", l)
		s.assign(f.target, l.current, inner)
		j := s.run(f.body, inner)
		if j == breaking {
			break
		}
		ended = ended || j == onward
	}
	if !ended {
		return s.run(f.otherwise, f.elseFrame.scope(sc))
	}
	return onward
}
