package openai

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/internal/edge/api"
)

// TestDecodeTools: tools, output format and template arguments of a request, and what of them is kept.
func TestDecodeTools(t *testing.T) {
	const (
		f = `{ "type":"function", "function":{"name":"f","description":"é","parameters":{"type":"object","properties":{}},"strict":true,"returns":1}}`
		g = `{"function":{"name":"g-1.x_","parameters":null,"description":null,"strict":null},"type":"function"}`
	)
	toolF := api.Tool{Name: "f", Parameters: []byte(`{"type":"object","properties":{}}`)}
	toolG := api.Tool{Name: "g-1.x_"}
	both := func(r *api.Request) {
		r.Tools, r.ToolsJSON = []api.Tool{toolF, toolG}, []byte(`[`+f+` , `+g+`]`)
	}
	const tools = `"tools": [` + f + ` , ` + g + `]`
	allow := func(mode, names string) string {
		return `"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"` + mode + `","tools":[` + names + `]}}`
	}
	d := described(t)
	tests := []struct {
		fields string
		change func(*api.Request)
	}{
		{tools, both},
		{tools + `,"tool_choice":"auto","parallel_tool_calls":true`, both},
		{tools + `,"tool_choice":"none"`, func(r *api.Request) { both(r); r.ToolChoice.Mode = api.ToolNone }},
		{`"tool_choice":"required","parallel_tool_calls":false,` + tools, func(r *api.Request) {
			both(r)
			r.ToolChoice.Mode, r.OneCall = api.ToolRequired, true
		}},
		{`"tool_choice":{"type":"function","function":{"name":"g-1.x_"}},` + tools, func(r *api.Request) {
			both(r)
			r.ToolChoice = api.ToolChoice{Mode: api.ToolNamed, Name: "g-1.x_"}
		}},
		{tools + `,` + allow("required", function("g-1.x_")), func(r *api.Request) {
			r.Tools, r.ToolsJSON, r.ToolChoice.Mode = []api.Tool{toolG}, []byte(`[`+g+`]`), api.ToolRequired
		}},
		{allow("auto", function("g-1.x_")+`,`+function("f")+`,`+function("f")) + `,` + tools, func(r *api.Request) {
			r.Tools, r.ToolsJSON = []api.Tool{toolF, toolG}, []byte(`[`+f+`,`+g+`]`)
		}},
		{`"tools":[` + function(strings.Repeat("n", maxToolName)) + `]`, func(r *api.Request) {
			r.Tools, r.ToolsJSON = []api.Tool{{Name: strings.Repeat("n", maxToolName)}}, []byte(`[`+function(strings.Repeat("n", maxToolName))+`]`)
		}},
		{`"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]`, func(r *api.Request) {
			r.Tools, r.ToolsJSON = []api.Tool{{Name: "f", Parameters: []byte(`{}`)}}, []byte(`[{"type":"function","function":{"name":"f","parameters":{}}}]`)
		}},

		{`"response_format":{"type":"json_object"}`, func(r *api.Request) {
			r.Format = api.Format{Kind: api.FormatJSON, Param: "response_format"}
		}},
		{`"response_format":{"json_schema":{"strict":true,"schema":{"type": "object"},"name":"a_B-9","description":"d"},"type":"json_schema"}`, func(r *api.Request) {
			r.Format = api.Format{Kind: api.FormatSchema, Schema: []byte(`{"type": "object"}`), Param: "response_format"}
		}},
		{`"response_format":{"type":"json_schema","json_schema":{"schema":true,"name":"a"}}`, func(r *api.Request) {
			r.Format = api.Format{Kind: api.FormatSchema, Schema: []byte(`true`), Param: "response_format"}
		}},
		{`"guided_json":{"type":"string"},"response_format":{"type":"text"}`, func(r *api.Request) {
			r.Format = api.Format{Kind: api.FormatSchema, Schema: []byte(`{"type":"string"}`), Param: "guided_json"}
		}},
		{`"guided_json":" {\"type\":\"string\"} "`, func(r *api.Request) {
			r.Format = api.Format{Kind: api.FormatSchema, Schema: []byte(`{"type":"string"}`), Param: "guided_json"}
		}},
		{`"structured_outputs":{"json":{"type":"string"},"regex":null,"json_object":false,"disable_fallback":false}`, func(r *api.Request) {
			r.Format = api.Format{Kind: api.FormatSchema, Schema: []byte(`{"type":"string"}`), Param: "structured_outputs"}
		}},
		{`"structured_outputs":{"json_object":true}`, func(r *api.Request) {
			r.Format = api.Format{Kind: api.FormatJSON, Param: "structured_outputs"}
		}},

		{`"chat_template_kwargs":{ }`, func(*api.Request) {}},
		{`"chat_template_kwargs": { "a" : [1] } `, func(r *api.Request) { r.TemplateArgs = []byte(`{ "a" : [1] }`) }},
		{`"chat_template_kwargs":{"force_nonempty_content":true}`, func(r *api.Request) {
			r.TemplateArgs, r.FillContent = []byte(`{"force_nonempty_content":true}`), true
		}},
		{`"chat_template_kwargs":{"force_nonempty_content":"true"}`, func(r *api.Request) { r.TemplateArgs = []byte(`{"force_nonempty_content":"true"}`) }},
		{`"reasoning_effort":"high"`, func(r *api.Request) { r.TemplateArgs = []byte(`{"reasoning_effort":"high"}`) }},
		{`"reasoning_effort":"none"`, func(r *api.Request) {
			r.TemplateArgs = []byte(`{"reasoning_effort":"none","enable_thinking":false,"thinking":false}`)
		}},
		{`"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true,"x":1}`, func(r *api.Request) {
			r.TemplateArgs = []byte(`{"enable_thinking":true,"x":1,"reasoning_effort":"none","thinking":false}`)
		}},
		{`"chat_template_kwargs":{"reasoning_effort":"low","thinking":1},"reasoning_effort":"max"`, func(r *api.Request) {
			r.TemplateArgs = []byte(`{"reasoning_effort":"low","thinking":1}`)
		}},
		{`"include_reasoning":false`, func(r *api.Request) { r.HideReasoning = true }},
		{`"include_reasoning":true`, func(*api.Request) {}},
	}
	for _, tt := range tests {
		got, err := Decode(api.Chat, []byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],`+tt.fields+`}`))
		if err != nil {
			t.Errorf("%s: %v", tt.fields, err)
			continue
		}
		if diff := cmp.Diff(chatDefaults(tt.change), got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.fields, diff)
		}
		checkRequest(t, got)
		if err := d.matches(d.request(path(api.Chat)), []byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],`+tt.fields+`}`)); err != nil {
			t.Errorf("%s: %v", tt.fields, err)
		}
	}
}

// TestDecodeCompletionFormat: completions have an output format too.
func TestDecodeCompletionFormat(t *testing.T) {
	got, err := Decode(api.Completion, []byte(`{"model":"m","prompt":"hi","response_format":{"type":"json_object"}}`))
	if want := (api.Format{Kind: api.FormatJSON, Param: "response_format"}); err != nil || !cmp.Equal(got.Format, want) {
		t.Errorf("%+v, %v", got, err)
	}
}
