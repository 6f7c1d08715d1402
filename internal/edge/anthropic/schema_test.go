package anthropic

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSchemas checks that the golden answers match the schemas, and that answers with a member changed, at
// any depth, do not.
func TestSchemas(t *testing.T) {
	files, err := filepath.Glob("testdata/answers/*")
	if err != nil || len(files) == 0 {
		t.Fatal("no answers", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		schema := MessageSchema()
		texts := strings.Split(strings.TrimSpace(string(b)), "\n")
		switch {
		case strings.HasSuffix(file, ".sse"):
			schema = EventSchema()
			texts = slices.DeleteFunc(texts, func(line string) bool { return !strings.HasPrefix(line, "data: ") })
		case strings.HasSuffix(file, "errors.jsonl"):
			schema = ErrorSchema
		case strings.HasSuffix(file, "count.json"):
			schema = CountSchema()
		}
		var want any
		if err := json.Unmarshal([]byte(schema), &want); err != nil {
			t.Fatalf("%v in %s", err, schema)
		}
		for _, text := range texts {
			text = strings.TrimPrefix(text, "data: ")
			var v map[string]any
			if err := json.Unmarshal([]byte(text), &v); err != nil {
				t.Fatal(file, err)
			}
			if line, ok := v["body"].(string); ok { // of an error
				v = nil
				if err := json.Unmarshal([]byte(line), &v); err != nil {
					t.Fatal(file, err)
				}
			}
			if !matches(t, want, v) {
				t.Errorf("%s: %s does not match", file, text)
			}
			spoil(v, func(what string) {
				if matches(t, want, v) {
					t.Errorf("%s: %s still matches with %s", file, text, what)
				}
			})
		}
	}
}

// spoil calls check with every object of v changed in turn: with one member removed, and with one added. It
// leaves open objects unchanged.
func spoil(v any, check func(what string)) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			spoil(e, check)
		}
	case map[string]any:
		for name, value := range v {
			switch name {
			case "nvext", "partial_json", "input", "cache_read_input_tokens":
				continue
			}
			delete(v, name)
			check("no " + name)
			v[name] = value
			spoil(value, check)
		}
		v["more"] = true
		check("more")
		delete(v, "more")
	}
}

// matches checks a value against a schema with the few keywords which this package uses; another keyword is
// an error.
func matches(t *testing.T, schema, v any) bool {
	t.Helper()
	s := schema.(map[string]any)
	object, _ := v.(map[string]any)
	properties, _ := s["properties"].(map[string]any)
	for keyword, want := range s {
		ok := true
		switch keyword {
		case "anyOf":
			ok = slices.ContainsFunc(want.([]any), func(s any) bool { return matches(t, s, v) })
		case "const":
			ok = same(want, v)
		case "enum":
			ok = slices.ContainsFunc(want.([]any), func(w any) bool { return same(w, v) })
		case "type":
			kinds, several := want.([]any)
			if !several {
				kinds = []any{want}
			}
			ok = slices.ContainsFunc(kinds, func(kind any) bool { return isOf(kind.(string), v) })
		case "required":
			for _, name := range want.([]any) {
				_, given := object[name.(string)]
				ok = ok && given
			}
		case "properties":
			for name, member := range properties {
				if value, given := object[name]; given {
					ok = ok && matches(t, member, value)
				}
			}
		case "additionalProperties":
			for name := range object {
				_, known := properties[name]
				ok = ok && known
			}
		case "items":
			list, _ := v.([]any)
			ok = !slices.ContainsFunc(list, func(e any) bool { return !matches(t, want, e) })
		case "maxItems":
			list, _ := v.([]any)
			ok = len(list) <= int(want.(float64))
		case "minimum":
			n, number := v.(float64)
			ok = !number || n >= want.(float64)
		case "$ref":
			ok = want == "#/components/schemas/AnswerExt" && isOf("object", v)
		default:
			t.Fatalf("the keyword %s", keyword)
		}
		if !ok {
			return false
		}
	}
	return true
}

func same(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

func isOf(kind string, v any) bool {
	switch v := v.(type) {
	case nil:
		return kind == "null"
	case string:
		return kind == "string"
	case float64:
		return kind == "number" || kind == "integer" && v == float64(int64(v))
	case []any:
		return kind == "array"
	case map[string]any:
		return kind == "object"
	}
	return kind == "boolean"
}
