package jinja

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// TestSumAgainstTwoByTwo: a row of additions has the value, the error and the price that adding two by
// two has.
func TestSumAgainstTwoByTwo(t *testing.T) {
	pool := []any{"", "a", "text", "more of it", int64(1), int64(-7), 2.5, true, nil, List("x"), List(), &undefinedValue{hint: "it is not"}, strings.Repeat("long", 20)}
	outcome := func(e func(s *renderState) any) (v any, failed string, left [3]int) {
		s := &renderState{steps: 100, bytes: 300, out: new(strings.Builder)}
		defer func() {
			if r := recover(); r != nil {
				v, failed = nil, r.(*templateError).message
			}
			left = [3]int{s.steps, s.bytes, s.line}
		}()
		return e(s), "", left
	}
	rng := rand.New(rand.NewPCG(2, 7))
	sums, failures := 0, 0
	for range 5000 {
		kinds := pool
		if rng.IntN(2) == 0 {
			kinds = pool[:4]
		}
		row := expr(constExpr{kinds[rng.IntN(len(kinds))]})
		for i := range 1 + rng.IntN(12) {
			row = &binaryExpr{line: i + 1, op: "+", a: row, b: constExpr{kinds[rng.IntN(len(kinds))]}}
		}
		var twoByTwo func(s *renderState, e expr) any
		twoByTwo = func(s *renderState, e expr) any {
			x, ok := e.(*binaryExpr)
			if !ok {
				return e.eval(s, nil)
			}
			a, b := twoByTwo(s, x.a), x.b.eval(s, nil)
			s.line = x.line
			return s.applyOperator("+", a, b)
		}
		got, gotFailure, gotLeft := outcome(func(s *renderState) any { return row.eval(s, nil) })
		want, wantFailure, wantLeft := outcome(func(s *renderState) any { return twoByTwo(s, row) })
		if !reflect.DeepEqual(got, want) || gotFailure != wantFailure || gotLeft != wantLeft {
			t.Fatalf("%v, %q, %v are left; want %v, %q, %v", got, gotFailure, gotLeft, want, wantFailure, wantLeft)
		}
		if sums++; wantFailure != "" {
			sums--
			failures++
		}
	}
	if sums < 1000 || failures < 1000 {
		t.Errorf("%d sums and %d failures", sums, failures)
	}
}
