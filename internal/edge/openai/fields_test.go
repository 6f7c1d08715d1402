package openai

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/internal/edge/api"
)

// samples maps a field to an accepted value and, for refused fields, a refused one.
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
	"structured_outputs": {`{"json_object":true}`}, "mm_processor_kwargs": {`{"max_pixels":1}`}, "chat_template_kwargs": {`{"a":1}`},
	"modalities": {`["text"]`, `["text","audio"]`}, "verbosity": {`"low"`}, "rid": {`"x"`}, "session_id": {`"x"`},
	"guided_decoding_backend": {`"auto"`}, "stream_interval": {`4`}, "separate_reasoning": {`true`, `false`}, "stream_reasoning": {`true`, `false`},
	"return_hidden_states": {`false`, `true`}, "no_stop_trim": {`false`, `true`}, "chat_template": {`""`, `"x"`}, "kv_transfer_params": {`{}`, `{"a":1}`},
	"detokenize": {`true`, `false`}, "spaces_between_special_tokens": {`true`, `false`},
	"functions": {`[]`, `[{"name":"f"}]`},
	"bad_words": {`[]`, `["x"]`}, "logits_processors": {`[]`, `["x"]`}, "documents": {`[]`, `[{}]`}, "bad_words_token_ids": {`[]`, `[[1]]`},
	"use_beam_search": {`false`, `true`}, "return_tokens_as_token_ids": {`false`, `true`}, "return_token_ids": {`false`, `true`},
	"audio": {`null`, `{"voice":"alloy","format":"wav"}`}, "web_search_options": {`null`, `{}`}, "moderation": {`null`, `{"model":"x"}`},
}

// beside maps a field to further fields which it requires.
var beside = map[string]string{
	"top_logprobs": `"logprobs":true`, "stream_options": `"stream":true`,
	"tool_choice": `"tools":[{"type":"function","function":{"name":"f"}}]`,
}

// sample returns the samples of a field, including samples which differ between endpoints.
func sample(e api.Endpoint, f api.Field) (taken, refused string) {
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
	case f.Schema == api.EmptyObject.Schema:
		return `{}`, `{"a":1}`
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

// TestFieldsAreTreatedAsTheySay: a mapped field changes the request, an accepted one does not, and a refused
// one is refused by name unless its value has no effect.
func TestFieldsAreTreatedAsTheySay(t *testing.T) {
	for _, e := range []api.Endpoint{api.Chat, api.Completion} {
		seen := map[string]bool{}
		for _, f := range Fields(e) {
			if seen[f.Name] {
				t.Errorf("%v %s is listed twice", e, f.Name)
			}
			seen[f.Name] = true
			taken, refused := sample(e, f)
			if taken == "" || (refused != "") != (f.Treatment == api.Refused) {
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
			if changed := !cmp.Equal(got, plain); changed != (f.Treatment == api.Mapped) {
				t.Errorf("%v %s is %v, and %s changes the request: %v", e, f.Name, f.Treatment, taken, changed)
			}
			if refused == "" {
				continue
			}
			_, err = Decode(e, []byte(bodyWith(e, f.Name, refused)))
			if fl := api.AsFault(err); err == nil || fl.Code != fault.Invalid || fl.Param != f.Name && !strings.HasPrefix(fl.Param, f.Name+"[") {
				t.Errorf("%v %s: %s is answered with %v", e, f.Name, refused, err)
			}
		}
	}
}

// clientFields are the fields which the official client can send.
type clientFields struct {
	Package    string              `json:"package"`
	Chat       []string            `json:"chat_completions"`
	Completion []string            `json:"completions"`
	Embeddings []string            `json:"embeddings"`
	Nested     map[string][]string `json:"nested"` // members of objects inside chat's fields, by path
}

func readClientFields(t *testing.T) *clientFields {
	t.Helper()
	b, err := os.ReadFile("testdata/client_fields.json")
	if err != nil {
		t.Fatal(err)
	}
	var c clientFields
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Chat) < 30 || len(c.Completion) < 15 || len(c.Embeddings) < 5 || len(c.Nested) < 50 {
		t.Fatalf("the list of %s is not one", c.Package)
	}
	return &c
}

// TestOfficialClientFields: every field which the official client can send is known.
func TestOfficialClientFields(t *testing.T) {
	client := readClientFields(t)
	for e, names := range map[api.Endpoint][]string{api.Chat: client.Chat, api.Completion: client.Completion} {
		for _, name := range names {
			if n := len(listed(e, name)); n != 1 {
				t.Errorf("%s sends %s to %v: it is listed %d times, not once", client.Package, name, e, n)
			}
		}
	}
	for _, name := range client.Embeddings {
		if !slices.ContainsFunc(EmbeddingsFields(), func(f api.Field) bool { return f.Name == name }) {
			t.Errorf("%s sends %s for embeddings: it is not listed", client.Package, name)
		}
	}
}

// nestedSamples are bodies which together contain every member of every object that the official client can
// send inside chat's fields, each with the field which a refusal names; "" if the body is accepted.
var nestedSamples = []struct{ fields, refused string }{
	{
		`"messages":[
			{"role":"developer","name":"n","content":[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}}]},
			{"role":"system","name":"n","content":[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}}]},
			{"role":"user","name":"n","content":[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit","ttl":"12h"}}]},
			{"role":"assistant","name":"n","refusal":"no","content":[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}},{"type":"refusal","refusal":"r"}],
				"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
			{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}}]},
			{"role":"function","name":"f","content":"1"}],
		"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}}],
		"tool_choice":{"type":"function","function":{"name":"f"}},
		"response_format":{"type":"json_schema","json_schema":{"name":"n","description":"d","schema":{},"strict":true}},
		"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":true},
		"prompt_cache_options":{"mode":"implicit","ttl":"30m"},
		"prediction":{"type":"content","content":[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}}]}`, "",
	},
	{
		`"tools":[{"type":"function","function":{"name":"f"}}],"response_format":{"type":"json_object"},
		"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"f"}}]}}`, "",
	},
	{`"response_format":{"type":"text"}`, ""},
	{`"messages":[{"role":"assistant","content":"","audio":{"id":"a"}}]`, "messages[0].audio"},
	{`"messages":[{"role":"assistant","content":"","function_call":{"name":"f","arguments":""}}]`, "messages[0].function_call"},
	{`"messages":[{"role":"assistant","tool_calls":[{"id":"c","type":"custom","custom":{"name":"f","input":""}}]}]`, "messages[0].tool_calls[0]"},
	{`"messages":[{"role":"user","content":[{"type":"file","file":{"file_data":"x","file_id":"x","filename":"x"},"prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}}]}]`, "messages[0].content[0]"},
	{`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x","detail":"low"},"prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}}]}]`, ""},
	{`"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"x","format":"wav"},"prompt_cache_breakpoint":{"mode":"explicit","ttl":"30m"}}]}]`, ""},
	{`"tools":[{"type":"custom","custom":{"name":"f","description":"d","format":{"type":"grammar","grammar":{"syntax":"lark","definition":"x"}}}},
		{"type":"custom","custom":{"name":"g","format":{"type":"text"}}}]`, "tools[0]"},
	{`"tool_choice":{"type":"custom","custom":{"name":"f"}}`, "tool_choice"},
	{`"functions":[{"name":"f","description":"d","parameters":{}}]`, "functions"},
	{`"function_call":{"name":"f"}`, "function_call"},
	{`"audio":{"format":"wav","voice":{"id":"x"}}`, "audio"},
	{`"moderation":{"model":"m","policy":{"input":{"mode":"block"},"output":{"mode":"block"}}}`, "moderation"},
	{`"web_search_options":{"search_context_size":"low","user_location":{"type":"approximate","approximate":{"city":"c","country":"c","region":"r","timezone":"t"}}}`, "web_search_options"},
}

// TestOfficialClientObjects is TestOfficialClientFields for the objects inside fields.
func TestOfficialClientObjects(t *testing.T) {
	client := readClientFields(t)
	var bodies []any
	for _, s := range nestedSamples {
		body := `{"model":"m",` + s.fields + `}`
		if !strings.Contains(s.fields, `"messages"`) {
			body = `{"model":"m","messages":[{"role":"user","content":"hi"}],` + s.fields + `}`
		}
		var v any
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, v)
		_, err := Decode(api.Chat, []byte(body))
		switch {
		case s.refused == "" && err != nil:
			t.Errorf("%s: %v", s.fields, err)
		case s.refused != "" && (err == nil || api.AsFault(err).Param != s.refused || !strings.Contains(err.Error(), "not supported")):
			t.Errorf("%s: %v, want the refusal of %s", s.fields, err, s.refused)
		}
	}
	for path, names := range client.Nested {
		var objects []map[string]any
		for _, body := range bodies {
			objects = append(objects, within(body, path)...)
		}
		for _, name := range names {
			if !slices.ContainsFunc(objects, func(o map[string]any) bool { return o[name] != nil }) {
				t.Errorf("%s sends %s.%s: no sample has it", client.Package, path, name)
			}
		}
	}
}

// within returns the objects at a path of clientFields: names separated by dots, [] for the elements of an
// array, and in braces the role or the type.
func within(v any, path string) []map[string]any {
	head, rest, deeper := strings.Cut(path, ".")
	head, kind, _ := strings.Cut(strings.TrimSuffix(head, "}"), "{")
	head, several := strings.CutSuffix(head, "[]")
	object, _ := v.(map[string]any)
	members := []any{object[head]}
	if several {
		members, _ = object[head].([]any)
	}
	var out []map[string]any
	for _, m := range members {
		o, ok := m.(map[string]any)
		switch {
		case !ok || kind != "" && o["role"] != kind && o["type"] != kind:
		case deeper:
			out = append(out, within(o, rest)...)
		default:
			out = append(out, o)
		}
	}
	return out
}

func listed(e api.Endpoint, name string) []api.Field {
	return slices.DeleteFunc(Fields(e), func(f api.Field) bool { return f.Name != name })
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
