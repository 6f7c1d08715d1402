package responses

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/internal/edge/api"
	"penstock/internal/fixturetest"
)

func ptr[T any](v T) *T { return &v }

// TestDecode: the effect of each field on the request.
func TestDecode(t *testing.T) {
	const f = `{"type":"function","name":"f","description":"d","parameters":{ "type" : "object" },"strict":true}`
	const g = `{"parameters":null,"name":"g","strict":null,"type":"function"}`
	const chatF = `{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}`
	const chatG = `{"type":"function","function":{"name":"g"}}`
	toolF, toolG := api.Tool{Name: "f", Parameters: []byte(`{"type":"object"}`)}, api.Tool{Name: "g"}
	both := func(q *api.Request) {
		q.Tools, q.ToolsJSON = []api.Tool{toolF, toolG}, []byte("["+chatF+","+chatG+"]")
	}
	tests := []struct {
		fields string // beside model and input
		change func(*api.Request)
	}{
		{``, func(*api.Request) {}},
		{`"stream":true,"stream_options":{"include_obfuscation":true}`, func(q *api.Request) { q.Stream = true }},
		{`"instructions":"be brief"`, func(q *api.Request) {
			q.Messages = []api.Message{{Role: "system", Content: "be brief"}, {Role: "user", Content: "hi"}}
		}},
		{`"max_output_tokens":5,"min_tokens":5,"temperature":2,"top_p":0`, func(q *api.Request) {
			q.MaxTokens, q.MinTokens, q.Temperature, q.TopP = 5, 5, ptr(2.0), ptr(0.0)
		}},
		{`"top_logprobs":3`, func(q *api.Request) { q.Logprobs = 3 }},
		{`"top_logprobs":0`, func(*api.Request) {}},
		{`"include":["reasoning.encrypted_content","message.output_text.logprobs"]`, func(q *api.Request) { q.Logprobs = 0 }},
		{`"include":["message.output_text.logprobs"],"top_logprobs":2`, func(q *api.Request) { q.Logprobs = 2 }},
		{`"include":["web_search_call.action.sources"]`, func(*api.Request) {}},
		{`"tools":[` + f + `,` + g + `]`, both},
		{`"tools":[` + f + `,` + g + `],"tool_choice":"auto","parallel_tool_calls":false`, func(q *api.Request) {
			both(q)
			q.OneCall = true
		}},
		{`"tool_choice":"required","tools":[` + f + `,` + g + `]`, func(q *api.Request) {
			both(q)
			q.ToolChoice.Mode = api.ToolRequired
		}},
		{`"tool_choice":{"name":"g","type":"function"},"tools":[` + f + `,` + g + `]`, func(q *api.Request) {
			both(q)
			q.ToolChoice = api.ToolChoice{Mode: api.ToolNamed, Name: "g"}
		}},
		{`"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"f"}]},"tools":[` + f + `,` + g + `]`, func(q *api.Request) {
			q.Tools, q.ToolsJSON, q.ToolChoice.Mode = []api.Tool{toolF}, []byte("["+chatF+"]"), api.ToolRequired
		}},
		{`"tools":[],"tool_choice":"none"`, func(q *api.Request) { q.ToolChoice.Mode = api.ToolNone }},
		{`"text":{"format":{"type":"text"},"verbosity":null}`, func(*api.Request) {}},
		{`"text":{"verbosity":"high"},"stop":[]`, func(*api.Request) {}},
		{`"text":{"format":{"type":"json_object"}}`, func(q *api.Request) { q.Format = api.Format{Kind: api.FormatJSON, Param: "text.format"} }},
		{`"text":{"format":{"schema":{ "type":"object" },"strict":true,"name":"n","type":"json_schema","description":"d"}}`, func(q *api.Request) {
			q.Format = api.Format{Kind: api.FormatSchema, Schema: []byte(`{"type":"object"}`), Param: "text.format"}
		}},
		{`"reasoning":{"effort":"high","summary":"auto","context":"auto","mode":"standard"}`, func(q *api.Request) {
			q.TemplateArgs = []byte(`{"reasoning_effort":"high"}`)
		}},
		{`"reasoning":{"effort":"none"}`, func(q *api.Request) {
			q.TemplateArgs = []byte(`{"reasoning_effort":"none","enable_thinking":false,"thinking":false}`)
		}},
		{`"reasoning":{"effort":"none"},"chat_template_kwargs":{"a": [1, 2],"thinking":true}`, func(q *api.Request) {
			q.TemplateArgs = []byte(`{"a": [1, 2],"thinking":true,"reasoning_effort":"none","enable_thinking":false}`)
		}},
		{`"chat_template_kwargs":{"force_nonempty_content":true}`, func(q *api.Request) {
			q.TemplateArgs, q.FillContent = []byte(`{"force_nonempty_content":true}`), true
		}},
		{`"reasoning":{"effort":null},"chat_template_kwargs":{}`, func(*api.Request) {}},
		{`"include_reasoning":false`, func(q *api.Request) { q.HideReasoning = true }},
		{`"store":true,"metadata":{"k":"v"},"user":"u","service_tier":"auto","truncation":"disabled","background":false,"previous_response_id":null,"context_management":[]`, func(*api.Request) {}},
		{`"min_p":1,"top_k":-1,"seed":7,"stop":["a"],"ignore_eos":true,"cache_salt":"s"`, func(q *api.Request) {
			q.MinP, q.TopK, q.Seed, q.Stop, q.IgnoreEOS, q.CacheSalt = ptr(1.0), ptr(-1), ptr(uint64(7)), []string{"a"}, true, "s"
		}},
		{`"nvext":{"cache_salt":"s","greed_sampling":true,"backend_instance_id":5,"token_data":[1],"annotations":["query_instance_id"]}`, func(q *api.Request) {
			q.CacheSalt, q.Temperature = "s", ptr(0.0)
			q.Ext = api.RequestExt{Worker: 5, Tokens: []kv.Token{1}, Annotations: api.Annotations{Query: api.QueryEvents}}
		}},
	}
	for _, tt := range tests {
		body := `{"model":"m","input":"hi"`
		if tt.fields != "" {
			body += "," + tt.fields
		}
		got, err := Decode([]byte(body + "}"))
		if err != nil {
			t.Errorf("%s: %v", tt.fields, err)
			continue
		}
		want := &api.Request{
			Endpoint: api.Responses, Model: "m", AddGenerationPrompt: true, N: 1, Logprobs: -1,
			Messages: []api.Message{{Role: "user", Content: "hi"}},
		}
		tt.change(want)
		if diff := cmp.Diff(want, got.Request); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.fields, diff)
		}
	}
}

// TestDecodeItems: the conversation which items form.
func TestDecodeItems(t *testing.T) {
	const (
		call1   = `{"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\":1}","id":"fc_1","status":"completed"}`
		call2   = `{"type":"function_call","call_id":"c2","name":"g","arguments":"","caller":{"type":"direct"}}`
		result1 = `{"type":"function_call_output","call_id":"c1","output":"one"}`
		result2 = `{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"}],"id":null,"status":"completed"}`
		chat1   = `{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}`
		chat2   = `{"id":"c2","type":"function","function":{"name":"g","arguments":""}}`
	)
	thought := func(s string) string {
		return `{"id":"rs_1","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"` + s + `"}]}`
	}
	spoken := func(s string) string {
		return `{"id":"msg_1","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"` + s + `","annotations":[],"logprobs":[]}]}`
	}
	user := api.Message{Role: "user", Content: "hi"}
	tests := []struct {
		name, items string
		want        []api.Message
	}{
		{"roles", `{"role":"system","content":"a"},{"content":[{"type":"input_text","text":"b","prompt_cache_breakpoint":{"mode":"explicit"}},{"text":"c","type":"input_text"}],"role":"developer","type":"message"},{"role":"user","content":"hi"}`, []api.Message{
			{Role: "system", Content: "a"}, {Role: "developer", Content: "b\nc", Parts: []api.Part{{Text: "b"}, {Text: "c"}}}, user,
		}},
		{"an answer with a refusal", `{"role":"assistant","content":[{"type":"refusal","refusal":"no"}],"phase":"final_answer"},{"role":"user","content":"hi"}`, []api.Message{{Role: "assistant", Content: "no"}, user}},
		{"a whole turn", `{"role":"user","content":"hi"},` + strings.Join([]string{thought("hm"), spoken("wait"), call1, call2, result1, result2, spoken("done")}, ","), []api.Message{
			user,
			{Role: "assistant", Reasoning: "hm", Content: "wait", ToolCalls: []byte("[" + chat1 + "," + chat2 + "]")},
			{Role: "tool", ToolCallID: "c1", Content: "one"},
			{Role: "tool", ToolCallID: "c2", Content: "two", Parts: []api.Part{{Text: "two"}}},
			{Role: "assistant", Content: "done"},
		}},
		{"images", `{"role":"user","content":[{"type":"input_text","text":"a"},{"image_url":"http://x","type":"input_image","detail":"low"},{"type":"input_text","text":"b"}]},` + call1 +
			`,{"type":"function_call_output","call_id":"c1","output":[{"type":"input_image","image_url":"data:,x","uuid":"u"}]},{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}}]}`, []api.Message{
			{Role: "user", Content: "a\nb", Parts: []api.Part{
				{Text: "a"},
				{Media: &api.Media{Kind: media.Image, Type: "input_image", Part: "input[0].content[1]", Param: "input[0].content[1].image_url", URL: "http://x"}},
				{Text: "b"},
			}},
			{Role: "assistant", NoContent: true, ToolCalls: []byte("[" + chat1 + "]")},
			{Role: "tool", ToolCallID: "c1", Parts: []api.Part{
				{Media: &api.Media{Kind: media.Image, Type: "input_image", Part: "input[2].output[0]", Param: "input[2].output[0].image_url", URL: "data:,x", Name: "u"}},
			}},
			{Role: "user", Parts: []api.Part{
				{Media: &api.Media{Kind: media.Audio, Type: "input_audio", Part: "input[3].content[0]", Param: "input[3].content[0].input_audio.data", URL: "data:audio/wav;base64,AA=="}},
			}},
		}},
		{"calls alone", call1 + `,` + result1, []api.Message{{Role: "assistant", NoContent: true, ToolCalls: []byte("[" + chat1 + "]")}, {Role: "tool", ToolCallID: "c1", Content: "one"}}},
		{"thoughts between calls", strings.Join([]string{thought("a"), call1, thought("b"), call2, spoken("c"), result1}, ","), []api.Message{
			{Role: "assistant", Reasoning: "a\nb", Content: "c", ToolCalls: []byte("[" + chat1 + "," + chat2 + "]")},
			{Role: "tool", ToolCallID: "c1", Content: "one"},
		}},
		{"a text between calls", strings.Join([]string{spoken("a"), call1, spoken("b"), call2, result1, result2}, ","), []api.Message{
			{Role: "assistant", Content: "a\nb", ToolCalls: []byte("[" + chat1 + "," + chat2 + "]")},
			{Role: "tool", ToolCallID: "c1", Content: "one"},
			{Role: "tool", ToolCallID: "c2", Content: "two", Parts: []api.Part{{Text: "two"}}},
		}},
		{"texts follow each other", spoken("a") + `,` + spoken("b") + `,` + thought("c") + `,` + spoken("d"), []api.Message{
			{Role: "assistant", Content: "a"}, {Role: "assistant", Content: "b"}, {Role: "assistant", Reasoning: "c", Content: "d"},
		}},
		{"a thought without an answer", `{"role":"user","content":"hi"},` + thought("a"), []api.Message{user, {Role: "assistant", Reasoning: "a"}}},
		{"a summary", `{"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"a"},{"type":"summary_text","text":"b"}],"encrypted_content":"xx"},` + spoken("c"), []api.Message{{Role: "assistant", Reasoning: "a\nb", Content: "c"}}},
		{"an empty thought", `{"type":"reasoning","id":"rs","summary":[],"encrypted_content":null},{"role":"user","content":"hi"}`, []api.Message{user}},
		{"a result without its call", `{"type":"function_call_output","output":"x","name":"f"}`, []api.Message{{Role: "tool", Name: "f", Content: "x"}}},
		{"empty texts", `{"role":"user","content":[]},{"role":"assistant","content":""},{"role":"user","content":""}`, []api.Message{{Role: "user"}, {Role: "assistant"}, {Role: "user"}}},
	}
	for _, tt := range tests {
		got, err := Decode([]byte(`{"input":[` + tt.items + `],"model":"m"}`))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got.Messages); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
}

// TestDecodeRefuses: every refusal names the field.
func TestDecodeRefuses(t *testing.T) {
	const f = `{"type":"function","name":"f"}`
	tests := []struct{ fields, param, says string }{
		{`"input":[]`, "input", "at least one item"},
		{`"input":[{"type":"reasoning","summary":[]}]`, "input", "at least one item"},
		{`"input":5`, "input", "a string or an array of items, not a number"},
		{`"input":["x"]`, "input[0]", "must be an object, not a string"},
		{`"input":[{"type":"item_reference","id":"msg_1"}]`, "input[0]", "send the item itself"},
		{`"input":[{"id":"msg_1"}]`, "input[0]", "needs a 'type'"},
		{`"input":[{"type":"computer_call_output","call_id":"c","output":{"type":"computer_screenshot"}}]`, "input[0]", `"computer_call_output"`},
		{`"input":[{"type":"mcp_call","id":"x"}]`, "input[0]", `"mcp_call"`},
		{`"input":[{"role":"tool","content":"x"}]`, "input[0].role", "one of system"},
		{`"input":[{"role":"user"}]`, "input[0]", "needs 'content'"},
		{`"input":[{"content":"x"}]`, "input[0]", "needs a 'role'"},
		{`"input":[{"role":"user","content":{}}]`, "input[0].content", "a string or an array"},
		{`"input":[{"role":"user","content":[{"type":"input_image","image_url":"ftp://x"}]}]`, "input[0].content[0].image_url", "an http or https URL"},
		{`"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]`, "input[0].content[0].file_id", "keeps none"},
		{`"input":[{"role":"assistant","content":[{"type":"input_image","image_url":"http://x"}]}]`, "input[0]", "shows media"},
		{`"input":[{"type":"reasoning","summary":[{"type":"input_image","image_url":"http://x"}]}]`, "input[0].summary", "reasoning is text"},
		{`"input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]`, "input[0].content[0]", "not supported by this server"},
		{`"input":[{"role":"user","content":[{"text":"x"}]}]`, "input[0].content[0]", "needs a 'type'"},
		{`"input":[{"role":"user","content":[{"type":"input_text"}]}]`, "input[0].content[0]", "needs 'text'"},
		{`"input":[{"role":"user","content":[{"type":"sound","text":"x"}]}]`, "input[0].content[0]", "unknown type"},
		{`"input":[{"role":"user","content":[{"type":"input_text","text":"x","txt":1}]}]`, "input[0].content[0].txt", "Unsupported"},
		{`"input":[{"role":"user","content":"x","nme":1}]`, "input[0].nme", "Unsupported"},
		{`"input":[{"type":"function_call","name":"f","arguments":"{}"}]`, "input[0]", "'call_id'"},
		{`"input":[{"type":"function_call","call_id":"c","arguments":"{}"}]`, "input[0]", "'name'"},
		{`"input":[{"type":"function_call","call_id":"c","name":"f"}]`, "input[0]", "'arguments'"},
		{`"input":[{"type":"function_call","call_id":"c","name":"f","arguments":{}}]`, "input[0].arguments", "must be a string"},
		{`"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}","namespace":"n"}]`, "input[0].namespace", "not supported"},
		{`"input":[{"type":"function_call_output","call_id":"c"}]`, "input[0]", "needs 'output'"},
		{`"input":[{"type":"function_call_output","call_id":"c","output":[{"type":"input_image"}]}]`, "input[0].output[0]", "needs 'image_url'"},
		{`"input":[{"type":"reasoning","summary":[],"encrypted_content":"xx"}]`, "input[0]", "encrypted"},
		{`"input":[{"role":"user","role":"user","content":"x"}]`, "input[0].role", "twice"},
		{`"input":"x","tools":[{"type":"web_search"}]`, "tools[0]", `"web_search"`},
		{`"input":"x","tools":[{"type":"custom","name":"c"}]`, "tools[0]", `"custom"`},
		{`"input":"x","tools":[{"type":"function","function":{"name":"f"}}]`, "tools[0].function", "Unsupported"},
		{`"input":"x","tools":[{"name":"f"}]`, "tools[0]", "needs a 'type'"},
		{`"input":"x","tools":[{"type":"function"}]`, "tools[0]", "needs a 'name'"},
		{`"input":"x","tools":[{"type":"function","name":"a b"}]`, "tools[0].name", "letters"},
		{`"input":"x","tools":[{"type":"function","name":""}]`, "tools[0].name", "letters"},
		{`"input":"x","tools":[{"type":"function","name":"f","parameters":[]}]`, "tools[0].parameters", "an object"},
		{`"input":"x","tools":[{"type":"function","name":"f","parameters":{"type":"string"}}]`, "tools[0].parameters.type", "must be object"},
		{`"input":"x","tools":[{"type":"function","name":"f","parameters":{"a":1,"a":2}}]`, "tools[0].parameters.a", "twice"},
		{`"input":"x","tools":[{"type":"function","name":"f","defer_loading":true}]`, "tools[0].defer_loading", "not supported"},
		{`"input":"x","tools":[` + f + `,` + f + `]`, "tools", "two functions"},
		{`"input":"x","tool_choice":"required"`, "tool_choice", "no 'tools'"},
		{`"input":"x","tool_choice":"any"`, "tool_choice", "one of"},
		{`"input":"x","tool_choice":5`, "tool_choice", "a string or an object"},
		{`"input":"x","tool_choice":{"type":"function","name":"g"},"tools":[` + f + `]`, "tool_choice", "'g'"},
		{`"input":"x","tool_choice":{"type":"function"},"tools":[` + f + `]`, "tool_choice", "needs a 'name'"},
		{`"input":"x","tool_choice":{"type":"web_search_preview"}`, "tool_choice", "web_search_preview"},
		{`"input":"x","tool_choice":{"type":"allowed_tools","mode":"auto","tools":[]},"tools":[` + f + `]`, "tool_choice", "at least one"},
		{`"input":"x","tool_choice":{"type":"allowed_tools","tools":[` + f + `]},"tools":[` + f + `]`, "tool_choice", "mode"},
		{`"input":"x","tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"mcp","name":"f"}]},"tools":[` + f + `]`, "tool_choice.tools[0].type", "not supported"},
		{`"input":"x","text":{"format":{"type":"grammar"}}`, "text.format", "json_schema"},
		{`"input":"x","text":{"format":{"type":"json_schema","name":"n"}}`, "text.format", "'schema'"},
		{`"input":"x","text":{"format":{"type":"json_schema","schema":{}}}`, "text.format", "'name'"},
		{`"input":"x","text":{"format":{"type":"json_schema","name":"a.b","schema":{}}}`, "text.format.name", "letters"},
		{`"input":"x","text":{"format":{"type":"text","name":"n"}}`, "text.format.name", "Unsupported"},
		{`"input":"x","text":{"verbosity":"loud"}`, "text.verbosity", "low, medium and high"},
		{`"input":"x","text":{"tone":"low"}`, "text.tone", "Unsupported"},
		{`"input":"x","reasoning":{"effort":"huge"}`, "reasoning.effort", "one of"},
		{`"input":"x","reasoning":{"context":"all_turns"}`, "reasoning.context", "not supported"},
		{`"input":"x","reasoning":{"mode":"pro"}`, "reasoning.mode", "not supported"},
		{`"input":"x","include":["everything"]`, "include[0]", "message.output_text.logprobs"},
		{`"input":"x","metadata":{"a":1}`, "metadata.a", "a string"},
		{`"input":"x","metadata":{"` + strings.Repeat("k", 65) + `":"v"}`, "metadata", "64 characters"},
		{`"input":"x","metadata":{"k":"` + strings.Repeat("v", 513) + `"}`, "metadata.k", "512 characters"},
		{`"input":"x","metadata":{` + pairs(17) + `}`, "metadata", "16 keys"},
		{`"input":"x","stream_options":{}`, "stream_options", "'stream': true"},
		{`"input":"x","stream":true,"stream_options":{"include_usage":true}`, "stream_options.include_usage", "Unsupported"},
		{`"input":"x","max_output_tokens":0`, "max_output_tokens", "at least 1"},
		{`"input":"x","max_output_tokens":1,"min_tokens":2`, "min_tokens", "max_output_tokens"},
		{`"input":"x","temperature":2.5`, "temperature", "between"},
		{`"input":"x","prompt_cache_options":{"prewarm":true}`, "prompt_cache_options.prewarm", "not supported"},
		{`"input":"x","prompt_cache_options":{"comparison_response_id":"r"}`, "prompt_cache_options.comparison_response_id", "not supported"},
		{`"input":"x","nvext":{"greed_sampling":true},"temperature":1`, "nvext.greed_sampling", "contradicts"},
		{`"input":"x","messages":[]`, "messages", "Unsupported"},
		{`"input":"x","n":2`, "n", "Unsupported"},
		{`"model":"m"`, "input", "required"},
	}
	for _, tt := range tests {
		body := `{"model":"m",` + tt.fields + `}`
		if strings.HasPrefix(tt.fields, `"model"`) {
			body = `{` + tt.fields + `}`
		}
		_, err := Decode([]byte(body))
		if f := api.AsFault(err); err == nil || f.Code != fault.Invalid || f.Param != tt.param || !strings.Contains(f.Message, tt.says) {
			t.Errorf("%s: %v (param %q), want %q and %q", tt.fields, err, api.AsFault(err).Param, tt.param, tt.says)
		}
	}
	for _, body := range []string{`{"input":"x"}`, `{"model":" ","input":"x"}`} {
		if _, err := Decode([]byte(body)); api.AsFault(err).Param != "model" {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func pairs(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"k%d":"v"`, i))
	}
	return strings.Join(all, ",")
}

// TestDecodeIsLinear: the memory for a long request is a small multiple of its length, for all kinds of items.
func TestDecodeIsLinear(t *testing.T) {
	const n = 20_000
	repeat := func(item string) string { return strings.Repeat(item+",", n-1) + item }
	for name, items := range map[string]string{
		"texts":          repeat(`{"role":"user","content":"x"}`),
		"parts":          `{"role":"user","content":[` + repeat(`{"type":"input_text","text":"x"}`) + `]}`,
		"calls":          repeat(`{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}`),
		"thoughts":       repeat(`{"type":"reasoning","summary":[{"type":"summary_text","text":"x"}]}`),
		"texts of calls": `{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},` + repeat(`{"role":"assistant","content":"x"}`),
	} {
		body := []byte(`{"model":"m","input":[` + items + `]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := Decode(body); err != nil {
			t.Fatal(name, err)
		}
		runtime.ReadMemStats(&after)
		if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(40*len(body)); got > limit {
			t.Errorf("%s: a request of %d bytes allocates %d, the limit is %d", name, len(body), got, limit)
		}
	}
}

// TestHostile: requests with excessive cost are refused early and by name.
func TestHostile(t *testing.T) {
	deep := strings.Repeat("[", 100_000)
	tests := map[string]string{
		`{"model":"m","input":[{"type":"x","a":` + deep:                                                "nested deeper",
		`{"model":"m","input":"x","tools":[{"type":"function","name":"f","parameters":{"a":` + deep:    "nested deeper",
		`{"model":"m","input":"x","chat_template_kwargs":{"a":` + deep:                                 "nested deeper",
		`{"model":"m","input":"x","temperature":1e999999}`:                                             "out of range",
		`{"model":"m","input":"x","max_output_tokens":` + strings.Repeat("9", 1<<16) + `}`:             "out of range",
		`{"model":"m","input":"x","metadata":{` + pairs(20_000) + `}}`:                                 "16 keys",
		`{"model":"m","input":"x","tools":[` + strings.Repeat(`{"type":"function","name":"f"},`, 2000): "at most 1536",
		`{"model":"m","input":[` + strings.Repeat(`{"role":"user","content":""},`, maxItems) + `0]}`:   "at most 65536 items",
		"{\"model\":\"\xff\"}":        "UTF-8",
		``:                            "unexpected end",
		`{"model":"m","input":"x"} x`: "after the end",
	}
	for body, says := range tests {
		_, err := Decode([]byte(body))
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != fault.Invalid || !strings.Contains(f.Message, says) {
			t.Errorf("%.80s: %v, want %q", body, err, says)
		}
	}
}

// FuzzDecode: every body is decoded to a valid request which can be repeated as JSON, or is answered with an Invalid
// error in valid UTF-8.
func FuzzDecode(f *testing.F) {
	fixturetest.AddCorpus(f)
	for _, s := range []string{
		`{"model":"m","input":"hi","stream":true,"instructions":"x","metadata":{"a":"b"}}`,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"http://x","detail":"low"}]},{"type":"function_call_output","output":[{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}}]}]}`,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"x"}]},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"h"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"1"}]}`,
		`{"model":"m","input":"x","tools":[{"type":"function","name":"f","parameters":{ "a" : [1 , 2] },"strict":true}],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}}`,
		`{"model":"m","input":"x","text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}},"reasoning":{"effort":"none"},"chat_template_kwargs":{"b":null}}`,
		`{"model":"m","input":[{"type":"item_reference","id":"x"}]}`, `{"model":"m","previous_response_id":"x"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		q, err := Decode(body)
		if err != nil {
			var fl *fault.Error
			if !errors.As(err, &fl) || fl.Code != fault.Invalid || !utf8.ValidString(fl.Message) {
				t.Fatalf("%q: %v", body, err)
			}
			return
		}
		if len(q.Messages) == 0 {
			t.Fatalf("%q: nothing to say", body)
		}
		for name, text := range map[string][]byte{"tools": q.ToolsJSON, "template arguments": q.TemplateArgs, "schema": q.Format.Schema} {
			if text != nil && !json.Valid(text) {
				t.Fatalf("%q: %s are %s", body, name, text)
			}
		}
		for _, m := range q.Messages {
			if m.ToolCalls != nil && !json.Valid(m.ToolCalls) {
				t.Fatalf("%q: calls are %s", body, m.ToolCalls)
			}
		}
		q.Stream = false
		w := q.NewWriter(&api.Head{ID: "1", Model: q.Model})
		w.Append(nil, &api.Chunk{Kind: api.Finish, Reason: api.ReasonStop})
		if answer := w.End(nil); !json.Valid(answer) || strings.ContainsAny(string(answer), "\n\r") {
			t.Fatalf("%q: the answer is %s", body, answer)
		}
	})
}
