package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/api"
)

// description is the decoded API description with every endpoint of this package.
type description struct{ root map[string]any }

func described(t testing.TB) *description {
	t.Helper()
	ops := []Operation{
		{Path: "/v1/chat/completions", Method: "post", Answer: "application/json", Fields: Fields(api.Chat)},
		{Path: "/v1/completions", Method: "post", Answer: "application/json", Fields: Fields(api.Completion)},
		{Path: "/v1/embeddings", Method: "post", Answer: "application/json", Fields: EmbeddingsFields()},
		{Path: "/tokenize", Method: "post", Answer: "application/json", Fields: TokenizeFields()},
		{Path: "/detokenize", Method: "post", Answer: "application/json", Fields: DetokenizeFields()},
		{Path: "/v1/models", Method: "get", Answer: "application/json"},
		{Path: "/v1/models/{id}", Method: "get", Answer: "application/json", Params: []string{"id"}},
		{Path: "/other", Method: "post", Answer: "text/plain", Schema: `{"type":"string"}`},
		{Path: "/other", Method: "get", Answer: "text/plain"},
		{Path: "/stranger", Method: "post", Answer: "application/json", Fields: DetokenizeFields(), Schema: `{"type":"object"}`, Error: `{"type":"array"}`},
	}
	d := &description{}
	if err := json.Unmarshal(AppendOpenAPI(nil, "1", ops), &d.root); err != nil {
		t.Fatal(err)
	}
	return d
}

// at returns the value at a JSON pointer; nil if there is none.
func (d *description) at(pointer string) any {
	var v any = d.root
	for _, key := range strings.Split(strings.TrimPrefix(pointer, "#/"), "/") {
		object, _ := v.(map[string]any)
		v = object[strings.NewReplacer("~1", "/", "~0", "~").Replace(key)]
	}
	return v
}

func (d *description) request(path string) any {
	return d.at("#/paths/" + strings.ReplaceAll(path, "/", "~1") + "/post/requestBody/content/application~1json/schema")
}

func (d *description) component(name string) any { return d.at("#/components/schemas/" + name) }

// check returns why v does not match a JSON schema; nil if it does. It knows only the keywords which the
// description uses.
func (d *description) check(schema, v any, where string) error {
	s, ok := schema.(map[string]any)
	if !ok {
		return fmt.Errorf("%s: %v is no schema", where, schema)
	}
	for _, keyword := range slices.Sorted(mapKeys(s)) {
		if err := d.keyword(s, keyword, v, where); err != nil {
			return err
		}
	}
	return nil
}

func (d *description) keyword(s map[string]any, keyword string, v any, where string) error {
	arg := s[keyword]
	no := func(format string, args ...any) error {
		return fmt.Errorf("%s: "+format, append([]any{where}, args...)...)
	}
	text, isText := v.(string)
	number, isNumber := v.(float64)
	list, isList := v.([]any)
	object, isObject := v.(map[string]any)
	switch keyword {
	case "description", "contentMediaType", "contentEncoding", "x-penstock-treatment":
	case "$ref":
		return d.check(d.at(arg.(string)), v, where)
	case "const":
		if !reflect.DeepEqual(arg, v) {
			return no("%v is not %v", v, arg)
		}
	case "enum":
		if !slices.ContainsFunc(arg.([]any), func(one any) bool { return reflect.DeepEqual(one, v) }) {
			return no("%v is none of %v", v, arg)
		}
	case "type":
		names, several := arg.([]any)
		if !several {
			names = []any{arg}
		}
		if !slices.ContainsFunc(names, func(name any) bool { return typeOf(v) == name || name == "number" && isNumber }) {
			return no("%v is no %v", v, arg)
		}
	case "anyOf":
		var why []string
		for _, one := range arg.([]any) {
			err := d.check(one, v, where)
			if err == nil {
				return nil
			}
			why = append(why, err.Error())
		}
		return no("none of {%s}", strings.Join(why, "; "))
	case "allOf":
		for _, one := range arg.([]any) {
			if err := d.check(one, v, where); err != nil {
				return err
			}
		}
	case "not":
		if d.check(arg, v, where) == nil {
			return no("%v matches what it must not", v)
		}
	case "required":
		for _, name := range arg.([]any) {
			if _, ok := object[name.(string)]; isObject && !ok {
				return no("%v is missing", name)
			}
		}
	case "properties":
		for name, one := range arg.(map[string]any) {
			if member, ok := object[name]; ok {
				if err := d.check(one, member, where+"."+name); err != nil {
					return err
				}
			}
		}
	case "additionalProperties":
		known, _ := s["properties"].(map[string]any)
		for name, member := range object {
			if _, ok := known[name]; ok {
				continue
			}
			if arg == false {
				return no("%q is not described", name)
			}
			if err := d.check(arg, member, where+"."+name); err != nil {
				return err
			}
		}
	case "items":
		for i, one := range list {
			if err := d.check(arg, one, fmt.Sprintf("%s[%d]", where, i)); err != nil {
				return err
			}
		}
	case "minItems", "maxItems":
		if isList && outside(keyword, float64(len(list)), arg) {
			return no("%d items, %s is %v", len(list), keyword, arg)
		}
	case "minLength", "maxLength":
		if isText && outside(keyword, float64(utf8.RuneCountInString(text)), arg) {
			return no("%d characters, %s is %v", utf8.RuneCountInString(text), keyword, arg)
		}
	case "minimum", "maximum", "exclusiveMinimum":
		if isNumber && outside(keyword, number, arg) {
			return no("%v, %s is %v", number, keyword, arg)
		}
	case "pattern":
		if isText && !regexp.MustCompile(arg.(string)).MatchString(text) {
			return no("%q does not match %v", text, arg)
		}
	default:
		return no("the keyword %s is not known", keyword)
	}
	return nil
}

func outside(keyword string, n float64, bound any) bool {
	b := bound.(float64)
	switch {
	case keyword == "exclusiveMinimum":
		return n <= b
	case strings.HasPrefix(keyword, "min"):
		return n < b
	}
	return n > b
}

func typeOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	case float64:
		if v == math.Trunc(v) {
			return "integer"
		}
	}
	return "number"
}

func mapKeys(m map[string]any) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// matches returns why text does not match a schema.
func (d *description) matches(schema any, text []byte) error {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	return d.check(schema, v, "$")
}

func path(e api.Endpoint) string {
	if e == api.Chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// TestOpenAPIRefers: every reference resolves, and every component is referenced.
func TestOpenAPIRefers(t *testing.T) {
	d := described(t)
	used := map[string]bool{}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, one := range v {
				walk(one)
			}
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				used[ref] = true
				if d.at(ref) == nil {
					t.Errorf("%s leads nowhere", ref)
				}
			}
			for _, one := range v {
				walk(one)
			}
		}
	}
	walk(d.root)
	for _, kind := range []string{"schemas", "responses"} {
		for name := range d.at("#/components/" + kind).(map[string]any) {
			if !used["#/components/"+kind+"/"+name] {
				t.Errorf("nothing refers to %s %s", kind, name)
			}
		}
	}
}

// TestOpenAPIAnswers: the answers of operations, by status and media type.
func TestOpenAPIAnswers(t *testing.T) {
	d := described(t)
	for operation, want := range map[string]string{
		"/v1/chat/completions post": "200 400 401 403 404 413 429 500 503 504 default: application/json text/event-stream",
		"/v1/completions post":      "200 400 401 403 404 413 429 500 503 504 default: application/json text/event-stream",
		"/tokenize post":            "200 400 401 403 404 413 429 500 503 504 default: application/json",
		"/v1/models get":            "200 default: application/json",
		"/v1/models/{id} get":       "200 404 default: application/json",
		"/other post":               "200 default: text/plain",
		"/stranger post":            "200 400 401 403 404 413 429 500 503 504 default: application/json",
	} {
		where, method, _ := strings.Cut(operation, " ")
		responses := d.at("#/paths/" + strings.ReplaceAll(where, "/", "~1") + "/" + method + "/responses").(map[string]any)
		media := responses["200"].(map[string]any)["content"].(map[string]any)
		got := strings.Join(slices.Sorted(mapKeys(responses)), " ") + ": " + strings.Join(slices.Sorted(mapKeys(media)), " ")
		if got != want {
			t.Errorf("%s answers %s, want %s", operation, got, want)
		}
		for name, m := range media {
			if m.(map[string]any)["schema"] == nil {
				t.Errorf("%s: %s has no schema", operation, name)
			}
		}
	}
}

// TestOpenAPIErrors: an API with another error format describes it for each status.
func TestOpenAPIErrors(t *testing.T) {
	d := described(t)
	for _, status := range []string{"400", "503", "default"} {
		schema := d.at("#/paths/~1stranger/post/responses/" + status + "/content/application~1json/schema")
		if d.matches(schema, []byte(`[]`)) != nil || d.matches(schema, AppendError(nil, fault.New(fault.Invalid, "x"))) == nil {
			t.Errorf("%s: the schema is %v", status, schema)
		}
	}
}

// TestRequestSchemas: the schema of every field accepts and refuses the same samples as the decoder.
func TestRequestSchemas(t *testing.T) {
	d := described(t)
	for _, e := range []api.Endpoint{api.Chat, api.Completion} {
		for _, f := range Fields(e) {
			taken, refused := sample(e, f)
			if err := d.matches(d.request(path(e)), []byte(bodyWith(e, f.Name, taken))); err != nil {
				t.Errorf("%v %s: %s does not match: %v", e, f.Name, taken, err)
			}
			if f.Name == "best_of" {
				continue // depends on another field, which a schema cannot express
			}
			if refused != "" && d.matches(d.request(path(e)), []byte(bodyWith(e, f.Name, refused))) == nil {
				t.Errorf("%v %s: %s matches, and is refused", e, f.Name, refused)
			}
		}
		if d.matches(d.request(path(e)), []byte(bodyWith(e, "frobnicate", "1"))) == nil {
			t.Errorf("%v: any field matches", e)
		}
	}
}

// TestNestedSchemas: nested values which the decoder refuses do not match the schema.
func TestNestedSchemas(t *testing.T) {
	d := described(t)
	for _, fields := range []string{
		`"messages":[]`,
		`"messages":[{"role":"user"}]`,
		`"messages":[{"role":"user","content":null}]`,
		`"messages":[{"role":"robot","content":""}]`,
		`"messages":[{"role":"user","content":"","foo":1}]`,
		`"messages":[{"role":"user","content":[{"type":"image_url"}]}]`,
		`"messages":[{"role":"user","content":[{"type":"text"}]}]`,
		`"messages":[{"role":"user","content":[{"type":"text","text":null}]}]`,
		`"messages":[{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f"}}]}]`,
		`"messages":[{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":""}}]}]`,
		`"messages":[{"role":"assistant","content":"","audio":{}}]`,
		`"tools":[{"type":"function"}]`,
		`"tools":[{"type":"custom","custom":{"name":"f"}}]`,
		`"tools":[{"type":"function","function":{"name":"f g"}}]`,
		`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"string"}}}]`,
		`"tools":[` + functions(maxTools+1) + `]`,
		`"tool_choice":"any"`,
		`"tool_choice":{"type":"function","name":"f"}`,
		`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}}`,
		`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"none","tools":[` + function("f") + `]}}`,
		`"response_format":{"type":"json_schema"}`,
		`"response_format":{"type":"json_schema","json_schema":{"name":"a.b","schema":{}}}`,
		`"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":false}}`,
		`"structured_outputs":{}`,
		`"structured_outputs":{"json":{},"json_object":true}`,
		`"structured_outputs":{"json":{},"regex":"a"}`,
		`"guided_json":false`,
		`"stream_options":{"foo":1}`,
		`"reasoning_effort":"great"`,
	} {
		body := []byte(`{"model":"m",` + fields + `}`)
		if !strings.HasPrefix(fields, `"messages"`) {
			body = []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],` + fields + `}`)
		}
		if _, err := Decode(api.Chat, body); err == nil {
			t.Errorf("%s is taken", fields)
		}
		if d.matches(d.request(path(api.Chat)), body) == nil {
			t.Errorf("%.200s matches, and is refused", fields)
		}
	}
}

// TestAnswerSchemas: everything which this package prints matches its schemas. The streams and whole answers
// are those of TestFold and TestChunks.
func TestAnswerSchemas(t *testing.T) {
	d := described(t)
	for name, text := range map[string][]byte{
		"Embeddings":  AppendEmbeddings(nil, &EmbeddingsAnswer{Model: "m", Vectors: [][]float32{{1, -0.5}}}),
		"Tokenized":   AppendTokenized(nil, &Tokenized{Tokens: []kv.Token{1, 2}, ContextLength: 9}),
		"Detokenized": AppendDetokenized(nil, []byte("a")),
		"Models":      AppendModels(nil, []Model{{ID: "m", Root: "r", Created: 1, ContextLength: 2}}),
		"Model":       AppendModel(nil, Model{ID: "m", Root: "r", Created: 1, ContextLength: 2}),
		"Error":       AppendError(nil, api.AsFault(nil)),
	} {
		if err := d.matches(d.component(name), text); err != nil {
			t.Errorf("%s: %v in %s", name, err, text)
		}
	}
	for name, text := range map[string][]byte{
		"Embeddings": AppendEmbeddings(nil, &EmbeddingsAnswer{Model: "m", Vectors: [][]float32{{1}}, Format: Base64}),
		"Tokenized": AppendTokenized(nil, &Tokenized{Tokens: []kv.Token{1}, Text: func(dst []byte, _ kv.Token) []byte {
			return append(dst, 'a')
		}}),
	} {
		if err := d.matches(d.component(name), text); err != nil {
			t.Errorf("%s: %v in %s", name, err, text)
		}
	}
	query := &api.AnswerExt{Query: &api.QueryAnswer{Worker: kv.Worker{ID: 1}, Tokens: []kv.Token{1}}}
	w := NewWriter(&api.Request{Logprobs: -1}, &api.Head{})
	w.Append(nil, &api.Chunk{Kind: api.Usage, Ext: query})
	if err := d.matches(d.component("ChatCompletion"), w.End(nil)); err != nil {
		t.Error(err)
	}
}

// TestOpenAPISecurity: the ways to send a key are described, and so is sending none.
func TestOpenAPISecurity(t *testing.T) {
	d := described(t)
	schemes := d.at("#/components/securitySchemes").(map[string]any)
	ways := d.at("#/security").([]any)
	none := false
	for _, way := range ways {
		none = none || len(way.(map[string]any)) == 0
		for name := range way.(map[string]any) {
			if schemes[name] == nil {
				t.Errorf("there is no scheme %s", name)
			}
		}
	}
	if !none || len(ways) != 1+len(schemes) {
		t.Errorf("the ways are %v, the schemes %v", ways, schemes)
	}
}
