package jinja

import (
	"math/big"
	"unicode"
)

// testFunc is a test: v is the value before "is".
type testFunc func(s *state, v any, a *args) bool

// lookupTest returns a test of the built-in set, nil if there is none.
func testNamed(name string) testFunc {
	switch name {
	case "odd", "even":
		return func(s *state, v any, a *args) bool {
			a.bind()
			rest := int64(0)
			if name == "odd" {
				rest = 1
			}
			return s.equal(s.arith("%", v, int64(2)), rest, 0)
		}
	case "divisibleby":
		return func(s *state, v any, a *args) bool {
			return s.equal(s.arith("%", v, a.bind("num!")[0]), int64(0), 0)
		}
	case "filter", "test":
		return func(_ *state, v any, a *args) bool {
			a.bind()
			hashable(v)
			n, ok := v.(string)
			return ok && (name == "filter" && filterNamed(n) != nil || name == "test" && testNamed(n) != nil)
		}
	case "lower", "upper":
		return func(s *state, v any, a *args) bool {
			a.bind()
			t := s.str(v)
			s.read(slowly * len(t))
			return cased(t, name == "upper")
		}
	case "sameas":
		return func(_ *state, v any, a *args) bool {
			other := a.bind("other!")[0]
			if typeName(v) != typeName(other) {
				return false
			}
			return v == other
		}
	case "in":
		return func(s *state, v any, a *args) bool { return s.contains(a.bind("seq!")[0], v) }
	case "==", "eq", "equalto":
		return compares("==")
	case "!=", "ne":
		return compares("!=")
	case ">", "gt", "greaterthan":
		return compares(">")
	case ">=", "ge":
		return compares(">=")
	case "<", "lt", "lessthan":
		return compares("<")
	case "<=", "le":
		return compares("<=")
	}
	f := kindTest(name)
	if f == nil {
		return nil
	}
	return func(_ *state, v any, a *args) bool {
		a.bind()
		return f(v)
	}
}

func compares(op string) testFunc {
	return func(s *state, v any, a *args) bool { return s.holds(op, v, a.bind("other!")[0]) }
}

// isCased reports whether text has letters and all are of the case.
func cased(text string, wantUpper bool) bool {
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
func kindTest(name string) func(v any) bool {
	switch name {
	case "defined":
		return func(v any) bool { _, none := v.(*undef); return !none }
	case "undefined":
		return func(v any) bool { _, none := v.(*undef); return none }
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
		return func(v any) bool { _, ok := number(v); return ok }
	case "string":
		return func(v any) bool { _, ok := v.(string); return ok }
	case "mapping":
		return func(v any) bool { _, ok := v.(*Dict); return ok }
	case "sequence":
		return func(v any) bool {
			switch v.(type) {
			case string, *list, *tuple, *Dict, *span, *group, *undef:
				return true
			}
			return false
		}
	case "iterable":
		return func(v any) bool {
			switch v.(type) {
			case string, *list, *tuple, *Dict, *span, *group, *undef, *view, *iterator, *loop:
				return true
			}
			return false
		}
	case "callable":
		return func(v any) bool {
			switch v.(type) {
			case *function, *macro, *loop, *undef:
				return true
			}
			return false
		}
	case "escaped":
		return func(any) bool { return false }
	}
	return nil
}
