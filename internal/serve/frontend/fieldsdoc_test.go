package frontend

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock/internal/edge/api"
)

var writeFields = flag.Bool("write-fields", false, "write docs/fields.md from the tables of fields")

// TestFieldsDocument checks that docs/fields.md is what the tables of fields say.
func TestFieldsDocument(t *testing.T) {
	const path = "../../../docs/fields.md"
	var want string
	inWorld(t, Config{}, func(t *testing.T, w *world) { want = fieldsDocument(t, w.f.endpointTable()) })
	if *writeFields {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Error("docs/fields.md is not what the tables say: go test ./internal/serve/frontend -run FieldsDocument -write-fields writes it")
	}
	for i, line := range strings.Split(want, "\n") {
		if n := utf8.RuneCountInString(line); n > 120 {
			t.Errorf("docs/fields.md:%d has %d characters, at most 120 are allowed", i+1, n)
		}
	}
}

// fieldsDocument returns the content of docs/fields.md: a section for each endpoint with a body, and a line
// for each field.
func fieldsDocument(t *testing.T, table []apiEndpoint) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(`# Request fields

Every field of every endpoint with a JSON body. Any other field is answered with 400 and its name. The treatments:

* **mapped**: the field has the effect which its API defines.
* **accepted**: the field is read and validated, and has no effect, since ignoring it cannot change the answer.
* **refused**: the field is answered with 400 and its name, except for the values below, which ask for what happens
  anyway.

null counts as not given for every field.
` + "`GET /openapi.json` has the complete schema of each field. [http.md](http.md) explains the fields. A test generates this" + `
page from the tables of the decoders.
`)
	for _, e := range table {
		if e.Fields == nil {
			continue
		}
		fmt.Fprintf(&b, "\n## %s %s\n\n| field | treatment | values |\n|---|---|---|\n", strings.ToUpper(e.Method), e.Path)
		for _, f := range e.Fields {
			treatment := f.Treatment.String()
			if f.Required {
				treatment += ", required"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Name, treatment, describeValues(t, f))
		}
	}
	return b.String()
}

// describeValues returns the values which a field accepts, in a few words.
func describeValues(t *testing.T, f api.Field) string {
	t.Helper()
	if f.Schema == "" {
		return "none"
	}
	var s map[string]any
	if err := json.Unmarshal([]byte(f.Schema), &s); err != nil {
		t.Fatalf("%s: %v in %s", f.Name, err, f.Schema)
	}
	return strings.ReplaceAll(describeSchema(s), "|", `\|`)
}

// describeSchema returns the values which match a schema: their type and bounds, without the members of
// objects.
func describeSchema(s map[string]any) string {
	if v, ok := s["const"]; ok {
		return quoteJSON(v)
	}
	if values, ok := s["enum"].([]any); ok {
		quoted := make([]string, len(values))
		for i, v := range values {
			quoted[i] = quoteJSON(v)
		}
		return strings.Join(quoted, ", ")
	}
	if text, ok := s["description"].(string); ok {
		return text
	}
	kind, _ := s["type"].(string)
	if of, ok := s["anyOf"].([]any); ok && kind == "" {
		var kinds []string
		for _, one := range of {
			if kind := describeSchema(one.(map[string]any)); len(kinds) == 0 || kinds[len(kinds)-1] != kind {
				kinds = append(kinds, kind)
			}
		}
		return strings.Join(kinds, " or ")
	}
	switch {
	case kind == "" && s["$ref"] != nil:
		return "object"
	case kind == "":
		return "any"
	case kind == "array" && s["maxItems"] == 0.0:
		return "`[]`"
	}
	low, high := s["minimum"], s["maximum"]
	switch {
	case s["exclusiveMinimum"] != nil:
		return fmt.Sprintf("%s above %v, up to %v", kind, s["exclusiveMinimum"], high)
	case low != nil && high != nil:
		return fmt.Sprintf("%s, %v to %v", kind, low, high)
	case low != nil:
		return fmt.Sprintf("%s, at least %v", kind, low)
	}
	return kind
}

func quoteJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return "`" + string(b) + "`"
}
