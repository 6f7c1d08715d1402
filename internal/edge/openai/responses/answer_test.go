package responses

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

var testHead = api.Head{ID: "ab12", Model: "m", Fingerprint: "fp", Created: 7}

func text(s string) api.Chunk    { return api.Chunk{Kind: api.Text, Text: []byte(s)} }
func thought(s string) api.Chunk { return api.Chunk{Kind: api.Reasoning, Text: []byte(s)} }
func finish(r api.FinishReason) api.Chunk {
	return api.Chunk{Kind: api.Finish, Reason: r}
}

// call returns the chunks of call number i. The last argument may be incomplete.
func call(i int, name string, pieces ...string) []api.Chunk {
	out := []api.Chunk{{Kind: api.CallBegin, Call: i, CallID: fmt.Sprintf("call_%d", i), Name: name}}
	for _, p := range pieces {
		out = append(out, api.Chunk{Kind: api.Arguments, Call: i, Text: []byte(p)})
	}
	return out
}

func callEnd(i int) api.Chunk { return api.Chunk{Kind: api.CallEnd, Call: i} }

// usage is the last chunk of an answer.
var usage = api.Chunk{
	Kind: api.Usage, Tokens: api.TokenCounts{Prompt: 20, Completion: 9, Cached: 16, Reasoning: 3},
	Ext: &api.AnswerExt{Attempts: []api.Attempt{{Number: 1, Worker: kv.Worker{ID: 4}, OverlapBlocks: 1}}},
}

var logprobs = []api.Logprob{
	{Token: []byte("é"), Logprob: -0.5, Top: []api.TokenLogprob{{Token: []byte("é"), Logprob: -0.5}, {Token: []byte("\xc3"), Logprob: -2}}},
}

// fullRequest sets every field which an answer repeats.
const fullRequest = `"instructions":"be brief","max_output_tokens":9,"max_tool_calls":3,"metadata":{"k\n":"v","l":"w","m":""},"parallel_tool_calls":false,` +
	`"prompt_cache_key":"pk","reasoning":{"effort":"low","summary":"auto"},"safety_identifier":"si","service_tier":"flex","store":true,"temperature":0.5,` +
	`"text":{"format":{"type":"json_schema","name":"n","description":"d","schema":{ "type" : "object" },"strict":true},"verbosity":"low"},` +
	`"tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object",
	"properties":{}},"strict":true},{"type":"function","name":"g","parameters":null,"strict":null}],` +
	`"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]},"top_logprobs":1,"top_p":0.9,"truncation":"disabled","user":"u"`

// goldens are the answers in testdata, whole and as streams. tools/fixtures checks them against the types of the
// official client.
func goldens() map[string]struct {
	fields string
	chunks []api.Chunk
} {
	role := api.Chunk{Kind: api.Role}
	type golden = struct {
		fields string
		chunks []api.Chunk
	}
	join := func(parts ...[]api.Chunk) (all []api.Chunk) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	one := func(c ...api.Chunk) []api.Chunk { return c }
	return map[string]golden{
		"text":  {`"user":"u"`, one(role, text("Hello"), text(" wörld\n"), finish(api.ReasonStop), usage)},
		"empty": {`"tool_choice":"none"`, one(role, finish(api.ReasonStop), usage)},
		"everything": {fullRequest, join(
			one(role, thought("Let"), thought(" me see."), text("I'll look: "), text("one moment.")),
			call(0, "f", `{"a"`, `:"x\"y"}`), one(callEnd(0)), call(1, "f", `{}`), one(callEnd(1), finish(api.ReasonCalls), usage),
		)},
		"logprobs": {`"include":["message.output_text.logprobs"],"top_logprobs":2`, one(
			role,
			api.Chunk{Kind: api.Text, Logprobs: logprobs}, // waits for its text
			api.Chunk{Kind: api.Text, Text: []byte("é"), Logprobs: logprobs},
			api.Chunk{Kind: api.Text, Text: []byte("x")},
			api.Chunk{Kind: api.Text, Logprobs: logprobs},
			finish(api.ReasonStop), usage,
		)},
		"cut_text":      {`"max_output_tokens":3`, one(role, thought("hm"), text("and so"), finish(api.ReasonLength), usage)},
		"cut_reasoning": {`"max_output_tokens":3`, one(role, thought("hm, let"), finish(api.ReasonLength), usage)},
		"cut_call": {
			`"tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"f"}`,
			join(one(role), call(0, "f", `{"a":"b`), one(finish(api.ReasonLength), usage)),
		},
		"interleaved": {`"tools":[{"type":"function","name":"f"}],"tool_choice":"required"`, join(
			one(role, text("a")), call(0, "f", `{}`), one(callEnd(0), text("b"), thought("c"), text("d")), call(1, "f"), one(callEnd(1), finish(api.ReasonCalls), usage),
		)},
		"json_object": {`"text":{"format":{"type":"json_object"}}`, one(role, text(`{"a":1}`), finish(api.ReasonStop), usage)},
	}
}

// TestGolden compares answers with testdata. -rewrite writes them; then review the difference and run
// tools/fixtures/check_responses.py, which checks them against the official client's types.
func TestGolden(t *testing.T) {
	for name, g := range goldens() {
		for ext, stream := range map[string]string{".json": "false", ".sse": "true"} {
			q := decoded(t, g.fields+`,"stream":`+stream)
			golden(t, name+ext, written(q, g.chunks))
		}
	}
	for name, fail := range map[string]struct {
		err    error
		chunks []api.Chunk
	}{
		"failed":         {&fault.Error{Code: fault.Unavailable, Message: "no worker is left"}, append([]api.Chunk{{Kind: api.Role}, text("a")}, call(0, "f", `{"a`)...)},
		"failed_at_once": {fault.InvalidParam("input", "the prompt is \"too\" long"), nil},
	} {
		w := decoded(t, `"stream":true`).NewWriter(&testHead)
		var out []byte
		for _, c := range fail.chunks {
			out = w.Append(out, &c)
		}
		golden(t, name+".sse", w.Fail(out, fail.err))
	}
}

func decoded(t *testing.T, fields string) *Request {
	t.Helper()
	q, err := Decode([]byte(`{"model":"m","input":"hi",` + fields + `}`))
	if err != nil {
		t.Fatal(fields, err)
	}
	return q
}

// written returns a whole answer or a whole stream.
func written(q *Request, chunks []api.Chunk) []byte {
	head := testHead
	w := q.NewWriter(&head)
	var out []byte
	for _, c := range chunks {
		out = w.Append(out, &c)
	}
	return w.End(out)
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "answers", name)
	if strings.HasSuffix(name, ".json") {
		got = append(got, '\n')
	}
	if *rewrite {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s (-want +got)\n%s", name, diff)
	}
}

// TestFold: a stream and a whole answer are the same. For random answers, the fold of the events equals the last
// event's response, which equals the body, and its items are those of the chunks.
func TestFold(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		fields := `"include":["message.output_text.logprobs"],` + fullRequest
		if rng.IntN(2) == 0 {
			fields = `"user":"u"`
		}
		chunks := randomChunks(rng)
		whole := written(decoded(t, fields), chunks)
		events := written(decoded(t, fields+`,"stream":true`), chunks)

		var body map[string]any
		if err := json.Unmarshal(whole, &body); err != nil {
			t.Fatalf("seed %d: %v in %s", seed, err, whole)
		}
		last := foldStream(t, events)
		if t.Failed() {
			t.Fatalf("seed %d: %s", seed, events)
		}
		if diff := cmp.Diff(last, body); diff != "" {
			t.Fatalf("seed %d: (-stream +body)\n%s", seed, diff)
		}
		if diff := cmp.Diff(naiveItems(chunks), said(body)); diff != "" {
			t.Fatalf("seed %d: (-chunks +body)\n%s", seed, diff)
		}
	}
}

// randomChunks returns the chunks of an answer of any kind.
func randomChunks(rng *rand.Rand) []api.Chunk {
	words := []string{"a", " b", "é", "😀", "\n", "\"", "\u2028", ""}
	word := func() string { return words[rng.IntN(len(words))] }
	out := []api.Chunk{{Kind: api.Role}}
	calls, open := 0, false
	for range rng.IntN(14) {
		switch rng.IntN(6) {
		case 0:
			out = append(out, thought(word()))
		case 1:
			if open && rng.IntN(3) > 0 {
				out = append(out, callEnd(calls-1))
			}
			out = append(out, call(calls, "f"+word())...)
			calls, open = calls+1, true
		case 2:
			if open {
				out = append(out, api.Chunk{Kind: api.Arguments, Call: calls - 1, Text: []byte(word())})
			}
		case 3:
			if open {
				out, open = append(out, callEnd(calls-1)), false
			}
		default:
			c := text(word())
			for range rng.IntN(3) {
				c.Logprobs = append(c.Logprobs, api.Logprob{Token: []byte(word()), Logprob: -float32(rng.IntN(9)) / 2})
			}
			out = append(out, c)
		}
	}
	return append(out, finish(api.FinishReason(rng.IntN(4))), usage)
}

// naiveItems returns the expected items of an answer, computed only from its chunks.
func naiveItems(chunks []api.Chunk) []string {
	var items []string
	lastCall := -1
	last := api.Role
	for _, c := range chunks {
		switch c.Kind {
		case api.Text, api.Reasoning:
			if len(c.Text) == 0 {
				continue
			}
			if last != c.Kind {
				items = append(items, map[api.ChunkKind]string{api.Text: "message ", api.Reasoning: "reasoning "}[c.Kind])
			}
			items[len(items)-1] += string(c.Text)
			last = c.Kind
		case api.CallBegin:
			lastCall = len(items)
			items = append(items, "function_call "+c.CallID+" "+c.Name+" ")
			last = c.Kind
		case api.Arguments:
			items[lastCall] += string(c.Text)
		}
	}
	return items
}

// said returns the same items of a response.
func said(response map[string]any) []string {
	var items []string
	for _, o := range response["output"].([]any) {
		item := o.(map[string]any)
		s := item["type"].(string) + " "
		if id, ok := item["call_id"]; ok {
			s += id.(string) + " " + item["name"].(string) + " " + item["arguments"].(string)
		} else {
			s += item["content"].([]any)[0].(map[string]any)["text"].(string)
		}
		items = append(items, s)
	}
	return items
}

// foldStream folds the events as a client does, with encoding/json, and returns the last event's response. It
// compares every event with the fold so far.
func foldStream(t *testing.T, stream []byte) map[string]any {
	t.Helper()
	items := map[int]map[string]any{}
	done := map[int]bool{}
	var last map[string]any
	for n, event := range strings.Split(strings.TrimSuffix(string(stream), "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(event, "\ndata: ")
		var e map[string]any
		if err := json.Unmarshal([]byte(data), &e); err != nil || !ok || name != "event: "+e["type"].(string) {
			t.Fatalf("event %q: %v", event, err)
		}
		if e["sequence_number"] != float64(n) {
			t.Errorf("event %d has the number %v", n, e["sequence_number"])
		}
		last = foldEvent(t, n, e, items, done)
	}
	if last == nil {
		t.Fatal("no response at the end")
	}
	output := []any{}
	for i := range len(items) {
		if !done[i] {
			t.Errorf("item %d is never done", i)
		}
		output = append(output, items[i])
	}
	if diff := cmp.Diff(any(output), last["output"]); diff != "" {
		t.Errorf("items (-events +response)\n%s", diff)
	}
	return last
}

// foldEvent adds one event to the items, and returns the response if the event ends the stream.
func foldEvent(t *testing.T, n int, e map[string]any, items map[int]map[string]any, done map[int]bool) map[string]any {
	t.Helper()
	at := -1
	if i, ok := e["output_index"]; ok {
		at = int(i.(float64))
		if done[at] {
			t.Errorf("event %d: item %d is done", n, at)
		}
	}
	item := items[at]
	if id, ok := e["item_id"]; ok && item["id"] != id {
		t.Errorf("event %d: item %d is %v, not %v", n, at, item["id"], id)
	}
	switch kind := e["type"].(string); kind {
	case "response.created", "response.in_progress":
		if r := e["response"].(map[string]any); r["status"] != "in_progress" || n > 1 {
			t.Errorf("event %d is %v", n, e)
		}
	case "response.output_item.added":
		if at != len(items) || item != nil {
			t.Errorf("event %d adds item %d to %d", n, at, len(items))
		}
		items[at] = e["item"].(map[string]any)
	case "response.content_part.added":
		item["content"] = append(item["content"].([]any), e["part"])
	case "response.output_text.delta", "response.reasoning_text.delta":
		part := item["content"].([]any)[int(e["content_index"].(float64))].(map[string]any)
		part["text"] = part["text"].(string) + e["delta"].(string)
		if lps, ok := e["logprobs"]; ok {
			part["logprobs"] = append(part["logprobs"].([]any), lps.([]any)...)
		}
	case "response.output_text.done", "response.reasoning_text.done":
		part := item["content"].([]any)[0].(map[string]any)
		if !cmp.Equal(e["text"], part["text"]) || !cmp.Equal(e["logprobs"], part["logprobs"]) {
			t.Errorf("event %d: %v, but its events said %v", n, e, part)
		}
	case "response.content_part.done":
		if diff := cmp.Diff(item["content"].([]any)[0], e["part"]); diff != "" {
			t.Errorf("event %d (-events +part)\n%s", n, diff)
		}
	case "response.function_call_arguments.delta":
		item["arguments"] = item["arguments"].(string) + e["delta"].(string)
	case "response.function_call_arguments.done":
		if e["arguments"] != item["arguments"] || e["name"] != item["name"] {
			t.Errorf("event %d: %v, but its events said %v", n, e, item)
		}
	case "response.output_item.done":
		final := e["item"].(map[string]any)
		if final["status"] != "completed" && final["status"] != "incomplete" || item["status"] != "in_progress" {
			t.Errorf("event %d: %v after %v", n, final, item)
		}
		item["status"] = final["status"]
		if diff := cmp.Diff(item, final); diff != "" {
			t.Errorf("event %d (-events +item)\n%s", n, diff)
		}
		done[at] = true
	case "response.completed", "response.incomplete":
		r := e["response"].(map[string]any)
		if "response."+r["status"].(string) != kind {
			t.Errorf("event %d has the status %v", n, r["status"])
		}
		return r
	default:
		t.Errorf("event %d is %v", n, e)
	}
	return nil
}

// TestLogprobsOfMarks: tokens without a text belong to the following text, unless a call or reasoning comes first:
// then they were its markers.
func TestLogprobsOfMarks(t *testing.T) {
	lps := api.Chunk{Kind: api.Text, Logprobs: logprobs[:1]}
	tests := []struct {
		name   string
		chunks []api.Chunk
		want   []int // log-probabilities of each message
	}{
		{"before its text", []api.Chunk{lps, lps, text("a")}, []int{2}},
		{"after its text", []api.Chunk{text("a"), lps}, []int{1}},
		{"of a call", append(append([]api.Chunk{lps}, call(0, "f", "{}")...), lps, callEnd(0), text("a")), []int{0}},
		{"of reasoning", []api.Chunk{lps, thought("x"), lps, thought("y"), lps, text("a")}, []int{1}},
		{"of two messages", append(append([]api.Chunk{lps, text("a"), lps}, call(0, "f")...), callEnd(0), lps, text("b"), lps, lps), []int{2, 3}},
		{"of nothing", []api.Chunk{lps}, nil},
	}
	for _, tt := range tests {
		var body struct {
			Output []struct {
				Type    string
				Content []struct{ Logprobs []any }
			}
		}
		if err := json.Unmarshal(written(decoded(t, `"user":"u"`), tt.chunks), &body); err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, item := range body.Output {
			if item.Type == "message" {
				got = append(got, len(item.Content[0].Logprobs))
			}
		}
		if !cmp.Equal(got, tt.want) {
			t.Errorf("%s: messages have %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestIDsRepeat: ids depend only on the request's id, so a repeated answer has the same ones.
func TestIDsRepeat(t *testing.T) {
	g := goldens()["everything"]
	q := decoded(t, g.fields)
	first, second := written(q, g.chunks), written(q, g.chunks)
	if !bytes.Equal(first, second) {
		t.Errorf("got %s, then %s", first, second)
	}
}

// TestQuery: the answer to a routing query has no items, and its stream has no events of this package.
func TestQuery(t *testing.T) {
	asked := api.Chunk{Kind: api.Usage, Tokens: api.TokenCounts{Prompt: 2}, Ext: &api.AnswerExt{Query: &api.QueryAnswer{Worker: kv.Worker{ID: 7}, Tokens: []kv.Token{1, 2}}}}
	got := string(written(decoded(t, `"user":"u"`), []api.Chunk{asked}))
	for _, want := range []string{`"status":"completed"`, `"output":[]`, `"nvext":{"worker_id":{"prefill_worker_id":7,"prefill_dp_rank":0,"decode_worker_id":7,"decode_dp_rank":0},"overlap_blocks":0,"token_ids":[1,2]}`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s has no %s", got, want)
		}
	}
	if got := written(decoded(t, `"stream":true`), nil); len(got) > 0 {
		t.Errorf("a stream of nothing says %q", got)
	}
}

// TestFailWhole: a failed whole answer is an ordinary error.
func TestFailWhole(t *testing.T) {
	err := errors.New("secret")
	w := decoded(t, `"user":"u"`).NewWriter(&testHead)
	w.Append(nil, &api.Chunk{Kind: api.Role})
	if got, want := w.Fail(nil, err), openai.AppendError(nil, err); !bytes.Equal(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestPiecesDoNotAllocate: only the memory of the whole answer grows, by doubling.
func TestPiecesDoNotAllocate(t *testing.T) {
	lps := []api.Logprob{{Token: []byte(" w"), Logprob: -1.25, Top: []api.TokenLogprob{{Token: []byte("x"), Logprob: -1.25}}}}
	piece := []byte(" wörld\n")
	for name, chunks := range map[string][2]api.Chunk{
		"text":      {{Kind: api.Text, Text: piece}, {Kind: api.Text, Text: piece, Logprobs: lps}},
		"reasoning": {{Kind: api.Reasoning, Text: piece}, {Kind: api.Reasoning, Text: piece}},
		"arguments": {{Kind: api.CallBegin, CallID: "c", Name: "f"}, {Kind: api.Arguments, Text: piece}},
	} {
		w := decoded(t, `"stream":true`).NewWriter(&testHead)
		buf := make([]byte, 0, 4096)
		w.Append(buf, &api.Chunk{Kind: api.Role})
		w.Append(buf, &chunks[0])
		if n := testing.AllocsPerRun(1000, func() { w.Append(buf, &chunks[1]) }); n != 0 {
			t.Errorf("a piece of %s: %v allocations", name, n)
		}
	}
}

// TestMemoryIsLinear: a stream keeps one copy of its answer.
func TestMemoryIsLinear(t *testing.T) {
	const pieces, size = 20_000, 16
	w := decoded(t, `"stream":true`).NewWriter(&testHead)
	buf := make([]byte, 0, 4096)
	c := text(strings.Repeat("x", size))
	for range pieces {
		w.Append(buf, &c)
	}
	s := w.(*stream)
	kept := cap(s.items()[0].Text) + cap(s.waiting)
	for _, l := range s.logprobs {
		kept += cap(l)
	}
	if limit := 2 * pieces * size; kept > limit {
		t.Errorf("a text of %d bytes keeps %d, the limit is %d", pieces*size, kept, limit)
	}
}

func BenchmarkPiece(b *testing.B) {
	q, err := Decode([]byte(`{"model":"m","input":"hi","stream":true}`))
	if err != nil {
		b.Fatal(err)
	}
	w := q.NewWriter(&testHead)
	buf := make([]byte, 0, 4096)
	c := text(" world")
	b.ReportAllocs()
	for b.Loop() {
		w.Append(buf, &c)
	}
}
