package anthropic

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/fixturetest"
)

func ptr[T any](v T) *T { return &v }

func plain(change func(*api.Request)) *api.Request {
	q := &api.Request{
		Endpoint: api.Messages, Model: "m", MaxTokens: 9, AddGenerationPrompt: true, IncludeUsage: true, N: 1, Logprobs: -1,
		Messages: []api.Message{{Role: "user", Content: "hi"}},
	}
	change(q)
	return q
}

// TestDecode checks the effect of each field except messages.
func TestDecode(t *testing.T) {
	weather := api.Tool{Name: "weather", Parameters: []byte(`{"type":"object", "properties":{}}`)}
	const weatherTool = `{"name":"weather","description":"of a \"city\"","input_schema":{"type":"object", "properties":{}},"cache_control":{"type":"ephemeral"}}`
	const weatherJSON = `{"type":"function","function":{"name":"weather","description":"of a \"city\"","parameters":{"type":"object", "properties":{}}}}`
	withTool := func(q *api.Request) {
		q.Tools, q.ToolsJSON = []api.Tool{weather}, []byte(`[`+weatherJSON+`]`)
	}
	tests := []struct {
		fields string // in addition to model, max_tokens and one message
		change func(*api.Request)
	}{
		{``, func(*api.Request) {}},
		{`"stream":true,"temperature":0,"top_p":1,"top_k":0`, func(q *api.Request) {
			q.Stream, q.Temperature, q.TopP, q.TopK = true, ptr(0.0), ptr(1.0), ptr(0)
		}},
		{`"stream":null,"temperature":null,"tools":null,"system":null,"thinking":null,"container":null`, func(*api.Request) {}},
		{`"stop_sequences":[]`, func(*api.Request) {}},
		{`"stop_sequences":["a","b"]`, func(q *api.Request) { q.Stop = []string{"a", "b"} }},
		{`"cache_salt":"s"`, func(q *api.Request) { q.CacheSalt = "s" }},
		{`"system":"be kind"`, func(q *api.Request) {
			q.Messages = []api.Message{{Role: "system", Content: "be kind"}, {Role: "user", Content: "hi"}}
		}},
		{`"system":[{"type":"text","text":"be"},{"cache_control":{"type":"ephemeral","ttl":"1h"},"text":"kind","type":"text","citations":null}]`, func(q *api.Request) {
			q.Messages = []api.Message{{Role: "system", Content: "be\nkind"}, {Role: "user", Content: "hi"}}
		}},
		{`"system":""`, func(*api.Request) {}},
		{`"system":[]`, func(*api.Request) {}},
		{`"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1; cch=12345;"},{"type":"text","text":"be kind"}]`, func(q *api.Request) {
			q.Messages = []api.Message{{Role: "system", Content: "be kind"}, {Role: "user", Content: "hi"}}
		}},
		{`"system":"x-anthropic-billing-header: cch=12345;\nbe kind"`, func(q *api.Request) {
			q.Messages = []api.Message{{Role: "system", Content: "be kind"}, {Role: "user", Content: "hi"}}
		}},
		{`"system":"say x-anthropic-billing-header: no"`, func(q *api.Request) {
			q.Messages = []api.Message{{Role: "system", Content: "say x-anthropic-billing-header: no"}, {Role: "user", Content: "hi"}}
		}},
		{`"tools":[]`, func(*api.Request) {}},
		{`"tools":[` + weatherTool + `]`, withTool},
		{`"tools":[` + weatherTool + `,{"type":"custom","input_schema":{},"name":"b.c_d-E9","strict":true,"eager_input_streaming":null,"defer_loading":false,"allowed_callers":["direct"],"input_examples":[]}]`, func(q *api.Request) {
			q.Tools = []api.Tool{weather, {Name: "b.c_d-E9", Parameters: []byte(`{}`)}}
			q.ToolsJSON = []byte(`[` + weatherJSON + `,{"type":"function","function":{"name":"b.c_d-E9","parameters":{}}}]`)
		}},
		{`"tools":[` + weatherTool + `],"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`, func(q *api.Request) {
			withTool(q)
			q.OneCall = true
		}},
		{`"tool_choice":{"type":"any"},"tools":[` + weatherTool + `]`, func(q *api.Request) {
			withTool(q)
			q.ToolChoice.Mode = api.ToolRequired
		}},
		{`"tool_choice":{"name":"weather","type":"tool"},"tools":[` + weatherTool + `]`, func(q *api.Request) {
			withTool(q)
			q.ToolChoice = api.ToolChoice{Mode: api.ToolNamed, Name: "weather"}
		}},
		{`"tool_choice":{"type":"none"},"tools":[` + weatherTool + `]`, func(q *api.Request) {
			withTool(q)
			q.ToolChoice.Mode = api.ToolNone
		}},
		{`"tool_choice":{"type":"auto"}`, func(*api.Request) {}},
		{`"thinking":{"type":"enabled","budget_tokens":1024}`, func(q *api.Request) { q.TemplateArgs = []byte(`{"enable_thinking":true,"thinking":true}`) }},
		{`"thinking":{"type":"adaptive","display":"summarized"}`, func(q *api.Request) { q.TemplateArgs = []byte(`{"enable_thinking":true,"thinking":true}`) }},
		{`"thinking":{"display":"omitted","type":"adaptive"},"output_config":{"effort":"xhigh"}`, func(q *api.Request) {
			q.TemplateArgs = []byte(`{"enable_thinking":true,"thinking":true,"reasoning_effort":"xhigh"}`)
			q.HideReasoning = true
		}},
		{`"thinking":{"type":"disabled"}`, func(q *api.Request) { q.TemplateArgs = []byte(`{"enable_thinking":false,"thinking":false}`) }},
		{`"output_config":{"effort":"low","format":null}`, func(q *api.Request) { q.TemplateArgs = []byte(`{"reasoning_effort":"low"}`) }},
		{`"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}`, func(q *api.Request) {
			q.Format = api.Format{Kind: api.FormatSchema, Schema: []byte(`{"type":"object"}`), Param: "output_config.format"}
		}},
		{`"output_format":{"schema":{},"type":"json_schema"}`, func(q *api.Request) {
			q.Format = api.Format{Kind: api.FormatSchema, Schema: []byte(`{}`), Param: "output_format"}
		}},
		{`"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]}`, func(*api.Request) {}},
		{`"context_management":{"edits":[{"keep":{"type":"all"},"type":"clear_thinking_20251015"}]}`, func(*api.Request) {}},
	}
	for _, tt := range tests {
		body := `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]`
		if tt.fields != "" {
			body += "," + tt.fields
		}
		got, err := Decode([]byte(body + `}`))
		if err != nil {
			t.Errorf("%s: %v", tt.fields, err)
			continue
		}
		if diff := cmp.Diff(plain(tt.change), got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tt.fields, diff)
		}
	}
}

// TestMessages checks how turns of blocks become messages.
func TestMessages(t *testing.T) {
	const call = `{"type":"tool_use","id":"c1","name":"f","input":{"a": [1, "\""]}}`
	const called = `{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": [1, \"\\\"\"]}"}}`
	const call2 = `{"type":"tool_use","input":{},"name":"g","id":"c2","caller":{"type":"direct"},"toolset_name":null,"cache_control":{"type":"ephemeral"},"partial_json":"{"}`
	const called2 = `{"id":"c2","type":"function","function":{"name":"g","arguments":"{}"}}`
	user := func(s string) api.Message { return api.Message{Role: "user", Content: s} }
	tests := []struct {
		name, messages string
		want           []api.Message
		continues      bool
	}{
		{"a string", `{"content":"a","role":"user"}`, []api.Message{user("a")}, false},
		{"blocks", `{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b"}]}`, []api.Message{user("a\n\nb")}, false},
		{"no blocks", `{"role":"user","content":[]}`, []api.Message{user("")}, false},
		{"turns in a row", `{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]}`, []api.Message{user("a\nb")}, false},
		{
			"a system message in between", `{"role":"user","content":"a"},{"role":"system","content":"s"},{"role":"system","content":[]},{"role":"system","content":"t"},{"role":"user","content":"b"}`,
			[]api.Message{user("a"), {Role: "system", Content: "s"}, {Role: "system", Content: "t"}, user("b")},
			false,
		},
		{
			"calls and results", `{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"b"},` + call + `,` + call2 + `]},` +
				`{"role":"user","content":[{"type":"text","text":"c"},{"type":"tool_result","tool_use_id":"c2","content":[{"type":"text","text":"x"},{"text":"y","type":"text"}]},{"type":"tool_result","tool_use_id":"c1"}]}`,
			[]api.Message{
				user("a"),
				{Role: "assistant", Content: "b", Reasoning: "hm", ToolCalls: []byte(`[` + called + `,` + called2 + `]`)},
				{Role: "tool", Name: "g", Content: "x\ny", ToolCallID: "c2"},
				{Role: "tool", Name: "f", ToolCallID: "c1"},
				user("c"),
			},
			false,
		},
		{
			"calls of two messages in a row", `{"role":"assistant","content":[` + call + `]},{"role":"assistant","content":[` + call2 + `]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"x"}]}`,
			[]api.Message{
				{Role: "assistant", NoContent: true, ToolCalls: []byte(`[` + called + `,` + called2 + `]`)},
				{Role: "tool", Name: "f", Content: "x", ToolCallID: "c1"},
			},
			false,
		},
		{
			"errors", `{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","is_error":true},{"is_error":true,"type":"tool_result","tool_use_id":"c2","content":"no file"}]}`,
			[]api.Message{{Role: "tool", Content: "error", ToolCallID: "c1"}, {Role: "tool", Content: "no file", ToolCallID: "c2"}},
			false,
		},
		{
			"thoughts", `{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"s"},{"type":"redacted_thinking","data":"zz"},{"type":"thinking","thinking":"b"},{"type":"text","text":"c"}]},{"role":"user","content":"d"}`,
			[]api.Message{{Role: "assistant", Content: "c", Reasoning: "a\nb"}, user("d")},
			false,
		},
		{"the beginning of the answer", `{"role":"user","content":"a"},{"role":"assistant","content":"b "}`, []api.Message{user("a"), {Role: "assistant", Content: "b "}}, true},
		{"nothing as the beginning", `{"role":"user","content":"a"},{"role":"assistant","content":[]}`, []api.Message{user("a")}, false},
	}
	for _, tt := range tests {
		got, err := Decode([]byte(`{"model":"m","max_tokens":1,"messages":[` + tt.messages + `]}`))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got.Messages); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tt.name, diff)
		}
		if got.ContinueFinal != tt.continues || got.AddGenerationPrompt == tt.continues {
			t.Errorf("%s: continues %v, generation prompt %v", tt.name, got.ContinueFinal, got.AddGenerationPrompt)
		}
	}
}

// TestRefusals: an error names its field, with the path.
func TestRefusals(t *testing.T) {
	const user = `{"role":"user","content":"hi"}`
	in := func(fields string) string {
		return `{"model":"m","max_tokens":1,"messages":[` + user + `],` + fields + `}`
	}
	says := func(messages string) string { return `{"model":"m","max_tokens":1,"messages":[` + messages + `]}` }
	has := func(block string) string { return says(`{"role":"assistant","content":[` + block + `]},` + user) }
	tool := func(fields string) string { return in(`"tools":[{"name":"f","input_schema":{},` + fields + `}]`) }
	tests := []struct{ body, param, message string }{
		{``, "", "unexpected end"},
		{`[]`, "", "must be an object, not an array"},
		{`{"model":"m","max_tokens":1,"messages":[` + user + `]} x`, "", "after the end"},
		{`{"model":"m","messages":[` + user + `]}`, "max_tokens", "required"},
		{`{"max_tokens":1,"messages":[` + user + `]}`, "model", "required"},
		{`{"model":"m","max_tokens":1}`, "messages", "required"},
		{says(``), "messages", "required"},
		{`{"model":"m","max_tokens":0,"messages":[` + user + `]}`, "max_tokens", "at least 1"},
		{in(`"presence_penalty":1,"n":2`), "presence_penalty", "Unsupported parameter(s): presence_penalty, n"},
		{in(`"temperature":1.1`), "temperature", "between 0 and 1"},
		{in(`"top_k":-1`), "top_k", "at least 0"},
		{in(`"temperature":1,"temperature":1`), "temperature", "twice"},
		{in(`"stop_sequences":[""]`), "stop_sequences[0]", "empty"},
		{in(`"stop_sequences":["a"` + strings.Repeat(`,"a"`, 32) + `]`), "stop_sequences", "at most 32"},
		{in(`"cache_salt":""`), "cache_salt", "between 1 and 1024"},
		{in(`"system":5`), "system", "must be a string or an array of content blocks"},
		{in(`"system":[{"type":"tool_result","tool_use_id":"x"}]`), "system", "text"},
		{in(`"system":[{"type":"image","source":{"type":"url","url":"http://x"}}]`), "system", "\"text\" only"},
		{in(`"speed":"warp"`), "speed", "standard or fast"},
		{in(`"inference_geo":"eu"`), "inference_geo", "not supported"},
		{in(`"container":"x"`), "container", "not supported"},
		{in(`"mcp_servers":[{}]`), "mcp_servers", "not supported"},
		{in(`"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]}`), "context_management.edits[0]", "not supported"},
		{in(`"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":{"type":"thinking_turns","value":1}}]}`), "context_management.edits[0]", "not supported"},
		{in(`"context_management":{"clear":[]}`), "context_management.clear", "Unsupported"},

		{in(`"thinking":{"type":"between_tools"}`), "thinking", "between_tools"},
		{in(`"thinking":{}`), "thinking", "needs a 'type'"},
		{in(`"thinking":{"type":"enabled","budget_tokens":0}`), "thinking.budget_tokens", "at least 1"},
		{in(`"thinking":{"type":"enabled","display":"x"}`), "thinking.display", "summarized or omitted"},
		{in(`"thinking":{"type":"enabled","effort":"x"}`), "thinking.effort", "Unsupported"},
		{in(`"output_config":{"effort":"none"}`), "output_config.effort", "low"},
		{in(`"output_config":{"task_budget":{}}`), "output_config.task_budget", "Unsupported"},
		{in(`"output_config":{"format":{"type":"grammar"}}`), "output_config.format", "json_schema"},
		{in(`"output_config":{"format":{"type":"json_schema"}}`), "output_config.format", "schema"},
		{in(`"output_config":{"format":{"type":"json_schema","schema":[]}}`), "output_config.format.schema", "an object"},
		{in(`"output_format":{"type":"json_schema","schema":{}},"output_config":{"format":{"type":"json_schema","schema":{}}}`), "output_format", "one of them"},

		{in(`"tools":[{"type":"web_search_20250305","name":"web_search","max_uses":3}]`), "tools[0]", `"web_search_20250305"`},
		{in(`"tools":[{"max_uses":3,"name":"web_search","type":"web_search_20250305"}]`), "tools[0]", `"web_search_20250305"`},
		{in(`"tools":[{"input_schema":{}}]`), "tools[0]", "'name'"},
		{in(`"tools":[{"name":"f"}]`), "tools[0]", "'input_schema'"},
		{in(`"tools":[{"name":"a b","input_schema":{}}]`), "tools[0].name", "letters"},
		{in(`"tools":[{"name":"` + strings.Repeat("a", 129) + `","input_schema":{}}]`), "tools[0].name", "128"},
		{in(`"tools":[{"name":"f","input_schema":true}]`), "tools[0].input_schema", "an object"},
		{in(`"tools":[{"name":"f","input_schema":{}},{"name":"f","input_schema":{}}]`), "tools[1]", "differ"},
		{tool(`"parameters":{}`), "tools[0].parameters", "Unsupported"},
		{tool(`"defer_loading":true`), "tools[0].defer_loading", "not supported"},
		{tool(`"input_examples":[{}]`), "tools[0].input_examples", "not supported"},
		{tool(`"allowed_callers":["code_execution_20250825"]`), "tools[0].allowed_callers[0]", "not supported"},
		{in(`"tool_choice":{"type":"any"}`), "tool_choice", "needs 'tools'"},
		{in(`"tool_choice":{"type":"required"}`), "tool_choice", "auto, any, tool or none"},
		{in(`"tool_choice":{"type":"tool"}`), "tool_choice", "'name'"},
		{in(`"tool_choice":{"type":"any","name":"f"}`), "tool_choice", "'name'"},
		{in(`"tool_choice":{"type":"tool","name":"g"},"tools":[{"name":"f","input_schema":{}}]`), "tool_choice", "not among"},

		{says(`{"content":"x"}`), "messages[0]", "'role'"},
		{says(`{"role":"tool","content":"x"}`), "messages[0]", "unknown role"},
		{says(`{"role":"user"}`), "messages[0]", "'content'"},
		{says(`{"role":"user","content":"x","name":"y"}`), "messages[0].name", "Unsupported"},
		{says(`{"role":"user","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}`), "messages[0]", "its role is user"},
		{says(`{"role":"user","content":[{"type":"thinking","thinking":"a"}]}`), "messages[0]", "its role is user"},
		{has(`{"type":"tool_result","tool_use_id":"a"}`), "messages[0]", "its role is assistant"},
		{says(`{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}`), "messages", "tool_result"},
		{says(`{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"thinking","thinking":"a"}]}`), "messages", "ends with thinking"},
		{says(`{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"thinking","thinking":"a"},{"type":"text","text":""}]}`), "messages", "ends with thinking"},
		{says(`{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"redacted_thinking","data":"a"}]}`), "messages", "ends with thinking"},
		{says(`{"role":"user","content":[{"type":"redacted_thinking","data":"a"}]}`), "messages[0]", "its role is user"},
		{in(`"system":[{"type":"redacted_thinking","data":"a"}]`), "system", "text"},
		{says(`{"role":"assistant","content":""}`), "messages", "at least one"},

		{has(`{}`), "messages[0].content[0]", "'type'"},
		{has(`{"type":"text"}`), "messages[0].content[0]", "'text'"},
		{has(`{"type":"text","text":null}`), "messages[0].content[0]", "'text'"},
		{has(`{"type":"text","text":5}`), "messages[0].content[0].text", "a string"},
		{has(`{"type":"text","text":"a","id":"b"}`), "messages[0].content[0].id", "Unsupported"},
		{has(`{"text":"a","zz":1,"type":"text"}`), "messages[0].content[0].zz", "Unsupported"},
		{has(`{"type":"thinking","thinking":"a","citations":[]}`), "messages[0].content[0].citations", "Unsupported"},
		{has(`{"type":"redacted_thinking","text":"a"}`), "messages[0].content[0].text", "Unsupported"},
		{has(`{"type":"thinking","signature":"b"}`), "messages[0].content[0]", "'thinking'"},
		{has(`{"type":"image","source":{"type":"base64","data":"x","media_type":"image/png"}}`), "messages[0]", "its role is assistant"},
		{says(`{"role":"user","content":[{"type":"image"}]}`), "messages[0].content[0]", "needs a 'source'"},
		{says(`{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"x"}}]}`), "messages[0].content[0].source", "needs a 'media_type'"},
		{says(`{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png"}}]}`), "messages[0].content[0].source", "needs 'data'"},
		{says(`{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"x","media_type":"a;b,c"}}]}`), "messages[0].content[0].source.media_type", "the type of an image"},
		{says(`{"role":"user","content":[{"type":"image","source":{"type":"url","url":"x"}}]}`), "messages[0].content[0].source.url", "an http or https URL"},
		{says(`{"role":"user","content":[{"type":"image","source":{"type":"url"}}]}`), "messages[0].content[0].source", "needs a 'url'"},
		{says(`{"role":"user","content":[{"type":"image","source":{"type":"file","file_id":"f"}}]}`), "messages[0].content[0].source", "base64 or url"},
		{says(`{"role":"user","content":[` + strings.Repeat(`{"type":"image","source":{"type":"url","url":"http://x"}},`, api.MaxMedia+1) + `{"type":"text","text":"x"}]}`), "messages[0].content[256]", "at most 256"},
		{has(`{"content":{"type":"error"},"tool_use_id":"a","type":"web_search_tool_result"}`), "messages[0].content[0]", `"web_search_tool_result"`},
		{has(`{"type":"tool_use","name":"f","input":{}}`), "messages[0].content[0]", "'id'"},
		{has(`{"type":"tool_use","id":"a","input":{}}`), "messages[0].content[0]", "'name'"},
		{has(`{"type":"tool_use","id":"a","name":"f"}`), "messages[0].content[0]", "'input'"},
		{has(`{"type":"tool_use","id":"a","name":"f","input":"{}"}`), "messages[0].content[0].input", "an object"},
		{has(`{"type":"tool_use","id":"a","name":"f","input":{"a":1,"a":2}}`), "messages[0].content[0].input.a", "twice"},
		{has(`{"type":"tool_use","id":"a","name":"f","input":{},"caller":{"type":"code_execution_20250825"}}`), "messages[0].content[0].caller", `"code_execution_20250825"`},
		{has(`{"type":"tool_use","id":"a","name":"f","input":{},"toolset_name":"browser"}`), "messages[0].content[0].toolset_name", "not supported"},
		{says(`{"role":"user","content":[{"type":"tool_result"}]}`), "messages[0].content[0]", "'tool_use_id'"},
		{says(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"image","source":{}}]}]}`), "messages[0].content[0].content[0].source", "base64 or url"},
		{says(`{"role":"user","content":[{"content":[{"source":{},"type":"document"}],"type":"tool_result","tool_use_id":"a"}]}`), "messages[0].content[0].content[0]", `"document"`},
		{says(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"thinking","thinking":"x"}]}]}`), "messages[0].content[0].content[0]", `"thinking"`},
		{says(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":5}]}]}`), "messages[0].content[0].content[0].text", "a string"},
		{says(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":5,"text":"x"}]}]}`), "messages[0].content[0].content[0]", "'type'"},
		{says(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":["x"]}]}`), "messages[0].content[0].content[0]", "an object"},
		{says(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":{}}]}`), "messages[0].content[0].content", "a string or an array"},
		{strings.Repeat(`{"a":`, 100), "", "nested deeper"},
	}
	for _, tt := range tests {
		_, err := Decode([]byte(tt.body))
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != fault.Invalid || f.Param != tt.param || !strings.Contains(f.Message, tt.message) {
			t.Errorf("%s\n\twant %q about %q\n\tgot %v", tt.body, tt.message, tt.param, err)
		}
	}
}

// TestDecodeCount: as TestDecode, without the fields for the answer.
func TestDecodeCount(t *testing.T) {
	const fields = `"model":"m","system":"s","messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f","input_schema":{}}],"thinking":{"type":"disabled"}`
	got, err := DecodeCount([]byte(`{` + fields + `}`))
	if err != nil {
		t.Fatal(err)
	}
	want, err := Decode([]byte(`{"max_tokens":1,` + fields + `}`))
	if err != nil {
		t.Fatal(err)
	}
	want.MaxTokens = 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-messages +count_tokens)\n%s", diff)
	}
	var f *fault.Error
	if _, err := DecodeCount([]byte(`{"max_tokens":1,` + fields + `}`)); !errors.As(err, &f) || f.Param != "max_tokens" {
		t.Errorf("max_tokens is answered with %v", err)
	}
	if got := string(AppendCount(nil, 7)); got != `{"input_tokens":7}` {
		t.Errorf("the answer is %s", got)
	}
}

// TestLongConversations: decoding allocates a small multiple of the body's length, whatever its contents.
func TestLongConversations(t *testing.T) {
	const size = 1 << 20
	for name, item := range map[string]string{
		"messages of one role":  `{"role":"user","content":"x"}`,
		"messages that differ":  `{"role":"user","content":"x"},{"role":"assistant","content":"x"},{"role":"user","content":"x"}`,
		"empty messages":        `{"role":"user","content":[]}`,
		"long texts of a turn":  `{"role":"user","content":"` + strings.Repeat("x", 4096) + `"}`,
		"parted texts":          `{"role":"assistant","content":[{"type":"text","text":"x"},{"type":"tool_use","id":"a","name":"f","input":{}}]}`,
		"results of tools":      `{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}`,
		"blocks within content": `{"role":"user","content":[{"type":"text","text":""},{"type":"text","text":""},{"type":"text","text":""}]}`,
	} {
		items := strings.Repeat(item+",", size/len(item))
		body := []byte(`{"model":"m","max_tokens":1,"messages":[` + items + `{"role":"user","content":"x"}]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := Decode(body); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 32*size {
			t.Errorf("%s: %d bytes for a body of %d", name, got, len(body))
		}
	}
}

// TestRefusalsAreCheap: many errors cost no more than one.
func TestRefusalsAreCheap(t *testing.T) {
	const size = 1 << 20
	for name, parts := range map[string][2]string{
		"numbers as results":  {`"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[`, `1`},
		"images as results":   {`"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[`, `{"type":"image"}`},
		"results of a search": {`"messages":[{"role":"user","content":[{"content":[`, `{"type":"web_search_result"}`},
	} {
		body := []byte(`{"model":"m","max_tokens":1,` + parts[0] + strings.Repeat(parts[1]+",", size/len(parts[1])) + parts[1] + `]}]}]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Decode(body)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; err == nil || got > 8*size {
			t.Errorf("%s: %d bytes for a body of %d: %v", name, got, len(body), err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	fixturetest.AddCorpus(f)
	f.Add([]byte(`{"model":"m","max_tokens":5,"system":[{"type":"text","text":"a\u00e9"}],"messages":[{"role":"user","content":[{"type":"text","text":"b"}]}],"stop_sequences":["x"]}`))
	f.Add([]byte(`{"model":"m","messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":""},{"type":"tool_use","id":"a","name":"f","input":{"x":[1]}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"y"}],"is_error":true}]}],"tools":[{"name":"f","description":"d","input_schema":{}}],"tool_choice":{"type":"tool","name":"f"}}`))
	f.Add([]byte(`{"max_tokens":1,"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://x"}},{"type":"text","text":"a"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}}]}]}]}`))
	f.Add([]byte(`{"max_tokens":1,"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"thinking":{"type":"enabled","budget_tokens":1},"output_config":{"effort":"max","format":{"type":"json_schema","schema":{}}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		kept := slices.Clone(body)
		for _, decode := range []func([]byte) (*api.Request, error){Decode, DecodeCount} {
			q, err := decode(body)
			if err != nil {
				var f *fault.Error
				if !errors.As(err, &f) || f.Code != fault.Invalid || !utf8.ValidString(f.Message) || !utf8.ValidString(f.Param) {
					t.Fatalf("error %#v", err)
				}
				continue
			}
			if !json.Valid(body) || !utf8.Valid(body) {
				t.Fatalf("accepted what is not JSON: %q", body)
			}
			checkRequest(t, q)
			before := fmt.Sprint(q)
			for i := range body {
				body[i] = 'x'
			}
			if fmt.Sprint(q) != before {
				t.Fatal("the request changed with the body")
			}
			copy(body, kept)
		}
	})
}

// checkRequest checks the guarantees for every decoded request.
func checkRequest(t *testing.T, q *api.Request) {
	t.Helper()
	if q.Endpoint != api.Messages || q.N != 1 || q.Logprobs != -1 || len(q.Messages) == 0 || q.AddGenerationPrompt == q.ContinueFinal {
		t.Fatalf("request %+v", q)
	}
	checkMedia(t, q)
	for _, m := range q.Messages {
		switch {
		case !slices.Contains([]string{"system", "user", "assistant", "tool"}, m.Role):
			t.Fatalf("message of %q", m.Role)
		case (m.Role == "tool") != (m.ToolCallID != ""):
			t.Fatalf("message of %q with the id %q", m.Role, m.ToolCallID)
		case m.Role != "assistant" && (m.ToolCalls != nil || m.Reasoning != ""):
			t.Fatalf("message of %q with an assistant's parts", m.Role)
		}
		if m.ToolCalls == nil {
			continue
		}
		var calls []struct {
			ID       string
			Type     string
			Function struct{ Name, Arguments string }
		}
		if err := json.Unmarshal(m.ToolCalls, &calls); err != nil || len(calls) == 0 {
			t.Fatalf("calls %q: %v", m.ToolCalls, err)
		}
		for _, c := range calls {
			var args map[string]any
			if err := json.Unmarshal([]byte(c.Function.Arguments), &args); err != nil || args == nil || c.Type != "function" || c.ID == "" || c.Function.Name == "" {
				t.Fatalf("call %+v: %v", c, err)
			}
		}
	}
	if (len(q.Tools) > 0) != (q.ToolsJSON != nil) || q.ToolsJSON != nil && !json.Valid(q.ToolsJSON) {
		t.Fatalf("tools %v are %q", q.Tools, q.ToolsJSON)
	}
	for _, raw := range [][]byte{q.TemplateArgs, q.Format.Schema} {
		if raw != nil && !(json.Valid(raw) && raw[0] == '{') {
			t.Fatalf("%q is no object", raw)
		}
	}
}

// TestManyMessages: a body of tiny messages or blocks does not become many times its size.
func TestManyMessages(t *testing.T) {
	decode := func(messages string) error {
		_, err := Decode([]byte(`{"model":"m","max_tokens":1,"messages":[` + messages + `]}`))
		return err
	}
	const user, assistant = `{"role":"user","content":"a"}`, `{"role":"assistant","content":"a"}`
	const result = `{"type":"tool_result","tool_use_id":"a"}`
	alternating := strings.Repeat(user+","+assistant+",", maxMessages/2-1) + user + "," + assistant
	results := `{"role":"user","content":[` + strings.Repeat(result+",", maxBlocks/2-1) + result + `]}`
	for name, tt := range map[string]struct{ most, more, param string }{
		"messages": {alternating, alternating + "," + user, "messages"},
		"blocks":   {results + "," + results, results + "," + results + `,{"role":"user","content":[` + result + `]}`, "messages[2].content"},
	} {
		if err := decode(tt.most); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var f *fault.Error
		if err := decode(tt.more); !errors.As(err, &f) || f.Code != fault.Invalid || f.Param != tt.param {
			t.Errorf("%s: one too many is %v, want a refusal of %s", name, err, tt.param)
		}
	}
}
