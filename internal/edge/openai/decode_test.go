package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/internal/edge/api"
	"penstock/internal/fixturetest"
)

func ptr[T any](v T) *T { return &v }

func chatDefaults(change func(*api.Request)) *api.Request {
	r := &api.Request{
		Endpoint: api.Chat, Model: "m", AddGenerationPrompt: true, N: 1, Logprobs: -1,
		Messages: []api.Message{{Role: "user", Content: "hi"}},
	}
	change(r)
	return r
}

func completionDefaults(change func(*api.Request)) *api.Request {
	r := &api.Request{
		Endpoint: api.Completion, Model: "m", AddGenerationPrompt: true, N: 1, Logprobs: -1,
		Prompts: []api.Prompt{{Text: "hi"}},
	}
	change(r)
	return r
}

func TestDecodeChat(t *testing.T) {
	d := described(t)
	tests := []struct {
		fields string // in addition to model and one message
		change func(*api.Request)
	}{
		{``, func(*api.Request) {}},
		{`"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}`, func(r *api.Request) { r.Stream, r.IncludeUsage = true, true }},
		{`"stream":null,"temperature":null,"tools":null,"stop":null,"nvext":null`, func(*api.Request) {}},
		{`"max_tokens":5`, func(r *api.Request) { r.MaxTokens = 5 }},
		{`"max_completion_tokens":5`, func(r *api.Request) { r.MaxTokens = 5 }},
		{`"max_tokens":5,"max_completion_tokens":5,"min_tokens":5`, func(r *api.Request) { r.MaxTokens, r.MinTokens = 5, 5 }},
		{`"max_tokens":5.0`, func(r *api.Request) { r.MaxTokens = 5 }},
		{`"max_tokens":1e2`, func(r *api.Request) { r.MaxTokens = 100 }},
		{`"temperature":2,"top_p":0,"min_p":1,"top_k":-1,"presence_penalty":-2,"frequency_penalty":2,"repetition_penalty":0.5`, func(r *api.Request) {
			r.Temperature, r.TopP, r.MinP, r.TopK = ptr(2.0), ptr(0.0), ptr(1.0), ptr(-1)
			r.PresencePenalty, r.FrequencyPenalty, r.RepetitionPenalty = ptr(-2.0), ptr(2.0), ptr(0.5)
		}},
		{`"n":128`, func(r *api.Request) { r.N = 128 }},
		{`"seed":-1`, func(r *api.Request) { r.Seed = ptr(^uint64(0)) }},
		{`"stop":"a"`, func(r *api.Request) { r.Stop = []string{"a"} }},
		{`"stop":["a","b"]`, func(r *api.Request) { r.Stop = []string{"a", "b"} }},
		{`"stop":[7,8],"stop_token_ids":[9],"ignore_eos":true`, func(r *api.Request) {
			r.StopTokens, r.IgnoreEOS = []kv.Token{7, 8, 9}, true
		}},
		{`"logit_bias":{"50":-100,"7":1.5}`, func(r *api.Request) { r.Bias = []api.TokenBias{{Token: 7, Bias: 1.5}, {Token: 50, Bias: -100}} }},
		{`"stop":[],"verbosity":"low","best_of":1,"user":"","rid":"r","session_id":"s","guided_decoding_backend":"auto","stream_interval":4,"chat_template":"","kv_transfer_params":{},
			"separate_reasoning":true,"stream_reasoning":true,"no_stop_trim":false,"return_hidden_states":false`, func(*api.Request) {}},
		{`"logprobs":true,"top_logprobs":20`, func(r *api.Request) { r.Logprobs = 20 }},
		{`"logprobs":true`, func(r *api.Request) { r.Logprobs = 0 }},
		{`"logprobs":false`, func(*api.Request) {}},
		{`"continue_final_message":true`, func(r *api.Request) { r.ContinueFinal, r.AddGenerationPrompt = true, false }},
		{`"add_generation_prompt":false`, func(r *api.Request) { r.AddGenerationPrompt = false }},
		{`"include_stop_str_in_output":true,"skip_special_tokens":false`, func(r *api.Request) { r.KeepStop, r.KeepSpecial = true, true }},
		{`"store":true,"metadata":{"a":"b"},"user":"u","service_tier":"auto","parallel_tool_calls":true,"prediction":{"type":"content","content":"x"}`, func(*api.Request) {}},
		{`"tools":[],"tool_choice":"auto","functions":[],"function_call":"none","response_format":{"type":"text"},"modalities":["text"],"priority":3,"detokenize":true`, func(*api.Request) {}},
		{`"cache_salt":"s"`, func(r *api.Request) { r.CacheSalt = "s" }},
		{`"nvext":{"cache_salt":"s","annotations":["query_instance_id"],"backend_instance_id":9007199254740991,"token_data":[1,2],
			"agent_hints":{"osl":32,"priority":1,"speculative_prefill":false},"extra_fields":["worker_id"],
			"router_config_override":{"overlap_score_weight":0.5,"router_temperature":1,"router_mode":"random"}}`, func(r *api.Request) {
			r.CacheSalt = "s"
			r.Ext = api.RequestExt{
				Annotations: api.Annotations{Query: api.QueryEvents}, Worker: kv.MaxWorkerID, Tokens: []kv.Token{1, 2}, ExpectedOutput: 32, WorkerFields: true,
				Priority: queue.Priority{Jump: time.Second},
				Override: route.Override{OverlapWeight: ptr(0.5), Temperature: ptr(1.0), Mode: ptr(route.Random)},
			}
		}},
		{`"nvext":{"annotations":["query_instance_id:","query_instance_id","token_ids:x","formatted_prompt","llm_metrics:","request_id"],
			"decode_worker_id":7,"dp_rank":0,"prefill_worker_id":7,"prefill_dp_rank":4294967295,"agent_hints":{"latency_sensitivity":1.5}}`, func(r *api.Request) {
			r.Ext = api.RequestExt{
				Annotations: api.Annotations{Query: api.QueryChunk, FormattedPrompt: true, TokenIDs: true, LLMMetrics: true, RequestID: true},
				Worker:      7, Rank: ptr(uint32(0)), PrefillWorker: 7, Priority: queue.Priority{Jump: 1500 * time.Millisecond},
			}
		}},
		{`"nvext":{"agent_hints":{"latency_sensitivity":9,"priority":0},"request_timestamp_ms":1.5,"cache_control":{"type":"ephemeral","ttl":"5m"},"agent_context":{"session_id":"s"}}`, func(*api.Request) {}},
		{`"nvext":{"allowed_worker_ids":[3,4],"agent_hints":{"priority":-5,"strict_priority":4294967295},"session_control":{"session_id":"s","action":"close","timeout":300},
			"router_config_override":{"assume_kv_reuse":false,"track_prefill_tokens":true,"ttft_target_ms":1500,"itl_target_ms":0,"moe_query":{"layer_id":2,"expert_ids":[7,4294967295],"expert_group":0,"fallback_to_unlabeled":false}}}`, func(r *api.Request) {
			r.Ext = api.RequestExt{
				Allowed: []kv.WorkerID{3, 4}, Priority: queue.Priority{Strict: math.MaxUint32}, Session: route.Session{ID: "s", Last: true},
				Override: route.Override{
					AssumeReuse: ptr(false), TrackPrefill: ptr(true), TTFTTarget: ptr(1500.0), ITLTarget: ptr(0.0),
					MoE: &route.MoEQuery{Layer: ptr(uint32(2)), Experts: []uint32{7, math.MaxUint32}, Group: ptr(uint32(0)), Fallback: ptr(false)},
				},
			}
		}},
		{`"nvext":{"agent_hints":{"priority":2147483647},"session_control":{"session_id":"s","action":"bind"},"router_config_override":{"moe_query":{"layer_id":0,"expert_ids":null}}}`, func(r *api.Request) {
			r.Ext.Priority.Jump, r.Ext.Session.ID = time.Hour, "s"
			r.Ext.Override.MoE = &route.MoEQuery{Layer: ptr(uint32(0))}
		}},
		{`"nvext":{"router_config_override":{"disagg_policy":"threshold","max_local_prefill_length":0,"max_prefill_queue_size":1048576}}`, func(r *api.Request) {
			r.Ext.Override.SplitOverride = route.SplitOverride{DisaggPolicy: ptr("threshold"), MaxLocalPrefillLength: ptr(0), MaxPrefillQueueSize: ptr(1048576)}
		}},
		{`"nvext":{"greed_sampling":true}`, func(r *api.Request) { r.Temperature = ptr(0.0) }},
		{`"nvext":{"media_failure":"fail"}`, func(*api.Request) {}},
		{`"nvext":{"media_failure":"text_only"}`, func(r *api.Request) { r.Ext.MediaFailure = api.TextOnly }},
		{`"nvext":{"decode_worker_id":5,"prefill_worker_id":6,"agent_context":{"session_id":"x"},"use_raw_prompt":false}`, func(r *api.Request) { r.Ext.Worker, r.Ext.PrefillWorker = 5, 6 }},
	}
	for _, tt := range tests {
		body := `{"model":"m","messages":[{"role":"user","content":"hi"}]`
		if tt.fields != "" {
			body += "," + tt.fields
		}
		body += "}"
		got, err := Decode(api.Chat, []byte(body))
		if err != nil {
			t.Errorf("%s: %v", tt.fields, err)
			continue
		}
		if err := d.matches(d.request(path(api.Chat)), []byte(body)); err != nil {
			t.Errorf("%s: %v", tt.fields, err)
		}
		if diff := cmp.Diff(chatDefaults(tt.change), got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.fields, diff)
		}
	}
}

func TestDecodeMessages(t *testing.T) {
	tests := []struct {
		messages string
		want     []api.Message
	}{
		{`[{"role":"system","content":"a"},{"content":"b","role":"developer"},{"role":"tool","content":"c","tool_call_id":"x"},{"role":"function","name":"f","content":""}]`, []api.Message{
			{Role: "system", Name: "", Content: "a"}, {Role: "developer", Name: "", Content: "b"}, {Role: "tool", Name: "", Content: "c", ToolCallID: "x"}, {Role: "function", Name: "f", Content: ""},
		}},
		{`[{"role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"text"}]}]`, []api.Message{{Role: "user", Content: "a\nb", Parts: []api.Part{{Text: "a"}, {Text: "b"}}}}},
		{`[{"role":"user","content":[]}]`, []api.Message{{Role: "user", Name: "", Content: ""}}},
		{`[{"role":"assistant","content":"x","refusal":null,"tool_calls":[],"audio":null,"function_call":null,"annotations":[],"reasoning_content":"because"}]`, []api.Message{{Role: "assistant", Name: "", Content: "x", Reasoning: "because"}}},
		{`[{"role":"assistant","tool_calls":[ {"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"},"index":0} ]},{"role":"tool","content":[{"type":"text","text":"1"}],"tool_call_id":"a"},{"role":"tool","content":"2"}]`, []api.Message{
			{Role: "assistant", NoContent: true, ToolCalls: []byte(`[ {"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"},"index":0} ]`)},
			{Role: "tool", Content: "1", Parts: []api.Part{{Text: "1"}}, ToolCallID: "a"},
			{Role: "tool", Content: "2"},
		}},
		{`[{"role":"assistant","content":null,"reasoning":"hm","reasoning_content":"hm","refusal":"no"}]`, []api.Message{{Role: "assistant", Content: "no", Reasoning: "hm"}}},
		{`[{"role":"assistant","content":"a","refusal":"b"}]`, []api.Message{{Role: "assistant", Content: "a\nb"}}},
		{`[{"content":[{"type":"text","text":"a","refusal":null,"prompt_cache_breakpoint":{"mode":"explicit"}},{"refusal":"b","type":"refusal"}],"role":"assistant"}]`, []api.Message{{Role: "assistant", Content: "a\nb", Parts: []api.Part{{Text: "a"}, {Text: "b"}}}}},
		{`[{"content":[{"type":"text","text":"a"}],"role":"assistant","refusal":"b"}]`, []api.Message{{Role: "assistant", Content: "a\nb", Parts: []api.Part{{Text: "a"}, {Text: "b"}}}}},
		{`[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"user","content":[]}]`, []api.Message{{Role: "user", Content: "a", Parts: []api.Part{{Text: "a"}}}, {Role: "user"}}},
		{`[{"role":"user","content":"x","tool_calls":[],"reasoning":"","refusal":"","tool_call_id":null}]`, []api.Message{{Role: "user", Content: "x"}}},
		{`[{"role":"user","content":"\u00e9\ud83d\ude00\n\"\\\/\b\f\r\t"}]`, []api.Message{{Role: "user", Name: "", Content: "é😀\n\"\\/\b\f\r\t"}}},
	}
	for _, tt := range tests {
		got, err := Decode(api.Chat, []byte(`{"model":"m","messages":`+tt.messages+`}`))
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
		fields string // in addition to the model
		change func(*api.Request)
	}{
		{`"prompt":"hi"`, func(*api.Request) {}},
		{`"prompt":["a","b"]`, func(r *api.Request) { r.Prompts = []api.Prompt{{Text: "a"}, {Text: "b"}} }},
		{`"prompt":[1,2,3]`, func(r *api.Request) { r.Prompts = []api.Prompt{{Tokens: []kv.Token{1, 2, 3}}} }},
		{`"prompt":[[1,2],[3]]`, func(r *api.Request) { r.Prompts = []api.Prompt{{Tokens: []kv.Token{1, 2}}, {Tokens: []kv.Token{3}}} }},
		{`"prompt":"hi","logprobs":5`, func(r *api.Request) { r.Logprobs = 5 }},
		{`"prompt":"hi","echo":true,"best_of":2,"n":2,"suffix":""`, func(r *api.Request) { r.Echo, r.N = true, 2 }},
		{`"nvext":{"token_data":[4]}`, func(r *api.Request) { r.Prompts, r.Ext.Tokens = []api.Prompt{{}}, []kv.Token{4} }},
		{`"prompt":"hi","add_special_tokens":true,"best_of":0,"stop":[],"chat_template_kwargs":{},"mm_processor_kwargs":{}`, func(*api.Request) {}},
		{`"prompt":"hi","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, func(r *api.Request) {
			r.Stream, r.IncludeUsage, r.ContinuousUsage = true, true, true
		}},
	}
	for _, tt := range tests {
		got, err := Decode(api.Completion, []byte(`{"model":"m",`+tt.fields+`}`))
		if err != nil {
			t.Errorf("%s: %v", tt.fields, err)
			continue
		}
		if diff := cmp.Diff(completionDefaults(tt.change), got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.fields, diff)
		}
	}
}

// TestDecodeRefuses is the table of client errors: the field which the error names, and words which its
// message must contain.
func TestDecodeRefuses(t *testing.T) {
	const msg = `"messages":[{"role":"user","content":"hi"}]`
	chat := func(fields string) string { return `{"model":"m",` + msg + `,` + fields + `}` }
	messages := func(m string) string { return `{"model":"m","messages":` + m + `}` }
	text := func(fields string) string { return `{"model":"m","prompt":"hi",` + fields + `}` }
	prompt := func(p string) string { return `{"model":"m","prompt":` + p + `}` }
	long := strings.Repeat("k", 200)

	tests := []struct {
		endpoint api.Endpoint
		body     string
		param    string
		words    string
	}{
		// The JSON text itself.
		{api.Chat, ``, "", "not valid JSON: unexpected end at byte 0"},
		{api.Chat, `[]`, "", "the request body must be an object, not an array"},
		{api.Chat, `"x"`, "", "must be an object, not a string"},
		{api.Chat, `{"model"`, "", "unexpected end"},
		{api.Chat, `{"model":"m"`, "", "unexpected end"},
		{api.Chat, `{"model":"m",}`, "", "unexpected character at byte 13"},
		{api.Chat, `{model:"m"}`, "", "unexpected character at byte 1"},
		{api.Chat, `{"model":"m" "n":1}`, "", "unexpected character"},
		{api.Chat, chat(`"seed":01`), "", "unexpected character"},
		{api.Chat, chat(`"n":-`), "", "invalid number"},
		{api.Chat, chat(`"n":1.`), "", "invalid number"},
		{api.Chat, chat(`"n":1e`), "", "invalid number"},
		{api.Chat, chat(`"stream":tru`), "", "unexpected character"},
		{api.Chat, chat(`"stream":nul`), "", "unexpected character"},
		{api.Chat, chat(`"n":NaN`), "", "unexpected character"},
		{api.Chat, chat(`"n":1`) + ` {}`, "", "unexpected data after the end"},
		{api.Chat, chat("\"user\":\"a\x01b\""), "", "control character"},
		{api.Chat, chat(`"user":"\x"`), "", "invalid escape"},
		{api.Chat, chat(`"user":"\ud800"`), "", "invalid escape"},
		{api.Chat, chat(`"user":"\ud800\u0041"`), "", "invalid escape"},
		{api.Chat, chat(`"user":"\udc00\ud800"`), "", "invalid escape"},
		{api.Chat, "{\"model\":\"\xff\"}", "", "not valid UTF-8 (byte 10)"},
		{api.Chat, "\xef\xbb\xbf{}", "", "unexpected character at byte 0"},
		{api.Chat, chat(`"n":1,"n":1`), "n", "'n' is given twice"},
		{api.Chat, chat(`"metadata":{"a":1,"\u0061":2}`), "metadata.a", "given twice"},
		{api.Chat, chat(`"metadata":{"a":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`), "", "nested deeper than 64"},
		{api.Chat, chat(`"metadata":` + manyKeys(1<<14+1)), "metadata", "more than 16384 keys"},

		// Unknown fields.
		{api.Chat, chat(`"frobnicate":1,"temperatur":2`), "frobnicate", "Unsupported parameter(s): frobnicate, temperatur"},
		{api.Chat, chat(`"Temperature":1`), "Temperature", "Unsupported parameter(s): Temperature"},
		{api.Chat, chat(`"` + long + `":1`), long[:64] + "…", "Unsupported"},
		{api.Chat, chat(`"prompt":"x"`), "prompt", "Unsupported parameter(s): prompt"},
		{api.Completion, text(`"messages":[]`), "messages", "Unsupported"},
		{api.Completion, text(`"max_completion_tokens":1`), "max_completion_tokens", "Unsupported"},
		{api.Chat, chat(`"nvext":{"foo":1}`), "nvext.foo", "Unsupported parameter(s): nvext.foo"},
		{api.Chat, chat(`"stream":true,"stream_options":{"foo":1}`), "stream_options.foo", "Unsupported"},

		// Required fields.
		{api.Chat, `{}`, "model", "'model' is required"},
		{api.Chat, `{"model":" ",` + msg + `}`, "model", "must not be blank"},
		{api.Chat, `{"model":"m"}`, "messages", "'messages' is required"},
		{api.Chat, messages(`[]`), "messages", "at least one"},
		{api.Completion, `{"model":"m"}`, "prompt", "'prompt' is required"},
		{api.Completion, `{"model":"m","prompt":null}`, "prompt", "'prompt' is required"},

		// Types.
		{api.Chat, `{"model":5}`, "model", "'model' must be a string, not a number"},
		{api.Chat, `{"model":{}}`, "model", "must be a string, not an object"},
		{api.Chat, chat(`"n":"1"`), "n", "'n' must be an integer, not a string"},
		{api.Chat, chat(`"n":true`), "n", "must be an integer, not a boolean"},
		{api.Chat, chat(`"n":1.5`), "n", "must be an integer"},
		{api.Chat, chat(`"stream":1`), "stream", "must be a boolean, not a number"},
		{api.Chat, chat(`"temperature":"hot"`), "temperature", "must be a number, not a string"},
		{api.Chat, chat(`"stop":5`), "stop", "must be a string or an array of strings, not a number"},
		{api.Chat, chat(`"stop":["a",null]`), "stop[1]", "must be a string, not null"},
		{api.Chat, chat(`"logit_bias":[]`), "logit_bias", "must be an object, not an array"},
		{api.Chat, chat(`"logprobs":1`), "logprobs", "must be a boolean"},
		{api.Completion, text(`"logprobs":true`), "logprobs", "must be an integer"},
		{api.Chat, messages(`{}`), "messages", "must be an array of messages, not an object"},
		{api.Chat, messages(`["hi"]`), "messages[0]", "must be an object, not a string"},
		{api.Chat, chat(`"nvext":{"agent_hints":{"osl":"x"}}`), "nvext.agent_hints.osl", "must be an integer, not a string"},
		{api.Chat, chat(`"nvext":{"agent_hints":{"strict_priority":-1}}`), "nvext.agent_hints.strict_priority", "must be between 0 and 4294967295, not -1"},
		{api.Chat, chat(`"nvext":{"allowed_worker_ids":[]}`), "nvext.allowed_worker_ids", "must not be empty"},
		{api.Chat, chat(`"nvext":{"allowed_worker_ids":[3,0]}`), "nvext.allowed_worker_ids[1]", "must be a worker id"},
		{api.Chat, chat(`"nvext":{"session_control":{"action":"open"}}`), "nvext.session_control", "needs a session_id"},
		{api.Chat, chat(`"nvext":{"session_control":{"session_id":""}}`), "nvext.session_control.session_id", "between 1 and 256 bytes"},
		{api.Chat, chat(`"nvext":{"session_control":{"session_id":"s","action":"end"}}`), "nvext.session_control.action", "must be one of bind, open and close"},
		{api.Chat, chat(`"nvext":{"router_config_override":{"moe_query":{"expert_ids":[1]}}}`), "nvext.router_config_override.moe_query", "needs a layer_id"},
		{api.Chat, chat(`"nvext":{"router_config_override":{"moe_query":{"layer_id":4294967296}}}`), "nvext.router_config_override.moe_query.layer_id", "between 0 and 4294967295"},
		{api.Chat, chat(`"nvext":{"router_config_override":{"moe_query":{"layer_id":1,"expert_ids":[-1]}}}`), "nvext.router_config_override.moe_query.expert_ids[0]", "between 0 and 4294967295"},
		{api.Chat, chat(`"nvext":{"router_config_override":{"moe_query":{"layer_id":1,"experts":[1]}}}`), "nvext.router_config_override.moe_query.experts", ""},
		{api.Chat, chat(`"nvext":{"router_config_override":{"assume_kv_reuse":1}}`), "nvext.router_config_override.assume_kv_reuse", "must be a boolean"},

		// Limits.
		{api.Chat, chat(`"temperature":2.1`), "temperature", "'temperature' must be between 0 and 2, not 2.1"},
		{api.Chat, chat(`"temperature":-0.1`), "temperature", "between 0 and 2"},
		{api.Chat, chat(`"temperature":1e999`), "temperature", "out of range"},
		{api.Chat, chat(`"top_p":1.01`), "top_p", "between 0 and 1"},
		{api.Chat, chat(`"min_p":-1`), "min_p", "between 0 and 1"},
		{api.Chat, chat(`"top_k":-2`), "top_k", "at least -1"},
		{api.Chat, chat(`"presence_penalty":2.5`), "presence_penalty", "between -2 and 2"},
		{api.Chat, chat(`"frequency_penalty":-2.5`), "frequency_penalty", "between -2 and 2"},
		{api.Chat, chat(`"length_penalty":3`), "length_penalty", "between -2 and 2"},
		{api.Chat, chat(`"repetition_penalty":0`), "repetition_penalty", "greater than 0"},
		{api.Chat, chat(`"repetition_penalty":2.5`), "repetition_penalty", "between 0 and 2"},
		{api.Chat, chat(`"n":0`), "n", "between 1 and 128"},
		{api.Chat, chat(`"n":129`), "n", "between 1 and 128"},
		{api.Chat, chat(`"max_tokens":-5`), "max_tokens", "'max_tokens' must be at least 1, not -5"},
		{api.Chat, chat(`"max_tokens":0`), "max_tokens", "at least 1"},
		{api.Chat, chat(`"max_tokens":99999999999`), "max_tokens", "between 1 and 2147483647"},
		{api.Chat, chat(`"max_completion_tokens":-1`), "max_completion_tokens", "at least 1"},
		{api.Chat, chat(`"max_tokens":1,"max_completion_tokens":2`), "max_completion_tokens", "contradict"},
		{api.Chat, chat(`"max_tokens":1,"min_tokens":2`), "min_tokens", "must not exceed"},
		{api.Chat, chat(`"min_tokens":-1`), "min_tokens", "at least 0"},
		{api.Chat, chat(`"top_logprobs":21,"logprobs":true`), "top_logprobs", "between 0 and 20"},
		{api.Chat, chat(`"top_logprobs":2`), "top_logprobs", "only with 'logprobs'"},
		{api.Completion, text(`"logprobs":6`), "logprobs", "between 0 and 5"},
		{api.Chat, chat(`"seed":1e300`), "seed", "out of range"},
		{api.Chat, chat(`"seed":1.5`), "seed", "must be an integer"},
		{api.Chat, chat(`"stop":""`), "stop", "empty string"},
		{api.Chat, chat(`"stop":["a",""]`), "stop[1]", "empty string"},
		{api.Chat, chat(`"stop":[` + strings.Repeat(`"a",`, 32) + `"a"]`), "stop", "at most 32"},
		{api.Chat, chat(`"logit_bias":{"x":1}`), "logit_bias.x", "token id"},
		{api.Chat, chat(`"logit_bias":{"-1":1}`), "logit_bias.-1", "token id"},
		{api.Chat, chat(`"logit_bias":{"1":101}`), "logit_bias.1", "between -100 and 100"},
		{api.Chat, chat(`"logit_bias":{"1":1,"01":1}`), "logit_bias", "names token 1 twice"},
		{api.Chat, chat(`"stop_token_ids":[-1]`), "stop_token_ids[0]", "token id"},
		{api.Chat, chat(`"stop_token_ids":[4294967296]`), "stop_token_ids[0]", "token id"},
		{api.Chat, chat(`"verbosity":"loud"`), "verbosity", "low, medium and high"},
		{api.Chat, chat(`"best_of":2`), "best_of", "greater than 'n'"},
		{api.Chat, chat(`"stop":[""]`), "stop[0]", "empty string"},
		{api.Chat, chat(`"cache_salt":""`), "cache_salt", "between 1 and 1024"},
		{api.Chat, chat(`"cache_salt":"a","nvext":{"cache_salt":"b"}`), "nvext.cache_salt", "differ"},
		{api.Chat, chat(`"stream_options":{"include_usage":true}`), "stream_options", "only with 'stream'"},
		{api.Chat, chat(`"continue_final_message":true,"add_generation_prompt":true`), "continue_final_message", "must not both"},
		{api.Completion, text(`"best_of":21`), "best_of", "between 0 and 20"},
		{api.Completion, text(`"n":3,"best_of":2`), "best_of", "must not be less"},
		{api.Completion, `{"model":"m","n":65,"prompt":["a","b"]}`, "n", "make 130 choices"},
		{api.Completion, prompt(`[]`), "prompt", "empty array"},
		{api.Completion, prompt(`["a",1]`), "prompt[1]", "must be a string like the first element, not a number"},
		{api.Completion, prompt(`[[1],2]`), "prompt[1]", "must be an array like"},
		{api.Completion, prompt(`[[1,"a"]]`), "prompt[0][1]", "must be an integer, not a string"},
		{api.Completion, prompt(`[null]`), "prompt[0]", "must be a string, a token id"},
		{api.Completion, prompt(`{}`), "prompt", "must be a string, an array"},
		{api.Completion, prompt(`[` + strings.Repeat(`"a",`, 128) + `"a"]`), "prompt", "at most 128"},

		// Messages.
		{api.Chat, messages(`[{"content":"x"}]`), "messages[0]", "needs a 'role'"},
		{api.Chat, messages(`[{"role":"user"}]`), "messages[0]", "needs 'content'"},
		{api.Chat, messages(`[{"role":"user","content":null}]`), "messages[0]", "needs 'content'"},
		{api.Chat, messages(`[{"role":"robot","content":"x"}]`), "messages[0].role", "one of system, developer, user, assistant, tool and function"},
		{api.Chat, messages(`[{"role":"user","content":"x","foo":1}]`), "messages[0].foo", "Unsupported"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]`), "messages[0].content[0].image_url.url", "an http or https URL, or a data: URI"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"image_url","image_url":"x"}]}]`), "messages[0].content[0].image_url", "an http or https URL, or a data: URI"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/` + strings.Repeat("x", api.MaxURL) + `"}}]}]`), "messages[0].content[0].image_url.url", "at most 16384"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"image_url","image_url":{"detail":"low"}}]}]`), "messages[0].content[0].image_url", "needs a 'url'"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x","detail":"huge"}}]}]`), "messages[0].content[0].image_url.detail", "one of auto"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x","size":1}}]}]`), "messages[0].content[0].image_url.size", "Unsupported"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"image_url","image_url":5}]}]`), "messages[0].content[0].image_url", "a URL or an object"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"image_url"}]}]`), "messages[0].content[0]", "needs 'image_url'"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"video_url","image_url":"http://x"}]}]`), "messages[0].content[0]", "needs 'video_url'"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"image_url","image_url":"http://x","audio_url":"http://x"}]}]`), "messages[0].content[0].audio_url", "a second media object"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"text","text":"a","image_url":"http://x"}]}]`), "messages[0].content[0]", "a part of its own"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"text","text":"a","uuid":"x"}]}]`), "messages[0].content[0]", "'uuid'"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"image_url","image_url":"http://x","uuid":""}]}]`), "messages[0].content[0].uuid", "between 1 and 512 bytes"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"image_url","image_url":"http://x","txt":""}]}]`), "messages[0].content[0].txt", "Unsupported"},
		{api.Chat, messages(`[{"role":"assistant","content":[{"type":"image_url","image_url":"http://x"}]}]`), "messages[0]", "shows media"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"input_audio"}]}]`), "messages[0].content[0]", "needs 'input_audio'"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"x"}}]}]`), "messages[0].content[0].input_audio", "needs a 'format'"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"input_audio","input_audio":{"format":"wav"}}]}]`), "messages[0].content[0].input_audio", "needs 'data'"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"x","format":"wav;base64,"}}]}]`), "messages[0].content[0].input_audio.format", "name of a format"},
		{api.Chat, messages(`[{"role":"user","content":[` + strings.Repeat(`{"type":"image_url","image_url":"http://x"},`, api.MaxMedia) + `{"type":"image","image":"http://x"}]}]`), "messages[0].content[256]", "at most 256"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}]`), "messages[0].content[0]", "not supported by this server"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"video"}]}]`), "messages[0].content[0]", "unknown type"},
		{api.Chat, messages(`[{"role":"user","content":[{"text":"a"}]}]`), "messages[0].content[0]", "needs a 'type'"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"text"}]}]`), "messages[0].content[0]", "needs 'text'"},
		{api.Chat, messages(`[{"role":"user","content":5}]`), "messages[0].content", "must be a string or an array of content parts, not a number"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"text","text":"a","foo":1}]}]`), "messages[0].content[0].foo", "Unsupported"},
		{api.Chat, messages(`[{"role":"user","content":[{"type":"refusal","refusal":"a"}]}]`), "messages[0]", "only role assistant"},
		{api.Chat, messages(`[{"role":"assistant","content":[{"type":"refusal","text":"a"}]}]`), "messages[0].content[0]", "needs 'refusal'"},
		{api.Chat, messages(`[{"role":"assistant","content":null,"tool_calls":[]}]`), "messages[0]", "needs 'content' or 'tool_calls'"},
		{api.Chat, messages(`[{"role":"assistant","content":"a","function_call":{"name":"f","arguments":""}}]`), "messages[0].function_call", "use 'tool_calls'"},
		{api.Chat, messages(`[{"role":"assistant","content":"a","audio":{"id":"x"}}]`), "messages[0].audio", "not supported"},
		{api.Chat, messages(`[{"role":"assistant","content":"a","reasoning":"a","reasoning_content":"b"}]`), "messages[0].reasoning_content", "differs"},
		{api.Chat, messages(`[{"role":"user","content":"a","reasoning":"a"}]`), "messages[0]", "only role assistant"},
		{api.Chat, messages(`[{"role":"user","content":"a","tool_call_id":"a"}]`), "messages[0]", "only role tool"},
		{api.Chat, messages(`[{"role":"user","content":"a","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":""}}]}]`), "messages[0]", "only role assistant"},
		{api.Chat, messages(`[{"role":"tool","tool_call_id":"a"}]`), "messages[0]", "needs 'content'"},
		{api.Chat, messages(`[{"role":"assistant","tool_calls":[{"id":"x"}]}]`), "messages[0].tool_calls[0]", "needs a 'type'"},
		{api.Chat, messages(`[{"role":"assistant","tool_calls":[{"id":"x","type":"custom","custom":{"name":"f","input":""}}]}]`), "messages[0].tool_calls[0]", "type custom, which is not supported"},
		{api.Chat, messages(`[{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":""}}]}]`), "messages[0].tool_calls[0]", "needs an 'id'"},
		{api.Chat, messages(`[{"role":"assistant","tool_calls":[{"id":1,"type":"function","function":{"name":"f","arguments":""}}]}]`), "messages[0].tool_calls[0].id", "must be a string"},
		{api.Chat, messages(`[{"role":"assistant","tool_calls":[{"id":"x","type":"function","function":{"arguments":""}}]}]`), "messages[0].tool_calls[0]", "with a 'name'"},
		{api.Chat, messages(`[{"role":"assistant","tool_calls":[{"id":"x","type":"function","function":{"name":"f"}}]}]`), "messages[0].tool_calls[0]", "needs 'function.arguments'"},
		{api.Chat, messages(`[{"role":"assistant","tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":{}}}]}]`), "messages[0].tool_calls[0].function.arguments", "must be a string, not an object"},
		{api.Chat, messages(`[{"role":"assistant","tool_calls":[{"id":"x","id":"y"}]}]`), "messages[0].tool_calls[0].id", "given twice"},

		// Tools.
		{api.Chat, chat(`"tools":{}`), "tools", "must be an array of tools"},
		{api.Chat, chat(`"tools":[{"type":"function"}]`), "tools[0]", "needs a 'function'"},
		{api.Chat, chat(`"tools":[{"function":{"name":"f"}}]`), "tools[0]", "needs a 'type'"},
		{api.Chat, chat(`"tools":[{"type":"custom","custom":{"name":"f"}}]`), "tools[0]", "type custom, which is not supported"},
		{api.Chat, chat(`"tools":[{"type":"web_search"}]`), "tools[0]", "must be function"},
		{api.Chat, chat(`"tools":[{"type":"function","function":{}}]`), "tools[0]", "with a 'name'"},
		{api.Chat, chat(`"tools":[{"type":"function","function":{"name":""}}]`), "tools[0].function.name", "1 to 96"},
		{api.Chat, chat(`"tools":[{"type":"function","function":{"name":"` + strings.Repeat("f", 97) + `"}}]`), "tools[0].function.name", "1 to 96"},
		{api.Chat, chat(`"tools":[{"type":"function","function":{"name":"f g"}}]`), "tools[0].function.name", "characters"},
		{api.Chat, chat(`"tools":[{"type":"function","function":{"name":"é"}}]`), "tools[0].function.name", "characters"},
		{api.Chat, chat(`"tools":[{"type":"function","function":{"name":"f","parameters":[]}}]`), "tools[0].function.parameters", "must be an object"},
		{api.Chat, chat(`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"string"}}}]`), "tools[0].function.parameters.type", "must be object"},
		{api.Chat, chat(`"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{},"a":{}}}}}]`), "tools[0].function.parameters.properties.a", "given twice"},
		{api.Chat, chat(`"tools":[{"type":"function","function":{"name":"f","parameters":{"maximum":1e999999}}}]`), "tools[0].function.parameters.maximum", "out of range"},
		{api.Chat, chat(`"tools":[{"type":"function","function":{"name":"f","strict":1}}]`), "tools[0].function.strict", "must be a boolean"},
		{api.Chat, chat(`"tools":[{"type":"function","function":{"name":"f","description":1}}]`), "tools[0].function.description", "must be a string"},
		{api.Chat, chat(`"tools":[` + function("f") + `,` + function("g") + `,` + function("f") + `]`), "tools[2]", "the function name of 'tools[0]'"},
		{api.Chat, chat(`"tools":[` + functions(maxTools+1) + `]`), "tools", "at most 1536"},
		{api.Chat, chat(`"tool_choice":"required"`), "tool_choice", "only with 'tools'"},
		{api.Chat, chat(`"tool_choice":"required","tools":[]`), "tool_choice", "only with 'tools'"},
		{api.Chat, chat(`"tool_choice":{"type":"function","function":{"name":"f"}}`), "tool_choice", "only with 'tools'"},
		{api.Chat, chat(`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[` + function("f") + `]}}`), "tool_choice", "only with 'tools'"},
		{api.Chat, chat(`"tool_choice":{"type":"function"}`), "tool_choice", "with a 'name'"},
		{api.Chat, chat(`"tool_choice":{"function":{"name":"f"}}`), "tool_choice", "a 'type'"},
		{api.Chat, chat(`"tool_choice":{"type":"custom","custom":{"name":"f"}}`), "tool_choice", "not supported"},
		{api.Chat, chat(`"tool_choice":{"type":"function","name":"f"}`), "tool_choice.name", "Unsupported"},
		{api.Chat, chat(`"tool_choice":"any"`), "tool_choice", "none, auto, required"},
		{api.Chat, chat(`"tool_choice":1`), "tool_choice", "none, auto, required"},
		{api.Chat, chat(`"tool_choice":{"type":"function","function":{"name":"g"}},"tools":[` + function("f") + `]`), "tool_choice.function.name", "one of 'tools'"},
		{api.Chat, chat(`"tool_choice":{"type":"allowed_tools"},"tools":[` + function("f") + `]`), "tool_choice", "needs 'allowed_tools'"},
		{api.Chat, chat(`"tool_choice":{"type":"allowed_tools","allowed_tools":{"tools":[` + function("f") + `]}}`), "tool_choice.allowed_tools", "needs a 'mode'"},
		{api.Chat, chat(`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}}`), "tool_choice.allowed_tools", "at least one"},
		{api.Chat, chat(`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"mcp"}]}}`), "tool_choice.allowed_tools.tools[0]", "needs a 'type' of function"},
		{api.Chat, chat(`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[` + function("g") + `]}},"tools":[` + function("f") + `]`), "tool_choice.allowed_tools.tools", "functions of 'tools' only"},
		{api.Chat, chat(`"tool_choice":{"type":"function","function":{"name":"f"},"allowed_tools":{"mode":"auto","tools":[` + function("f") + `]}},"tools":[` + function("f") + `]`), "tool_choice", "what goes with it"},
		{api.Chat, chat(`"parallel_tool_calls":1`), "parallel_tool_calls", "must be a boolean"},
		{api.Chat, chat(`"functions":[{"name":"f"}]`), "functions", "use 'tools'"},
		{api.Chat, chat(`"function_call":{"name":"f"}`), "function_call", "use 'tool_choice'"},
		{api.Completion, text(`"tools":[` + function("f") + `]`), "tools", "not supported"},
		{api.Completion, text(`"tool_choice":"required"`), "tool_choice", "not supported"},

		// The output format.
		{api.Chat, chat(`"response_format":{}`), "response_format", "text, json_object or json_schema"},
		{api.Chat, chat(`"response_format":{"type":"x"}`), "response_format", "text, json_object or json_schema"},
		{api.Chat, chat(`"response_format":{"type":"json_schema"}`), "response_format", "needs 'json_schema'"},
		{api.Chat, chat(`"response_format":{"type":"json_schema","json_schema":{}}`), "response_format.json_schema", "needs a 'name'"},
		{api.Chat, chat(`"response_format":{"type":"json_schema","json_schema":{"name":""}}`), "response_format.json_schema.name", "1 to 64"},
		{api.Chat, chat(`"response_format":{"type":"json_schema","json_schema":{"name":"a.b"}}`), "response_format.json_schema.name", "characters"},
		{api.Chat, chat(`"response_format":{"type":"json_schema","json_schema":{"name":"a"}}`), "response_format.json_schema", "needs a 'schema'"},
		{api.Chat, chat(`"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":false}}`), "response_format.json_schema.schema", "must not be false"},
		{api.Chat, chat(`"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":"{}"}}`), "response_format.json_schema.schema", "an object or true"},
		{api.Chat, chat(`"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"a":1,"a":1}}}`), "response_format.json_schema.schema.a", "given twice"},
		{api.Chat, chat(`"response_format":{"type":"json_object","json_schema":{"name":"a","schema":{}}}`), "response_format", "goes with a 'type' of json_schema"},
		{api.Chat, chat(`"response_format":{"type":"text","x":1}`), "response_format.x", "Unsupported"},
		{api.Chat, chat(`"guided_json":1`), "guided_json", "an object or true"},
		{api.Chat, chat(`"guided_json":"{"`), "guided_json", "a string with one in it"},
		{api.Chat, chat(`"guided_json":"{\"a\":1,\"a\":1}"`), "guided_json", "a string with one in it"},
		{api.Chat, chat(`"guided_json":{},"response_format":{"type":"json_object"}`), "response_format", "'guided_json' and 'response_format' both"},
		{api.Chat, chat(`"structured_outputs":{}`), "structured_outputs", "needs 'json'"},
		{api.Chat, chat(`"structured_outputs":{"json":{},"json_object":true}`), "structured_outputs", "give one of them"},
		{api.Chat, chat(`"structured_outputs":{"regex":"a"}`), "structured_outputs.regex", "not supported"},
		{api.Chat, chat(`"structured_outputs":{"json":{},"disable_any_whitespace":true}`), "structured_outputs.disable_any_whitespace", "not supported"},
		{api.Chat, chat(`"structured_outputs":{"x":1}`), "structured_outputs.x", "Unsupported"},
		{api.Chat, chat(`"guided_choice":["a","b"]`), "guided_choice", "not supported"},
		{api.Chat, chat(`"guided_regex":"a"`), "guided_regex", "not supported"},
		{api.Chat, chat(`"guided_grammar":"a"`), "guided_grammar", "not supported"},

		// The template.
		{api.Chat, chat(`"chat_template_kwargs":[]`), "chat_template_kwargs", "must be an object"},
		{api.Chat, chat(`"chat_template_kwargs":{"a":{"b":1,"b":1}}`), "chat_template_kwargs.a.b", "given twice"},
		{api.Chat, chat(`"reasoning_effort":"great"`), "reasoning_effort", "one of none, minimal"},
		{api.Chat, chat(`"chat_template":"x"`), "chat_template", "not supported"},
		{api.Chat, chat(`"documents":[{}]`), "documents", "not supported"},
		{api.Completion, text(`"reasoning_effort":"low"`), "reasoning_effort", "not supported"},

		// Known but unsupported fields.
		{api.Chat, chat(`"modalities":["text","audio"]`), "modalities[1]", "not supported"},
		{api.Chat, chat(`"audio":{"voice":"x"}`), "audio", "not supported"},
		{api.Chat, chat(`"use_beam_search":true`), "use_beam_search", "not supported"},
		{api.Chat, chat(`"add_special_tokens":true`), "add_special_tokens", "not supported"},
		{api.Completion, text(`"suffix":"x"`), "suffix", "not supported"},
		{api.Completion, text(`"best_of":2`), "best_of", "not supported"},
		{api.Completion, text(`"echo":true,"logprobs":1`), "echo", "not supported"},

		// nvext.
		{api.Chat, chat(`"nvext":5`), "nvext", "must be an object"},
		{api.Chat, chat(`"nvext":{"backend_instance_id":0}`), "nvext.backend_instance_id", "between 1 and 9007199254740991"},
		{api.Chat, chat(`"nvext":{"backend_instance_id":9007199254740992}`), "nvext.backend_instance_id", "between 1 and"},
		{api.Chat, chat(`"nvext":{"backend_instance_id":1,"decode_worker_id":2}`), "nvext.decode_worker_id", "contradicts"},
		{api.Chat, chat(`"nvext":{"token_data":[]}`), "nvext.token_data", "must not be empty"},
		{api.Chat, chat(`"nvext":{"router_config_override":{"overlap_score_weight":-1}}`), "nvext.router_config_override.overlap_score_weight", "between 0"},
		{api.Chat, chat(`"nvext":{"router_config_override":{"router_mode":"best"}}`), "nvext.router_config_override.router_mode", "one of kv, time, round-robin"},
		{api.Chat, chat(`"nvext":{"router_config_override":{"disagg_policy":"often"}}`), "nvext.router_config_override.disagg_policy", "one of cost, threshold, always and never"},
		{api.Chat, chat(`"nvext":{"router_config_override":{"max_local_prefill_length":-1}}`), "nvext.router_config_override.max_local_prefill_length", "between 0 and 1073741824"},
		{api.Chat, chat(`"nvext":{"router_config_override":{"max_prefill_queue_size":1.5}}`), "nvext.router_config_override.max_prefill_queue_size", "integer"},
		{api.Chat, chat(`"nvext":{"router_config_override":{"prefill_wait":"1s"}}`), "nvext.router_config_override.prefill_wait", "Unsupported"},
		{api.Chat, chat(`"nvext":{"media_failure":"drop"}`), "nvext.media_failure", "must be fail or text_only"},
		{api.Chat, chat(`"nvext":{"media_failure":true}`), "nvext.media_failure", "string"},
		{api.Chat, chat(`"nvext":{"extra_fields":["timing"]}`), "nvext.extra_fields[0]", "not supported"},
		{api.Chat, chat(`"nvext":{"greed_sampling":true},"temperature":1`), "nvext.greed_sampling", "contradicts"},
		{api.Chat, chat(`"nvext":{"annotations":[` + strings.Repeat(`"token_ids",`, 32) + `"a"]}`), "nvext.annotations", "at most 32"},
		{api.Chat, chat(`"nvext":{"annotations":["token_ids","query_instance_id_extra:1"]}`), "nvext.annotations[1]", "query_instance_id_extra"},
		{api.Chat, chat(`"nvext":{"annotations":[":"]}`), "nvext.annotations[0]", "one of query_instance_id, formatted_prompt, token_ids, llm_metrics, request_id"},
		{api.Chat, chat(`"nvext":{"annotations":["token_id"]}`), "nvext.annotations[0]", "token_id"},
		{api.Chat, chat(`"nvext":{"dp_rank":-1}`), "nvext.dp_rank", "between 0 and"},
		{api.Chat, chat(`"nvext":{"prefill_dp_rank":"0"}`), "nvext.prefill_dp_rank", "integer"},
		{api.Chat, chat(`"nvext":{"agent_hints":{"latency_sensitivity":-1}}`), "nvext.agent_hints.latency_sensitivity", "between 0"},
		{api.Chat, chat(`"nvext":{"max_thinking_tokens":8}`), "nvext.max_thinking_tokens", "not supported"},
		{api.Chat, chat(`"nvext":{"use_raw_prompt":true}`), "nvext.use_raw_prompt", "not supported"},
		{api.Chat, chat(`"nvext":{"metadata_upload":{"url":"http://a"}}`), "nvext.metadata_upload", "Unsupported"},
		{api.Chat, chat(`"nvext":{"routing_constraints":{"required_taints":["a"]}}`), "nvext.routing_constraints", "Unsupported"},
		{api.Chat, chat(`"nvext":{"router":{"ttft_target":5}}`), "nvext.router", "Unsupported"},
		{api.Chat, chat(`"nvext":{"top_k":5}`), "nvext.top_k", "Unsupported"},
		{api.Chat, chat(`"nvext":{"extra_fields":["stop_reason"]}`), "nvext.extra_fields[0]", "not supported"},
		{api.Completion, `{"model":"m","prompt":["a","b"],"nvext":{"token_data":[1]}}`, "nvext.token_data", "one prompt"},
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
		if f.Code != fault.Invalid || f.Param != tt.param || !strings.Contains(f.Message, tt.words) {
			t.Errorf("%s:\n got %v %q %q\nwant %q … %q", name, f.Code, f.Param, f.Message, tt.param, tt.words)
		}
	}
}

// function returns a tool with that name.
func function(name string) string {
	return `{"type":"function","function":{"name":"` + name + `"}}`
}

func functions(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = function(fmt.Sprintf("f%d", i))
	}
	return strings.Join(all, ",")
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

// TestErrorsAreInTheClientsWords checks that no message leaks a Go type or the client's values.
func TestErrorsAreInTheClientsWords(t *testing.T) {
	const secret = "xyzzy"
	for _, body := range []string{
		`{"model":"m","messages":[{"role":"user","content":"` + secret + `"}],"temperature":"` + secret + `"}`,
		`{"model":"m","messages":[{"role":"user","content":"` + secret + `"}],"temperature":9}`,
		`{"model":"m","messages":[{"role":"user","content":"` + secret,
		`{"model":"m","messages":[{"role":"` + secret + `","content":"x"}]}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"` + secret + `"}]}]}`,
	} {
		_, err := Decode(api.Chat, []byte(body))
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
	fixturetest.AddCorpus(f)
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a\u00e9"}]}],"n":2,"stop":["x"],"logit_bias":{"1":2.5}}`))
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"uuid":"u","type":"image_url","image_url":{"url":"http://x","detail":"low"}},{"type":"input_audio","input_audio":{"data":"AA==","format":"wav"}},{"type":"image","image":"data:,"}]}]}`))
	f.Add([]byte(`{"model":"m","prompt":[[1,2],[3]],"logprobs":2,"nvext":{"token_data":[1]}}`))
	f.Add([]byte(`{"model":"m","prompt":"a","seed":-1e2,"metadata":{"a":[{},[]]}}`))
	for _, fields := range []string{
		`"messages":[{"role":"assistant","content":null,"refusal":"r","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"1"}]`,
		`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":{"type":"function","function":{"name":"f"}}`,
		`"tools":[` + functions(2) + `],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[` + functions(1) + `]}}`,
		`"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"a":[1e5]}}}`,
		`"guided_json":"{\"type\":\"string\"}"`, `"structured_outputs":{"json":true}`,
		`"reasoning_effort":"none","chat_template_kwargs":{ "thinking":true },"include_reasoning":false`,
	} {
		f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}],` + fields + `}`))
		f.Add([]byte(`{"model":"m",` + fields + `}`))
	}
	d := described(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		kept := slices.Clone(body)
		for _, endpoint := range []api.Endpoint{api.Chat, api.Completion} {
			req, err := Decode(endpoint, body)
			if err != nil {
				var fe *fault.Error
				if !errors.As(err, &fe) || fe.Code != fault.Invalid {
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
			if err := d.matches(d.request(path(endpoint)), body); err != nil {
				t.Fatalf("%q is taken: %v", body, err)
			}
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

// checkRequest checks the guarantees of Decode for a request.
func checkRequest(t *testing.T, r *api.Request) {
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
	checkTools(t, r)
	checkMedia(t, r)
	if (r.Endpoint == api.Chat) != (len(r.Messages) > 0) || (r.Endpoint == api.Completion) != (len(r.Prompts) > 0) {
		t.Errorf("%d messages and %d prompts", len(r.Messages), len(r.Prompts))
	}
}

// checkTools checks the guarantees of Decode for JSON which it passes on, with encoding/json.
func checkTools(t *testing.T, r *api.Request) {
	t.Helper()
	var tools []map[string]any
	if len(r.Tools) > 0 {
		if err := json.Unmarshal(r.ToolsJSON, &tools); err != nil {
			t.Error(err)
		}
	} else if r.ToolsJSON != nil {
		t.Errorf("no tools, and %q", r.ToolsJSON)
	}
	if len(tools) != len(r.Tools) {
		t.Fatalf("%d tools, %d as JSON", len(r.Tools), len(tools))
	}
	chosen := r.ToolChoice.Mode != api.ToolNamed
	names := map[string]bool{}
	for i, tool := range r.Tools {
		if name := tools[i]["function"].(map[string]any)["name"]; name != tool.Name {
			t.Errorf("tool %d is %q, as JSON %q", i, tool.Name, name)
		}
		if names[tool.Name] || tool.Parameters != nil && !json.Valid(tool.Parameters) {
			t.Errorf("%+v", tool)
		}
		names[tool.Name] = true
		chosen = chosen || tool.Name == r.ToolChoice.Name
	}
	if !chosen || r.ToolChoice.Mode == api.ToolRequired && len(r.Tools) == 0 {
		t.Errorf("%+v of %v", r.ToolChoice, names)
	}
	var object map[string]any
	if r.TemplateArgs != nil && (json.Unmarshal(r.TemplateArgs, &object) != nil || len(object) == 0) {
		t.Errorf("variables %q", r.TemplateArgs)
	}
	if (r.Format.Kind == api.FormatSchema) != (r.Format.Schema != nil) || (r.Format.Kind == api.FormatText) != (r.Format.Param == "") ||
		r.Format.Schema != nil && !json.Valid(r.Format.Schema) {
		t.Errorf("%+v", r.Format)
	}
	for _, m := range r.Messages {
		var calls []any
		if m.ToolCalls != nil && (json.Unmarshal(m.ToolCalls, &calls) != nil || len(calls) == 0 || m.Role != "assistant") ||
			m.ToolCallID != "" && m.Role != "tool" || m.Reasoning != "" && m.Role != "assistant" {
			t.Errorf("%+v", m)
		}
	}
}

// TestDecodeAllocatesLittle: looking up a field allocates nothing. The allocations are those of the values.
func TestDecodeAllocatesLittle(t *testing.T) {
	body := []byte(`{"model":"m","stream":true,"stream_options":{"include_usage":true},"temperature":0.7,"top_p":0.9,"max_tokens":9,"stop":["a","b"],` +
		`"user":"u","seed":1,"n":1,"presence_penalty":0,"logprobs":false,"messages":[{"role":"user","content":"hi"}]}`)
	n := testing.AllocsPerRun(100, func() {
		if _, err := Decode(api.Chat, body); err != nil {
			t.Fatal(err)
		}
	})
	if n > 16 {
		t.Errorf("decoding allocates %v times", n)
	}
}

func BenchmarkDecode(b *testing.B) {
	turn := `{"role":"user","content":"` + strings.Repeat(`a sentence of ordinary words, \"quoted\". `, 25) + `"},`
	body := []byte(`{"model":"m","stream":true,"temperature":0.7,"messages":[` + strings.TrimSuffix(strings.Repeat(turn, 20), ",") + `]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(api.Chat, body); err != nil {
			b.Fatal(err)
		}
	}
}
