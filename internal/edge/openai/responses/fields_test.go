package responses

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
	"model": {`"other"`}, "input": {`"other"`}, "instructions": {`"be brief"`},
	"tools":       {`[{"type":"function","name":"g","parameters":null,"strict":true}]`},
	"tool_choice": {`"none"`}, "parallel_tool_calls": {`false`}, "text": {`{"format":{"type":"json_object"},"verbosity":"medium"}`},
	"reasoning": {`{"effort":"low","summary":"auto"}`}, "chat_template_kwargs": {`{"a":1}`}, "max_output_tokens": {`9`},
	"stream": {`true`}, "temperature": {`0.5`}, "top_p": {`0.5`}, "top_logprobs": {`2`}, "include": {`["message.output_text.logprobs"]`},
	"include_reasoning": {`false`}, "metadata": {`{"a":"b"}`}, "max_tool_calls": {`3`}, "user": {`"u"`}, "safety_identifier": {`"s"`},
	"prompt_cache_key": {`"k"`},
	"store":            {`true`}, "service_tier": {`"flex"`}, "prompt_cache_retention": {`"24h"`},
	"prompt_cache_options": {`{"mode":"implicit","ttl":"30m","prewarm":false}`}, "image": {`{"context_compression":"auto"}`},
	"stream_options": {`{"include_obfuscation":false}`},
	"background":     {`false`, `true`}, "truncation": {`"disabled"`, `"auto"`}, "context_management": {`[]`, `[{"type":"compaction"}]`},
	"previous_response_id": {`null`, `"resp_1"`}, "conversation": {`null`, `"conv_1"`}, "prompt": {`null`, `{"id":"p"}`},
	"moderation": {`null`, `{"model":"m"}`}, "access_programs": {`null`, `{"cyber":"standard"}`},
	"min_tokens": {`5`}, "min_p": {`0.5`}, "top_k": {`5`}, "presence_penalty": {`1`}, "frequency_penalty": {`1`},
	"repetition_penalty": {`1.5`}, "seed": {`1`}, "logit_bias": {`{"5":1}`}, "stop": {`"x"`}, "stop_token_ids": {`[5]`},
	"ignore_eos": {`true`}, "include_stop_str_in_output": {`true`}, "skip_special_tokens": {`false`}, "cache_salt": {`"x"`},
	"nvext": {`{"token_data":[1]}`}, "priority": {`1`}, "request_id": {`"x"`},
}

func bodyWith(field, value string) string {
	parts := []string{`"` + field + `":` + value}
	if field != "model" {
		parts = append(parts, `"model":"m"`)
	}
	if field != "input" {
		parts = append(parts, `"input":"hi"`)
	}
	if field == "stream_options" {
		parts = append(parts, `"stream":true`)
	}
	return `{` + strings.Join(parts, ",") + `}`
}

var whole = cmp.AllowUnexported(Request{}, echo{}, tool{}, choice{}, format{})

// TestFieldsAreTreatedAsTheySay: a mapped field changes the request, an accepted one does not, and a refused one is
// refused by name unless its value has no effect.
func TestFieldsAreTreatedAsTheySay(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range Fields() {
		if seen[f.Name] {
			t.Errorf("%s is listed twice", f.Name)
		}
		seen[f.Name] = true
		taken, refused := samples[f.Name][0], samples[f.Name][1]
		if taken == "" || (refused != "") != (f.Treatment == api.Refused) {
			t.Errorf("%s: its samples are %q and %q", f.Name, taken, refused)
			continue
		}
		twin := bodyWith(f.Name, "null")
		if f.Required {
			twin = bodyWith("user", "null")
		}
		plain, err := Decode([]byte(twin))
		if err != nil {
			t.Errorf("%s: %v", twin, err)
			continue
		}
		if f.Name == "stream_options" {
			plain.Stream = true
		}
		got, err := Decode([]byte(bodyWith(f.Name, taken)))
		if err != nil {
			t.Errorf("%s: %s is refused: %v", f.Name, taken, err)
			continue
		}
		if changed := !cmp.Equal(got, plain, whole); changed != (f.Treatment == api.Mapped) {
			t.Errorf("%s is %v, and %s changes the request: %v", f.Name, f.Treatment, taken, changed)
		}
		if refused == "" {
			continue
		}
		_, err = Decode([]byte(bodyWith(f.Name, refused)))
		if fl := api.AsFault(err); err == nil || fl.Code != fault.Invalid || fl.Param != f.Name {
			t.Errorf("%s: %s is answered with %v", f.Name, refused, err)
		}
	}
}

// TestOfficialClientFields: every field which the official client can send is known.
func TestOfficialClientFields(t *testing.T) {
	var client struct {
		Package   string   `json:"package"`
		Responses []string `json:"responses"`
	}
	b, err := os.ReadFile("../testdata/client_fields.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &client); err != nil {
		t.Fatal(err)
	}
	if len(client.Responses) < 30 {
		t.Fatalf("the list of %s is not one", client.Package)
	}
	for _, name := range client.Responses {
		if !listed(name) {
			t.Errorf("%s sends %s, which is not listed", client.Package, name)
		}
	}
}

func listed(name string) bool {
	return slices.ContainsFunc(Fields(), func(f api.Field) bool { return f.Name == name })
}

// TestSchemasAreJSON: every schema is a JSON object.
func TestSchemasAreJSON(t *testing.T) {
	for _, f := range Fields() {
		var schema map[string]any
		if err := json.Unmarshal([]byte(f.Schema), &schema); f.Schema != "" && err != nil {
			t.Errorf("%s: %v in %s", f.Name, err, f.Schema)
		}
	}
}
