package grammar

import (
	"encoding/json"
	"testing"

	"penstock/internal/fixturetest"
)

// FuzzCompile compiles any bytes and follows any text in what results.
func FuzzCompile(f *testing.F) {
	fixturetest.AddCorpus(f)
	for _, schema := range []string{
		`{"type":"object","properties":{"a":{"type":"string","pattern":"^a+$","maxLength":9},"b":{"$ref":"#"}},"required":["a"]}`,
		`{"type":"array","prefixItems":[{"enum":[1,"é"]}],"items":{"type":"number","minimum":-1.5},"maxItems":7}`,
		`{"oneOf":[{"type":"null"},{"type":["integer","string"],"format":"date"}],"$defs":{"x":true}}`,
		`{"anyOf":[{"const":{"k":[]}},{"allOf":[{"$ref":"#/$defs/x"}]}],"$defs":{"x":{"type":"object","additionalProperties":{}}}}`,
	} {
		f.Add([]byte(schema), []byte(`{"a":"aa","b":{"a":"a"}}`))
	}
	f.Fuzz(func(t *testing.T, schema, text []byte) {
		g, err := Compile(schema)
		if err != nil {
			return
		}
		follow(t, g, text)
	})
}

// FuzzText follows any text in schemas which use everything, and checks that complete texts are valid.
func FuzzText(f *testing.F) {
	fixturetest.AddCorpus(f)
	schemas := []string{
		withDefs(`true`),
		withDefs(`{"type":"string","pattern":"^(é|[a-c]|\\n)*$","minLength":1}`),
		withDefs(`{"type":"string","minLength":2,"maxLength":4}`),
		withDefs(`{"type":"number","minimum":-3.25,"exclusiveMaximum":71.5}`),
		withDefs(`{"type":"array","items":{"$ref":"#/$defs/tree"},"minItems":1,"maxItems":3}`),
		withDefs(`{"type":"object","properties":{"a":{"enum":[1,"x"]},"aé":{"type":"integer","minimum":4}},"required":["a"],"additionalProperties":{"$ref":"#/$defs/list"}}`),
	}
	var grammars []*Grammar
	var trees []any
	for _, schema := range schemas {
		tree, err := decode([]byte(schema))
		if err != nil {
			f.Fatal(err)
		}
		grammars, trees = append(grammars, compiled(f, schema)), append(trees, tree)
	}
	for i, text := range []string{`[{"a":[1e5]}]`, `"a\u00e9\n"`, `"\ud83d\ude00b"`, `-3.2`, `[{"left":{"v":true},"v":false}]`, `{"a":"x","a\u00e9":41,"b":[[],2]}`} {
		f.Add(byte(i), []byte(text))
	}
	f.Fuzz(func(t *testing.T, which byte, text []byte) {
		i := int(which) % len(schemas)
		taken, whole := follow(t, grammars[i], text)
		if !whole {
			return
		}
		v, err := decode(taken)
		if err != nil || !valid(trees[i], trees[i], v) {
			t.Fatalf("%s: accepts %q (%v)", schemas[i], taken, err)
		}
	})
}

// follow feeds the allowed bytes of text, skips the others, and checks that there is always a continuation.
// It returns the accepted bytes and whether they are complete.
func follow(t *testing.T, g *Grammar, text []byte) (taken []byte, whole bool) {
	s := g.NewState()
	for _, b := range text {
		if s.Next(b) {
			taken = append(taken, b)
		}
	}
	whole = s.IsComplete()
	if !whole && len(allowed(s)) == 0 {
		t.Fatalf("dead end after %q", taken)
	}
	if whole && !json.Valid(taken) {
		t.Fatalf("%q is complete and not JSON", taken)
	}
	return taken, whole
}
