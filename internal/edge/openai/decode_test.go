package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
)

func ptr[T any](v T) *T { return &v }

func chatDefaults(change func(*Request)) *Request {
	r := &Request{
		Endpoint: Chat, Model: "m", AddGenerationPrompt: true, N: 1, Logprobs: -1,
		Messages: []Message{{Role: "user", Content: "hi"}},
	}
	change(r)
	return r
}

func completionDefaults(change func(*Request)) *Request {
	r := &Request{
		Endpoint: Completion, Model: "m", AddGenerationPrompt: true, N: 1, Logprobs: -1,
		Prompts: []Prompt{{Text: "hi"}},
	}
	change(r)
	return r
}

func TestDecodeChat(t *testing.T) {
	tests := []struct {
		fields string // beside model and one message
		change func(*Request)
	}{
		{``, func(*Request) {}},
		{`"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}`, func(r *Request) { r.Stream, r.IncludeUsage = true, true }},
		{`"stream":null,"temperature":null,"tools":null,"stop":null,"nvext":null`, func(*Request) {}},
		{`"max_tokens":5`, func(r *Request) { r.MaxTokens = 5 }},
		{`"max_completion_tokens":5`, func(r *Request) { r.MaxTokens = 5 }},
		{`"max_tokens":5,"max_completion_tokens":5,"min_tokens":5`, func(r *Request) { r.MaxTokens, r.MinTokens = 5, 5 }},
		{`"max_tokens":5.0`, func(r *Request) { r.MaxTokens = 5 }},
		{`"max_tokens":1e2`, func(r *Request) { r.MaxTokens = 100 }},
		{`"temperature":2,"top_p":0,"min_p":1,"top_k":-1,"presence_penalty":-2,"frequency_penalty":2,"repetition_penalty":0.5`, func(r *Request) {
			r.Temperature, r.TopP, r.MinP, r.TopK = ptr(2.0), ptr(0.0), ptr(1.0), ptr(-1)
			r.PresencePenalty, r.FrequencyPenalty, r.RepetitionPenalty = ptr(-2.0), ptr(2.0), ptr(0.5)
		}},
		{`"n":128`, func(r *Request) { r.N = 128 }},
		{`"seed":-1`, func(r *Request) { r.Seed = ptr(^uint64(0)) }},
		{`"stop":"a"`, func(r *Request) { r.Stop = []string{"a"} }},
		{`"stop":["a","b"]`, func(r *Request) { r.Stop = []string{"a", "b"} }},
		{`"stop":[7,8],"stop_token_ids":[9],"ignore_eos":true`, func(r *Request) {
			r.StopTokens, r.IgnoreEOS = []kv.Token{7, 8, 9}, true
		}},
		{`"logit_bias":{"50":-100,"7":1.5}`, func(r *Request) { r.Bias = []TokenBias{{7, 1.5}, {50, -100}} }},
		{`"logprobs":true,"top_logprobs":20`, func(r *Request) { r.Logprobs = 20 }},
		{`"logprobs":true`, func(r *Request) { r.Logprobs = 0 }},
		{`"logprobs":false`, func(*Request) {}},
		{`"continue_final_message":true`, func(r *Request) { r.ContinueFinal, r.AddGenerationPrompt = true, false }},
		{`"add_generation_prompt":false`, func(r *Request) { r.AddGenerationPrompt = false }},
		{`"include_stop_str_in_output":true,"skip_special_tokens":false`, func(r *Request) { r.KeepStop, r.KeepSpecial = true, true }},
		{`"store":true,"metadata":{"a":"b"},"user":"u","service_tier":"auto","parallel_tool_calls":false,"prediction":{"type":"content","content":"x"}`, func(*Request) {}},
		{`"tools":[],"tool_choice":"none","response_format":{"type":"text"},"modalities":["text"],"priority":3,"detokenize":true`, func(*Request) {}},
		{`"cache_salt":"s"`, func(r *Request) { r.CacheSalt = "s" }},
		{`"nvext":{"cache_salt":"s","annotations":["query_instance_id"],"backend_instance_id":9007199254740991,"token_data":[1,2],
			"agent_hints":{"osl":32,"priority":1,"speculative_prefill":false},"extra_fields":["worker_id"],
			"router_config_override":{"overlap_score_weight":0.5,"router_temperature":1,"router_mode":"random"}}`, func(r *Request) {
			r.CacheSalt = "s"
			r.Ext = RequestExt{
				Annotations: []string{QueryInstance}, Worker: kv.MaxWorkerID, Tokens: []kv.Token{1, 2}, ExpectedOutput: 32, WorkerFields: true,
				Override: route.Override{OverlapWeight: ptr(0.5), Temperature: ptr(1.0), Mode: ptr(route.Random)},
			}
		}},
		{`"nvext":{"greed_sampling":true}`, func(r *Request) { r.Temperature = ptr(0.0) }},
		{`"nvext":{"decode_worker_id":5,"prefill_worker_id":6,"agent_context":{"session_id":"x"},"use_raw_prompt":false}`, func(r *Request) { r.Ext.Worker = 5 }},
	}
	for _, tt := range tests {
		body := `{"model":"m","messages":[{"role":"user","content":"hi"}]`
		if tt.fields != "" {
			body += "," + tt.fields
		}
		body += "}"
		got, err := Decode(Chat, []byte(body))
		if err != nil {
			t.Errorf("%s: %v", tt.fields, err)
			continue
		}
		if diff := cmp.Diff(chatDefaults(tt.change), got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.fields, diff)
		}
	}
}

func TestDecodeMessages(t *testing.T) {
	tests := []struct {
		messages string
		want     []Message
	}{
		{`[{"role":"system","content":"a"},{"content":"b","role":"developer"},{"role":"tool","content":"c","tool_call_id":"x"},{"role":"function","name":"f","content":""}]`, []Message{
			{"system", "", "a"}, {"developer", "", "b"}, {"tool", "", "c"}, {"function", "f", ""},
		}},
		{`[{"role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"text"}]}]`, []Message{{"user", "", "a\nb"}}},
		{`[{"role":"user","content":[]}]`, []Message{{"user", "", ""}}},
		{`[{"role":"assistant","content":"x","refusal":null,"tool_calls":[],"audio":null,"function_call":null,"annotations":[],"reasoning_content":"because"}]`, []Message{{"assistant", "", "x"}}},
		{`[{"role":"user","content":"\u00e9\ud83d\ude00\n\"\\\/\b\f\r\t"}]`, []Message{{"user", "", "é😀\n\"\\/\b\f\r\t"}}},
	}
	for _, tt := range tests {
		got, err := Decode(Chat, []byte(`{"model":"m","messages":`+tt.messages+`}`))
		if err != nil {
			t.Errorf("%s: %v", tt.messages, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got.Messages); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.messages, diff)
		}
	}
}

func TestDecodeCompletion(t *testing.T) {
	tests := []struct {
		fields string // beside the model
		change func(*Request)
	}{
		{`"prompt":"hi"`, func(*Request) {}},
		{`"prompt":["a","b"]`, func(r *Request) { r.Prompts = []Prompt{{Text: "a"}, {Text: "b"}} }},
		{`"prompt":[1,2,3]`, func(r *Request) { r.Prompts = []Prompt{{Tokens: []kv.Token{1, 2, 3}}} }},
		{`"prompt":[[1,2],[3]]`, func(r *Request) { r.Prompts = []Prompt{{Tokens: []kv.Token{1, 2}}, {Tokens: []kv.Token{3}}} }},
		{`"prompt":"hi","logprobs":5`, func(r *Request) { r.Logprobs = 5 }},
		{`"prompt":"hi","echo":true,"best_of":2,"n":2,"suffix":""`, func(r *Request) { r.Echo, r.N = true, 2 }},
		{`"nvext":{"token_data":[4]}`, func(r *Request) { r.Prompts, r.Ext.Tokens = []Prompt{{}}, []kv.Token{4} }},
		{`"prompt":"hi","add_special_tokens":true,"best_of":0`, func(*Request) {}},
	}
	for _, tt := range tests {
		got, err := Decode(Completion, []byte(`{"model":"m",`+tt.fields+`}`))
		if err != nil {
			t.Errorf("%s: %v", tt.fields, err)
			continue
		}
		if diff := cmp.Diff(completionDefaults(tt.change), got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.fields, diff)
		}
	}
}

// TestDecodeRefuses is the table of what a client gets wrong: the field that the
// error names, and words that must be in its message.
func TestDecodeRefuses(t *testing.T) {
	const msg = `"messages":[{"role":"user","content":"hi"}]`
	chat := func(fields string) string { return `{"model":"m",` + msg + `,` + fields + `}` }
	messages := func(m string) string { return `{"model":"m","messages":` + m + `}` }
	text := func(fields string) string { return `{"model":"m","prompt":"hi",` + fields + `}` }
	prompt := func(p string) string { return `{"model":"m","prompt":` + p + `}` }
	long := strings.Repeat("k", 200)

	tests := []struct {
		endpoint Endpoint
		body     string
		code     fault.Code
		param    string
		words    string
	}{
		// The text itself.
		{Chat, ``, fault.Invalid, "", "not valid JSON: unexpected end at byte 0"},
		{Chat, `[]`, fault.Invalid, "", "the request body must be an object, not an array"},
		{Chat, `"x"`, fault.Invalid, "", "must be an object, not a string"},
		{Chat, `{"model"`, fault.Invalid, "", "unexpected end"},
		{Chat, `{"model":"m"`, fault.Invalid, "", "unexpected end"},
		{Chat, `{"model":"m",}`, fault.Invalid, "", "unexpected character at byte 13"},
		{Chat, `{model:"m"}`, fault.Invalid, "", "unexpected character at byte 1"},
		{Chat, `{"model":"m" "n":1}`, fault.Invalid, "", "unexpected character"},
		{Chat, chat(`"seed":01`), fault.Invalid, "", "unexpected character"},
		{Chat, chat(`"n":-`), fault.Invalid, "", "invalid number"},
		{Chat, chat(`"n":1.`), fault.Invalid, "", "invalid number"},
		{Chat, chat(`"n":1e`), fault.Invalid, "", "invalid number"},
		{Chat, chat(`"stream":tru`), fault.Invalid, "", "unexpected character"},
		{Chat, chat(`"stream":nul`), fault.Invalid, "", "unexpected character"},
		{Chat, chat(`"n":NaN`), fault.Invalid, "", "unexpected character"},
		{Chat, chat(`"n":1`) + ` {}`, fault.Invalid, "", "unexpected data after the end"},
		{Chat, chat("\"user\":\"a\x01b\""), fault.Invalid, "", "control character"},
		{Chat, chat(`"user":"\x"`), fault.Invalid, "", "invalid escape"},
		{Chat, chat(`"user":"\ud800"`), fault.Invalid, "", "invalid escape"},
		{Chat, chat(`"user":"\ud800\u0041"`), fault.Invalid, "", "invalid escape"},
		{Chat, chat(`"user":"\udc00\ud800"`), fault.Invalid, "", "invalid escape"},
		{Chat, "{\"model\":\"\xff\"}", fault.Invalid, "", "not valid UTF-8 (byte 10)"},
		{Chat, "\xef\xbb\xbf{}", fault.Invalid, "", "unexpected character at byte 0"},
		{Chat, chat(`"n":1,"n":1`), fault.Invalid, "n", "'n' is given twice"},
		{Chat, chat(`"metadata":{"a":1,"\u0061":2}`), fault.Invalid, "metadata.a", "given twice"},
		{Chat, chat(`"metadata":{"a":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`), fault.Invalid, "", "nested deeper than 64"},
		{Chat, chat(`"metadata":` + manyKeys(maxKeys+1)), fault.Invalid, "metadata", "more than 16384 keys"},

		// Fields that nobody defines.
		{Chat, chat(`"frobnicate":1,"temperatur":2`), fault.Invalid, "frobnicate", "Unsupported parameter(s): frobnicate, temperatur"},
		{Chat, chat(`"Temperature":1`), fault.Invalid, "Temperature", "Unsupported parameter(s): Temperature"},
		{Chat, chat(`"` + long + `":1`), fault.Invalid, long[:64] + "…", "Unsupported"},
		{Chat, chat(`"prompt":"x"`), fault.Invalid, "prompt", "Unsupported parameter(s): prompt"},
		{Completion, text(`"messages":[]`), fault.Invalid, "messages", "Unsupported"},
		{Completion, text(`"max_completion_tokens":1`), fault.Invalid, "max_completion_tokens", "Unsupported"},
		{Chat, chat(`"nvext":{"foo":1}`), fault.Invalid, "nvext.foo", "Unsupported parameter(s): nvext.foo"},
		{Chat, chat(`"stream":true,"stream_options":{"foo":1}`), fault.Invalid, "stream_options.foo", "Unsupported"},

		// What is required.
		{Chat, `{}`, fault.Invalid, "model", "'model' is required"},
		{Chat, `{"model":" ",` + msg + `}`, fault.Invalid, "model", "must not be blank"},
		{Chat, `{"model":"m"}`, fault.Invalid, "messages", "'messages' is required"},
		{Chat, messages(`[]`), fault.Invalid, "messages", "at least one"},
		{Completion, `{"model":"m"}`, fault.Invalid, "prompt", "'prompt' is required"},
		{Completion, `{"model":"m","prompt":null}`, fault.Invalid, "prompt", "'prompt' is required"},

		// Types.
		{Chat, `{"model":5}`, fault.Invalid, "model", "'model' must be a string, not a number"},
		{Chat, `{"model":{}}`, fault.Invalid, "model", "must be a string, not an object"},
		{Chat, chat(`"n":"1"`), fault.Invalid, "n", "'n' must be an integer, not a string"},
		{Chat, chat(`"n":true`), fault.Invalid, "n", "must be an integer, not a boolean"},
		{Chat, chat(`"n":1.5`), fault.Invalid, "n", "must be an integer"},
		{Chat, chat(`"stream":1`), fault.Invalid, "stream", "must be a boolean, not a number"},
		{Chat, chat(`"temperature":"hot"`), fault.Invalid, "temperature", "must be a number, not a string"},
		{Chat, chat(`"stop":5`), fault.Invalid, "stop", "must be a string or an array of strings, not a number"},
		{Chat, chat(`"stop":["a",null]`), fault.Invalid, "stop[1]", "must be a string, not null"},
		{Chat, chat(`"logit_bias":[]`), fault.Invalid, "logit_bias", "must be an object, not an array"},
		{Chat, chat(`"logprobs":1`), fault.Invalid, "logprobs", "must be a boolean"},
		{Completion, text(`"logprobs":true`), fault.Invalid, "logprobs", "must be an integer"},
		{Chat, messages(`{}`), fault.Invalid, "messages", "must be an array of messages, not an object"},
		{Chat, messages(`["hi"]`), fault.Invalid, "messages[0]", "must be an object, not a string"},
		{Chat, chat(`"nvext":{"agent_hints":{"osl":"x"}}`), fault.Invalid, "nvext.agent_hints.osl", "must be an integer, not a string"},

		// Limits.
		{Chat, chat(`"temperature":2.1`), fault.Invalid, "temperature", "'temperature' must be between 0 and 2, not 2.1"},
		{Chat, chat(`"temperature":-0.1`), fault.Invalid, "temperature", "between 0 and 2"},
		{Chat, chat(`"temperature":1e999`), fault.Invalid, "temperature", "out of range"},
		{Chat, chat(`"top_p":1.01`), fault.Invalid, "top_p", "between 0 and 1"},
		{Chat, chat(`"min_p":-1`), fault.Invalid, "min_p", "between 0 and 1"},
		{Chat, chat(`"top_k":-2`), fault.Invalid, "top_k", "at least -1"},
		{Chat, chat(`"presence_penalty":2.5`), fault.Invalid, "presence_penalty", "between -2 and 2"},
		{Chat, chat(`"frequency_penalty":-2.5`), fault.Invalid, "frequency_penalty", "between -2 and 2"},
		{Chat, chat(`"length_penalty":3`), fault.Invalid, "length_penalty", "between -2 and 2"},
		{Chat, chat(`"repetition_penalty":0`), fault.Invalid, "repetition_penalty", "greater than 0"},
		{Chat, chat(`"repetition_penalty":2.5`), fault.Invalid, "repetition_penalty", "between 0 and 2"},
		{Chat, chat(`"n":0`), fault.Invalid, "n", "between 1 and 128"},
		{Chat, chat(`"n":129`), fault.Invalid, "n", "between 1 and 128"},
		{Chat, chat(`"max_tokens":-5`), fault.Invalid, "max_tokens", "'max_tokens' must be at least 1, not -5"},
		{Chat, chat(`"max_tokens":0`), fault.Invalid, "max_tokens", "at least 1"},
		{Chat, chat(`"max_tokens":99999999999`), fault.Invalid, "max_tokens", "between 1 and 2147483647"},
		{Chat, chat(`"max_completion_tokens":-1`), fault.Invalid, "max_completion_tokens", "at least 1"},
		{Chat, chat(`"max_tokens":1,"max_completion_tokens":2`), fault.Invalid, "max_completion_tokens", "contradict"},
		{Chat, chat(`"max_tokens":1,"min_tokens":2`), fault.Invalid, "min_tokens", "must not exceed"},
		{Chat, chat(`"min_tokens":-1`), fault.Invalid, "min_tokens", "at least 0"},
		{Chat, chat(`"top_logprobs":21,"logprobs":true`), fault.Invalid, "top_logprobs", "between 0 and 20"},
		{Chat, chat(`"top_logprobs":2`), fault.Invalid, "top_logprobs", "only with 'logprobs'"},
		{Completion, text(`"logprobs":6`), fault.Invalid, "logprobs", "between 0 and 5"},
		{Chat, chat(`"seed":1e300`), fault.Invalid, "seed", "out of range"},
		{Chat, chat(`"seed":1.5`), fault.Invalid, "seed", "must be an integer"},
		{Chat, chat(`"stop":""`), fault.Invalid, "stop", "empty string"},
		{Chat, chat(`"stop":[]`), fault.Invalid, "stop", "must not be empty"},
		{Chat, chat(`"stop":["a",""]`), fault.Invalid, "stop[1]", "empty string"},
		{Chat, chat(`"stop":[` + strings.Repeat(`"a",`, 32) + `"a"]`), fault.Invalid, "stop", "at most 32"},
		{Chat, chat(`"logit_bias":{"x":1}`), fault.Invalid, "logit_bias.x", "token id"},
		{Chat, chat(`"logit_bias":{"-1":1}`), fault.Invalid, "logit_bias.-1", "token id"},
		{Chat, chat(`"logit_bias":{"1":101}`), fault.Invalid, "logit_bias.1", "between -100 and 100"},
		{Chat, chat(`"logit_bias":{"1":1,"01":1}`), fault.Invalid, "logit_bias", "names token 1 twice"},
		{Chat, chat(`"stop_token_ids":[-1]`), fault.Invalid, "stop_token_ids[0]", "token id"},
		{Chat, chat(`"stop_token_ids":[4294967296]`), fault.Invalid, "stop_token_ids[0]", "token id"},
		{Chat, chat(`"user":" "`), fault.Invalid, "user", "blank"},
		{Chat, chat(`"cache_salt":""`), fault.Invalid, "cache_salt", "between 1 and 1024"},
		{Chat, chat(`"cache_salt":"a","nvext":{"cache_salt":"b"}`), fault.Invalid, "nvext.cache_salt", "differ"},
		{Chat, chat(`"stream_options":{"include_usage":true}`), fault.Invalid, "stream_options", "only with 'stream'"},
		{Chat, chat(`"continue_final_message":true,"add_generation_prompt":true`), fault.Invalid, "continue_final_message", "must not both"},
		{Completion, text(`"best_of":21`), fault.Invalid, "best_of", "between 0 and 20"},
		{Completion, text(`"n":3,"best_of":2`), fault.Invalid, "best_of", "must not be less"},
		{Completion, `{"model":"m","n":65,"prompt":["a","b"]}`, fault.Invalid, "n", "make 130 choices"},
		{Completion, prompt(`[]`), fault.Invalid, "prompt", "empty array"},
		{Completion, prompt(`["a",1]`), fault.Invalid, "prompt[1]", "must be a string like the first element, not a number"},
		{Completion, prompt(`[[1],2]`), fault.Invalid, "prompt[1]", "must be an array like"},
		{Completion, prompt(`[[1,"a"]]`), fault.Invalid, "prompt[0][1]", "must be an integer, not a string"},
		{Completion, prompt(`[null]`), fault.Invalid, "prompt[0]", "must be a string, a token id"},
		{Completion, prompt(`{}`), fault.Invalid, "prompt", "must be a string, an array"},
		{Completion, prompt(`[` + strings.Repeat(`"a",`, 128) + `"a"]`), fault.Invalid, "prompt", "at most 128"},

		// Messages.
		{Chat, messages(`[{"content":"x"}]`), fault.Invalid, "messages[0]", "needs a 'role'"},
		{Chat, messages(`[{"role":"user"}]`), fault.Invalid, "messages[0]", "needs 'content'"},
		{Chat, messages(`[{"role":"user","content":null}]`), fault.Invalid, "messages[0]", "needs 'content'"},
		{Chat, messages(`[{"role":"robot","content":"x"}]`), fault.Invalid, "messages[0].role", "one of system, developer, user, assistant, tool and function"},
		{Chat, messages(`[{"role":"user","content":"x","foo":1}]`), fault.Invalid, "messages[0].foo", "Unsupported"},
		{Chat, messages(`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]`), fault.Invalid, "messages[0].content[0]", "not supported by this model"},
		{Chat, messages(`[{"role":"user","content":[{"type":"input_audio"}]}]`), fault.Invalid, "messages[0].content[0]", "not supported by this model"},
		{Chat, messages(`[{"role":"user","content":[{"type":"video"}]}]`), fault.Invalid, "messages[0].content[0]", "unknown type"},
		{Chat, messages(`[{"role":"user","content":[{"text":"a"}]}]`), fault.Invalid, "messages[0].content[0]", "needs a 'type'"},
		{Chat, messages(`[{"role":"user","content":[{"type":"text"}]}]`), fault.Invalid, "messages[0].content[0]", "needs 'text'"},
		{Chat, messages(`[{"role":"user","content":5}]`), fault.Invalid, "messages[0].content", "must be a string or an array of content parts, not a number"},
		{Chat, messages(`[{"role":"assistant","content":"","tool_calls":[{"id":"x"}]}]`), fault.Unimplemented, "messages[0].tool_calls", "not supported"},

		// Known, and not offered.
		{Chat, chat(`"tools":[{"type":"function"}]`), fault.Unimplemented, "tools", "'tools' is not supported"},
		{Chat, chat(`"tool_choice":"required"`), fault.Unimplemented, "tool_choice", "not supported"},
		{Chat, chat(`"tool_choice":{"type":"function"}`), fault.Unimplemented, "tool_choice", "not supported"},
		{Chat, chat(`"response_format":{"type":"json_schema","json_schema":{}}`), fault.Unimplemented, "response_format", "not supported"},
		{Chat, chat(`"response_format":{"type":"json_object"}`), fault.Unimplemented, "response_format", "not supported"},
		{Chat, chat(`"response_format":{"type":"x"}`), fault.Invalid, "response_format", "text, json_object or json_schema"},
		{Chat, chat(`"modalities":["text","audio"]`), fault.Unimplemented, "modalities[1]", "not supported"},
		{Chat, chat(`"audio":{"voice":"x"}`), fault.Unimplemented, "audio", "not supported"},
		{Chat, chat(`"reasoning_effort":"low"`), fault.Unimplemented, "reasoning_effort", "not supported"},
		{Chat, chat(`"guided_json":{}`), fault.Unimplemented, "guided_json", "not supported"},
		{Chat, chat(`"use_beam_search":true`), fault.Unimplemented, "use_beam_search", "not supported"},
		{Chat, chat(`"add_special_tokens":true`), fault.Unimplemented, "add_special_tokens", "not supported"},
		{Completion, text(`"suffix":"x"`), fault.Unimplemented, "suffix", "not supported"},
		{Completion, text(`"best_of":2`), fault.Unimplemented, "best_of", "not supported"},
		{Completion, text(`"echo":true,"logprobs":1`), fault.Unimplemented, "echo", "not supported"},

		// nvext.
		{Chat, chat(`"nvext":5`), fault.Invalid, "nvext", "must be an object"},
		{Chat, chat(`"nvext":{"backend_instance_id":0}`), fault.Invalid, "nvext.backend_instance_id", "between 1 and 9007199254740991"},
		{Chat, chat(`"nvext":{"backend_instance_id":9007199254740992}`), fault.Invalid, "nvext.backend_instance_id", "between 1 and"},
		{Chat, chat(`"nvext":{"backend_instance_id":1,"decode_worker_id":2}`), fault.Invalid, "nvext.decode_worker_id", "contradicts"},
		{Chat, chat(`"nvext":{"token_data":[]}`), fault.Invalid, "nvext.token_data", "must not be empty"},
		{Chat, chat(`"nvext":{"router_config_override":{"overlap_score_weight":-1}}`), fault.Invalid, "nvext.router_config_override.overlap_score_weight", "between 0"},
		{Chat, chat(`"nvext":{"router_config_override":{"router_mode":"best"}}`), fault.Invalid, "nvext.router_config_override.router_mode", "one of kv, round-robin"},
		{Chat, chat(`"nvext":{"extra_fields":["timing"]}`), fault.Unimplemented, "nvext.extra_fields[0]", "not supported"},
		{Chat, chat(`"nvext":{"greed_sampling":true},"temperature":1`), fault.Invalid, "nvext.greed_sampling", "contradicts"},
		{Chat, chat(`"nvext":{"annotations":[` + strings.Repeat(`"a",`, 32) + `"a"]}`), fault.Invalid, "nvext.annotations", "at most 32"},
		{Completion, `{"model":"m","prompt":["a","b"],"nvext":{"token_data":[1]}}`, fault.Invalid, "nvext.token_data", "one prompt"},
	}
	for _, tt := range tests {
		name := tt.body
		if len(name) > 200 {
			name = name[:200]
		}
		_, err := Decode(tt.endpoint, []byte(tt.body))
		var f *fault.Error
		if !errors.As(err, &f) {
			t.Errorf("%s: error %v is no *fault.Error", name, err)
			continue
		}
		if f.Code != tt.code || f.Param != tt.param || !strings.Contains(f.Message, tt.words) {
			t.Errorf("%s:\n got %v %q %q\nwant %v %q … %q", name, f.Code, f.Param, f.Message, tt.code, tt.param, tt.words)
		}
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"k%d":1`, i)
	}
	return b.String() + "}"
}

// TestErrorsAreInTheClientsWords checks that no message leaks a Go type or what
// the client wrote.
func TestErrorsAreInTheClientsWords(t *testing.T) {
	const secret = "xyzzy"
	for _, body := range []string{
		`{"model":"m","messages":[{"role":"user","content":"` + secret + `"}],"temperature":"` + secret + `"}`,
		`{"model":"m","messages":[{"role":"user","content":"` + secret + `"}],"temperature":9}`,
		`{"model":"m","messages":[{"role":"user","content":"` + secret,
		`{"model":"m","messages":[{"role":"` + secret + `","content":"x"}]}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"` + secret + `"}]}]}`,
	} {
		_, err := Decode(Chat, []byte(body))
		if err == nil {
			t.Fatalf("%s was accepted", body)
		}
		for _, leak := range []string{secret, "openai.", "float64", "Go "} {
			if strings.Contains(err.Error(), leak) {
				t.Errorf("%s: message %q contains %q", body, err, leak)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a\u00e9"}]}],"n":2,"stop":["x"],"logit_bias":{"1":2.5}}`))
	f.Add([]byte(`{"model":"m","prompt":[[1,2],[3]],"logprobs":2,"nvext":{"token_data":[1]}}`))
	f.Add([]byte(`{"model":"m","prompt":"a","seed":-1e2,"metadata":{"a":[{},[]]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		kept := slices.Clone(body)
		for _, endpoint := range []Endpoint{Chat, Completion} {
			req, err := Decode(endpoint, body)
			if err != nil {
				var fe *fault.Error
				if !errors.As(err, &fe) || fe.Code != fault.Invalid && fe.Code != fault.Unimplemented {
					t.Fatalf("error %#v", err)
				}
				if !utf8.ValidString(fe.Message) || !utf8.ValidString(fe.Param) {
					t.Fatalf("message %q, param %q", fe.Message, fe.Param)
				}
				continue
			}
			if !json.Valid(body) || !utf8.Valid(body) {
				t.Fatalf("accepted what is not JSON: %q", body)
			}
			checkRequest(t, req)
			before := fmt.Sprint(req)
			for i := range body {
				body[i] = 'x'
			}
			if fmt.Sprint(req) != before {
				t.Fatal("the request changed with the body")
			}
			copy(body, kept)
		}
	})
}

// checkRequest states what Decode promises about a request.
func checkRequest(t *testing.T, r *Request) {
	t.Helper()
	within := func(name string, v *float64, lo, hi float64) {
		if v != nil && !(*v >= lo && *v <= hi) {
			t.Errorf("%s is %v", name, *v)
		}
	}
	within("temperature", r.Temperature, 0, 2)
	within("top_p", r.TopP, 0, 1)
	within("min_p", r.MinP, 0, 1)
	within("presence_penalty", r.PresencePenalty, -2, 2)
	within("frequency_penalty", r.FrequencyPenalty, -2, 2)
	within("repetition_penalty", r.RepetitionPenalty, 5e-324, 2)
	if r.Model == "" || r.N < 1 || r.N*max(1, len(r.Prompts)) > maxChoices || r.MaxTokens < 0 || r.MinTokens < 0 ||
		len(r.Stop) > maxStops || slices.Contains(r.Stop, "") || r.Logprobs < -1 || r.Logprobs > 20 {
		t.Errorf("%+v", r)
	}
	if (r.Endpoint == Chat) != (len(r.Messages) > 0) || (r.Endpoint == Completion) != (len(r.Prompts) > 0) {
		t.Errorf("%d messages and %d prompts", len(r.Messages), len(r.Prompts))
	}
}

// FuzzReader compares the cursor with encoding/json: what it accepts means the
// same there, and what it refuses beyond that is a duplicate key, a lone
// surrogate, invalid UTF-8, depth or size.
func FuzzReader(f *testing.F) {
	for _, s := range []string{
		`null`, ` {"a":[1,-0.5e+3,"x\ud83d\ude00"],"b":{}} `, `[tru]`, `"\ud800"`, `{"a":1,"a":2}`, `-`, `1e5`, `"\u00zz"`, `[1,]`, `{"":{"":1}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := newReader(text)
		if err != nil {
			if utf8.Valid(text) {
				t.Fatal(err)
			}
			return
		}
		got, err := r.any()
		if err == nil {
			err = r.end()
		}
		var want any
		wantErr := json.Unmarshal(text, &want)
		if err != nil {
			beyond := strings.Contains(err.Error(), "twice") || strings.Contains(err.Error(), "invalid escape") ||
				strings.Contains(err.Error(), "nested") || strings.Contains(err.Error(), "out of range")
			if wantErr == nil && !beyond {
				t.Fatalf("refused %q: %v", text, err)
			}
			return
		}
		if wantErr != nil {
			t.Fatalf("accepted %q: %v", text, wantErr)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: got %#v, want %#v", text, got, want)
		}
		// skip must see the same end.
		s, _ := newReader(text)
		if err := s.skip(); err != nil || s.end() != nil {
			t.Fatalf("skip of %q: %v", text, err)
		}
	})
}

// any reads a value as encoding/json would.
func (r *reader) any() (any, error) {
	switch r.kind() {
	case kindNull:
		_, err := r.null()
		return nil, err
	case kindBool:
		return r.bool()
	case kindNumber:
		return r.float()
	case kindString:
		return r.string()
	case kindArray:
		out := []any{}
		err := r.array("an array", func(int) error {
			v, err := r.any()
			out = append(out, v)
			return err
		})
		return out, err
	case kindObject:
		out := map[string]any{}
		err := r.object(func(key string) error {
			v, err := r.any()
			out[key] = v
			return err
		})
		return out, err
	}
	return nil, r.unexpected()
}
