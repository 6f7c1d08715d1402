package jinja

import (
	"encoding/json"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"penstock/internal/fixturetest"
)

// jsonTexts are values, and texts that nearly are.
func jsonTexts() []string {
	return []string{
		`{"a":[1,-2.5e3,true,false,null,"x"],"b":{}}`, ` [ ] `, `[1,]`, `[,1]`, `{"a":1,}`, `{"a"}`, `{1:2}`, `{"a":1 "b":2}`, `[1 2]`, `01`, `-`, `-0`, `-01`, `1.`, `.5`, `1e`, `1e+`, `1E-5`, `1e400`, `+1`,
		`123456789012345678901234567890`, `"`, `"a`, `"\`, `"\"`, `"\u00e9\n\/"`, `"\ud83d\ude00"`, `"\ud800"`, `"\x"`, `"\u12"`, "\"\x01\"", "\"\xff\"", `nul`, `nulll`, `truefalse`, ``, ` `, `NaN`, `Infinity`, `{"a":1}{"b":2}`, `[1]]`, "\ufeff1", `{"a":1,"a":2}`, `'a'`, `[1]//x`,
	}
}

// plain turns a value into what encoding/json makes with UseNumber.
func plain(v any) any {
	switch v := v.(type) {
	case int64, *big.Int, float64:
		return reflect.TypeOf(v)
	case *listValue:
		out := make([]any, len(v.items))
		for i, item := range v.items {
			out[i] = plain(item)
		}
		return out
	case *Dict:
		out := map[string]any{}
		for i, k := range v.keys {
			out[k.(string)] = plain(v.vals[i])
		}
		return out
	}
	return v
}

// kinds replaces the numbers of v by the types that they are here.
func kinds(v any) any {
	switch v := v.(type) {
	case json.Number:
		n, _ := parseNumber(string(v))
		return reflect.TypeOf(n)
	case []any:
		for i := range v {
			v[i] = kinds(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = kinds(v[k])
		}
	}
	return v
}

// sameAsStandard compares FromJSON with the standard library.
func sameAsStandard(t *testing.T, data []byte) {
	t.Helper()
	got, err := FromJSON(data)
	if err != nil && (strings.Contains(err.Error(), "nested") || strings.Contains(err.Error(), "too large")) {
		return // limits of ours
	}
	if valid := json.Valid(data); (err == nil) != valid {
		t.Fatalf("%q: %v, valid: %v", data, err, valid)
	}
	if err != nil {
		return
	}
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	var want any
	if err := d.Decode(&want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(plain(got), kinds(want)) {
		t.Fatalf("%q: %v, want %v", data, plain(got), want)
	}
}

func TestFromJSON(t *testing.T) {
	for _, text := range jsonTexts() {
		sameAsStandard(t, []byte(text))
	}
	v, err := FromJSON([]byte(`[9223372036854775807, 9223372036854775808, -1.5e3, 1e400, -0]`))
	if err != nil {
		t.Fatal(err)
	}
	d := NewDict()
	d.Set("v", v)
	if got, err := render("{{ v }}", d); err != nil || got != "[9223372036854775807, 9223372036854775808, -1500.0, inf, 0]" {
		t.Errorf("%s, %v", got, err)
	}
}

// FuzzFromJSON: what is JSON is read as the standard library reads it, and
// nothing else is.
func FuzzFromJSON(f *testing.F) {
	fixturetest.AddCorpus(f)
	for _, text := range jsonTexts() {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) { sameAsStandard(t, data) })
}

func BenchmarkFromJSON(b *testing.B) {
	const tool = `{"type":"function","function":{"name":"get_weather","description":"Get the current weather of a city.","parameters":{"type":"object","properties":{"city":{"type":"string","enum":["x","y"]},"days":{"type":"integer","default":3}},"required":["city"]}}}`
	data := []byte("[" + strings.Repeat(tool+",", 49) + tool + "]")
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := FromJSON(data); err != nil {
			b.Fatal(err)
		}
	}
}
