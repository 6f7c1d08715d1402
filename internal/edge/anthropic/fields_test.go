package anthropic

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/internal/edge/api"
)

// endpoint is one of the two endpoints which the package decodes.
type endpoint struct {
	name   string
	fields []api.Field
	decode func([]byte) (*api.Request, error)
}

func endpoints() []endpoint {
	return []endpoint{{"messages", Fields(), Decode}, {"count_tokens", CountFields(), DecodeCount}}
}

// bodyWith returns the body of a request with the required fields and one more.
func (e endpoint) bodyWith(field, value string) string {
	parts := []string{`"` + field + `":` + value}
	for _, f := range e.fields {
		if f.Required && f.Name != field {
			parts = append(parts, `"`+f.Name+`":`+map[string]string{"model": `"m"`, "max_tokens": `1`, "messages": `[{"role":"user","content":"hi"}]`}[f.Name])
		}
	}
	if field == "tool_choice" {
		parts = append(parts, `"tools":[{"name":"f","input_schema":{}}]`)
	}
	return `{` + strings.Join(parts, ",") + `}`
}

// samples maps a field to an accepted value and, for refused fields, a refused one.
var samples = map[string][2]string{
	"model": {`"other"`}, "messages": {`[{"role":"user","content":"other"}]`}, "max_tokens": {`5`}, "system": {`"s"`},
	"tools": {`[{"name":"f","input_schema":{}}]`}, "tool_choice": {`{"type":"any"}`}, "thinking": {`{"type":"enabled","budget_tokens":1024}`},
	"output_config": {`{"effort":"low"}`}, "output_format": {`{"type":"json_schema","schema":{}}`}, "stream": {`true`}, "stop_sequences": {`["x"]`},
	"temperature": {`0.5`}, "top_p": {`0.5`}, "top_k": {`5`}, "cache_salt": {`"x"`}, "nvext": {`{"media_failure":"text_only"}`},
	"metadata": {`{"user_id":"x"}`}, "diagnostics": {`{"previous_message_id":"msg_1"}`}, "service_tier": {`"auto"`}, "cache_control": {`{"type":"ephemeral"}`}, "speed": {`"fast"`},
	"inference_geo": {`"global"`, `"us"`}, "fallbacks": {`[]`, `[{"model":"x"}]`}, "mcp_servers": {`[]`, `[{"type":"url"}]`},
	"context_management": {`{"edits":[]}`, `{"edits":[{"type":"compact_20260112"}]}`},
}

// TestFieldsAreTreatedAsTheySay: a mapped field changes the request, an accepted one does not, and a refused
// one is refused by name unless its value has no effect.
func TestFieldsAreTreatedAsTheySay(t *testing.T) {
	for _, e := range endpoints() {
		seen := map[string]bool{}
		for _, f := range e.fields {
			if seen[f.Name] {
				t.Errorf("%s %s is listed twice", e.name, f.Name)
			}
			seen[f.Name] = true
			taken, refused := samples[f.Name][0], samples[f.Name][1]
			if f.Schema == "" {
				taken, refused = `null`, `1`
			}
			if taken == "" || (refused != "") != (f.Treatment == api.Refused) {
				t.Errorf("%s %s: its samples are %q and %q", e.name, f.Name, taken, refused)
				continue
			}
			twin := e.bodyWith(f.Name, "null")
			if f.Required {
				twin = e.bodyWith("cache_control", "null")
			}
			plain, err := e.decode([]byte(twin))
			if err != nil {
				t.Errorf("%s: %v", twin, err)
				continue
			}
			got, err := e.decode([]byte(e.bodyWith(f.Name, taken)))
			if err != nil {
				t.Errorf("%s %s: %s is refused: %v", e.name, f.Name, taken, err)
				continue
			}
			if changed := !cmp.Equal(got, plain); changed != (f.Treatment == api.Mapped) {
				t.Errorf("%s %s is %v, and %s changes the request: %v", e.name, f.Name, f.Treatment, taken, changed)
			}
			if f.Required {
				if _, err := e.decode([]byte(e.bodyWith(f.Name, "null"))); param(err) != f.Name {
					t.Errorf("%s without %s is answered with %v", e.name, f.Name, err)
				}
			}
			if refused == "" {
				continue
			}
			_, err = e.decode([]byte(e.bodyWith(f.Name, refused)))
			if param(err) != f.Name && !strings.HasPrefix(param(err), f.Name+"[") && !strings.HasPrefix(param(err), f.Name+".") {
				t.Errorf("%s %s: %s is answered with %v", e.name, f.Name, refused, err)
			}
		}
	}
}

// param returns the field of an error; "" if there is none.
func param(err error) string {
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.Invalid {
		return ""
	}
	return f.Param
}

// TestOfficialClientFields: every field which the official client can send is known, at the top level and
// inside objects.
func TestOfficialClientFields(t *testing.T) {
	b, err := os.ReadFile("testdata/client_fields.json")
	if err != nil {
		t.Fatal(err)
	}
	var lists map[string]json.RawMessage
	if err := json.Unmarshal(b, &lists); err != nil {
		t.Fatal(err)
	}
	list := func(name string) []string {
		var out []string
		if err := json.Unmarshal(lists[name], &out); err != nil || len(out) < 2 {
			t.Fatalf("the list %s of %s is not one: %v", name, lists["package"], err)
		}
		return out
	}
	for _, e := range endpoints() {
		for _, name := range append(list(e.name), list(e.name+"_beta")...) {
			if n := len(listed(e.fields, name)); n != 1 {
				t.Errorf("%s sends %s to %s: it is listed %d times, not once", lists["package"], name, e.name, n)
			}
		}
	}

	unsupported := func(what, body string) {
		t.Helper()
		if _, err := Decode([]byte(body)); err != nil && strings.Contains(err.Error(), "Unsupported") {
			t.Errorf("%s: %v", what, err)
		}
	}
	e := endpoints()[0]
	for name, kind := range map[string]string{
		"text": "text", "thinking_block": "thinking", "redacted_thinking": "redacted_thinking", "tool_use": "tool_use", "tool_result": "tool_result",
	} {
		for _, key := range list(name) {
			if key == "type" {
				continue
			}
			unsupported(name+"."+key, e.bodyWith("messages", `[{"role":"user","content":[{"type":"`+kind+`","`+key+`":5}]}]`))
		}
	}
	for name, form := range map[string][2]string{
		"tool": {"tools", `[{"%":[]}]`}, "tool_choice": {"tool_choice", `{"%":false}`}, "thinking": {"thinking", `{"%":1}`},
		"output_config": {"output_config", `{"%":{}}`}, "output_format": {"output_format", `{"%":{}}`},
	} {
		for _, key := range list(name) {
			unsupported(name+"."+key, e.bodyWith(form[0], strings.ReplaceAll(form[1], "%", key)))
		}
	}

	// Types are accepted, or refused by name.
	byName := func(kind, body string) {
		t.Helper()
		_, err := Decode([]byte(body))
		if err != nil && !strings.Contains(err.Error(), `"`+kind+`"`) && !strings.Contains(err.Error(), "type "+kind) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	for _, kind := range list("block_types") {
		if !slices.Contains([]string{"text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"}, kind) {
			byName(kind, e.bodyWith("messages", `[{"role":"user","content":[{"content":{},"source":{},"type":"`+kind+`"}]}]`))
		}
	}
	for _, kind := range list("tool_types") {
		byName(kind, e.bodyWith("tools", `[{"name":"f","input_schema":{},"type":"`+kind+`"}]`))
	}
	for _, kind := range list("thinking_types") {
		byName(kind, e.bodyWith("thinking", `{"type":"`+kind+`"}`))
	}
	for _, kind := range list("tool_choice_types") {
		name := ""
		if kind == "tool" {
			name = `,"name":"f"`
		}
		byName(kind, e.bodyWith("tool_choice", `{"type":"`+kind+`"`+name+`}`))
	}
}

func listed(fields []api.Field, name string) []api.Field {
	return slices.DeleteFunc(slices.Clone(fields), func(f api.Field) bool { return f.Name != name })
}

// TestSchemasAreJSON: every schema is a JSON object.
func TestSchemasAreJSON(t *testing.T) {
	for _, f := range Fields() {
		var schema map[string]any
		if err := json.Unmarshal([]byte(f.Schema), &schema); f.Schema != "" && err != nil {
			t.Errorf("%s: %v in %s", f.Name, err, f.Schema)
		}
	}
	if got := api.Mapped.String() + api.Accepted.String() + api.Refused.String(); got != "mappedacceptedrefused" {
		t.Errorf("the treatments are %s", got)
	}
}
