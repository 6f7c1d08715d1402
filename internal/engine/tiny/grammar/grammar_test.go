package grammar

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"penstock/core/fault"
)

func compiled(t testing.TB, schema string) *Grammar {
	t.Helper()
	g, err := Compile([]byte(schema))
	if err != nil {
		t.Fatalf("%s: %v", schema, err)
	}
	return g
}

// accepts reports whether text is a complete text of g.
func accepts(g *Grammar, text string) bool {
	s := g.NewState()
	return s.Write([]byte(text)) && s.IsComplete()
}

func TestTexts(t *testing.T) {
	for _, c := range []struct {
		schema  string
		yes, no []string
	}{
		{`{"type":"object"}`, []string{`{}`, `{"a":1,"b":[true,null,{"c":"d"}]}`}, []string{``, `[]`, `{ }`, `{"a":1,}`, `{}x`}},
		{`true`, []string{`1`, `"x"`, `[[]]`, `null`}, []string{`nul`, ` 1`, `01`, `+1`, `.5`}},
		{`{}`, []string{`{"a":{}}`, `false`}, []string{`tru`}},
		{
			`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"null"}},"required":["b"]}`,
			[]string{`{"b":null}`, `{"a":-7,"b":null}`},
			[]string{`{}`, `{"a":1}`, `{"b":null,"a":1}`, `{"b":null,"c":1}`, `{"a":1.5,"b":null}`, `{,"b":null}`},
		},
		{
			`{"type":"object","properties":{"a":true},"additionalProperties":{"type":"boolean"}}`,
			[]string{`{}`, `{"a":1}`, `{"b":true}`, `{"a":1,"b":true,"c":false}`, `{"aa":true}`, `{"":true}`, `{"\u0062":true}`},
			[]string{`{"b":1}`, `{"b":true,"a":1}`, `{"\u0061":true}`, `{"\u0061":1}`},
		},
		{`{"properties":{},"required":["x"]}`, []string{`{"x":[]}`}, []string{`{}`, `{"y":1}`, `{"x":1,"y":1}`}},
		{
			`{"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3}`,
			[]string{`[1,2]`, `[1,2,3]`},
			[]string{`[]`, `[1]`, `[1,2,3,4]`, `[1,]`, `[,1]`},
		},
		{`{"type":"array","maxItems":0}`, []string{`[]`}, []string{`[1]`}},
		{`{"type":"array","prefixItems":[{"const":1},{"const":2}]}`, []string{`[]`, `[1]`, `[1,2]`}, []string{`[2]`, `[1,2,3]`}},
		{
			`{"type":"array","prefixItems":[{"const":1}],"items":{"const":9},"minItems":2,"maxItems":3}`,
			[]string{`[1,9]`, `[1,9,9]`},
			[]string{`[1]`, `[9,9]`, `[1,9,9,9]`},
		},
		{`{"type":"array","prefixItems":[{"const":1},{"const":2}],"maxItems":1}`, []string{`[]`, `[1]`}, []string{`[1,2]`}},
		{
			`{"enum":["a","ab","b",1,12,null,{"k":[1,"é"]},"日"]}`,
			[]string{`"a"`, `"ab"`, `1`, `12`, `null`, `{"k":[1,"é"]}`, `{"k":[1,"\u00e9"]}`, `"日"`, `"\u65e5"`},
			[]string{`"abc"`, `2`, `{"k":[1]}`, `""`, `"\u0061"`},
		},
		{`{"enum":["a",1,2.0,2.5],"type":"integer"}`, []string{`1`, `2.0`}, []string{`"a"`, `2.5`}},
		{`{"const":"q\"\\\n\u0001/😀"}`, []string{`"q\"\\\n\u0001/😀"`, `"q\"\\\n\u0001/\ud83d\ude00"`}, []string{`"q"`}},
		{
			`{"type":"string","minLength":2,"maxLength":3}`,
			[]string{`"ab"`, `"日本語"`, `"\u0041\n\""`, `"😀\ud83d\ude00"`},
			[]string{`"a"`, `"abcd"`, `"\ud83d"`, `"\ude00a"`, `"\ud83da"`, "\"a\tb\"", "\"\xff\xff\"", "\"\xed\xa0\x80ab\"", "\"\xc0\xafab\"", `"\x41b"`},
		},
		{`{"type":"string","pattern":"^[a-z]+$"}`, []string{`"abc"`, `"\u0061"`}, []string{`""`, `"aB"`, `"é"`, `"\u00e9"`, `"\n"`}},
		{`{"type":"string","pattern":"b"}`, []string{`"b"`, `"abc"`, `"éb😀"`}, []string{`""`, `"ac"`}},
		{`{"type":"string","pattern":"^(ab)*$","minLength":3,"maxLength":5}`, []string{`"abab"`}, []string{`"ab"`, `"ababab"`, `"aba"`}},
		{ // as a client's library writes a time
			`{"type":"string","format":"date-time","pattern":"^\\d{4}-\\d\\d-\\d\\dT(?:[01]\\d|2[0-3]):[0-5]\\d(?::[0-5]\\d(?:\\.\\d+)?)?(?:Z)$"}`,
			[]string{`"2026-11-21T05:38:00Z"`, `"2026-11-21T05:38:00.5Z"`},
			[]string{`"2026-11-21T05:38Z"`, `"2026-11-21T05:38:00+01:00"`, `"2026-11-31T05:38:00Z"`},
		},
		{`{"type":"string","format":"date","pattern":"^2","minLength":10}`, []string{`"2026-11-21"`}, []string{`"1999-12-31"`, `"2026-02-31"`, `"2"`}},
		{`{"type":"string","pattern":"(?i)^é$|^$"}`, []string{`"é"`, `"É"`, `""`}, []string{`"e"`, `"éé"`}},
		{`{"type":"string","pattern":"^\\p{L}{2}$"}`, []string{`"日本"`, `"\u65e5a"`, `"\ud801\udc00a"`}, []string{`"1a"`, `"😀a"`, `"\ud83d`}},
		{`{"type":"string","format":"date"}`, []string{`"2024-12-31"`}, []string{`"2024-02-30"`, `"2024-13-01"`, `"2024-1-01"`, `"2024-06-31"`}},
		{`{"type":"string","format":"date-time"}`, []string{`"2024-12-31T23:59:59Z"`, `"2024-12-31T23:59:59.125+02:00"`}, []string{`"2024-12-31"`, `"2024-12-31T24:00:00Z"`}},
		{`{"type":"string","format":"uuid"}`, []string{`"01234567-89ab-cdef-0123-456789abcdef"`}, []string{`"0123"`}},
		{`{"type":"string","format":"email"}`, []string{`"a.b+c@example.org"`}, []string{`"a@b"`, `"@x.org"`, `"a@-x.org"`}},
		{`{"type":"object","propertyNames":{"type":"string","description":"x"},"additionalProperties":{"type":"integer"}}`, []string{`{"a":1}`}, []string{`{"a":"b"}`}},
		{`{"type":"object","propertyNames":true}`, []string{`{"a":1}`}, []string{`[]`}},
		{`{"type":"string","format":"ipv6"}`, []string{`"2001:db8:0:0:0:0:0:1"`}, []string{`"2001:db8:0:0:0:0:0"`, `"::1:"`}},
		{`{"type":"string","format":"hostname"}`, []string{`"a"`, `"a-b.example.org"`}, []string{`"-a"`, `"a..b"`, `""`}},
		{`{"type":"string","format":"uri"}`, []string{`"https://example.org"`, `"http://a:8080/x/y?q=1#top"`}, []string{`"example.org"`, `"https:///x"`, `"https://a b"`}},
		{`{"type":"string","format":"duration"}`, []string{`"P3W"`, `"P1DT2H30M"`, `"PT5S"`}, []string{`"P"`, `"PT"`, `"P1DT"`, `"1D"`}},
		{`{"type":"string","format":"ipv4"}`, []string{`"10.0.255.1"`}, []string{`"10.0.256.1"`, `"1.2.3"`}},
		{`{"type":"integer"}`, []string{`0`, `-1`, `9223372036854775807`, `-9223372036854775807`}, []string{`-0`, `00`, `1.0`, `1e3`, `9223372036854775808`, `-`, ``}},
		{`{"type":"integer","minimum":-5,"maximum":120}`, []string{`-5`, `-1`, `0`, `99`, `120`}, []string{`-6`, `-10`, `121`, `1000`, `-0`}},
		{`{"type":"integer","exclusiveMinimum":10,"exclusiveMaximum":100.5}`, []string{`11`, `100`}, []string{`10`, `101`, `1`, `-1`, `0`}},
		{`{"type":"integer","minimum":100}`, []string{`100`, `1000`, `9223372036854775807`}, []string{`99`, `0`, `-1`, `10`}},
		{`{"type":"integer","format":"int32"}`, []string{`2147483647`, `-2147483648`}, []string{`2147483648`}},
		{`{"type":"integer","format":"int32","minimum":2147483645,"exclusiveMaximum":2147483647}`, []string{`2147483645`, `2147483646`}, []string{`2147483647`}},
		{`{"type":"integer","format":"int32","exclusiveMinimum":-2147483648,"maximum":0}`, []string{`-2147483647`}, []string{`-2147483648`}},
		{`{"type":"number","minimum":3,"exclusiveMinimum":3,"maximum":4}`, []string{`3.1`, `4`}, []string{`3`, `3.0`}},
		{`{"type":"number"}`, []string{`0`, `-0`, `1.5`, `-0.001`, `1e5`, `1.5E+300`, `1e-07`, `123456789012345678`}, []string{`1.`, `.5`, `01`, `1e400`, `1e308`, `12e3`, `1e`, `1e+`, `0e1`, `--1`}},
		{`{"type":"number","minimum":0,"maximum":1}`, []string{`0`, `1`, `0.5`, `0.0`, `1.000`, `0.999`}, []string{`1.1`, `-0.1`, `2`, `1.001`, `1e0`, `-1`, `-0`}},
		{`{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1}`, []string{`0.5`, `0.0001`}, []string{`0`, `1`, `0.0`, `1.0`, `0.`}},
		{`{"type":"number","minimum":-1.25,"exclusiveMaximum":-0.5}`, []string{`-1.25`, `-1`, `-0.51`, `-0.6`, `-1.2499`}, []string{`-1.26`, `-0.5`, `-0.50`, `0`, `-0`, `1`, `-1.3`}},
		{`{"type":"number","minimum":-2,"maximum":3.5}`, []string{`-2`, `-0`, `0`, `3.5`, `3.4999`, `-2.0`}, []string{`3.51`, `-2.01`, `4`}},
		{`{"type":"number","minimum":9.5}`, []string{`9.5`, `10`, `95`, `9.50`}, []string{`9`, `9.4`, `1.5`, `-10`}},
		{`{"type":"boolean"}`, []string{`true`, `false`}, []string{`null`, `t`}},
		{`{"type":["string","null"],"maxLength":1}`, []string{`null`, `"a"`, `""`}, []string{`"ab"`, `1`}},
		{
			`{"anyOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"type":"object","properties":{"a":{"type":"string"},"b":{}},"required":["a","b"]}]}`,
			[]string{`{"a":1}`, `{"a":"x","b":1}`},
			[]string{`{"a":"x"}`, `{"a":1,"b":1}`},
		},
		{`{"oneOf":[{"type":"string"},{"type":"integer"},{"type":"null"}]}`, []string{`"a"`, `1`, `null`}, []string{`true`}},
		{
			`{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}}}`,
			[]string{`{"v":1,"next":null}`, `{"v":1,"next":{"v":2,"next":null}}`},
			[]string{`{"v":1}`, `{"v":1,"next":{"v":2}}`},
		},
		{`{"allOf":[{"$ref":"#/definitions/a~1b%20c"}],"definitions":{"a/b c":{"type":"null"}},"title":"t","$schema":"s"}`, []string{`null`}, []string{`0`}},
		{`{"minLength":1}`, []string{`"a"`}, []string{`""`, `1`}},
	} {
		g := compiled(t, c.schema)
		for _, text := range c.yes {
			if !accepts(g, text) {
				t.Errorf("%s refuses %s", c.schema, text)
			}
			if !json.Valid([]byte(text)) {
				t.Errorf("%s is not JSON", text)
			}
		}
		for _, text := range c.no {
			if accepts(g, text) {
				t.Errorf("%s accepts %s", c.schema, text)
			}
		}
	}
}

// TestBounds checks integers and numbers around the bounds.
func TestBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	bounds := []string{"-101", "-99.5", "-10", "-0.5", "0", "0.05", "0.5", "9", "9.5", "10", "100.25"}
	var values []any
	for _, b := range []string{"0", "0.05", "0.5", "1", "9", "9.5", "10", "11", "95", "99", "99.5", "100", "101", "100.25", "1000"} {
		for _, text := range []string{b, b + ".1", b + "1", b + "9", "-" + b, "-" + b + ".0", b + ".00", "-" + b + "01"} {
			if v, err := decode([]byte(text)); err == nil && json.Valid([]byte(text)) {
				values = append(values, v)
			}
		}
	}
	for _, low := range bounds {
		for _, high := range bounds {
			for _, keys := range [][2]string{{"minimum", "maximum"}, {"exclusiveMinimum", "exclusiveMaximum"}} {
				for _, typ := range []string{"integer", "number"} {
					schema := fmt.Sprintf(`{"type":%q,%q:%s,%q:%s}`, typ, keys[0], low, keys[1], high)
					tree, err := decode([]byte(schema))
					if err != nil {
						t.Fatal(err)
					}
					g, err := Compile([]byte(schema))
					if err == nil {
						for range 3 {
							walk(t, rng, schema, g.NewState(), 30)
						}
					}
					for _, v := range values {
						text := string(v.(json.Number))
						want := valid(tree, tree, v)
						if typ == "integer" && strings.Contains(text, ".") || text == "-0" || text == "-0.0" {
							continue // other spellings of the same
						}
						if got := err == nil && accepts(g, text); got != want {
							t.Fatalf("%s: %s accepted %v, valid %v (%v)", schema, text, got, want, err)
						}
					}
				}
			}
		}
	}
}

func TestRefused(t *testing.T) {
	many := func(n int, f func(i int) string) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = f(i)
		}
		return strings.Join(parts, ",")
	}
	for _, c := range []struct{ schema, at, about string }{
		{``, "", "not valid JSON"},
		{`{"type":"string"}x`, "", ""},
		{`{"type":"string"}{}`, "", "followed"},
		{`{"type":"string","type":"null"}`, "#", `"type"`},
		{"\"\xff\"", "", "UTF-8"},
		{`{"const":"\ud800"}`, "", "surrogate"},
		{`7`, "#", "number"},
		{`false`, "#", "false"},
		{`{"properties":{"a":{"not":{}}}}`, "#/properties/a", `"not"`},
		{`{"properties":{"a/b~":{"type":"number","multipleOf":2}}}`, "#/properties/a~1b~0", `"multipleOf"`},
		{`{"type":"object","propertyNames":{"maxLength":3}}`, "#", `"propertyNames"`},
		{`{"type":"object","propertyNames":false}`, "#", `"propertyNames"`},
		{`{"type":"object","propertyNames":{"type":["string"]}}`, "#", `"propertyNames"`},
		{`{"type":"string","format":"iri"}`, "#", `"format" is "iri", and there are date,`},
		{`{"type":"object","patternProperties":{}}`, "#", `"patternProperties"`},
		{`{"type":"object","minProperties":1}`, "#", `"minProperties"`},
		{`{"type":"array","uniqueItems":true}`, "#", `"uniqueItems"`},
		{`{"type":"array","contains":{}}`, "#", `"contains"`},
		{`{"type":"array","items":[{}]}`, "#", `"prefixItems"`},
		{`{"type":"array","minItems":3,"maxItems":2}`, "#", `"minItems"`},
		{`{"type":"array","items":false,"minItems":1}`, "#", `"minItems"`},
		{`{"type":"array","minItems":-1}`, "#", `"minItems"`},
		{`{"type":"array","minItems":1.5}`, "#", `"minItems"`},
		{`{"type":"string","minLength":3,"maxLength":2}`, "#", `"minLength"`},
		{`{"type":"string","pattern":"("}`, "#", `"pattern"`},
		{`{"type":"string","pattern":"(?=a)"}`, "#", `"pattern"`},
		{`{"type":"string","pattern":"\\ba"}`, "#", `"pattern"`},
		{`{"type":"string","pattern":"a^"}`, "#", `"pattern"`},
		{`{"type":"string","pattern":"^a{10}$","maxLength":9}`, "#", `"pattern"`},
		{`{"type":"string","pattern":"(a|b)*a(a|b){30}"}`, "#", `"pattern"`},
		{`{"type":"string","pattern":"((a{30}){30}){30}"}`, "#", `"pattern"`},
		{`{"type":"string","pattern":"a","format":"date"}`, "#", `"pattern"`},
		{`{"type":"string","pattern":"(?!a)","format":"date"}`, "#", `"pattern"`},
		{`{"type":"integer","minimum":3,"maximum":2}`, "#", "bounds"},
		{`{"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":4}`, "#", "bounds"},
		{`{"type":"integer","minimum":1e30}`, "#", "bounds"},
		{`{"type":"integer","minimum":1e999999999}`, "#", `"minimum"`},
		{`{"type":"number","exclusiveMinimum":true}`, "#", `"exclusiveMinimum"`},
		{`{"type":"number","minimum":1e20}`, "#", "bounds"},
		{`{"type":"text"}`, "#", `"type"`},
		{`{"type":[]}`, "#", `"type"`},
		{`{"type":["null","null"]}`, "#", `"type"`},
		{`{"minLength":1,"minimum":1}`, "#", `"minimum"`},
		{`{"enum":[]}`, "#", `"enum"`},
		{`{"enum":["a"],"type":"null"}`, "#", `"enum"`},
		{`{"enum":["a"],"minLength":1}`, "#", `"minLength"`},
		{`{"enum":["a"],"const":"a"}`, "#", `"const"`},
		{`{"anyOf":[]}`, "#", `"anyOf"`},
		{`{"anyOf":[{"type":"null"}],"type":"null"}`, "#", `"type"`},
		{`{"allOf":[{},{}]}`, "#", `"allOf"`},
		{`{"oneOf":[{"type":"integer"},{"type":"number"}]}`, "#", `"oneOf"`},
		{`{"oneOf":[{"type":"object"},{"type":"object","properties":{"a":{"const":1}},"required":["a"]}]}`, "#", `"oneOf"`},
		{`{"oneOf":[{"const":1},{"const":1.0}]}`, "#", `"oneOf"`},
		{`{"oneOf":[{},{"type":"null"}]}`, "#", `"oneOf"`},
		{`{"$ref":"other.json"}`, "#", `"$ref"`},
		{`{"$ref":"#/%4"}`, "#", `"$ref"`},
		{`{"$ref":"#/%zz"}`, "#", `"$ref"`},
		{`{"$ref":"#/nowhere"}`, "#", `"$ref"`},
		{`{"$ref":"#"}`, "#", "itself"},
		{`{"anyOf":[{"$ref":"#"},{"type":"null"}]}`, "#", "itself"},
		{`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`, "#", "never end"},
		{`{"type":"array","items":{"$ref":"#"},"minItems":1}`, "#", "never end"},
		{`{"type":"object","properties":{},"required":["x"],"additionalProperties":false}`, "#", `"required"`},
		{`{"type":"object","required":"x"}`, "#", `"required"`},
		{strings.Repeat(`{"items":`, 200) + `{}` + strings.Repeat(`}`, 200), "#/items", "nests deeper"},
		{`{"properties":{` + many(600, func(i int) string { return fmt.Sprintf(`"p%d":{}`, i) }) + `}}`, "#", `"properties"`},
		{`{"anyOf":[` + many(600, func(i int) string { return fmt.Sprintf(`{"const":%d}`, i) }) + `]}`, "#", `"anyOf"`},
		{`{"const":"` + strings.Repeat("é", 120_000) + `"}`, "", "too large"},
		{strings.Repeat(" ", MaxBytes) + "{}", "", "bytes"},
	} {
		_, err := Compile([]byte(c.schema))
		f, ok := err.(*fault.Error)
		if !ok || f.Code != fault.Invalid || !strings.Contains(f.Message, c.about) || c.at != "" && !strings.Contains(f.Message, "at "+c.at) {
			t.Errorf("%.200s: %v, want Invalid about %s at %s", c.schema, err, c.about, c.at)
		}
	}
}

func TestOneOfProved(t *testing.T) {
	for _, schema := range []string{
		`{"oneOf":[{"const":"a"},{"enum":["b",1]},{"const":1.5}]}`,
		`{"oneOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"$defs":{
			"a":{"type":"object","properties":{"kind":{"const":"a"}},"required":["kind"]},
			"b":{"type":"object","properties":{"kind":{"enum":["b","c"]}},"required":["kind"]}},
			"discriminator":{"propertyName":"kind"}}`,
		`{"oneOf":[{"type":["string","null"]},{"properties":{}},{"items":{}}]}`,
	} {
		compiled(t, schema)
	}
}

// randomSchema returns a schema of the supported keywords; deep bounds nesting.
func randomSchema(rng *rand.Rand, deep int) string {
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	n := 12
	if deep == 0 {
		n = 7
	}
	sub := func() string { return randomSchema(rng, deep-1) }
	switch rng.IntN(n) {
	case 0:
		return pick(`{"type":"string"}`, `{"type":"string","maxLength":3}`, `{"type":"string","minLength":1,"maxLength":6}`, `{"type":"string","minLength":2}`)
	case 1:
		return pick(`{"type":"string","pattern":"^[ab]*$"}`, `{"type":"string","pattern":"a|é"}`, `{"type":"string","pattern":"^a?b?a?$","maxLength":2}`, `{"type":"string","pattern":"^\\S"}`)
	case 2:
		return pick(`{"type":"integer"}`, `{"type":"integer","minimum":-12,"maximum":7}`, `{"type":"integer","exclusiveMinimum":99}`)
	case 3:
		return pick(`{"type":"number"}`, `{"type":"number","minimum":-3,"maximum":3}`, `{"type":["number","null"],"exclusiveMaximum":40}`)
	case 4:
		return pick(`{"type":"boolean"}`, `{"type":"null"}`, `{"type":["null","integer","string"]}`, `true`, `{}`)
	case 5:
		return pick(`{"enum":["a","ab","日",1,12,[1,{"a":null}]]}`, `{"const":{"x":[" ","\\"]}}`, `{"enum":[true,null,"true"]}`)
	case 6:
		return pick(`{"$ref":"#/$defs/list"}`, `{"$ref":"#/$defs/tree"}`)
	case 7, 8:
		keys := []string{"a", "b", "ab", "é", "q\\\""}[:1+rng.IntN(5)]
		var props, required []string
		for _, k := range keys {
			props = append(props, fmt.Sprintf(`"%s":%s`, k, sub()))
			if rng.IntN(2) == 0 {
				required = append(required, `"`+k+`"`)
			}
		}
		more := pick(``, `,"additionalProperties":false`, `,"additionalProperties":`+sub())
		return fmt.Sprintf(`{"type":"object","properties":{%s},"required":[%s]%s}`, strings.Join(props, ","), strings.Join(required, ","), more)
	case 9:
		return fmt.Sprintf(`{"type":"array","items":%s%s}`, sub(), pick(``, `,"minItems":1`, `,"maxItems":2`, `,"minItems":2,"maxItems":4`))
	case 10:
		return fmt.Sprintf(`{"type":"array","prefixItems":[%s,%s]%s}`, sub(), sub(), pick(``, `,"minItems":2`, `,"maxItems":1`, `,"items":`+sub()))
	}
	return fmt.Sprintf(`{"anyOf":[%s,%s]}`, sub(), sub())
}

const defs = `"$defs":{"list":{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/list"},{"type":"integer"}]}},` +
	`"tree":{"type":"object","properties":{"left":{"$ref":"#/$defs/tree"},"v":{"type":"boolean"}},"required":["v"]}}`

func withDefs(schema string) string { return `{"allOf":[` + schema + `],` + defs + `}` }

// TestDocuments: every prefix of a valid document is accepted, and the document is complete.
func TestDocuments(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		schema := withDefs(randomSchema(rng, 3))
		g := compiled(t, schema)
		root, err := parseSchema([]byte(schema))
		if err != nil {
			t.Fatal(err)
		}
		tree, err := decode([]byte(schema))
		if err != nil {
			t.Fatal(err)
		}
		s := g.NewState()
		for range 8 {
			w := writer{root: root, rng: rng}
			if !w.write(root) {
				continue
			}
			v, err := decode(w.b)
			if err != nil || !valid(tree, tree, v) {
				t.Fatalf("%s: the writer wrote %s (%v)", schema, w.b, err)
			}
			s.Reset()
			for i, b := range w.b {
				if !s.Next(b) {
					t.Fatalf("%s: refuses %q after %s", schema, w.b[i:], w.b[:i])
				}
			}
			if !s.IsComplete() {
				t.Fatalf("%s: %s is not complete", schema, w.b)
			}
		}
	}
}

// allowed returns the bytes that may come in s.
func allowed(s *State) (list []byte) {
	mark := len(s.frames)
	for b := range 256 {
		if len(s.advanceThreads(nil, s.threads, byte(b))) > 0 {
			list = append(list, byte(b))
		}
		s.frames = s.frames[:mark]
	}
	return list
}

// clone returns a copy of s which shares no memory with it.
func (s *State) clone() *State {
	c := s.g.NewState()
	c.threads = append(c.threads[:0], s.threads...)
	c.frames = append(c.frames[:0], s.frames...)
	return c
}

// walk writes a random text of g; after `patience` bytes it prefers bytes which end it.
func walk(t *testing.T, rng *rand.Rand, schema string, s *State, patience int) []byte {
	var text []byte
	for {
		list := allowed(s)
		if want := s.IsComplete() && len(list) == 0; s.IsEnded() != want {
			t.Fatalf("%s: %q has ended: %v, want %v", schema, text, !want, want)
		}
		if s.IsComplete() && (len(list) == 0 || len(text) > patience || rng.IntN(4) == 0) {
			return text
		}
		if len(list) == 0 {
			t.Fatalf("%s: dead end after %q", schema, text)
		}
		if len(text) > patience+4000 {
			t.Fatalf("%s: no end of %q", schema, text)
		}
		b := list[rng.IntN(len(list))]
		if len(text) > patience {
			for _, end := range []byte(`"}]n:a5b`) {
				if slices.Contains(list, end) && rng.IntN(3) > 0 {
					b = end
					break
				}
			}
		}
		if !s.Next(b) {
			t.Fatalf("%s: %q was allowed after %q", schema, b, text)
		}
		text = append(text, b)
	}
}

// TestWalk: every accepted text is a valid document, and there are no dead ends.
func TestWalk(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		schema := withDefs(randomSchema(rng, 3))
		tree, err := decode([]byte(schema))
		if err != nil {
			t.Fatal(err)
		}
		s := compiled(t, schema).NewState()
		for range 3 {
			s.Reset()
			text := walk(t, rng, schema, s, 1+rng.IntN(120))
			v, err := decode(text)
			if err != nil || !json.Valid(text) || !valid(tree, tree, v) {
				t.Fatalf("%s: accepts %s (%v)", schema, text, err)
			}
		}
	}
}

// TestDepth: at the maximum depth only closing bytes are allowed.
func TestDepth(t *testing.T) {
	g := compiled(t, `{"type":"array"}`)
	s := g.NewState()
	n := 0
	for s.Next('[') {
		n++
	}
	if n != MaxDepth || !s.Write([]byte(strings.Repeat("]", n))) || !s.IsComplete() {
		t.Errorf("%d arrays within each other, want %d, and their ends", n, MaxDepth)
	}
	// A tree whose required part needs depth keeps it available.
	g = compiled(t, `{"type":"object","properties":{"a":{"$ref":"#"},"b":{"type":"array","prefixItems":[{"type":"array"}],"minItems":1}},"required":["b"]}`)
	s = g.NewState()
	for n = 0; s.Write([]byte(`{"a":`)); n++ {
	}
	if !s.Write([]byte(`b":[[`)) || n != MaxDepth-3 {
		t.Errorf("%d levels and then %v", n, allowed(s))
	}
}

// TestDepthBehindAComma is TestDepth for a property that is not the first.
func TestDepthBehindAComma(t *testing.T) {
	s := compiled(t, `{"type":"object","properties":{"b":{"type":"array","prefixItems":[{"type":"array"}],"minItems":1},"a":{"$ref":"#"}},"required":["b"]}`).NewState()
	n := 0
	for s.Write([]byte(`{"b":[[]],"a":`)) {
		n++
	}
	// Of the next level {"b":[[]] was written: only its end is allowed.
	if list := allowed(s); n != MaxDepth-3 || string(list) != "}" {
		t.Errorf("%d levels and then %q", n, list)
	}
}

// TestFramesAreDropped: a long text takes no more memory than a short one.
func TestFramesAreDropped(t *testing.T) {
	s := compiled(t, `{"type":"array","maxItems":1000000}`).NewState()
	s.Next('[')
	for range 20_000 {
		if !s.Write([]byte(`{"a":[1]},`)) {
			t.Fatal("refused")
		}
	}
	if n := len(s.frames); n > 1000 {
		t.Errorf("%d frames are kept", n)
	}
}

// TestHostile: the number of readings is bounded, and the texts stay valid.
func TestHostile(t *testing.T) {
	// 2^30 ways to the same rule.
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/r0","$defs":{`)
	for i := range 30 {
		fmt.Fprintf(&b, `"r%d":{"anyOf":[{"$ref":"#/$defs/r%d"},{"$ref":"#/$defs/r%d"}]},`, i, i+1, i+1)
	}
	b.WriteString(`"r30":{"type":"null"}}}`)
	if g := compiled(t, b.String()); !accepts(g, "null") || accepts(g, "nul") {
		t.Error("the ladder of references")
	}
	g := compiled(t, ladder())
	s := g.NewState()
	if !s.Write([]byte(strings.Repeat("[", 30)+"null"+strings.Repeat("]", 30))) || !s.IsComplete() {
		t.Error("nested ambiguous arrays are refused")
	}
	if cap(s.threads) > 2*maxThreads {
		t.Errorf("%d readings are kept", cap(s.threads))
	}
}

// TestWorkOfAByte: a byte which matches very many readings costs no more than the kept ones.
func TestWorkOfAByte(t *testing.T) {
	item := `{"type":"array","items":{"$ref":"#"}}`
	s := compiled(t, `{"anyOf":[`+strings.Repeat(item+",", maxAlternatives-1)+item+`]}`).NewState()
	for _, b := range []byte("[[[],[[]],[") {
		s.work = 0
		if !s.Next(b) {
			t.Fatalf("%q is refused", b)
		}
		if s.work > 200*maxThreads || len(s.frames) > 10*maxThreads {
			t.Fatalf("%q took %d looks at readings and left %d frames", b, s.work, len(s.frames))
		}
	}
	if s.Write([]byte("]]]")); !s.IsComplete() {
		t.Error("the text cannot be ended")
	}
}

// ladder is a schema of arrays in arrays with 2^30 readings of each.
func ladder() string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/r0","$defs":{`)
	for i := range 30 {
		item := fmt.Sprintf(`{"type":"array","items":{"$ref":"#/$defs/r%d"}}`, i+1)
		fmt.Fprintf(&b, `"r%d":{"anyOf":[%s,%s]},`, i, item, item)
	}
	return b.String() + `"r30":{"type":"null"}}}`
}

// TestBoth compares the automaton of two patterns with regexp, over all short strings of an alphabet.
func TestBoth(t *testing.T) {
	patterns := []string{`^[ab]*$`, `a`, `^a?b?é?$`, `é$`, `^(ab)*$|^é+$`, `^.$`, `[^a]b`, `^[\x{9f}-\x{ea}b]*$`}
	words := []string{""}
	for from := 0; from < len(words) && len(words[from]) < 4; from++ {
		for _, r := range []string{"a", "b", "é"} {
			words = append(words, words[from]+r)
		}
	}
	budget := budget{cells: maxCells, work: maxWork}
	for _, p := range patterns {
		for _, q := range patterns {
			var list [2]*dfa
			for i, pattern := range []string{p, q} {
				var err error
				if list[i], err = compilePattern(pattern, &budget); err != nil {
					t.Fatal(err)
				}
			}
			d, err := intersectDFA(list[0], list[1], &budget)
			if err != nil && err != errPatternOther {
				t.Fatalf("%s and %s: %v", p, q, err)
			}
			for _, w := range words {
				want := regexp.MustCompile(p).MatchString(w) && regexp.MustCompile(q).MatchString(w)
				if got := err == nil && runs(d, w); got != want {
					t.Errorf("%s and %s: %q: %v, want %v", p, q, w, got, want)
				}
			}
		}
	}
}

// runs reports whether d accepts w.
func runs(d *dfa, w string) bool {
	q := int32(0)
	for _, r := range w {
		if q = d.nextState(uint64(q), r); q < 0 {
			return false
		}
	}
	return d.accept[q]
}
