package openai

import (
	"bytes"
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
)

// FuzzString compares appendString with encoding/json.
func FuzzString(f *testing.F) {
	for _, s := range []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "é😀\u2028\u2029\ufffd", "<&>", "\xff\xc3", "a\xe2\x80b", "\xed\xa0\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var want bytes.Buffer
		e := json.NewEncoder(&want)
		e.SetEscapeHTML(false)
		if err := e.Encode(s); err != nil {
			t.Fatal(err)
		}
		got := appendString(nil, s)
		if string(got) != strings.TrimSuffix(want.String(), "\n") {
			t.Fatalf("%q: got %s, want %s", s, got, want.String())
		}
		if b := appendString(nil, []byte(s)); !bytes.Equal(b, got) {
			t.Fatalf("%q: bytes give %s, string %s", s, b, got)
		}
	})
}

var chatHead = Head{Endpoint: Chat, ID: "chatcmpl-1", Model: "m", Fingerprint: "fp_1", Created: 7}

// TestChunks is the shape of every kind of chunk.
func TestChunks(t *testing.T) {
	usage, tops := chatHead, Head{Endpoint: Completion, ID: "cmpl-1", Model: "m", Created: 7, Alternatives: 2}
	usage.IncludeUsage = true
	none := tops
	none.Alternatives = 0
	lps := []Logprob{
		{Token: []byte("é"), Logprob: -0.5, Offset: 3, Top: []TokenLogprob{{[]byte("é"), -0.5}, {[]byte("\xc3"), -2}}},
		{Token: []byte("\xc3"), Logprob: float32(math.Inf(-1)), Offset: 4, Top: []TokenLogprob{{[]byte("x"), -1}, {[]byte("x"), -3}}},
	}
	const c = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":"fp_1","choices":[`
	const l = `{"id":"cmpl-1","object":"text_completion","created":7,"model":"m","system_fingerprint":null,"choices":[`
	tests := []struct {
		name  string
		head  Head
		chunk Chunk
		want  string
	}{
		{"role", chatHead, Chunk{Kind: Role, Choice: 1}, c + `{"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`},
		{"text", chatHead, Chunk{Kind: Text, Text: []byte("a\n")}, c + `{"index":0,"delta":{"content":"a\n"},"logprobs":null,"finish_reason":null}]}`},
		{"finish", chatHead, Chunk{Kind: Finish, Reason: "stop"}, c + `{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}`},
		{"finish with usage to come", usage, Chunk{Kind: Finish, Reason: "length"}, c + `{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}],"usage":null}`},
		{"usage", usage, Chunk{Kind: Usage, Tokens: TokenCounts{Prompt: 5, Completion: 2, Cached: 4}}, c + `],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}`},
		{
			"nvext", chatHead,
			Chunk{Kind: Finish, Reason: "stop", Ext: &AnswerExt{WorkerFields: true, Attempts: []Attempt{{0, 1, kv.Worker{ID: 9}, 3}, {0, 2, kv.Worker{ID: 8, Rank: 1}, 0}}}},
			c + `{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"nvext":{"attempts":2,"workers":[` +
				`{"prompt":0,"attempt":1,"worker_id":9,"dp_rank":0,"overlap_blocks":3},{"prompt":0,"attempt":2,"worker_id":8,"dp_rank":1,"overlap_blocks":0}],` +
				`"worker_id":{"decode_worker_id":8,"decode_dp_rank":1}}}`,
		},
		{
			"chat logprobs", chatHead,
			Chunk{Kind: Text, Text: []byte("é"), Logprobs: lps},
			c + `{"index":0,"delta":{"content":"é"},"logprobs":{"content":[` +
				`{"token":"é","logprob":-0.5,"bytes":[195,169],"top_logprobs":[{"token":"é","logprob":-0.5,"bytes":[195,169]},{"token":"\\xc3","logprob":-2,"bytes":[195]}]},` +
				`{"token":"\\xc3","logprob":-9999,"bytes":[195],"top_logprobs":[{"token":"x","logprob":-1,"bytes":[120]},{"token":"x","logprob":-3,"bytes":[120]}]}` +
				`],"refusal":null},"finish_reason":null}]}`,
		},
		{"completion text", tops, Chunk{Kind: Text, Text: []byte("a")}, l + `{"index":0,"text":"a","logprobs":null,"finish_reason":null}]}`},
		{"completion finish", tops, Chunk{Kind: Finish, Choice: 2, Reason: "stop"}, l + `{"index":2,"text":"","logprobs":null,"finish_reason":"stop"}]}`},
		{
			"completion logprobs", tops,
			Chunk{Kind: Text, Text: []byte("é"), Logprobs: lps},
			l + `{"index":0,"text":"é","logprobs":{"tokens":["é","bytes:\\xc3"],"token_logprobs":[-0.5,-9999],` +
				`"top_logprobs":[{"é":-0.5,"bytes:\\xc3":-2},{"x":-1,"bytes:\\xc3":-9999}],"text_offset":[3,4]},"finish_reason":null}]}`,
		},
		{
			"completion logprobs without alternatives", none,
			Chunk{Kind: Text, Text: []byte("a"), Logprobs: []Logprob{{Token: []byte("a"), Logprob: -1}}},
			l + `{"index":0,"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-1],"top_logprobs":null,"text_offset":[0]},"finish_reason":null}]}`,
		},
	}
	for _, tt := range tests {
		got := string(tt.head.AppendChunk(nil, &tt.chunk))
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tt.name, diff)
		}
		if !json.Valid([]byte(got)) {
			t.Errorf("%s: not JSON", tt.name)
		}
	}
}

func TestChunksDoNotAllocate(t *testing.T) {
	h := chatHead
	buf := make([]byte, 0, 4096)
	text := []byte(" wörld\n")
	lps := []Logprob{{Token: text, Logprob: -1.25, Top: []TokenLogprob{{text, -1.25}}}}
	completion := Head{Endpoint: Completion, ID: "x", Model: "m", Alternatives: 1}
	for _, c := range []Chunk{
		{Kind: Role},
		{Kind: Text, Text: text},
		{Kind: Text, Text: text, Logprobs: lps},
		{Kind: Finish, Reason: "stop", Ext: &AnswerExt{Attempts: []Attempt{{Worker: kv.Worker{ID: 1}}}}},
		{Kind: Usage},
	} {
		if n := testing.AllocsPerRun(100, func() { h.AppendEvent(buf, &c) }); n != 0 {
			t.Errorf("chat chunk of kind %d: %v allocations", c.Kind, n)
		}
		if n := testing.AllocsPerRun(100, func() { completion.AppendEvent(buf, &c) }); n != 0 {
			t.Errorf("completion chunk of kind %d: %v allocations", c.Kind, n)
		}
	}
}

func BenchmarkAppendEvent(b *testing.B) {
	h := chatHead
	buf := make([]byte, 0, 4096)
	c := Chunk{Kind: Text, Text: []byte(" world")}
	b.ReportAllocs()
	for b.Loop() {
		h.AppendEvent(buf, &c)
	}
}

// TestFold is the property that a stream and a whole answer are the same: for
// random answers, what a client makes of the stream's chunks is the body.
func TestFold(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		head := Head{Endpoint: Endpoint(rng.IntN(2)), ID: "id", Model: "m\"", Fingerprint: "fp", IncludeUsage: true, Alternatives: rng.IntN(3)}
		col := Collector{Head: head}
		var stream []byte
		for _, c := range randomChunks(rng, head) {
			stream = head.AppendEvent(stream, &c)
			col.Add(&c)
		}
		body := col.AppendBody(nil)
		var got map[string]any
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("seed %d: %v in %s", seed, err, body)
		}
		if diff := cmp.Diff(foldStream(t, head.Endpoint, stream), got); diff != "" {
			t.Fatalf("seed %d: (-stream +body)\n%s", seed, diff)
		}
	}
}

// randomChunks returns the chunks of an answer whose choices take turns.
func randomChunks(rng *rand.Rand, h Head) []Chunk {
	words := []string{"a", " b", "é", "😀", "\n", "\"", "\u2028"}
	token := func() []byte { return []byte(words[rng.IntN(len(words))]) }
	n := 1 + rng.IntN(3)
	withLogprobs := rng.IntN(2) == 0
	var out []Chunk
	if h.Endpoint == Chat {
		for i := range n {
			out = append(out, Chunk{Kind: Role, Choice: i})
		}
	}
	for range rng.IntN(12) {
		c := Chunk{Kind: Text, Choice: rng.IntN(n), Text: token()}
		if withLogprobs {
			c.Logprobs = []Logprob{}
			for range rng.IntN(3) {
				lp := Logprob{Token: token(), Logprob: -float32(rng.IntN(8)) / 2, Offset: rng.IntN(9)}
				for range h.Alternatives {
					lp.Top = append(lp.Top, TokenLogprob{token(), -float32(rng.IntN(8)) / 2})
				}
				c.Logprobs = append(c.Logprobs, lp)
			}
		}
		out = append(out, c)
	}
	for i := range n {
		out = append(out, Chunk{Kind: Finish, Choice: i, Reason: "stop"})
	}
	return append(out, Chunk{Kind: Usage, Tokens: TokenCounts{rng.IntN(9), rng.IntN(9), rng.IntN(9)}, Ext: &AnswerExt{Attempts: []Attempt{{Number: 1}}}})
}

// foldStream does what a client does, with nothing but encoding/json.
func foldStream(t *testing.T, endpoint Endpoint, stream []byte) map[string]any {
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
	out["choices"] = choices
	return out
}

func foldChoice(endpoint Endpoint, choices []any, c map[string]any) []any {
	i := int(c["index"].(float64))
	for len(choices) <= i {
		fresh := map[string]any{"index": float64(len(choices)), "logprobs": nil, "finish_reason": nil}
		if endpoint == Chat {
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
	if endpoint == Chat {
		message := to["message"].(map[string]any)
		delta := c["delta"].(map[string]any)
		if role, ok := delta["role"]; ok {
			message["role"] = role
		}
		if text, ok := delta["content"]; ok {
			message["content"] = message["content"].(string) + text.(string)
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

func TestErrors(t *testing.T) {
	param := fault.Param("n", "'n' is %s", `"odd"`)
	busy := &fault.Error{Code: fault.Overloaded, Message: "busy", RetryAfter: 1500 * time.Millisecond}
	tests := []struct {
		err    error
		status int
		retry  string
		want   string
	}{
		{param, 400, "", `{"error":{"message":"'n' is \"odd\"","type":"invalid_request_error","param":"n","code":"invalid_request"}}`},
		{fmt.Errorf("wrapped: %w", busy), 503, "2", `{"error":{"message":"busy","type":"service_unavailable_error","param":null,"code":"overloaded"}}`},
		{fault.New(fault.Unavailable, "none"), 503, "1", `{"error":{"message":"none","type":"service_unavailable_error","param":null,"code":"unavailable"}}`},
		{errors.New("secret detail"), 500, "", `{"error":{"message":"internal error: the server's log has the cause under the x-request-id of this response","type":"server_error","param":null,"code":"internal_error"}}`},
	}
	for _, tt := range tests {
		w := httptest.NewRecorder()
		WriteError(w, tt.err)
		if w.Code != tt.status || w.Header().Get("Retry-After") != tt.retry || w.Body.String() != tt.want+"\n" || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%v: %d %v %s", tt.err, w.Code, w.Header(), w.Body)
		}
		if got := string(AppendErrorEvent(nil, tt.err)); got != "data: "+tt.want+"\n\n" {
			t.Errorf("%v: event %q", tt.err, got)
		}
	}
}

func TestModels(t *testing.T) {
	got := string(AppendModels(nil, []Model{{"a/b", "a/b", 5, 4096}, {"x", "a/b", 5, 4096}}))
	const want = `{"object":"list","data":[{"id":"a/b","object":"model","created":5,"owned_by":"penstock","root":"a/b","max_model_len":4096},` +
		`{"id":"x","object":"model","created":5,"owned_by":"penstock","root":"a/b","max_model_len":4096}]}`
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestQueryEvents(t *testing.T) {
	got := string(AppendQueryEvents(nil, &QueryAnswer{Worker: kv.Worker{ID: 12}, Tokens: []kv.Token{1, 2}}))
	if want := "event: worker_instance_id\n: \"12\"\n\nevent: token_data\n: [1,2]\n\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestClip(t *testing.T) {
	s := strings.Repeat("é", 40)
	if c := clip(s); !utf8.ValidString(c) || len(c) > 70 {
		t.Errorf("clip gives %q", c)
	}
}
