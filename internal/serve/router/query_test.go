package router

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
)

// TestQueryIsTheRequest: a question is decoded like the request that it is about.
func TestQueryIsTheRequest(t *testing.T) {
	for body, endpoint := range map[string]api.Endpoint{
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`: api.Chat,
		`{"model":"m","stream":true,"temperature":0.5,"messages":[{"role":"user","content":"hi"},
			{"role":"assistant","reasoning_content":"hm","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
			{"role":"tool","tool_call_id":"c","content":"7"}],
			"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"none",
			"chat_template_kwargs":{"enable_thinking":false},"cache_salt":"s","nvext":{"backend_instance_id":3}}`: api.Chat,
		`{"model":"m","messages":[{"role":"assistant","content":"hi"}],"continue_final_message":true,"add_generation_prompt":false}`: api.Chat,
		`{"model":"m","prompt":"once","max_tokens":7}`: api.Completion,
	} {
		want, err := openai.Decode(endpoint, []byte(body))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		for _, with := range []string{body, strings.TrimSuffix(body, "}") + `,"token_ids":null,"router_config_override":{"overlap_score_weight":2}}`} {
			got, err := decodeQuery([]byte(with))
			if err != nil {
				t.Errorf("%s: %v", with, err)
				continue
			}
			if diff := cmp.Diff(want, got.request); diff != "" {
				t.Errorf("%s:\n%s", with, diff)
			}
			if (got.givenOverride == nil) != (with == body) || got.givenOverride != nil && *got.policyOverride().OverlapWeight != 2 {
				t.Errorf("%s: the override is %+v", with, got.givenOverride)
			}
		}
	}
}

// TestQueryPolicy: the question's own policy overrides the request's.
func TestQueryPolicy(t *testing.T) {
	const request = `"model":"m","messages":[{"role":"user","content":"hi"}],"nvext":{"router_config_override":{"overlap_score_weight":3}}`
	one, three := 1.0, 3.0
	for body, want := range map[string]route.Override{
		`{` + request + `}`: {OverlapWeight: &three},
		`{` + request + `,"router_config_override":{"overlap_score_weight":1}}`: {OverlapWeight: &one},
	} {
		q, err := decodeQuery([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, q.policyOverride()); diff != "" {
			t.Errorf("%s:\n%s", body, diff)
		}
	}
}

func TestQueryTokens(t *testing.T) {
	q, err := decodeQuery([]byte(`{"token_ids":[1,4294967295],"model":"m","cache_salt":""}`))
	if err != nil || !slices.Equal(q.tokens, []kv.Token{1, 4294967295}) || q.request.Model != "m" || q.request.CacheSalt != "" {
		t.Errorf("%+v, %v", q, err)
	}
}

// TestQueryTokensWithExtensions: nvext applies beside token ids as it does beside a prompt.
func TestQueryTokensWithExtensions(t *testing.T) {
	const nvext = `"model":"m","nvext":{"allowed_worker_ids":[3,4],"session_control":{"session_id":"s"},"agent_hints":{"osl":9,"strict_priority":2},
		"router_config_override":{"moe_query":{"layer_id":3}},"cache_salt":"x"}`
	q, err := decodeQuery([]byte(`{"token_ids":[1,2],` + nvext + `}`))
	if err != nil {
		t.Fatal(err)
	}
	as, err := decodeQuery([]byte(`{"prompt":"ab",` + nvext + `}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(q.request.Ext.Allowed) != 2 {
		t.Errorf("%+v", q.request.Ext)
	}
	if diff := cmp.Diff(as.request.Ext, q.request.Ext); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(as.request.CacheSalt, q.request.CacheSalt); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(as.policyOverride(), q.policyOverride()); diff != "" {
		t.Error(diff)
	}
	if !slices.Equal(q.tokens, []kv.Token{1, 2}) {
		t.Errorf("tokens %v", q.tokens)
	}
}

func TestQueryRefused(t *testing.T) {
	for body, param := range map[string]string{
		`{"model":"m","messages":[]}`:                                               "messages",
		`{"model":"m","messages":[{"role":"user","content":"x"}],"prompt":"x"}`:     "token_ids",
		`{"model":"m","messages":[{"role":"user","content":"x"}],"top_banana":1}`:   "top_banana",
		`{"model":"m","messages":[{"role":"user","content":"x"}],"model":"n"}`:      "model",
		`{"model":"m","prompt":"x","messages":null,"echo":"x"}`:                     "echo",
		`{"model":"m","token_ids":[1],"tools":[]}`:                                  "tools",
		`{"model":"m","token_ids":[1],"router_config_override":7}`:                  "router_config_override",
		`{"model":"m","token_ids":[1],"router_config_override":{"overlap_sco":7}}`:  "overlap_sco",
		`{"model":"m","token_ids":[1],"nvext":{"allowed":[1]}}`:                     "nvext.allowed",
		`{"model":"m","token_ids":[1],"nvext":{"token_data":[1]}}`:                  "nvext.token_data",
		`{"model":"m","token_ids":[1],"nvext":{"cache_salt":"a"},"cache_salt":"b"}`: "nvext.cache_salt",
		`{"messages":[{"role":"user","content":"x"}]}`:                              "model",
		`{"model":" ","token_ids":[1]}`:                                             "model",
	} {
		_, err := decodeQuery([]byte(body))
		f, ok := err.(*fault.Error)
		if !ok || f.Code != fault.Invalid || f.Param != param {
			t.Errorf("%s: %v, want an invalid %s", body, err, param)
		}
	}
}

// TestQueryMemory: decoding a message of any number of parts takes memory in proportion to the body.
func TestQueryMemory(t *testing.T) {
	const n = 10_000
	part := `{"type":"text","text":"abcdefgh"}`
	body := []byte(`{"model":"m","messages":[{"role":"user","content":[` + strings.Repeat(part+",", n-1) + part + `]}]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	q, err := decodeQuery(body)
	if err != nil || len(q.request.Messages[0].Content) != 9*n-1 {
		t.Fatalf("%v", err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 100*uint64(len(body)) {
		t.Errorf("a body of %d bytes took %d bytes of memory", len(body), used)
	}
}

func FuzzDecodeQuery(f *testing.F) {
	f.Add([]byte(`{"model":"m","token_ids":[1,2],"cache_salt":"","router_config_override":{"router_mode":"kv"}}`))
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"cache_salt":"","tools":[]}`))
	f.Add([]byte(`{"prompt":"x","model":"m","token_ids":[]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		q, err := decodeQuery(body)
		switch {
		case err == nil:
			if q.request.Model == "" || len(q.tokens) > 0 == (len(q.request.Messages) > 0 || len(q.request.Prompts) > 0) {
				t.Fatalf("%+v", q)
			}
		case fault.CodeOf(err) != fault.Invalid:
			t.Fatal(err)
		}
	})
}
