package jinja

import (
	"math/big"
	"unicode"
)

func comparisonTest(op string) testFunc {
	return func(s *renderState, v any, a *callArgs) bool {
		return s.compareValues(op, v, a.bindParams("other!")[0])
	}
}

// isCased reports whether text has letters and all are of the case.
func isCased(text string, wantUpper bool) bool {
	found := false
	for _, r := range text {
		switch {
		case unicode.IsTitle(r):
			return false
		case isUpper(r):
			if found = true; !wantUpper {
				return false
			}
		case isLower(r):
			if found = true; wantUpper {
				return false
			}
		}
	}
	return found
}

// parityTest tests the rest of a division by 2.
func parityTest(rest int64) testFunc {
	return func(s *renderState, v any, a *callArgs) bool {
		a.bindParams()
		return s.isEqual(s.applyOperator("%", v, int64(2)), rest, 0)
	}
}

// nameTest tests whether a value is a name of something.
func nameTest(known func(s *renderState, name string) bool) testFunc {
	return func(s *renderState, v any, a *callArgs) bool {
		a.bindParams()
		hashableKey(v)
		name, ok := v.(string)
		return ok && known(s, name)
	}
}

// caseTest tests the case of the string of a value.
func caseTest(wantUpper bool) testFunc {
	return func(s *renderState, v any, a *callArgs) bool {
		a.bindParams()
		t := s.toString(v)
		s.payRead(slowly * len(t))
		return isCased(t, wantUpper)
	}
}

// valueTest is a test without parameters.
func valueTest(is func(v any) bool) testFunc {
	return func(_ *renderState, v any, a *callArgs) bool {
		a.bindParams()
		return is(v)
	}
}

func isOf[T any](v any) bool {
	_, ok := v.(T)
	return ok
}

func isInteger(v any) bool { return isOf[int64](v) || isOf[*big.Int](v) }

func isSequence(v any) bool {
	switch v.(type) {
	case string, *listValue, *tupleValue, *Dict, *rangeValue, *groupPair, *undefinedValue:
		return true
	}
	return false
}

func isIterable(v any) bool {
	switch v.(type) {
	case *dictView, *iterator, *loopVar:
		return true
	}
	return isSequence(v)
}

func isCallable(v any) bool {
	switch v.(type) {
	case *functionValue, *macroValue, *loopVar, *undefinedValue:
		return true
	}
	return false
}
