package vllm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
	"penstock/internal/strictjson"

	"github.com/google/go-cmp/cmp"
)

func testCard() engine.Card {
	return engine.Card{
		Name: "m", Engine: "vllm", Numerics: "x", BlockSize: 32, Blocks: 64, Ranks: 1, ContextLength: 4096, VocabSize: 2000, EOS: []kv.Token{1715},
		Tokenizer: engine.TokenizerRef{Kind: "builtin"}, StructuredOutput: true,
	}
}

// rehearse runs a dialect for req with events, one in each line.
func rehearse(how remote.ChoiceMode, d remote.Dialect, req *engine.Request, lines string) ([]enginetest.Choice, remote.DialectRun, error) {
	var events [][]byte
	for line := range strings.Lines(lines) {
		if line = strings.TrimSpace(line); line != "" {
			events = append(events, []byte(line))
		}
	}
	r := enginetest.NewRecorder(req)
	done, err := remote.RunDialect(testCard(), how, d, req, events, r.Sink)
	if err == nil {
		err = r.Complete()
	}
	return r.Choices, done, err
}

func tiny() *Engine { return &Engine{model: "tiny"} }

// TestCompletionsAsCaptured reads responses of vLLM 0.32.0.
func TestCompletionsAsCaptured(t *testing.T) {
	req := &engine.Request{ID: "r", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: []kv.Token{300, 301, 302}, Stop: engine.Stop{MaxTokens: 4}}
	got, _, err := rehearse(remote.SingleCallIfSampled, &completionsDialect{engine: tiny()}, req, `
{"id":"cmpl-1","object":"text_completion","created":1,"model":"tiny","choices":[{"index":0,"text":" mem","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":[300,301,302],"token_ids":[757]}]}
{"id":"cmpl-1","object":"text_completion","created":1,"model":"tiny","choices":[{"index":0,"text":" write","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":[1536]}]}
{"id":"cmpl-1","object":"text_completion","created":1,"model":"tiny","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null,"prompt_token_ids":null,"token_ids":[1715]}]}
{"id":"cmpl-1","object":"text_completion","created":1,"model":"tiny","choices":[],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2}},"system_fingerprint":"vllm-0.32.0-ab1eb509"}
[DONE]`)
	want := []enginetest.Choice{{Tokens: []kv.Token{757, 1536, 1715}, Cached: 2, Finish: engine.FinishStop}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

// TestGenerateAsCaptured does the same for the other path, with log-probabilities.
func TestGenerateAsCaptured(t *testing.T) {
	req := &engine.Request{ID: "r", Attempt: 1, Choices: 1, Logprobs: 2, Prompt: []kv.Token{300, 301, 302}, Stop: engine.Stop{MaxTokens: 2}}
	for name, first := range map[string]string{
		"0.32": `{"request_id":"generate-tokens-1","usage":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":null,"stop_reason":null,"token_ids":[1435],"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":{"content":[{"token_id":1435,"logprob":-0.25,"rank":1,"top_logprobs":[{"token_id":1435,"logprob":-0.25,"rank":1},{"token_id":7,"logprob":-1.5,"rank":2},{"token_id":8,"logprob":-2,"rank":3}]}]}}]}`,
		"0.22": `{"request_id":"generate-tokens-1","choices":[{"index":0,"logprobs":{"content":[{"token":"token_id:1435","logprob":-0.25,"top_logprobs":[{"token":"token_id:7","logprob":-1.5},{"token":"token_id:1435","logprob":-0.25}]}]},"finish_reason":null,"token_ids":[1435]}],"usage":null}`,
	} {
		got, _, err := rehearse(remote.LeaderFirst, &generateDialect{engine: tiny()}, req, first+`
{"request_id":"generate-tokens-1","choices":[{"index":0,"finish_reason":"length","token_ids":[9],"weight_versions":["x"],"logprobs":{"content":[{"token_id":9,"logprob":0.0,"top_logprobs":null}]}}]}
{"request_id":"generate-tokens-1","usage":{"prompt_tokens":100,"total_tokens":104,"completion_tokens":4,"prompt_tokens_details":null},"choices":[]}
[DONE]`)
		want := []enginetest.Choice{{
			Tokens: []kv.Token{1435, 9}, Cached: engine.CachedUnknown, Finish: engine.FinishLength,
			Logprobs: []engine.Logprob{
				{Token: 1435, Logprob: -0.25, Top: []engine.TokenLogprob{{Token: 1435, Logprob: -0.25}, {Token: 7, Logprob: -1.5}}},
				{Token: 9},
			},
		}}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

// TestCompletionsLogprobs checks that the drawn token may be listed among the alternatives even if it is not
// one of the most likely, and that several choices may come in any order.
func TestCompletionsLogprobs(t *testing.T) {
	req := &engine.Request{ID: "r", Attempt: 1, Choices: 2, Logprobs: 1, Prompt: []kv.Token{3}, Stop: engine.Stop{MaxTokens: 2}, Sampling: engine.Sampling{Temperature: 1}}
	got, _, err := rehearse(remote.SingleCallIfSampled, &completionsDialect{engine: tiny()}, req, `
{"choices":[{"index":1,"text":"x","logprobs":{"text_offset":[0,1],"token_logprobs":[-2.5,-0.5],"tokens":["token_id:5","token_id:6"],"top_logprobs":[{"token_id:5":-2.5,"token_id:8":-0.125},{"token_id:6":-0.5}]},"finish_reason":"length","token_ids":[5,6]}]}
{"choices":[{"index":0,"logprobs":{"token_logprobs":[-9999.0],"tokens":["token_id:1715"],"top_logprobs":[null]},"finish_reason":"stop","stop_reason":1715,"token_ids":[1715]}]}
[DONE]`)
	want := []enginetest.Choice{
		{Tokens: []kv.Token{1715}, Logprobs: []engine.Logprob{{Token: 1715, Logprob: -9999}}, Cached: engine.CachedUnknown, Finish: engine.FinishStop},
		{Tokens: []kv.Token{5, 6}, Cached: engine.CachedUnknown, Finish: engine.FinishLength, Logprobs: []engine.Logprob{
			{Token: 5, Logprob: -2.5, Top: []engine.TokenLogprob{{Token: 8, Logprob: -0.125}}},
			{Token: 6, Logprob: -0.5, Top: []engine.TokenLogprob{{Token: 6, Logprob: -0.5}}},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

// TestBodies checks that every field of a request is in the body, under the server's name.
func TestBodies(t *testing.T) {
	req := &engine.Request{
		ID: "r", Attempt: 2, Choices: 1, Logprobs: 3, Prompt: []kv.Token{1, 2}, Generated: [][]kv.Token{{3}}, Salt: kv.Salt{LoRA: "ad", Namespace: "s\"x"},
		Stop: engine.Stop{MaxTokens: 5, MinTokens: 3, Tokens: []kv.Token{9, 10}, IgnoreEOS: true},
		Sampling: engine.Sampling{
			Temperature: 0.7, TopK: 5, TopP: 0.9, MinP: 0.1, RepetitionPenalty: 1.1, PresencePenalty: 0.2, FrequencyPenalty: -0.3, Seed: 7,
			Bias: []engine.TokenBias{{Token: 4, Bias: -100}, {Token: 5, Bias: 1.5}},
		},
	}
	_, c, _ := rehearse(remote.SingleCallIfSampled, &completionsDialect{engine: tiny()}, req, "")
	_, g, _ := rehearse(remote.LeaderFirst, &generateDialect{engine: tiny()}, req, "")
	const shared = `"temperature":0.7,"top_p":0.9,"top_k":5,"min_p":0.1,"repetition_penalty":1.1,"presence_penalty":0.2,"frequency_penalty":-0.3,"seed":%d,"max_tokens":4,"min_tokens":2,"ignore_eos":true,"stop_token_ids":[9,10],"logit_bias":{"4":-100,"5":1.5},"logprobs":3`
	const head = `{"model":"ad","stream":true,"stream_options":{"include_usage":true},"cache_salt":"s\"x"`
	seed := seedIn(t, c.Body)
	if seed == 7 {
		t.Error("a stream that goes on draws as it did from its beginning")
	}
	if want := head + `,"return_token_ids":true,"prompt":[1,2,3],` + fmt.Sprintf(shared, seed) + `,"return_tokens_as_token_ids":true}`; c.Path != pathCompletions || c.Body != want {
		t.Errorf("%s %s\nwant %s", c.Path, c.Body, want)
	}
	if want := head + `,"token_ids":[1,2,3],"sampling_params":{"n":1,"detokenize":false,` + fmt.Sprintf(shared, seed) + `}}`; g.Path != pathGenerate || g.Body != want {
		t.Errorf("%s %s\nwant %s", g.Path, g.Body, want)
	}

	// What is off is written: the server would take the checkpoint's recommendation for a missing field.
	plain := &engine.Request{
		ID: "r", Attempt: 1, Choices: 2, Logprobs: -1, Prompt: []kv.Token{1}, Stop: engine.Stop{MaxTokens: 5},
		OutputSchema: &engine.OutputSchema{Schema: []byte(`{"type":"object"}`)}, Sampling: engine.Sampling{Temperature: 1},
	}
	_, c, _ = rehearse(remote.SingleCallIfSampled, &completionsDialect{engine: tiny()}, plain, "")
	if want := `{"model":"tiny","stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,"prompt":[1],"n":2,"temperature":1,"top_p":1,"top_k":-1,"min_p":0,"repetition_penalty":1,"presence_penalty":0,"frequency_penalty":0,"seed":0,"max_tokens":5,"response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":{"type":"object"}}}}`; c.Body != want {
		t.Errorf("%s\nwant %s", c.Body, want)
	}
	plain.Choices = 1
	_, g, _ = rehearse(remote.LeaderFirst, &generateDialect{engine: tiny()}, plain, "")
	if !strings.HasSuffix(g.Body, `"structured_outputs":{"json":"{\"type\":\"object\"}"}}}`) || !json.Valid([]byte(g.Body)) {
		t.Errorf("%s", g.Body)
	}
	plain.Salt.Namespace = strings.Repeat("x", 1025)
	if _, _, err := rehearse(remote.LeaderFirst, &generateDialect{engine: tiny()}, plain, ""); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a salt that is too long: %v", err)
	}
}

func seedIn(t *testing.T, body string) int64 {
	t.Helper()
	var v struct {
		Seed int64 `json:"seed"`
	}
	if err := json.Unmarshal([]byte(body), &v); err != nil || v.Seed < 0 {
		t.Fatalf("%s: %v", body, err)
	}
	return v.Seed
}

func TestFinishes(t *testing.T) {
	req := &engine.Request{ID: "r", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: []kv.Token{3}, Stop: engine.Stop{MaxTokens: 2}}
	for lines, code := range map[string]fault.Code{
		`{"choices":[{"index":0,"finish_reason":"abort","token_ids":[]}]}`:                                 fault.Unavailable,
		`{"choices":[{"index":0,"finish_reason":"error","token_ids":[]}]}`:                                 fault.Unavailable,
		`{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}`: fault.EngineError,
		`{"error":{"message":"too long","type":"BadRequestError","code":400}}`:                             fault.Invalid,
		`{"choices":[{"index":0,"text":"only text","finish_reason":null}]}`:                                fault.Unavailable,
		`{"choices":[{"index":0,"finish_reason":null,"token_ids":[4294967296]}]}`:                          fault.Internal,
		`{"choices":[{"index":0,`: fault.Internal,
	} {
		if _, _, err := rehearse(remote.LeaderFirst, &completionsDialect{engine: tiny()}, req, lines); err == nil || fault.CodeOf(err) != code {
			t.Errorf("%s: %v (%v), want %v", lines, err, fault.CodeOf(err), code)
		}
	}
}

// FuzzEvent checks that for any event of a server the deltas keep to the contract.
func FuzzEvent(f *testing.F) {
	f.Add([]byte(`{"choices":[{"index":0,"finish_reason":"length","token_ids":[9],"logprobs":{"content":[{"token_id":9,"logprob":-1,"top_logprobs":[]}]}}],"usage":{"prompt_tokens_details":{"cached_tokens":96}}}`), 1)
	f.Add([]byte(`{"choices":[{"index":1,"logprobs":{"token_logprobs":[-2.5],"top_logprobs":[{"token_id:5":-2.5}]},"token_ids":[5]}]}`), 0)
	f.Add([]byte(`{"error":null,"choices":[],"usage":null}`), -1)
	f.Fuzz(func(t *testing.T, event []byte, logprobs int) {
		req := &engine.Request{ID: "r", Attempt: 1, Choices: 2, Logprobs: max(-1, logprobs%4), Prompt: []kv.Token{3}, Stop: engine.Stop{MaxTokens: 4}, Sampling: engine.Sampling{Temperature: 1}}
		for _, d := range []remote.Dialect{&completionsDialect{engine: tiny()}, &generateDialect{engine: tiny()}} {
			r := enginetest.NewRecorder(req)
			broken := false
			_, err := remote.RunDialect(testCard(), remote.SingleCall, d, req, [][]byte{event, event, []byte(doneMarker)}, func(d *engine.Delta) error {
				err := r.Sink(d)
				broken = broken || err != nil
				return err
			})
			if broken {
				t.Fatalf("%s: %v", event, err)
			}
		}
	})
}

func TestPrompts(t *testing.T) {
	for text, want := range map[string]engine.Preprocessed{
		`{"count":2,"max_model_len":4096,"tokens":[1714,5],"token_strs":null}`: {Tokens: []kv.Token{1714, 5}},
		`{"request_id":"x","token_ids":[1,2,3,4,5],"features":{"mm_hashes":{"image":["b","a"]},"mm_placeholders":{"image":[{"offset":3,"length":2},{"offset":0,"length":1}]},"kwargs_data":null},"sampling_params":{}}`: {
			Tokens: []kv.Token{1, 2, 3, 4, 5}, Media: []kv.Media{{Hash: mediaHash("a"), Start: 0, End: 1}, {Hash: mediaHash("b"), Start: 3, End: 5}},
		},
		`{"token_ids":[1],"features":null}`: {Tokens: []kv.Token{1}},
		`{"token_ids":[1,2],"features": {"mm_hashes":{"image":["b"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]},"kwargs_data":{"image":["AA=="]}} }`: {
			Tokens: []kv.Token{1, 2}, Media: []kv.Media{{Hash: mediaHash("b"), Start: 0, End: 2}},
			Features: []byte(`{"mm_hashes":{"image":["b"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]},"kwargs_data":{"image":["AA=="]}}`),
		},
		`{"token_ids":[1,2],"features":{"mm_hashes":{"image":["b"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]},"kwargs_data":{"image":[null]}}}`: {
			Tokens: []kv.Token{1, 2}, Media: []kv.Media{{Hash: mediaHash("b"), Start: 0, End: 2}},
		},
	} {
		var got engine.Preprocessed
		if err := readPrompt([]byte(text), &got); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if err := readPrompt([]byte(`{"tokens":[1`), new(engine.Preprocessed)); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("half an answer: %v", err)
	}
}

func mediaHash(id string) uint64 {
	h, _ := kv.MediaHash(id)
	return h
}

func FuzzPrompt(f *testing.F) {
	f.Add([]byte(`{"token_ids":[1,2,3],"features":{"mm_hashes":{"image":["b"]},"mm_placeholders":{"image":[{"offset":-3,"length":2}]}}}`))
	f.Add([]byte(`{"token_ids":[1,2],"features": {"mm_hashes":{"image":["b"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]},"kwargs_data":{"image":["AA=="]}} }`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var p engine.Preprocessed
		if readPrompt(text, &p) != nil {
			return
		}
		_ = p.Validate(100)
		if p.Features == nil {
			return
		}
		// They are copied into the body of another call.
		if c := strictjson.NewCursor(p.Features); !c.NextIs('{') || p.Features[0] != '{' {
			t.Fatalf("features that are no object: %q", p.Features)
		} else if c.Skip(); c.End() != nil {
			t.Fatalf("features that are more than an object: %q", p.Features)
		}
	})
}

// TestMetrics reads a server's metrics as vLLM 0.32.0 writes them.
func TestMetrics(t *testing.T) {
	text := []byte(`# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 5.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.75
vllm:num_preemptions_total{engine="0",model_name="tiny"} 2.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.7e+09
vllm:cache_config_info{block_size="32",effective_attention_block_size="32",enable_prefix_caching="True",engine="0",hash_block_size="None",num_gpu_blocks="64"} 1.0
vllm:lora_requests_info{max_lora="1",running_lora_adapters="old",waiting_lora_adapters=""} 1.0
vllm:lora_requests_info{max_lora="1",running_lora_adapters="ad, b",waiting_lora_adapters=""} 2.0
`)
	var one, all remote.LoadGauges
	parseGauges(text, 0, &one)
	parseGauges(text, remote.AnyRank, &all)
	if diff := cmp.Diff(remote.LoadGauges{Running: 3, Waiting: 1, Usage: 0.25, Preemptions: 2, Adapters: []string{"ad", "b"}, AdapterSlots: 1}, one); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(remote.LoadGauges{Running: 8, Waiting: 1, Usage: 0.5, Preemptions: 2, Adapters: []string{"ad", "b"}, AdapterSlots: 1}, all); diff != "" {
		t.Error(diff)
	}
	var c, other cacheConfig
	c.parseMetrics(text, 0)
	if want := (cacheConfig{found: true, blockSize: 32, blocks: 64, prefixCaching: "True", lora: true}); c != want {
		t.Errorf("%+v", c)
	}
	other.parseMetrics(bytes.ReplaceAll(text, []byte(`hash_block_size="None"`), []byte(`hash_block_size="64"`)), 0)
	if other.blockSize != 64 {
		t.Errorf("hash block size: %+v", other)
	}
}

// TestBodyAllocatesNothing checks that a body with a long prompt is written into existing memory.
func TestBodyAllocatesNothing(t *testing.T) {
	req := &engine.Request{ID: "r", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: make([]kv.Token, 4000), Stop: engine.Stop{MaxTokens: 5}}
	for _, d := range []remote.Dialect{&completionsDialect{engine: tiny()}, &generateDialect{engine: tiny()}} {
		counted := &counting{t: t, Dialect: d}
		if _, err := remote.RunDialect(testCard(), remote.SingleCall, counted, req, nil, func(*engine.Delta) error { return nil }); fault.CodeOf(err) != fault.Unavailable {
			t.Error(err)
		}
	}
}

// counting counts the allocations of a dialect's bodies.
type counting struct {
	t *testing.T
	remote.Dialect
}

// BuildCall implements remote.Dialect.
func (c *counting) BuildCall(p *remote.SubRequest, call *remote.Call) error {
	call.Large.B = make([]byte, 0, 64<<10)
	if n := testing.AllocsPerRun(20, func() {
		call.Large.B = call.Large.B[:0]
		if err := c.Dialect.BuildCall(p, call); err != nil {
			c.t.Fatal(err)
		}
	}); n != 0 {
		c.t.Errorf("%v allocations", n)
	}
	return nil
}

// TestLogprobIsANumber checks that no log-probability is infinite, which JSON cannot express.
func TestLogprobIsANumber(t *testing.T) {
	for _, v := range []float64{math.Inf(-1), -1e300, 0.5, math.Inf(1)} {
		if got := clampLogprob(v); math.IsInf(float64(got), 0) || got > 0 {
			t.Errorf("%v became %v", v, got)
		}
	}
}
