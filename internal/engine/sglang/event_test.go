package sglang

import (
	"encoding/json"
	"slices"
	"sync/atomic"
	"testing"

	"penstock/core/kv"
	"penstock/internal/engine/remote"
)

// FuzzDecode reads events made of numbers, which must come back, and any bytes, which must do no harm.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{1, 2, 250}, 3, 7, 2, []byte(`{"output_ids":[4294967296],"meta_info":null}`))
	f.Add([]byte{}, 0, 0, 0, []byte(`{"error":{"message":"out of memory"}}`))
	f.Add([]byte{9}, 1, 1, 1, []byte(`{"meta_info":{"finish_reason":{"type":"abort","message":"x","status_code":503},"output_token_logprobs":[[null,1,null]]}}`))
	f.Fuzz(func(t *testing.T, ids []byte, completion, cached, matched int, raw []byte) {
		_, _ = decodeEvent(raw, nil)
		tokens := []kv.Token{}
		for _, id := range ids {
			tokens = append(tokens, kv.Token(id)<<kv.Token(id%24))
		}
		completion, cached, matched = completion&0xffff, cached&0xffff, matched&0xffff
		type object = map[string]any
		data, err := json.Marshal(object{
			"unknown": string(raw), "text": string(raw), "output_ids": tokens,
			"meta_info": object{
				"id": string(raw), "completion_tokens": completion, "cached_tokens": cached, "prompt_tokens": nil,
				"finish_reason": object{"type": "stop", "matched": matched},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		e, err := decodeEvent(data, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(e.ids, tokens) || e.completionTokens != completion || e.cached != cached || e.finish != finishStop || !e.hasMatched || int(e.matched) != matched || e.isError {
			t.Errorf("%+v of %s", e, data)
		}
	})
}

// Streams repeat all tokens from the start, or have only new ones: the counts tell which.
func TestFresh(t *testing.T) {
	for _, c := range []struct {
		ids              []kv.Token
		completion, have int
		want             []kv.Token
		ok               bool
	}{
		{[]kv.Token{1, 2, 3}, 3, 0, []kv.Token{1, 2, 3}, true},
		{[]kv.Token{1, 2, 3}, 3, 2, []kv.Token{3}, true},
		{[]kv.Token{1, 2, 3}, 3, 3, []kv.Token{}, true},
		{[]kv.Token{3}, 3, 2, []kv.Token{3}, true},
		{[]kv.Token{}, 3, 3, []kv.Token{}, true},
		{[]kv.Token{4}, 4, 2, nil, false},
		{[]kv.Token{1, 2}, 2, 3, nil, false},
		{[]kv.Token{7}, -1, 3, []kv.Token{7}, true},
	} {
		e := generateEvent{ids: c.ids, completionTokens: c.completion}
		if got, ok := e.newTokens(c.have); !slices.Equal(got, c.want) || ok != c.ok {
			t.Errorf("%v of %d, %d known: %v, %v, want %v, %v", c.ids, c.completion, c.have, got, ok, c.want, c.ok)
		}
	}
}

func TestMetrics(t *testing.T) {
	text := []byte(`# HELP sglang:num_running_reqs x
sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="0"} 3.0
sglang:num_running_reqs{model_name="m",tp_rank="1",dp_rank="0"} 3.0
sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="1"} 9.0
sglang:num_queue_reqs{model_name="m",tp_rank="0",dp_rank="0"} 2.0
sglang:token_usage{model_name="m",tp_rank="0",dp_rank="0"} 0.25
sglang:token_usage_other{dp_rank="0"} 7
`)
	var g remote.LoadGauges
	var listed atomic.Pointer[[]string]
	listed.Store(&[]string{"a"})
	(&loadScraper{rank: 0, adapters: &listed}).parseMetrics(text, &g)
	if g.Running != 3 || g.Waiting != 2 || g.Usage != 0.25 || !slices.Equal(g.Adapters, []string{"a"}) {
		t.Errorf("%+v", g)
	}
}
