package grammar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// decode parses JSON with numbers in their spelling.
func decode(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err = d.Decode(&v); err == nil && d.More() {
		err = fmt.Errorf("more than one value")
	}
	return v, err
}

func number64(v any) *big.Rat {
	r, ok := new(big.Rat).SetString(string(v.(json.Number)))
	if !ok {
		panic("not a number")
	}
	return r
}

// valid implements JSON Schema literally for the supported keywords, without the narrowing of this package.
func valid(root, schema, v any) bool {
	s, ok := schema.(map[string]any)
	if !ok {
		return schema.(bool)
	}
	if ref, ok := s["$ref"].(string); ok {
		at := root
		for _, name := range strings.Split(ref, "/")[1:] {
			at = at.(map[string]any)[name]
		}
		return valid(root, at, v)
	}
	count := func(key string) (n int) {
		for _, sub := range s[key].([]any) {
			if valid(root, sub, v) {
				n++
			}
		}
		return n
	}
	if _, ok := s["anyOf"]; ok && count("anyOf") == 0 {
		return false
	}
	if _, ok := s["oneOf"]; ok && count("oneOf") != 1 {
		return false
	}
	if all, ok := s["allOf"]; ok && count("allOf") != len(all.([]any)) {
		return false
	}
	if list, ok := s["enum"].([]any); ok && !slices.ContainsFunc(list, func(x any) bool { return equal(x, v) }) {
		return false
	}
	if x, ok := s["const"]; ok && !equal(x, v) {
		return false
	}
	return hasType(s["type"], v) && validContents(root, s, v)
}

func equal(a, b any) bool {
	x, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	y, err := json.Marshal(b)
	if err != nil {
		panic(err)
	}
	return bytes.Equal(x, y)
}

func hasType(named, v any) bool {
	if named == nil {
		return true
	}
	if list, ok := named.([]any); ok {
		return slices.ContainsFunc(list, func(t any) bool { return hasType(t, v) })
	}
	switch v.(type) {
	case nil:
		return named == "null"
	case bool:
		return named == "boolean"
	case string:
		return named == "string"
	case map[string]any:
		return named == "object"
	case []any:
		return named == "array"
	}
	return named == "number" || named == "integer" && number64(v).IsInt()
}

func validContents(root any, s map[string]any, v any) bool {
	limit := func(key string, ok func(order int) bool, n *big.Rat) bool {
		bound, there := s[key]
		return !there || ok(n.Cmp(number64(bound)))
	}
	atLeast, atMost := func(o int) bool { return o >= 0 }, func(o int) bool { return o <= 0 }
	size := func(low, high string, n int) bool {
		r := big.NewRat(int64(n), 1)
		return limit(low, atLeast, r) && limit(high, atMost, r)
	}
	switch v := v.(type) {
	case json.Number:
		n := number64(v)
		return limit("minimum", atLeast, n) && limit("maximum", atMost, n) &&
			limit("exclusiveMinimum", func(o int) bool { return o > 0 }, n) && limit("exclusiveMaximum", func(o int) bool { return o < 0 }, n)
	case string:
		if !size("minLength", "maxLength", utf8.RuneCountInString(v)) {
			return false
		}
		pattern, ok := s["pattern"].(string)
		return !ok || regexp.MustCompile(pattern).MatchString(v)
	case []any:
		if !size("minItems", "maxItems", len(v)) {
			return false
		}
		prefix, _ := s["prefixItems"].([]any)
		for i, item := range v {
			sub, ok := s["items"]
			if i < len(prefix) {
				sub, ok = prefix[i], true
			}
			if ok && !valid(root, sub, item) {
				return false
			}
		}
	case map[string]any:
		properties, _ := s["properties"].(map[string]any)
		for key, item := range v {
			sub, ok := properties[key]
			if !ok {
				sub, ok = s["additionalProperties"]
			}
			if ok && !valid(root, sub, item) {
				return false
			}
		}
		required, _ := s["required"].([]any)
		for _, key := range required {
			if _, ok := v[key.(string)]; !ok {
				return false
			}
		}
	}
	return true
}

// writer writes documents which a schema allows, in the simplest way. Schemas are the package's own tree,
// because the order of properties matters.
type writer struct {
	root *jsonValue
	rng  *rand.Rand
	b    []byte
	deep int
}

// write appends a document; false if it nests too deep.
func (w *writer) write(s *jsonValue) bool {
	if w.deep++; w.deep > 40 {
		return false
	}
	defer func() { w.deep-- }()
	if s.kind == kindBoolean {
		return w.any()
	}
	if ref := s.member("$ref"); ref != nil {
		at := w.root
		for _, name := range strings.Split(ref.text, "/")[1:] {
			at = at.member(name)
		}
		return w.write(at)
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		if list := s.member(key); list != nil {
			return w.write(list.items[w.rng.IntN(len(list.items))])
		}
	}
	if list := s.member("enum"); list != nil {
		w.b = list.items[w.rng.IntN(len(list.items))].appendJSON(w.b)
		return true
	}
	if v := s.member("const"); v != nil {
		w.b = v.appendJSON(w.b)
		return true
	}
	types, err := namedTypes(s)
	if err != nil {
		panic(err)
	}
	if types == nil {
		return w.any()
	}
	return w.typed(s, types[w.rng.IntN(len(types))])
}

func (w *writer) any() bool {
	w.b = append(w.b, []string{`"x"`, `-1.5e3`, `true`, `null`, `[]`, `{"":[1,{}]}`}[w.rng.IntN(6)]...)
	return true
}

func (w *writer) typed(s *jsonValue, t jsonKind) bool {
	switch t {
	case kindNull:
		w.b = append(w.b, "null"...)
	case kindBoolean:
		w.b = append(w.b, []string{"true", "false"}[w.rng.IntN(2)]...)
	case kindString:
		w.b = appendJSONString(w.b, w.text(s))
	case kindObject:
		return w.object(s)
	case kindArray:
		return w.array(s)
	default:
		low, high := -1000, 1000
		for i, key := range []string{"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"} {
			if b := s.member(key); b != nil {
				var n int
				if _, err := fmt.Sscan(b.text, &n); err != nil {
					panic(err)
				}
				to, by := &low, i%2
				if i > 1 {
					to, by = &high, -by
				}
				*to = n + by
			}
		}
		w.b = fmt.Append(w.b, low+w.rng.IntN(max(high, low)-low+1))
		if t == kindNumber && s.member("minimum") == nil && s.member("maximum") == nil && w.rng.IntN(2) == 0 {
			w.b = append(w.b, ".25"...)
		}
	}
	return true
}

// words are candidates for strings with a pattern.
var words = []string{"", "a", "ab", "ba", "aba", "abab", "x1", "é", "日本", "\n", `"q"`, `\`, "12", "2024-02-03", "a b", "\u0001", "zzzzzz", "😀"}

func (w *writer) text(s *jsonValue) string {
	least, most, err := countBounds(s, "minLength", "maxLength")
	if err != nil {
		panic(err)
	}
	for range 200 {
		word := words[w.rng.IntN(len(words))]
		if w.rng.IntN(3) == 0 {
			word += words[w.rng.IntN(len(words))]
		}
		n := uint32(utf8.RuneCountInString(word))
		p := s.member("pattern")
		if n >= least && n <= most && (p == nil || regexp.MustCompile(p.text).MatchString(word)) {
			return word
		}
	}
	return strings.Repeat("a", int(least))
}

func (w *writer) object(s *jsonValue) bool {
	w.b = append(w.b, '{')
	comma := func() {
		if w.b[len(w.b)-1] != '{' {
			w.b = append(w.b, ',')
		}
	}
	p, more := s.member("properties"), s.member("additionalProperties")
	if p != nil {
		for i, key := range p.keys {
			required := s.member("required") != nil && slices.ContainsFunc(s.member("required").items, func(v *jsonValue) bool { return v.text == key })
			if !required && (w.deep > 6 || w.rng.IntN(2) == 0) {
				continue
			}
			comma()
			w.b = append(appendJSONString(w.b, key), ':')
			if !w.write(p.items[i]) {
				return false
			}
		}
	}
	if open := more != nil && more.text != "false" || more == nil && p == nil; open {
		for i := range w.rng.IntN(3) {
			comma()
			w.b = append(appendJSONString(w.b, fmt.Sprint("more\t", i)), ':')
			if more == nil {
				w.any()
			} else if !w.write(more) {
				return false
			}
		}
	}
	w.b = append(w.b, '}')
	return true
}

func (w *writer) array(s *jsonValue) bool {
	least, most, err := countBounds(s, "minItems", "maxItems")
	if err != nil {
		panic(err)
	}
	prefix, items := s.member("prefixItems"), s.member("items")
	known := uint32(0)
	if prefix != nil {
		known = uint32(len(prefix.items))
		if items == nil {
			most = min(most, known)
		}
	}
	n := least
	if room := min(most, least+4) - least; room > 0 && w.deep <= 6 {
		n += w.rng.Uint32N(room + 1)
	}
	w.b = append(w.b, '[')
	for i := range n {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		switch {
		case i < known:
			if !w.write(prefix.items[i]) {
				return false
			}
		case items == nil:
			w.any()
		default:
			if !w.write(items) {
				return false
			}
		}
	}
	w.b = append(w.b, ']')
	return true
}
