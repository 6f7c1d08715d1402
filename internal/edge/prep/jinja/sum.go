package jinja

import "strings"

// evalSum evaluates a chain of additions, a + b + c, from left to right. Templates build messages in this
// way, and adding texts pairwise would copy a message once per addition: consecutive texts are joined when
// their end is known. The cost charged is that of pairwise additions, as in Python.
func (e *binaryExpr) evalSum(s *renderState, sc *scope) any {
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
	t := textSum{sum: first.eval(s, sc)}
	for i := len(row) - 1; i >= 0; i-- {
		b := row[i].b.eval(s, sc)
		s.line = row[i].line
		if !t.addText(s, b) {
			t = textSum{sum: s.applyOperator("+", t.sumValue(), b)}
		}
	}
	return t.sumValue()
}

// textSum is a sum so far: a value, or texts to be joined.
type textSum struct {
	sum   any
	few   [8]string
	parts []string // nil if there is nothing to join
	size  int
}

// addText adds b if both are texts.
func (t *textSum) addText(s *renderState, b any) bool {
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
	s.payStep()
	s.payBytes(t.size)
	t.parts = append(t.parts, text)
	return true
}

func (t *textSum) sumValue() any {
	if t.parts == nil {
		return t.sum
	}
	return strings.Join(t.parts, "")
}
