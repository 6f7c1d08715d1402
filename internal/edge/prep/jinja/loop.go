package jinja

// loopVar is the variable "loop". It reads ahead only as far as needed.
type loopVar struct {
	s       *renderState
	next    func() (any, bool)
	ahead   []any // read, not yet visited
	ended   bool
	index   int64 // of the current item, -1 before the first
	before  any
	current any
	depth   int64
	changed []any
	recurse func(v any, depth int64) any // nil if the loop is not recursive
}

func (l *loopVar) peekItem() (any, bool) {
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

func (l *loopVar) advanceItem() bool {
	v, ok := l.peekItem()
	if !ok {
		return false
	}
	l.ahead = l.ahead[1:]
	l.before, l.current = l.current, v
	l.index++
	return true
}

func (l *loopVar) iterateLoop(*renderState) func() (any, bool) {
	return func() (any, bool) {
		if !l.advanceItem() {
			return nil, false
		}
		return &tupleValue{[]any{l.current, l}}, true
	}
}

func (l *loopVar) totalLength() int64 {
	for !l.ended {
		l.s.payBytes(16)
		if v, ok := l.next(); ok {
			l.ahead = append(l.ahead, v)
		} else {
			l.ended = true
		}
	}
	return l.index + 1 + int64(len(l.ahead))
}

func (l *loopVar) getAttr(name string) (any, bool) {
	switch name {
	case "index":
		return l.index + 1, true
	case "index0":
		return l.index, true
	case "revindex":
		return l.totalLength() - l.index, true
	case "revindex0":
		return l.totalLength() - l.index - 1, true
	case "first":
		return l.index == 0, true
	case "last":
		_, ok := l.peekItem()
		return !ok, true
	case "length":
		return l.totalLength(), true
	case "depth":
		return l.depth + 1, true
	case "depth0":
		return l.depth, true
	case "previtem":
		if l.index == 0 {
			return &undefinedValue{hint: "there is no previous item"}, true
		}
		return l.before, true
	case "nextitem":
		if v, ok := l.peekItem(); ok {
			return v, true
		}
		return &undefinedValue{hint: "there is no next item"}, true
	case "cycle":
		return &functionValue{"cycle", func(_ *renderState, a *callArgs) any {
			if len(a.pos) == 0 {
				throw("no items for cycling given")
			}
			return a.pos[l.index%int64(len(a.pos))]
		}}, true
	case "changed":
		return &functionValue{"changed", func(s *renderState, a *callArgs) any {
			same := l.changed != nil && s.equalItems(l.changed, a.pos, 0)
			l.changed = append([]any{}, a.pos...)
			return !same
		}}, true
	}
	return nil, false
}

func (f *forStmt) exec(s *renderState, sc *scope) jump {
	s.line = f.line
	s.payStep()
	return f.runLoop(s, sc, f.iter.eval(s, sc), 0)
}

// runLoop runs the loop; a break in its else part is for the outer loop.
func (f *forStmt) runLoop(s *renderState, sc *scope, over any, depth int64) jump {
	next := s.iterateValue(over)
	if f.test != nil {
		all := next
		next = func() (any, bool) {
			for {
				item, ok := all()
				if !ok {
					return nil, false
				}
				inner := &scope{parent: sc}
				s.assignTarget(f.target, item, inner)
				if isTruthy(f.test.eval(s, inner)) {
					return item, true
				}
			}
		}
	}
	l := &loopVar{s: s, next: next, index: -1, depth: depth}
	if f.recursive {
		l.recurse = func(v any, depth int64) any {
			var text string
			s.runNested(func() { text = s.captureOutput(func() { f.runLoop(s, sc, v, depth) }) })
			return text
		}
	}
	// As in Jinja2 the else part runs if no item's body reached its end: break and continue do not count.
	ended := false
	for l.advanceItem() {
		inner := f.frame.openScope(sc)
		inner.setName("loop", l)
		s.assignTarget(f.target, l.current, inner)
		j := s.runBody(f.body, inner)
		if j == jumpBreak {
			break
		}
		ended = ended || j == jumpNone
	}
	if !ended {
		return s.runBody(f.otherwise, f.elseFrame.openScope(sc))
	}
	return jumpNone
}
