package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/strictjson"
)

var chatForm = answerOptions{head: &api.Head{ID: "1", Model: "m", Fingerprint: "fp_1", Created: 7}}

// TestChunks checks the shape of every kind of chunk.
func TestChunks(t *testing.T) {
	usage, tops := chatForm, answerOptions{head: &api.Head{ID: "1", Model: "m", Created: 7}, endpoint: api.Completion, alternatives: 2}
	usage.includeUsage = true
	each := usage
	each.eachUsage = true
	none := tops
	none.alternatives = 0
	lps := []api.Logprob{
		{Token: []byte("é"), Logprob: -0.5, Offset: 3, Top: []api.TokenLogprob{{Token: []byte("é"), Logprob: -0.5}, {Token: []byte("\xc3"), Logprob: -2}}},
		{Token: []byte("\xc3"), Logprob: float32(math.Inf(-1)), Offset: 4, Top: []api.TokenLogprob{{Token: []byte("x"), Logprob: -1}, {Token: []byte("x"), Logprob: -3}}},
	}
	const c = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":"fp_1","choices":[`
	const l = `{"id":"cmpl-1","object":"text_completion","created":7,"model":"m","system_fingerprint":null,"choices":[`
	tests := []struct {
		name  string
		form  answerOptions
		chunk api.Chunk
		want  string
	}{
		{"role", chatForm, api.Chunk{Kind: api.Role, Choice: 1}, c + `{"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`},
		{"text", chatForm, api.Chunk{Kind: api.Text, Text: []byte("a\n")}, c + `{"index":0,"delta":{"content":"a\n"},"logprobs":null,"finish_reason":null}]}`},
		{"reasoning", chatForm, api.Chunk{Kind: api.Reasoning, Text: []byte("hm")}, c + `{"index":0,"delta":{"reasoning_content":"hm"},"logprobs":null,"finish_reason":null}]}`},
		{
			"call", chatForm,
			api.Chunk{Kind: api.CallBegin, Call: 1, CallID: "call_1", Name: "f\""},
			c + `{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_1","type":"function","function":{"name":"f\"","arguments":""}}]},"logprobs":null,"finish_reason":null}]}`,
		},
		{
			"arguments", chatForm,
			api.Chunk{Kind: api.Arguments, Call: 1, Text: []byte(`{"a":`)},
			c + `{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\"a\":"}}]},"logprobs":null,"finish_reason":null}]}`,
		},
		{"finish with calls", chatForm, api.Chunk{Kind: api.Finish, Reason: api.ReasonCalls}, c + `{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]}`},
		{"finish", chatForm, api.Chunk{Kind: api.Finish, Reason: api.ReasonStop}, c + `{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}`},
		{"finish with usage to come", usage, api.Chunk{Kind: api.Finish, Reason: api.ReasonLength}, c + `{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}],"usage":null}`},
		{"text with usage so far", each, api.Chunk{Kind: api.Text, Text: []byte("a"), Tokens: api.TokenCounts{Prompt: 5, Completion: 2, Cached: 4, Reasoning: 1}}, c + `{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"completion_tokens_details":{"reasoning_tokens":1}}}`},
		{"usage", usage, api.Chunk{Kind: api.Usage, Tokens: api.TokenCounts{Prompt: 5, Completion: 2, Cached: 4, Reasoning: 1}}, c + `],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":1}}}`},
		{"usage, cache unknown", usage, api.Chunk{Kind: api.Usage, Tokens: api.TokenCounts{Prompt: 5, Completion: 2, Cached: api.CachedUnknown}}, c + `],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"completion_tokens_details":{"reasoning_tokens":0}}}`},
		{
			"nvext", chatForm,
			api.Chunk{Kind: api.Finish, Reason: api.ReasonStop, Ext: &api.AnswerExt{WorkerFields: true, Attempts: []api.Attempt{{Number: 1, Worker: kv.Worker{ID: 9}, OverlapBlocks: 3, Predicted: 48, Reported: 32}, {Number: 2, Worker: kv.Worker{ID: 8, Rank: 1}, Reported: api.CachedUnknown}}}},
			c + `{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"nvext":{"attempts":2,"workers":[` +
				`{"prompt":0,"attempt":1,"worker_id":9,"dp_rank":0,"overlap_blocks":3,"predicted_cached_tokens":48,"reported_cached_tokens":32},{"prompt":0,"attempt":2,"worker_id":8,"dp_rank":1,"overlap_blocks":0,"predicted_cached_tokens":0}],` +
				`"worker_id":{"prefill_worker_id":8,"prefill_dp_rank":1,"decode_worker_id":8,"decode_dp_rank":1}}}`,
		},
		{
			"chat logprobs", chatForm,
			api.Chunk{Kind: api.Text, Text: []byte("é"), Logprobs: lps},
			c + `{"index":0,"delta":{"content":"é"},"logprobs":{"content":[` +
				`{"token":"é","logprob":-0.5,"bytes":[195,169],"top_logprobs":[{"token":"é","logprob":-0.5,"bytes":[195,169]},{"token":"\\xc3","logprob":-2,"bytes":[195]}]},` +
				`{"token":"\\xc3","logprob":-9999,"bytes":[195],"top_logprobs":[{"token":"x","logprob":-1,"bytes":[120]},{"token":"x","logprob":-3,"bytes":[120]}]}` +
				`],"refusal":null},"finish_reason":null}]}`,
		},
		{"completion text", tops, api.Chunk{Kind: api.Text, Text: []byte("a")}, l + `{"index":0,"text":"a","logprobs":null,"finish_reason":null}]}`},
		{"completion finish", tops, api.Chunk{Kind: api.Finish, Choice: 2, Reason: api.ReasonStop}, l + `{"index":2,"text":"","logprobs":null,"finish_reason":"stop"}]}`},
		{
			"completion logprobs", tops,
			api.Chunk{Kind: api.Text, Text: []byte("é"), Logprobs: lps},
			l + `{"index":0,"text":"é","logprobs":{"tokens":["é","bytes:\\xc3"],"token_logprobs":[-0.5,-9999],` +
				`"top_logprobs":[{"é":-0.5,"bytes:\\xc3":-2},{"x":-1,"bytes:\\xc3":-9999}],"text_offset":[3,4]},"finish_reason":null}]}`,
		},
		{
			"completion logprobs without alternatives", none,
			api.Chunk{Kind: api.Text, Text: []byte("a"), Logprobs: []api.Logprob{{Token: []byte("a"), Logprob: -1}}},
			l + `{"index":0,"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-1],"top_logprobs":null,"text_offset":[0]},"finish_reason":null}]}`,
		},
	}
	d := described(t)
	for _, tt := range tests {
		s := streamWriter{answerOptions: tt.form}
		got, _ := strings.CutPrefix(string(s.Append(nil, &tt.chunk)), "data: ")
		got, _ = strings.CutSuffix(got, "\n\n")
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tt.name, diff)
		}
		_, event := answerSchemas(path(tt.form.endpoint))
		if err := d.matches(d.component(event), []byte(got)); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestChunksDoNotAllocate(t *testing.T) {
	h := streamWriter{answerOptions: chatForm}
	buf := make([]byte, 0, 4096)
	text := []byte(" wörld\n")
	lps := []api.Logprob{{Token: text, Logprob: -1.25, Top: []api.TokenLogprob{{Token: text, Logprob: -1.25}}}}
	completion := streamWriter{answerOptions: answerOptions{head: &api.Head{ID: "x", Model: "m"}, endpoint: api.Completion, alternatives: 1}}
	for _, c := range []api.Chunk{
		{Kind: api.Role},
		{Kind: api.Text, Text: text},
		{Kind: api.Text, Text: text, Logprobs: lps},
		{Kind: api.Finish, Reason: api.ReasonStop, Ext: &api.AnswerExt{Attempts: []api.Attempt{{Worker: kv.Worker{ID: 1}}}}},
		{Kind: api.Reasoning, Text: text},
		{Kind: api.CallBegin, CallID: "call_1", Name: "f"},
		{Kind: api.Arguments, Text: text},
		{Kind: api.Usage},
	} {
		if n := testing.AllocsPerRun(100, func() { h.Append(buf, &c) }); n != 0 {
			t.Errorf("chat chunk of kind %d: %v allocations", c.Kind, n)
		}
		if n := testing.AllocsPerRun(100, func() { completion.Append(buf, &c) }); n != 0 {
			t.Errorf("completion chunk of kind %d: %v allocations", c.Kind, n)
		}
	}
}

func BenchmarkAppendEvent(b *testing.B) {
	h := streamWriter{answerOptions: chatForm}
	buf := make([]byte, 0, 4096)
	c := api.Chunk{Kind: api.Text, Text: []byte(" world")}
	b.ReportAllocs()
	for b.Loop() {
		h.Append(buf, &c)
	}
}

// TestFold: a streamed and a whole answer are the same. For random answers, a client's fold of the stream's
// chunks equals the body.
func TestFold(t *testing.T) {
	d := described(t)
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		f := answerOptions{
			head:     &api.Head{ID: "id", Model: "m\"", Fingerprint: "fp"},
			endpoint: api.Endpoint(rng.IntN(2)), includeUsage: true, alternatives: rng.IntN(3),
		}
		whole, parts := bodyWriter{answerOptions: f}, streamWriter{answerOptions: f}
		var events []byte
		for _, c := range randomChunks(rng, f) {
			events = parts.Append(events, &c)
			whole.Append(nil, &c)
		}
		body := whole.End(nil)
		var got map[string]any
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("seed %d: %v in %s", seed, err, body)
		}
		if diff := cmp.Diff(foldStream(t, f.endpoint, events), got); diff != "" {
			t.Fatalf("seed %d: (-stream +body)\n%s", seed, diff)
		}
		name, _ := answerSchemas(path(f.endpoint))
		if err := d.matches(d.component(name), body); err != nil {
			t.Fatalf("seed %d: %v in %s", seed, err, body)
		}
	}
}

// randomChunks returns the chunks of an answer with interleaved choices.
func randomChunks(rng *rand.Rand, h answerOptions) []api.Chunk {
	words := []string{"a", " b", "é", "😀", "\n", "\"", "\u2028"}
	token := func() []byte { return []byte(words[rng.IntN(len(words))]) }
	n := 1 + rng.IntN(3)
	withLogprobs := rng.IntN(2) == 0
	var out []api.Chunk
	if h.endpoint == api.Chat {
		for i := range n {
			out = append(out, api.Chunk{Kind: api.Role, Choice: i})
		}
	}
	calls := make([]int, n)
	for range rng.IntN(12) {
		c := api.Chunk{Kind: api.Text, Choice: rng.IntN(n), Text: token()}
		if h.endpoint == api.Chat && rng.IntN(3) == 0 {
			out = append(out, randomCall(rng, c.Choice, calls[c.Choice], token)...)
			calls[c.Choice]++
			continue
		}
		if h.endpoint == api.Chat && rng.IntN(3) == 0 {
			c.Kind = api.Reasoning
		}
		if withLogprobs {
			c.Logprobs = []api.Logprob{}
			for range rng.IntN(3) {
				lp := api.Logprob{Token: token(), Logprob: -float32(rng.IntN(8)) / 2, Offset: rng.IntN(9)}
				for range h.alternatives {
					lp.Top = append(lp.Top, api.TokenLogprob{Token: token(), Logprob: -float32(rng.IntN(8)) / 2})
				}
				c.Logprobs = append(c.Logprobs, lp)
			}
		}
		out = append(out, c)
	}
	for i := range n {
		out = append(out, api.Chunk{Kind: api.Finish, Choice: i, Reason: api.ReasonStop})
	}
	return append(out, api.Chunk{Kind: api.Usage, Tokens: api.TokenCounts{Prompt: rng.IntN(9), Completion: rng.IntN(9), Cached: rng.IntN(9), Reasoning: rng.IntN(9)}, Ext: &api.AnswerExt{Attempts: []api.Attempt{{Number: 1}}}})
}

// randomCall returns the chunks of one call.
func randomCall(rng *rand.Rand, choice, index int, token func() []byte) []api.Chunk {
	out := []api.Chunk{{Kind: api.CallBegin, Choice: choice, Call: index, CallID: string(token()), Name: string(token())}}
	for range rng.IntN(3) {
		out = append(out, api.Chunk{Kind: api.Arguments, Choice: choice, Call: index, Text: token()})
	}
	return append(out, api.Chunk{Kind: api.CallEnd, Choice: choice, Call: index})
}

// foldStream folds a stream as a client does, with nothing but encoding/json.
func foldStream(t *testing.T, endpoint api.Endpoint, stream []byte) map[string]any {
	t.Helper()
	out := map[string]any{}
	choices := []any{}
	for _, event := range strings.Split(strings.TrimSuffix(string(stream), "\n\n"), "\n\n") {
		var chunk map[string]any
		data, ok := strings.CutPrefix(event, "data: ")
		if !ok || json.Unmarshal([]byte(data), &chunk) != nil {
			t.Fatalf("event %q", event)
		}
		for k, v := range chunk {
			switch {
			case k == "object":
				out[k] = strings.TrimSuffix(v.(string), ".chunk")
			case k != "choices" && v != nil:
				out[k] = v
			}
		}
		for _, c := range chunk["choices"].([]any) {
			choices = foldChoice(endpoint, choices, c.(map[string]any))
		}
	}
	for _, c := range choices {
		if m, ok := c.(map[string]any)["message"].(map[string]any); ok && m["tool_calls"] != nil && m["content"] == "" {
			m["content"] = nil // only calls
		}
	}
	out["choices"] = choices
	return out
}

func foldChoice(endpoint api.Endpoint, choices []any, c map[string]any) []any {
	i := int(c["index"].(float64))
	for len(choices) <= i {
		fresh := map[string]any{"index": float64(len(choices)), "logprobs": nil, "finish_reason": nil}
		if endpoint == api.Chat {
			fresh["message"] = map[string]any{"content": "", "refusal": nil}
		} else {
			fresh["text"] = ""
		}
		choices = append(choices, fresh)
	}
	to := choices[i].(map[string]any)
	if r := c["finish_reason"]; r != nil {
		to["finish_reason"] = r
	}
	if endpoint == api.Chat {
		message := to["message"].(map[string]any)
		delta := c["delta"].(map[string]any)
		if role, ok := delta["role"]; ok {
			message["role"] = role
		}
		for _, field := range []string{"content", "reasoning_content"} {
			if text, ok := delta[field]; ok {
				have, _ := message[field].(string)
				message[field] = have + text.(string)
			}
		}
		if calls, ok := delta["tool_calls"]; ok {
			foldCall(message, calls.([]any)[0].(map[string]any))
		}
	} else {
		to["text"] = to["text"].(string) + c["text"].(string)
	}
	lps, ok := c["logprobs"].(map[string]any)
	if !ok {
		return choices
	}
	if to["logprobs"] == nil {
		sum := map[string]any{}
		for k, v := range lps {
			sum[k] = v
		}
		to["logprobs"] = sum
		return choices
	}
	sum := to["logprobs"].(map[string]any)
	for k, v := range lps {
		if list, ok := v.([]any); ok {
			sum[k] = append(sum[k].([]any), list...)
		}
	}
	return choices
}

// foldCall adds the tool call part of a chunk to a message.
func foldCall(message, call map[string]any) {
	all, _ := message["tool_calls"].([]any)
	function := call["function"].(map[string]any)
	if _, begins := call["id"]; begins {
		delete(call, "index")
		message["tool_calls"] = append(all, call)
		return
	}
	to := all[int(call["index"].(float64))].(map[string]any)["function"].(map[string]any)
	to["arguments"] = to["arguments"].(string) + function["arguments"].(string)
}

func TestErrors(t *testing.T) {
	param := fault.InvalidParam("n", "'n' is %s", `"odd"`)
	busy := &fault.Error{Code: fault.Overloaded, Message: "busy", RetryAfter: 1500 * time.Millisecond}
	tests := []struct {
		err    error
		status int
		retry  string
		should string
		want   string
	}{
		{param, 400, "", "false", `{"error":{"message":"'n' is \"odd\"","type":"invalid_request_error","param":"n","code":"invalid_request"}}`},
		{fmt.Errorf("wrapped: %w", busy), 503, "2", "true", `{"error":{"message":"busy","type":"service_unavailable_error","param":null,"code":"overloaded"}}`},
		{fault.New(fault.Unavailable, "none"), 503, "1", "true", `{"error":{"message":"none","type":"service_unavailable_error","param":null,"code":"unavailable"}}`},
		{errors.New("secret detail"), 500, "", "false", `{"error":{"message":"internal error: the server's log has the cause under the x-request-id of this response","type":"server_error","param":null,"code":"internal_error"}}`},
	}
	for _, tt := range tests {
		w := httptest.NewRecorder()
		WriteError(w, tt.err)
		if w.Code != tt.status || w.Header().Get("Retry-After") != tt.retry || w.Header().Get("X-Should-Retry") != tt.should || w.Body.String() != tt.want+"\n" || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%v: %d %v %s", tt.err, w.Code, w.Header(), w.Body)
		}
		if got := string(AppendErrorEvent(nil, tt.err)); got != "data: "+tt.want+"\n\n" {
			t.Errorf("%v: event %q", tt.err, got)
		}
	}
}

// TestErrorsAreTyped: the official clients choose these exceptions by the status alone, and retry after 408,
// 409, 429 and every 5xx unless a header forbids it.
func TestErrorsAreTyped(t *testing.T) {
	want := map[fault.Code]string{
		fault.Internal:      "InternalServerError",
		fault.Invalid:       "BadRequestError",
		fault.NotFound:      "NotFoundError",
		fault.TooLarge:      "APIStatusError",
		fault.Limited:       "RateLimitError, again",
		fault.Overloaded:    "InternalServerError, again",
		fault.Unavailable:   "InternalServerError, again",
		fault.Conflict:      "ConflictError",
		fault.Canceled:      "APIStatusError",
		fault.Deadline:      "InternalServerError, again",
		fault.Unauthorized:  "AuthenticationError",
		fault.Unimplemented: "InternalServerError",
	}
	for code, name := range want {
		w := httptest.NewRecorder()
		WriteError(w, fault.New(code, "x"))
		got := map[int]string{
			400: "BadRequestError", 401: "AuthenticationError", 403: "PermissionDeniedError", 404: "NotFoundError",
			409: "ConflictError", 422: "UnprocessableEntityError", 429: "RateLimitError",
		}[w.Code]
		switch {
		case got != "":
		case w.Code >= 500:
			got = "InternalServerError"
		default:
			got = "APIStatusError"
		}
		again := w.Code == 408 || w.Code == 409 || w.Code == 429 || w.Code >= 500
		if again && w.Header().Get("X-Should-Retry") != "false" {
			got += ", again"
		}
		if got != name {
			t.Errorf("%v: clients see %s, want %s", code, got, name)
		}
	}
}

func TestModels(t *testing.T) {
	got := string(AppendModels(nil, []Model{{"a/b", "a/b", "", 5, 4096}, {"x", "a/b", "", 5, 4096}, {"l", "l", "a/b", 5, 4096}}))
	const want = `{"object":"list","data":[{"id":"a/b","object":"model","created":5,"owned_by":"penstock","root":"a/b","max_model_len":4096},` +
		`{"id":"x","object":"model","created":5,"owned_by":"penstock","root":"a/b","max_model_len":4096},` +
		`{"id":"l","object":"model","created":5,"owned_by":"penstock","root":"l","parent":"a/b","max_model_len":4096}]}`
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestQueryEvents(t *testing.T) {
	got := string(AppendQueryEvents(nil, &api.QueryAnswer{Worker: kv.Worker{ID: 12}, Tokens: []kv.Token{1, 2}}))
	if want := "event: worker_instance_id\n: \"12\"\n\nevent: token_data\n: [1,2]\n\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestClip(t *testing.T) {
	s := strings.Repeat("é", 40)
	if c := strictjson.TruncateKey(s); !utf8.ValidString(c) || len(c) > 70 {
		t.Errorf("clip gives %q", c)
	}
}
