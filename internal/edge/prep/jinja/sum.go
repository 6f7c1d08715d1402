package jinja

import "strings"

// sum evaluates a row of additions, a + b + c, from left to right. Templates put messages together so,
// and adding texts two by two would copy a message once for each: those that come one
// after the other are joined when their end is known. What is paid for them is as if they
// were added two by two, which is what Python does.
func (e *binaryExpr) sum(s *state, sc *scope) any {
	var few [8]*binaryExpr
	row := few[:0] // from right to left
	first := expr(e)
	for {
		x, ok := first.(*binaryExpr)
		if !ok || x.op != "+" {
			break
		}
		row = append(row, x)
		first = x.a
	}
	t := addition{sum: first.eval(s, sc)}
	for i := len(row) - 1; i >= 0; i-- {
		b := row[i].b.eval(s, sc)
		s.line = row[i].line
		if !t.add(s, b) {
			t = addition{sum: s.arith("+", t.value(), b)}
		}
	}
	return t.value()
}

// addition is a sum so far: what it is, or what is joined to make it.
type addition struct {
	sum   any
	few   [8]string
	parts []string // nil if there is nothing to join
	size  int
}

// add adds b if both are texts.
func (t *addition) add(s *state, b any) bool {
	text, ok := b.(string)
	if !ok {
		return false
	}
	if t.parts == nil {
		first, ok := t.sum.(string)
		if !ok {
			return false
		}
		t.parts, t.size = append(t.few[:0], first), len(first)
	}
	t.size += len(text)
	s.step()
	s.spend(t.size)
	t.parts = append(t.parts, text)
	return true
}

func (t *addition) value() any {
	if t.parts == nil {
		return t.sum
	}
	return strings.Join(t.parts, "")
}
