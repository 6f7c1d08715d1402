package openai

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/internal/edge/api"
)

// samples are, by field, a value that is taken and, for refused fields, one that
// is not.
var samples = map[string][2]string{
	"messages":              {`[{"role":"user","content":"other"}]`},
	"max_completion_tokens": {`5`}, "logprobs": {`true`}, "top_logprobs": {`3`},
	"add_generation_prompt": {`false`}, "continue_final_message": {`true`},
	"prompt": {`"other"`}, "best_of": {`1`, `2`}, "suffix": {`""`, `"x"`}, "model": {`"other"`}, "stream": {`true`},
	"stream_options": {`{"include_usage":true}`}, "n": {`2`}, "max_tokens": {`5`}, "min_tokens": {`5`},
	"temperature": {`0.5`}, "top_p": {`0.5`}, "min_p": {`0.5`}, "top_k": {`5`}, "presence_penalty": {`1`},
	"frequency_penalty": {`1`}, "repetition_penalty": {`1.5`}, "seed": {`1`}, "logit_bias": {`{"5":1}`}, "stop": {`"x"`},
	"stop_token_ids": {`[5]`}, "ignore_eos": {`true`}, "include_stop_str_in_output": {`true`}, "skip_special_tokens": {`false`},
	"cache_salt": {`"x"`}, "nvext": {`{"token_data":[1]}`},
	"user": {`"x"`}, "store": {`true`}, "parallel_tool_calls": {`false`}, "include_reasoning": {`false`}, "metadata": {`{"a":"b"}`},
	"service_tier": {`"flex"`}, "safety_identifier": {`"x"`}, "prompt_cache_key": {`"x"`}, "prompt_cache_retention": {`"24h"`},
	"prompt_cache_options": {`{"mode":"implicit"}`}, "request_id": {`"x"`}, "prediction": {`{"type":"content","content":"x"}`},
	"priority": {`1`}, "length_penalty": {`1`},
	"function_call":   {`"auto"`, `{"name":"f"}`},
	"response_format": {`{"type":"json_schema","json_schema":{"name":"x","schema":{}}}`}, "guided_json": {`"{}"`},
	"structured_outputs": {`{"json_object":true}`}, "chat_template_kwargs": {`{"a":1}`},
	"modalities": {`["text"]`, `["text","audio"]`}, "verbosity": {`"medium"`, `"low"`},
	"detokenize": {`true`, `false`}, "spaces_between_special_tokens": {`true`, `false`},
	"functions": {`[]`, `[{"name":"f"}]`},
	"bad_words": {`[]`, `["x"]`}, "logits_processors": {`[]`, `["x"]`}, "documents": {`[]`, `[{}]`}, "bad_words_token_ids": {`[]`, `[[1]]`},
	"use_beam_search": {`false`, `true`}, "return_tokens_as_token_ids": {`false`, `true`}, "return_token_ids": {`false`, `true`},
	"audio": {`null`, `{"voice":"alloy","format":"wav"}`}, "web_search_options": {`null`, `{}`}, "moderation": {`null`, `{"model":"x"}`},
}

// beside are further fields without which one means nothing.
var beside = map[string]string{
	"top_logprobs": `"logprobs":true`, "stream_options": `"stream":true`,
	"tool_choice": `"tools":[{"type":"function","function":{"name":"f"}}]`,
}

// sample returns the samples of a field, also of those that differ by endpoint.
func sample(e api.Endpoint, f Field) (taken, refused string) {
	chat := e == api.Chat
	switch {
	case f.Name == "logprobs" && !chat:
		return `5`, ""
	case f.Name == "echo" && !chat:
		return `true`, ""
	case f.Name == "echo" || f.Name == "add_special_tokens" && chat:
		return `false`, `true`
	case f.Name == "add_special_tokens":
		return `true`, `false`
	case f.Name == "tools" && chat:
		return `[` + function("f") + `]`, ""
	case f.Name == "tools":
		return `[]`, `[` + function("f") + `]`
	case f.Name == "tool_choice" && chat:
		return `{"type":"function","function":{"name":"f"}}`, ""
	case f.Name == "tool_choice":
		return `"none"`, `"required"`
	case f.Name == "reasoning_effort" && chat:
		return `"low"`, ""
	case f.Name == "reasoning_effort":
		return `"none"`, `"low"`
	case f.Schema == "":
		return `null`, `{}`
	}
	return samples[f.Name][0], samples[f.Name][1]
}

func bodyWith(e api.Endpoint, field, value string) string {
	parts := []string{`"` + field + `":` + value}
	if with := beside[field]; with != "" && (field != "tool_choice" || e == api.Chat) {
		parts = append(parts, with)
	}
	if field != "model" {
		parts = append(parts, `"model":"m"`)
	}
	switch {
	case e == api.Chat && field != "messages":
		parts = append(parts, `"messages":[{"role":"user","content":"hi"}]`)
	case e == api.Completion && field != "prompt":
		parts = append(parts, `"prompt":"hi"`)
	}
	return `{` + strings.Join(parts, ",") + `}`
}

// TestFieldsAreTreatedAsTheySay: a mapped field changes the request, an accepted
// one does not, a refused one is refused by its name unless it asks for nothing.
func TestFieldsAreTreatedAsTheySay(t *testing.T) {
	for _, e := range []api.Endpoint{api.Chat, api.Completion} {
		seen := map[string]bool{}
		for _, f := range Fields(e) {
			if seen[f.Name] {
				t.Errorf("%v %s is listed twice", e, f.Name)
			}
			seen[f.Name] = true
			taken, refused := sample(e, f)
			if taken == "" || (refused != "") != (f.Treatment == Refused) {
				t.Errorf("%v %s: its samples are %q and %q", e, f.Name, taken, refused)
				continue
			}
			twin := bodyWith(e, f.Name, "null")
			if f.Required || f.Name == "prompt" {
				twin = bodyWith(e, "user", "null")
			}
			plain, err := Decode(e, []byte(twin))
			if err != nil {
				t.Errorf("%s: %v", twin, err)
				continue
			}
			got, err := Decode(e, []byte(bodyWith(e, f.Name, taken)))
			if err != nil {
				t.Errorf("%v %s: %s is refused: %v", e, f.Name, taken, err)
				continue
			}
			if changed := !cmp.Equal(got, plain); changed != (f.Treatment == Mapped) {
				t.Errorf("%v %s is %v, and %s changes the request: %v", e, f.Name, f.Treatment, taken, changed)
			}
			if refused == "" {
				continue
			}
			_, err = Decode(e, []byte(bodyWith(e, f.Name, refused)))
			if fl := Fault(err); err == nil || fl.Code != fault.Invalid || fl.Param != f.Name && !strings.HasPrefix(fl.Param, f.Name+"[") {
				t.Errorf("%v %s: %s is answered with %v", e, f.Name, refused, err)
			}
		}
	}
}

// TestOfficialClientFields: whatever the official client can send, we know.
func TestOfficialClientFields(t *testing.T) {
	var client struct {
		Package       string   `json:"package"`
		Chat          []string `json:"chat_completions"`
		Completion    []string `json:"completions"`
		StreamOptions []string `json:"stream_options"`
	}
	b, err := os.ReadFile("testdata/client_fields.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &client); err != nil {
		t.Fatal(err)
	}
	if len(client.Chat) < 30 || len(client.Completion) < 15 || len(client.StreamOptions) < 2 {
		t.Fatalf("the list of %s is not one", client.Package)
	}
	for e, names := range map[api.Endpoint][]string{api.Chat: client.Chat, api.Completion: client.Completion} {
		for _, name := range names {
			if n := len(listed(e, name)); n != 1 {
				t.Errorf("%s sends %s to %v: it is listed %d times, not once", client.Package, name, e, n)
			}
		}
	}
	for _, name := range client.StreamOptions {
		if _, err := Decode(api.Chat, []byte(bodyWith(api.Chat, "stream_options", `{"`+name+`":true}`))); err != nil {
			t.Errorf("stream_options.%s: %v", name, err)
		}
	}
}

func listed(e api.Endpoint, name string) []Field {
	return slices.DeleteFunc(Fields(e), func(f Field) bool { return f.Name != name })
}

// TestFieldsAreComplete: what the decoder's switches know is listed. It reads the
// source, so that a field cannot be added without saying how it is treated.
func TestFieldsAreComplete(t *testing.T) {
	methods := map[string][]api.Endpoint{
		"common": {api.Chat, api.Completion}, "chat": {api.Chat}, "completion": {api.Completion}, "unused": {api.Chat, api.Completion},
	}
	found := 0
	for _, file := range []string{"decode.go", "unused.go"} {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range tree.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			for _, e := range methods[f.Name.Name] {
				for _, key := range caseStrings(f) {
					found++
					if len(listed(e, key)) == 0 {
						t.Errorf("%s reads %q, which the fields of %v do not list", f.Name.Name, key, e)
					}
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d fields were found in the source", found)
	}
}

// TestOtherFieldsAreComplete: the same for the endpoints that generate nothing, by
// the function that reads their keys.
func TestOtherFieldsAreComplete(t *testing.T) {
	tables := map[string][]Field{
		"DecodeTokenize": TokenizeFields(), "DecodeDetokenize": DetokenizeFields(), "embeddings": EmbeddingsFields(),
	}
	for _, file := range []string{"tokenize.go", "embeddings.go"} {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range tree.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || tables[f.Name.Name] == nil {
				continue
			}
			var have []string
			for _, field := range tables[f.Name.Name] {
				have = append(have, field.Name)
			}
			reads := caseStrings(f)
			slices.Sort(have)
			slices.Sort(reads)
			if !cmp.Equal(have, reads) {
				t.Errorf("%s reads %v, listed are %v", f.Name.Name, reads, have)
			}
			delete(tables, f.Name.Name)
		}
	}
	if len(tables) > 0 {
		t.Errorf("not in the source: %v", tables)
	}
}

// TestSchemasAreJSON: every schema is a JSON object.
func TestSchemasAreJSON(t *testing.T) {
	for _, f := range slices.Concat(Fields(api.Chat), Fields(api.Completion), TokenizeFields(), DetokenizeFields(), EmbeddingsFields()) {
		var schema map[string]any
		if err := json.Unmarshal([]byte(f.Schema), &schema); f.Schema != "" && err != nil {
			t.Errorf("%s: %v in %s", f.Name, err, f.Schema)
		}
	}
}

func caseStrings(f *ast.FuncDecl) []string {
	var keys []string
	ast.Inspect(f, func(n ast.Node) bool {
		if c, ok := n.(*ast.CaseClause); ok {
			for _, e := range c.List {
				if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					key, _ := strconv.Unquote(lit.Value)
					keys = append(keys, key)
				}
			}
		}
		return true
	})
	return keys
}
