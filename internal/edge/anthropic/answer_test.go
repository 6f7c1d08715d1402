package anthropic

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/api"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "answers", name)
	if *rewrite {
		if err := os.WriteFile(path, got, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got)\n%s", name, diff)
	}
}

var head = api.Head{ID: "1", Model: "m\"", Fingerprint: "fp", Created: 7}

// script makes chunks of words: a kind, and its values.
func script(chunks ...any) []api.Chunk {
	out := []api.Chunk{{Kind: api.Role, Tokens: api.TokenCounts{Prompt: 20, Cached: 16}}}
	calls := 0
	for i := 0; i < len(chunks); i++ {
		c := api.Chunk{Kind: chunks[i].(api.ChunkKind)}
		switch c.Kind {
		case api.Text, api.Reasoning, api.Arguments:
			i++
			c.Text = []byte(chunks[i].(string))
		case api.CallBegin:
			i++
			c.Name = chunks[i].(string)
			c.Call, c.CallID = calls, fmt.Sprintf("call_%d", calls)
			calls++
		case api.Finish:
			i++
			c.Reason = chunks[i].(api.FinishReason)
		}
		if c.Kind == api.Arguments || c.Kind == api.CallEnd {
			c.Call = calls - 1
		}
		out = append(out, c)
	}
	return append(out, api.Chunk{Kind: api.Usage, Tokens: api.TokenCounts{Prompt: 20, Cached: 16, Completion: 7, Reasoning: 3}})
}

// answers maps the names of golden files to the chunks of answers.
func answers() map[string][]api.Chunk {
	stopped := script(api.Text, "one", api.Finish, api.ReasonStop)
	stopped[2].StopString = "\n\n\""
	told := script(api.Text, "one", api.Finish, api.ReasonStop)
	told[3].Ext = &api.AnswerExt{WorkerFields: true, Attempts: []api.Attempt{{Number: 1, Worker: kv.Worker{ID: 9}, OverlapBlocks: 3}}}
	return map[string][]api.Chunk{
		"text":     script(api.Text, "Hello", api.Text, " wörld\n\"😀\"\u2028", api.Finish, api.ReasonStop),
		"thinking": script(api.Reasoning, "Hm", api.Reasoning, ", so.", api.Text, "Yes", api.Finish, api.ReasonStop),
		"calls": script(api.Reasoning, "Both.", api.Text, "Let me look.", api.CallBegin, "weather", api.Arguments, `{"city":`, api.Arguments, ` "Łódź"}`, api.CallEnd,
			api.Text, "\n", api.CallBegin, "now", api.CallEnd, api.Finish, api.ReasonCalls),
		"truncated-call":   script(api.CallBegin, "write", api.Arguments, `{"path": "/a", "text": "once up`, api.Finish, api.ReasonLength),
		"call-of-an-array": script(api.CallBegin, "f", api.Arguments, `[1, 2]`, api.CallEnd, api.Finish, api.ReasonCalls),
		"length":           script(api.Text, "and then", api.Finish, api.ReasonLength),
		"stop-sequence":    stopped,
		"empty":            script(api.Finish, api.ReasonStop),
		"nvext":            told,
	}
}

// TestAnswers checks answers, whole and streamed. The official client reads the same files in
// tools/fixtures/check_anthropic.py.
func TestAnswers(t *testing.T) {
	for name, chunks := range answers() {
		whole := NewWriter(&api.Request{}, &head)
		parts := NewWriter(&api.Request{Stream: true}, &head)
		var events []byte
		for _, c := range chunks {
			if b := whole.Append(nil, &c); len(b) > 0 {
				t.Errorf("%s: %q before the end", name, b)
			}
			events = parts.Append(events, &c)
		}
		golden(t, name+".json", append(whole.End(nil), '\n'))
		golden(t, name+".sse", parts.End(events))
	}
	golden(t, "count.json", append(AppendCount(nil, 42), '\n'))
}

// TestErrors checks how each code of core/fault reaches a client, whole and in a stream.
func TestErrors(t *testing.T) {
	var out bytes.Buffer
	for c := fault.Internal; c <= fault.Ineligible; c++ {
		w := httptest.NewRecorder()
		w.Header().Set("x-request-id", "r1")
		e := fault.New(c, "about %q", c)
		e.RetryAfter = 1500 * time.Millisecond
		WriteError(w, e)
		line, err := json.Marshal(map[string]any{"code": c.String(), "status": w.Code, "headers": w.Header(), "body": w.Body.String()})
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(line, '\n'))
	}
	golden(t, "errors.jsonl", out.Bytes())

	broken := NewWriter(&api.Request{Stream: true}, &head)
	events := broken.Append(nil, &api.Chunk{Kind: api.Role, Tokens: api.TokenCounts{Prompt: 3}})
	events = broken.Append(events, &api.Chunk{Kind: api.Text, Text: []byte("one")})
	golden(t, "broken.sse", broken.Fail(events, fault.New(fault.Unavailable, "no worker")))

	w := httptest.NewRecorder()
	WriteError(w, fmt.Errorf("decode weights: %w", errors.New("secret")))
	if w.Code != 500 || strings.Contains(w.Body.String(), "secret") || w.Header().Get("Retry-After") != "" || w.Header().Get("request-id") != "" {
		t.Errorf("a defect is answered with %d %v %s", w.Code, w.Header(), w.Body)
	}
	if got := NewWriter(&api.Request{}, &head).Fail(nil, fault.New(fault.Deadline, "late")); string(got) != `{"type":"error","error":{"type":"timeout_error","message":"late"},"request_id":"1"}` {
		t.Errorf("a whole answer fails with %s", got)
	}
}

// TestThreads: the client's tool runner requests a thread by default, and continues without one if the error
// has the form which it knows.
func TestThreads(t *testing.T) {
	_, err := Decode([]byte(`{"model":"m","max_tokens":1,"thread":{"type":"create"},"messages":[{"role":"user","content":"x"}]}`))
	w := httptest.NewRecorder()
	WriteError(w, err)
	var body struct {
		Error struct {
			Details struct {
				Code        string   `json:"error_code"`
				Unsupported []string `json:"unsupported"`
			}
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != 400 ||
		body.Error.Details.Code != "thread_unsupported_request" || len(body.Error.Details.Unsupported) != 1 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestInput: only objects become inputs, and no output of the model is lost.
func TestInput(t *testing.T) {
	for arguments, want := range map[string]string{
		"":              `{}}`,
		" \n\t\r":       `{}}`,
		" {\"a\": 1} ":  ` {"a": 1} }`,
		"{}":            `{}}`,
		"{}{}":          `{},"partial_json":"{}{}"}`,
		`{"a": NaN}`:    `{},"partial_json":"{\"a\": NaN}"}`,
		`"x"`:           `{},"partial_json":"\"x\""}`,
		"null":          `{},"partial_json":"null"}`,
		`{"a": "b`:      `{},"partial_json":"{\"a\": \"b"}`,
		"plain <words>": `{},"partial_json":"plain <words>"}`,
	} {
		if got := string(appendInput(nil, []byte(arguments))); got != want {
			t.Errorf("%q is %s, not %s", arguments, got, want)
		}
	}
}

func TestEventsDoNotAllocate(t *testing.T) {
	s := NewWriter(&api.Request{Stream: true}, &head)
	buf := make([]byte, 0, 4096)
	s.Append(buf, &api.Chunk{Kind: api.Role})
	text := []byte(" wörld\n")
	for _, c := range []api.Chunk{
		{Kind: api.Text, Text: text},
		{Kind: api.Reasoning, Text: text},
		{Kind: api.CallBegin, CallID: "call_1", Name: "f"},
		{Kind: api.Arguments, Text: text},
		{Kind: api.CallEnd},
		{Kind: api.Finish, Reason: api.ReasonStop, StopString: "x"},
		{Kind: api.Usage, Ext: &api.AnswerExt{Attempts: []api.Attempt{{Worker: kv.Worker{ID: 1}}}}},
	} {
		if n := testing.AllocsPerRun(100, func() { s.Append(buf, &c) }); n != 0 {
			t.Errorf("chunk of kind %d: %v allocations", c.Kind, n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { s.End(buf) }); n != 0 {
		t.Errorf("the end: %v allocations", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	s := NewWriter(&api.Request{Stream: true}, &head)
	buf := make([]byte, 0, 4096)
	c := api.Chunk{Kind: api.Text, Text: []byte(" world")}
	b.ReportAllocs()
	for b.Loop() {
		s.Append(buf, &c)
	}
}

// TestFold: a streamed and a whole answer are the same. For random answers, a client's fold of the stream's
// events equals the body.
func TestFold(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		whole, parts := NewWriter(&api.Request{}, &head), NewWriter(&api.Request{Stream: true}, &head)
		var events []byte
		for _, c := range randomChunks(rng) {
			events = parts.Append(events, &c)
			whole.Append(nil, &c)
		}
		events = parts.End(events)
		body := whole.End(nil)
		var got map[string]any
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("seed %d: %v in %s", seed, err, body)
		}
		var f folder
		f.t, f.seed = t, seed
		for _, event := range strings.SplitAfter(string(events), "\n\n") {
			f.add(event)
		}
		if diff := cmp.Diff(f.message, got); diff != "" {
			t.Fatalf("seed %d: (-stream +body)\n%s\n%s", seed, diff, events)
		}
	}
}

// randomChunks returns the chunks of one answer. Sometimes a call has text between its parts, or no end.
func randomChunks(rng *rand.Rand) []api.Chunk {
	words := []string{"", "a", " b", "é", "😀", "\n", "\"", "\u2028"}
	arguments := []string{"", "{}", `{"a": [1, {"b": "é\n"}]}`, `{"a": "b`, `[1]`, "5", "words", `{"a":1}x`}
	counts := api.TokenCounts{Prompt: rng.IntN(100)}
	counts.Cached = rng.IntN(counts.Prompt + 1)
	out := []api.Chunk{{Kind: api.Role, Tokens: counts}}
	say := func() {
		c := api.Chunk{Kind: api.Text, Text: []byte(words[rng.IntN(len(words))])}
		if rng.IntN(2) == 0 {
			c.Kind = api.Reasoning
		}
		out = append(out, c)
	}
	if rng.IntN(16) == 0 {
		out = append(out, api.Chunk{Kind: api.Arguments, Text: []byte("of no call")}, api.Chunk{Kind: api.CallEnd})
	}
	calls := 0
	for range rng.IntN(12) {
		if rng.IntN(3) > 0 {
			say()
			continue
		}
		out = append(out, api.Chunk{Kind: api.CallBegin, Call: calls, CallID: fmt.Sprint("call_", calls), Name: "f\""})
		for rest := []rune(arguments[rng.IntN(len(arguments))]); len(rest) > 0; {
			n := 1 + rng.IntN(len(rest))
			out = append(out, api.Chunk{Kind: api.Arguments, Call: calls, Text: []byte(string(rest[:n]))})
			rest = rest[n:]
			if rng.IntN(8) == 0 {
				say()
			}
		}
		if rng.IntN(4) > 0 {
			out = append(out, api.Chunk{Kind: api.CallEnd, Call: calls})
		}
		calls++
	}
	if rng.IntN(8) > 0 {
		c := api.Chunk{Kind: api.Finish, Reason: api.FinishReason(rng.IntN(4))}
		if c.Reason == api.ReasonStop && rng.IntN(2) == 0 {
			c.StopString = words[1+rng.IntN(len(words)-1)]
		}
		out = append(out, c)
	}
	if rng.IntN(8) > 0 {
		counts.Completion, counts.Reasoning = rng.IntN(100), rng.IntN(10)
		out = append(out, api.Chunk{Kind: api.Usage, Tokens: counts, Ext: &api.AnswerExt{}})
	}
	return out
}

// folder folds events into a message as clients do, and checks their order.
type folder struct {
	t       *testing.T
	seed    uint64
	message map[string]any
	partial map[int]string // arguments so far, by block
	open    map[int]bool
	ended   bool // by message_delta
	stopped bool
}

func (f *folder) fatalf(format string, args ...any) {
	f.t.Helper()
	f.t.Fatalf("seed %d: "+format, append([]any{f.seed}, args...)...)
}

func (f *folder) add(event string) {
	f.t.Helper()
	if event == "" {
		return
	}
	name, data, ok := strings.Cut(event, "\n")
	name, named := strings.CutPrefix(name, "event: ")
	data, dated := strings.CutPrefix(data, "data: ")
	var e struct {
		Type    string
		Message map[string]any
		Index   int
		Block   map[string]any `json:"content_block"`
		Delta   map[string]any
		Usage   map[string]any
		NvExt   any
	}
	if err := json.Unmarshal([]byte(data), &e); err != nil || !ok || !named || !dated || !strings.HasSuffix(data, "}\n\n") || e.Type != name {
		f.fatalf("event %q: %v", event, err)
	}
	if (f.message == nil) != (e.Type == "message_start") || f.stopped {
		f.fatalf("%s out of order", event)
	}
	content, _ := f.message["content"].([]any)
	block := func() map[string]any {
		if e.Index < 0 || e.Index >= len(content) || f.ended {
			f.fatalf("%s of no block", event)
		}
		return content[e.Index].(map[string]any)
	}
	switch e.Type {
	case "message_start":
		f.message, f.partial, f.open = e.Message, map[int]string{}, map[int]bool{}
	case "content_block_start":
		if e.Index != len(content) || len(f.open) > 0 || f.ended {
			f.fatalf("%s out of order", event)
		}
		f.open[e.Index] = true
		f.message["content"] = append(content, e.Block)
	case "content_block_delta":
		b := block()
		switch kind := e.Delta["type"]; kind {
		case "text_delta":
			b["text"] = b["text"].(string) + e.Delta["text"].(string)
		case "thinking_delta":
			b["thinking"] = b["thinking"].(string) + e.Delta["thinking"].(string)
		case "signature_delta":
			b["signature"] = e.Delta["signature"]
		case "input_json_delta":
			f.partial[e.Index] += e.Delta["partial_json"].(string)
		default:
			f.fatalf("delta of type %v", kind)
		}
	case "content_block_stop":
		if block(); !f.open[e.Index] {
			f.fatalf("%s of a block that is not open", event)
		}
		delete(f.open, e.Index)
	case "message_delta":
		if f.ended || len(f.open) > 0 {
			f.fatalf("%s out of order", event)
		}
		f.end(content, e.Delta, e.Usage, e.NvExt)
	case "message_stop":
		f.stopped = true
	default:
		f.fatalf("event %q", event)
	}
}

// end handles message_delta, and converts the arguments to inputs.
func (f *folder) end(content []any, delta, usage map[string]any, ext any) {
	f.ended = true
	for k, v := range delta {
		f.message[k] = v
	}
	for k, v := range usage {
		f.message["usage"].(map[string]any)[k] = v
	}
	if ext != nil {
		f.message["nvext"] = ext
	}
	for i, text := range f.partial {
		var input map[string]any
		if err := json.Unmarshal([]byte(text), &input); err == nil {
			content[i].(map[string]any)["input"] = input
		} else {
			content[i].(map[string]any)["partial_json"] = text
		}
	}
}
