package jinja

import (
	"strings"
	"unicode"
)

// filterFunc is a filter or a method: v is the value before the bar or the dot.
type filterFunc func(s *renderState, v any, a *callArgs) any

// testFunc is a test: v is the value before "is".
type testFunc func(s *renderState, v any, a *callArgs) bool

// builtinSet is what every template can use by name. A rendering reads it through its state, because some
// filters call others.
type builtinSet struct {
	filters map[string]filterFunc
	tests   map[string]testFunc
	// The methods of values. A nil method changes its object, which the sandbox forbids.
	text, dict, list, tuple, float, integer map[string]filterFunc
}

// bound returns a filter which gets its arguments bound to parameters, see bindParams.
func bound(call func(s *renderState, v any, b []any) any, params ...string) filterFunc {
	return func(s *renderState, v any, a *callArgs) any { return call(s, v, a.bindParams(params...)) }
}

// ofText is bound for a method of strings.
func ofText(call func(s *renderState, t string, b []any) any, params ...string) filterFunc {
	return func(s *renderState, v any, a *callArgs) any {
		t := v.(string)
		s.payRead(len(t))
		return call(s, t, a.bindParams(params...))
	}
}

// stringFilter is a filter without parameters of the string of a value.
func stringFilter(call func(s *renderState, t string) any) filterFunc {
	return bound(func(s *renderState, v any, _ []any) any { return call(s, s.toString(v)) })
}

// caseFilter and caseMethod change the case of a text.
func caseFilter(change func(string) string) filterFunc {
	return stringFilter(func(s *renderState, t string) any { return s.changeCase(t, change) })
}

func caseMethod(change func(string) string) filterFunc {
	return ofText(func(s *renderState, t string, _ []any) any { return s.changeCase(t, change) })
}

// everyRune is the method which tests that a text has characters and all pass; allRunes is true for an empty
// text too.
func everyRune(is func(r rune) bool) filterFunc {
	return textTest(func(t string) bool { return t != "" && indexOther(t, is) < 0 })
}

func allRunes(is func(r rune) bool) filterFunc {
	return textTest(func(t string) bool { return indexOther(t, is) < 0 })
}

func indexOther(t string, is func(r rune) bool) int {
	return strings.IndexFunc(t, func(r rune) bool { return !is(r) })
}

func textTest(is func(t string) bool) filterFunc {
	return ofText(func(s *renderState, t string, _ []any) any {
		s.payRead(slowly * len(t))
		return is(t)
	})
}

// builtins has the names of Jinja 3 and of Python's values. It is not changed.
var builtins = builtinSet{
	filters: map[string]filterFunc{
		"abs": bound(func(s *renderState, v any, _ []any) any {
			if isTruthy(s.compareValues("<", v, int64(0))) {
				return s.applyOperator("-", int64(0), v)
			}
			return s.applyOperator("+", v, int64(0))
		}),
		"attr":       bound(filterAttr, "name!"),
		"batch":      bound(filterBatch, "linecount!", "fill_with"),
		"capitalize": caseFilter(capitalize),
		"center": bound(func(s *renderState, v any, b []any) any {
			t := s.toString(v)
			s.payRead(len(t))
			return s.padText(t, "center", []any{orDefault(b[0], int64(80)), absentArg{}})
		}, "width"),
		"count":          bound(filterLength),
		"d":              bound(filterDefault, "default_value", "boolean"),
		"default":        bound(filterDefault, "default_value", "boolean"),
		"dictsort":       bound(filterDictsort, "case_sensitive", "by", "reverse"),
		"e":              stringFilter(escapeText),
		"escape":         stringFilter(escapeText),
		"filesizeformat": bound(filterFilesizeFormat, "binary"),
		"first":          firstItem("first", (*renderState).iterateValue),
		"float":          filterFloat,
		"forceescape":    stringFilter(escapeText),
		"format":         filterFormat,
		"groupby":        bound(filterGroupby, "attribute!", "default", "case_sensitive"),
		"indent":         bound(filterIndent, "width", "first", "blank"),
		"int":            bound(filterInt, "default", "base"),
		"items":          bound(filterItems),
		"join":           bound(filterJoin, "d", "attribute"),
		"last":           firstItem("last", (*renderState).iterateReversed),
		"length":         bound(filterLength),
		"list":           bound(func(s *renderState, v any, _ []any) any { return &listValue{s.collectItems(v)} }),
		"lower":          caseFilter(toLower),
		"map":            filterMap,
		"max":            pickBy(">"),
		"min":            pickBy("<"),
		"pprint":         bound(filterPprint),
		"reject":         func(s *renderState, v any, a *callArgs) any { return s.selectItems(v, a, false, false) },
		"rejectattr":     func(s *renderState, v any, a *callArgs) any { return s.selectItems(v, a, false, true) },
		"replace":        bound(filterReplace, "old!", "new!", "count"),
		"reverse":        bound(filterReverse),
		"round":          bound(filterRound, "precision", "method"),
		"safe":           stringFilter(func(_ *renderState, t string) any { return t }),
		"select":         func(s *renderState, v any, a *callArgs) any { return s.selectItems(v, a, true, false) },
		"selectattr":     func(s *renderState, v any, a *callArgs) any { return s.selectItems(v, a, true, true) },
		"slice":          bound(filterSlice, "slices!", "fill_with"),
		"sort": bound(func(s *renderState, v any, b []any) any {
			return s.sortItems(s.collectItems(v), s.sortKeyGetter(b[2], b[1]), boolArg(b[0]))
		}, "reverse", "case_sensitive", "attribute"),
		"string":    stringFilter(func(_ *renderState, t string) any { return t }),
		"striptags": stringFilter(func(s *renderState, t string) any { return stripTags(s.payWords(t)) }),
		"sum":       bound(filterSum, "attribute", "start"),
		"title":     caseFilter(capitalizeWords),
		"tojson":    bound(filterToJSON, "ensure_ascii", "indent", "separators", "sort_keys"),
		"trim": bound(func(s *renderState, v any, b []any) any {
			t := s.toString(v)
			s.payRead(len(t))
			return s.stripText(t, b[0], true, true)
		}, "chars"),
		"truncate":  bound(filterTruncate, "length", "killwords", "end", "leeway"),
		"unique":    bound(filterUnique, "case_sensitive", "attribute"),
		"upper":     caseFilter(toUpper),
		"urlencode": bound(filterURLEncode),
		"urlize":    bound(filterUrlize, "trim_url_limit", "nofollow", "target", "rel", "extra_schemes"),
		"wordcount": stringFilter(func(s *renderState, t string) any {
			return int64(len(strings.FieldsFunc(s.payWords(t), func(r rune) bool { return !isWordRune(r) })))
		}),
		"wordwrap": bound(filterWordwrap, "width", "break_long_words", "wrapstring", "break_on_hyphens"),
		"xmlattr":  bound(filterXMLAttr, "autospace"),
	},

	tests: map[string]testFunc{
		"==": comparisonTest("=="), "eq": comparisonTest("=="), "equalto": comparisonTest("=="),
		"!=": comparisonTest("!="), "ne": comparisonTest("!="),
		">": comparisonTest(">"), "gt": comparisonTest(">"), "greaterthan": comparisonTest(">"),
		">=": comparisonTest(">="), "ge": comparisonTest(">="),
		"<": comparisonTest("<"), "lt": comparisonTest("<"), "lessthan": comparisonTest("<"),
		"<=": comparisonTest("<="), "le": comparisonTest("<="),
		"even": parityTest(0),
		"odd":  parityTest(1),
		"divisibleby": func(s *renderState, v any, a *callArgs) bool {
			return s.isEqual(s.applyOperator("%", v, a.bindParams("num!")[0]), int64(0), 0)
		},
		"filter": nameTest(func(s *renderState, name string) bool { return s.builtins.filters[name] != nil }),
		"test":   nameTest(func(s *renderState, name string) bool { return s.builtins.tests[name] != nil }),
		"lower":  caseTest(false),
		"upper":  caseTest(true),
		"sameas": func(_ *renderState, v any, a *callArgs) bool {
			other := a.bindParams("other!")[0]
			return typeName(v) == typeName(other) && v == other
		},
		"in": func(s *renderState, v any, a *callArgs) bool { return s.containsItem(a.bindParams("seq!")[0], v) },

		"boolean":   valueTest(isOf[bool]),
		"callable":  valueTest(isCallable),
		"defined":   valueTest(func(v any) bool { return !isOf[*undefinedValue](v) }),
		"escaped":   valueTest(func(any) bool { return false }),
		"false":     valueTest(func(v any) bool { return v == false }),
		"float":     valueTest(isOf[float64]),
		"integer":   valueTest(isInteger),
		"iterable":  valueTest(isIterable),
		"mapping":   valueTest(isOf[*Dict]),
		"none":      valueTest(func(v any) bool { return v == nil }),
		"number":    valueTest(func(v any) bool { _, ok := toNumber(v); return ok }),
		"sequence":  valueTest(isSequence),
		"string":    valueTest(isOf[string]),
		"true":      valueTest(func(v any) bool { return v == true }),
		"undefined": valueTest(isOf[*undefinedValue]),
	},

	text: map[string]filterFunc{
		"capitalize":   caseMethod(capitalize),
		"casefold":     caseMethod(caseFold),
		"center":       padMethod("center"),
		"count":        ofText(countText, "sub!", "start", "end"),
		"encode":       func(*renderState, any, *callArgs) any { throw("'str.encode' is not supported"); return nil },
		"endswith":     affixMethod(strings.HasSuffix),
		"expandtabs":   ofText(expandTabs, "tabsize"),
		"find":         findMethod(strings.Index, false),
		"format":       formatMethod,
		"format_map":   ofText(formatMap, "mapping!"),
		"index":        findMethod(strings.Index, true),
		"isalnum":      everyRune(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isalpha":      everyRune(unicode.IsLetter),
		"isascii":      allRunes(func(r rune) bool { return r <= 127 }),
		"isdecimal":    everyRune(unicode.IsDigit),
		"isdigit":      everyRune(func(r rune) bool { return unicode.IsDigit(r) || unicode.Is(digitSigns, r) }),
		"isidentifier": textTest(isIdentifier),
		"islower":      textTest(func(t string) bool { return isCased(t, false) }),
		"isnumeric":    everyRune(func(r rune) bool { return unicode.IsNumber(r) || strings.ContainsRune(hanNumerals, r) }),
		"isprintable":  allRunes(unicode.IsPrint),
		"isspace":      everyRune(isSpace),
		"istitle":      textTest(isTitled),
		"isupper":      textTest(func(t string) bool { return isCased(t, true) }),
		"join":         ofText(joinTexts, "iterable!"),
		"ljust":        padMethod("ljust"),
		"lower":        caseMethod(toLower),
		"lstrip":       stripMethod(true, false),
		"partition":    partitionMethod(false),
		"removeprefix": ofText(func(_ *renderState, t string, b []any) any { return strings.TrimPrefix(t, textArg(b[0])) }, "prefix!"),
		"removesuffix": ofText(func(_ *renderState, t string, b []any) any { return strings.TrimSuffix(t, textArg(b[0])) }, "suffix!"),
		"replace": ofText(func(s *renderState, t string, b []any) any {
			n := indexArg(orDefault(b[2], int64(-1)))
			return s.replaceText(t, textArg(b[0]), textArg(b[1]), n)
		}, "old!", "new!", "count"),
		"rfind":      findMethod(strings.LastIndex, false),
		"rindex":     findMethod(strings.LastIndex, true),
		"rjust":      padMethod("rjust"),
		"rpartition": partitionMethod(true),
		"rsplit":     splitMethod(true),
		"rstrip":     stripMethod(false, true),
		"split":      splitMethod(false),
		"splitlines": ofText(func(s *renderState, t string, b []any) any {
			s.payRead(slowly * len(t))
			return s.textList(splitLines(t, boolArg(b[0])))
		}, "keepends"),
		"startswith": affixMethod(strings.HasPrefix),
		"strip":      stripMethod(true, true),
		"swapcase":   caseMethod(swapCase),
		"title":      caseMethod(toTitle),
		"upper":      caseMethod(toUpper),
		"zfill":      padMethod("zfill"),
	},

	dict: map[string]filterFunc{
		"clear": nil, "pop": nil, "popitem": nil, "setdefault": nil, "update": nil,
		"copy": bound(func(s *renderState, v any, _ []any) any {
			d := v.(*Dict)
			s.payBytes(64 * d.Len())
			return d.withoutKey("\x00")
		}),
		"get": bound(func(s *renderState, v any, b []any) any {
			s.payKeyRead(b[0])
			if out, ok := v.(*Dict).getKey(b[0]); ok {
				return out
			}
			return orDefault(b[1], nil)
		}, "key!", "default"),
		"items":  bound(func(_ *renderState, v any, _ []any) any { return &dictView{"dict_items", v.(*Dict)} }),
		"keys":   bound(func(_ *renderState, v any, _ []any) any { return &dictView{"dict_keys", v.(*Dict)} }),
		"values": bound(func(_ *renderState, v any, _ []any) any { return &dictView{"dict_values", v.(*Dict)} }),
	},

	list: map[string]filterFunc{
		"append": nil, "clear": nil, "extend": nil, "insert": nil, "pop": nil, "remove": nil, "reverse": nil, "sort": nil,
		"copy":  func(s *renderState, v any, _ *callArgs) any { return &listValue{s.collectItems(v)} },
		"count": bound(countItem, "value!"),
		"index": bound(indexItem, "value!"),
	},

	tuple:   map[string]filterFunc{"count": bound(countItem, "value!"), "index": bound(indexItem, "value!")},
	float:   map[string]filterFunc{"is_integer": isWholeFloat},
	integer: map[string]filterFunc{"bit_length": bitLength},
}
