package responses

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestAnswerSchemas: the golden answers match the schemas, and answers with a changed member do not.
func TestAnswerSchemas(t *testing.T) {
	var answer, event map[string]any
	for text, schema := range map[string]*map[string]any{Schema(): &answer, EventSchema(): &event} {
		if err := json.Unmarshal([]byte(text), schema); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
	}
	files, err := filepath.Glob("testdata/answers/*")
	if err != nil || len(files) == 0 {
		t.Fatal("no answers", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts, schema := []string{string(b)}, answer
		if strings.HasSuffix(file, ".sse") {
			texts, schema = strings.Split(strings.TrimSuffix(string(b), "\n\n"), "\n\n"), event
		}
		for _, text := range texts {
			var v map[string]any
			if _, data, ok := strings.Cut(text, "\ndata: "); ok {
				text = data
			}
			if err := json.Unmarshal([]byte(text), &v); err != nil {
				t.Fatal(file, err)
			}
			if err := matches(schema, v, ""); err != nil {
				t.Errorf("%s: %v: %s", file, err, text)
			}
			for name, value := range v {
				delete(v, name)
				if err := matches(schema, v, ""); err == nil && name != "nvext" {
					t.Errorf("%s: %s may be missing of %s", file, name, text)
				}
				v[name] = value
			}
			v["more"] = true
			if err := matches(schema, v, ""); err == nil {
				t.Errorf("%s: there may be more", file)
			}
		}
	}
}

// matches checks a value against a schema with the few keywords which this package uses; another keyword is an
// error.
func matches(schema, v any, at string) error {
	for keyword, want := range schema.(map[string]any) {
		var ok bool
		switch keyword {
		case "anyOf":
			for _, s := range want.([]any) {
				ok = ok || matches(s, v, at) == nil
			}
		case "const":
			ok = reflect.DeepEqual(v, want)
		case "enum":
			for _, w := range want.([]any) {
				ok = ok || reflect.DeepEqual(v, w)
			}
		case "type":
			names, several := want.([]any)
			if !several {
				names = []any{want}
			}
			for _, name := range names {
				ok = ok || isOf(name.(string), v)
			}
		case "required":
			ok = true
			object, _ := v.(map[string]any)
			for _, name := range want.([]any) {
				_, given := object[name.(string)]
				ok = ok && given
			}
		case "properties":
			ok = true
			object, _ := v.(map[string]any)
			for name, s := range want.(map[string]any) {
				if member, given := object[name]; given {
					if err := matches(s, member, at+"."+name); err != nil {
						return err
					}
				}
			}
		case "additionalProperties":
			ok = true
			known, _ := schema.(map[string]any)["properties"].(map[string]any)
			object, _ := v.(map[string]any)
			for name, member := range object {
				if _, listed := known[name]; listed {
					continue
				}
				ok = ok && want != false
				if s, is := want.(map[string]any); is {
					ok = ok && matches(s, member, at) == nil
				}
			}
		case "items":
			ok = true
			list, _ := v.([]any)
			for i, e := range list {
				if err := matches(want, e, fmt.Sprintf("%s[%d]", at, i)); err != nil {
					return err
				}
			}
		case "maxItems":
			list, is := v.([]any)
			ok = !is || len(list) <= int(want.(float64))
		case "minItems":
			list, is := v.([]any)
			ok = !is || len(list) >= int(want.(float64))
		case "minimum":
			n, is := v.(float64)
			ok = !is || n >= want.(float64)
		case "maximum":
			n, is := v.(float64)
			ok = !is || n <= want.(float64)
		case "pattern": // of names; the decoder of requests checks them
			ok = true
		case "$ref":
			ok = want == "#/components/schemas/AnswerExt" && isOf("object", v)
		}
		if !ok {
			return fmt.Errorf("%s is %v, which is not %s %v", at, v, keyword, want)
		}
	}
	return nil
}

func isOf(kind string, v any) bool {
	switch v := v.(type) {
	case nil:
		return kind == "null"
	case bool:
		return kind == "boolean"
	case string:
		return kind == "string"
	case float64:
		return kind == "number" || kind == "integer" && v == float64(int64(v))
	case []any:
		return kind == "array"
	}
	return kind == "object"
}
