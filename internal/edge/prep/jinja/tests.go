package jinja

import (
	"math/big"
	"unicode"
)

// testFunc is a test: v is the value before "is".
type testFunc func(s *renderState, v any, a *callArgs) bool

// lookupTest returns a test of the built-in set, nil if there is none.
func lookupTest(name string) testFunc {
	switch name {
	case "odd", "even":
		return func(s *renderState, v any, a *callArgs) bool {
			a.bindParams()
			rest := int64(0)
			if name == "odd" {
				rest = 1
			}
			return s.isEqual(s.applyOperator("%", v, int64(2)), rest, 0)
		}
	case "divisibleby":
		return func(s *renderState, v any, a *callArgs) bool {
			return s.isEqual(s.applyOperator("%", v, a.bindParams("num!")[0]), int64(0), 0)
		}
	case "filter", "test":
		return func(_ *renderState, v any, a *callArgs) bool {
			a.bindParams()
			hashableKey(v)
			n, ok := v.(string)
			return ok && (name == "filter" && lookupFilter(n) != nil || name == "test" && lookupTest(n) != nil)
		}
	case "lower", "upper":
		return func(s *renderState, v any, a *callArgs) bool {
			a.bindParams()
			t := s.toString(v)
			s.payRead(slowly * len(t))
			return isCased(t, name == "upper")
		}
	case "sameas":
		return func(_ *renderState, v any, a *callArgs) bool {
			other := a.bindParams("other!")[0]
			if typeName(v) != typeName(other) {
				return false
			}
			return v == other
		}
	case "in":
		return func(s *renderState, v any, a *callArgs) bool { return s.containsItem(a.bindParams("seq!")[0], v) }
	case "==", "eq", "equalto":
		return comparisonTest("==")
	case "!=", "ne":
		return comparisonTest("!=")
	case ">", "gt", "greaterthan":
		return comparisonTest(">")
	case ">=", "ge":
		return comparisonTest(">=")
	case "<", "lt", "lessthan":
		return comparisonTest("<")
	case "<=", "le":
		return comparisonTest("<=")
	}
	f := typeTest(name)
	if f == nil {
		return nil
	}
	return func(_ *renderState, v any, a *callArgs) bool {
		a.bindParams()
		return f(v)
	}
}

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

// typeTest returns a test of the type of a value.
func typeTest(name string) func(v any) bool {
	switch name {
	case "defined":
		return func(v any) bool { _, none := v.(*undefinedValue); return !none }
	case "undefined":
		return func(v any) bool { _, none := v.(*undefinedValue); return none }
	case "none":
		return func(v any) bool { return v == nil }
	case "boolean":
		return func(v any) bool { _, ok := v.(bool); return ok }
	case "true":
		return func(v any) bool { return v == true }
	case "false":
		return func(v any) bool { return v == false }
	case "integer":
		return func(v any) bool {
			switch v.(type) {
			case int64, *big.Int:
				return true
			}
			return false
		}
	case "float":
		return func(v any) bool { _, ok := v.(float64); return ok }
	case "number":
		return func(v any) bool { _, ok := toNumber(v); return ok }
	case "string":
		return func(v any) bool { _, ok := v.(string); return ok }
	case "mapping":
		return func(v any) bool { _, ok := v.(*Dict); return ok }
	case "sequence":
		return func(v any) bool {
			switch v.(type) {
			case string, *listValue, *tupleValue, *Dict, *rangeValue, *groupPair, *undefinedValue:
				return true
			}
			return false
		}
	case "iterable":
		return func(v any) bool {
			switch v.(type) {
			case string, *listValue, *tupleValue, *Dict, *rangeValue, *groupPair, *undefinedValue, *dictView, *iterator, *loopVar:
				return true
			}
			return false
		}
	case "callable":
		return func(v any) bool {
			switch v.(type) {
			case *functionValue, *macroValue, *loopVar, *undefinedValue:
				return true
			}
			return false
		}
	case "escaped":
		return func(any) bool { return false }
	}
	return nil
}
