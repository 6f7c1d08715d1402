package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine/tiny"
	"penstock/internal/fixturetest"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/worker"
)

// movable are requests that cover what the state of an answer consists of: the
// place in it, random draws, penalties, held back text, schemas, calls.
func movable(t *testing.T, f *fleet) map[string]movableRequest {
	say := `"messages":[{"role":"user","content":"Where does the water go?"}]`
	r := map[string]movableRequest{
		"greedy":        {"/v1/chat/completions", say + `,"max_tokens":12,"temperature":0`},
		"sampled":       {"/v1/chat/completions", say + `,"max_tokens":12,"temperature":1.3,"seed":7,"top_p":0.9,"top_k":50,"min_p":0.01`},
		"penalties":     {"/v1/chat/completions", say + `,"max_tokens":14,"temperature":1,"seed":3,"presence_penalty":1.5,"frequency_penalty":1.2,"repetition_penalty":1.3`},
		"logprobs":      {"/v1/chat/completions", say + `,"max_tokens":8,"temperature":1,"seed":5,"logprobs":true,"top_logprobs":3`},
		"choices":       {"/v1/chat/completions", say + `,"max_tokens":6,"temperature":1.2,"seed":9,"n":3`},
		"min_tokens":    {"/v1/completions", `"prompt":"Gate five","max_tokens":10,"min_tokens":8,"temperature":1,"seed":2,"logprobs":2`},
		"bias":          {"/v1/completions", `"prompt":"Gate five","max_tokens":8,"temperature":0.8,"seed":4,"logit_bias":{"300":3,"301":-100},"echo":true`},
		"prompts":       {"/v1/completions", `"prompt":["one","two"],"max_tokens":5,"temperature":0.9,"seed":6,"n":2`},
		"json_schema":   {"/v1/chat/completions", say + `,"max_tokens":40,"temperature":1,"seed":8,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object","additionalProperties":false,"properties":{"open":{"type":"boolean"},"city":{"enum":["Oslo","Rome"]}},"required":["open","city"]}}}`},
		"tool":          {"/v1/chat/completions", say + `,"max_tokens":60,"temperature":1,"seed":1,"tool_choice":"required","tools":[{"type":"function","function":{"name":"valve","parameters":{"type":"object","additionalProperties":false,"properties":{"open":{"type":"boolean"}},"required":["open"]}}}]`},
		"messages":      {"/v1/messages", say + `,"max_tokens":9,"temperature":0`},
		"responses":     {"/v1/responses", `"input":"Where does the water go?","max_output_tokens":9,"temperature":0`},
		"stop at once":  {"/v1/completions", `"prompt":"Gate five","max_tokens":1,"temperature":0`},
		"stop token id": {"/v1/completions", ""},
		"stop string":   {"/v1/completions", ""},
	}
	// Where these end depends on what the model says: in the middle of a greedy answer.
	base := `"prompt":"Gate five","max_tokens":12,"temperature":0`
	whole := f.ask(t, movableRequest{"/v1/completions", base + `,"logprobs":0`}, "base", false)
	var said struct {
		Choices []struct {
			Text     string
			Logprobs struct{ Tokens []string }
		}
	}
	if err := json.Unmarshal([]byte(whole), &said); err != nil || len(said.Choices) != 1 || len(said.Choices[0].Logprobs.Tokens) != 12 {
		t.Fatalf("%v: %s", err, whole)
	}
	tokens := said.Choices[0].Logprobs.Tokens
	// From the middle of one token into the next, and two that only begin like it.
	stop := tokens[6][len(tokens[6])/2:] + tokens[7]
	needles := must(json.Marshal([]string{stop, stop + "never", tokens[2] + "never"}))(t)
	r["stop string"] = movableRequest{"/v1/completions", base + `,"logprobs":0,"stop":` + string(needles)}
	ids := f.ask(t, movableRequest{"/tokenize", `"add_special_tokens":false,"prompt":` + string(must(json.Marshal(tokens[5]))(t))}, "ids", false)
	var encoded struct{ Tokens []int }
	if err := json.Unmarshal([]byte(ids), &encoded); err != nil || len(encoded.Tokens) == 0 {
		t.Fatalf("%v: %s", err, ids)
	}
	r["stop token id"] = movableRequest{"/v1/completions", base + `,"stop_token_ids":` + string(must(json.Marshal(encoded.Tokens))(t))}
	return r
}

type movableRequest struct{ path, fields string }

// ask sends a request under an id and returns the answer: whole, or of a stream
// what its events add up to.
func (f *fleet) ask(t *testing.T, r movableRequest, id string, stream bool) string {
	t.Helper()
	extra := ""
	if stream {
		extra = `,"stream":true`
		if strings.HasSuffix(r.path, "completions") {
			extra += `,"stream_options":{"include_usage":true}`
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), fixturetest.TimeLeft(t))
	defer cancel()
	req := must(http.NewRequestWithContext(ctx, http.MethodPost, f.url+r.path, strings.NewReader(`{"model":"penstock-tiny",`+r.fields+extra+`}`)))(t)
	req.Header.Set("x-request-id", id)
	resp := must(f.client.Do(req))(t)
	defer resp.Body.Close()
	body := must(io.ReadAll(resp.Body))(t)
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%s %s: %s %s", id, r.fields, resp.Status, body)
	}
	if stream {
		return plain(foldStream(t, body))
	}
	return plain(string(body))
}

// differing is what may differ between two answers to one request: ids, times, and
// which workers with which caches it came from.
var differing = []*regexp.Regexp{
	regexp.MustCompile(`,"nvext":\{("attempts"|"worker)[^\n]*?\]\}`),
	regexp.MustCompile(`"(cached_tokens|cache_read_input_tokens|input_tokens|cache_creation_input_tokens|created|created_at|completed_at)":\d+,?`),
	regexp.MustCompile(`"(id|item_id|call_id)":"[^"]*",?`),
}

func plain(s string) string {
	for _, re := range differing {
		s = re.ReplaceAllString(s, "")
	}
	return s
}

// foldStream adds up the events of a stream: texts that belong together are joined,
// since where an answer is parted, and how its choices take turns, depends on how
// fast its client reads; all else is kept.
func foldStream(t *testing.T, body []byte) string {
	t.Helper()
	texts := map[string]*strings.Builder{}
	var rest []string
	for line := range strings.Lines(string(body)) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			rest = append(rest, data)
			continue
		}
		var event map[string]any
		d := json.NewDecoder(strings.NewReader(data))
		d.UseNumber() // logarithms as they are written
		if err := d.Decode(&event); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		delete(event, "sequence_number")
		delete(event, "nvext")
		if r, ok := event["response"].(map[string]any); ok {
			delete(r, "nvext")
		}
		n := gather(texts, "", event)
		if n == 0 || slices.ContainsFunc([]string{`"finish_reason":"`, `"usage":{`}, func(s string) bool {
			return bytes.Contains(must(json.Marshal(event))(t), []byte(s))
		}) {
			rest = append(rest, string(must(json.Marshal(event))(t)))
		}
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		out = append(out, key+"="+texts[key].String())
	}
	slices.Sort(rest) // choices run side by side
	return strings.Join(append(out, rest...), "\n")
}

// gather takes the texts and the log-probabilities out of an event, and returns how
// many there were. Each is known by the way to it and the choice or item it is of.
func gather(texts map[string]*strings.Builder, way string, v any) (n int) {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range []string{"index", "output_index"} {
			if i, ok := v[key]; ok {
				way += fmt.Sprint("#", i)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			to := way + "." + key
			switch part := v[key].(type) {
			case string:
				if !slices.Contains([]string{"content", "text", "delta", "arguments", "partial_json", "reasoning_content", "reasoning", "thinking"}, key) {
					continue
				}
				n += join(texts, to, part)
				delete(v, key)
			case []any:
				if slices.Contains([]string{"content", "tokens", "token_logprobs", "top_logprobs", "text_offset"}, key) && strings.Contains(way, "logprobs") {
					for _, p := range part {
						b, _ := json.Marshal(p) // what was decoded can be encoded
						n += join(texts, to, string(b)+";")
					}
					delete(v, key)
					continue
				}
				n += gather(texts, to, part)
			default:
				n += gather(texts, to, part)
			}
		}
	case []any:
		for _, part := range v {
			n += gather(texts, way, part)
		}
	}
	return n
}

func join(texts map[string]*strings.Builder, key, text string) int {
	if texts[key] == nil {
		texts[key] = &strings.Builder{}
	}
	texts[key].WriteString(text)
	return 1
}

// sideBySide runs jobs, a few at a time.
func sideBySide(jobs []func()) {
	var wg sync.WaitGroup
	queue := make(chan func(), len(jobs))
	for _, j := range jobs {
		queue <- j
	}
	close(queue)
	for range 8 {
		wg.Go(func() {
			for j := range queue {
				j()
			}
		})
	}
	wg.Wait()
}

// TestEveryToken: an answer whose worker is lost after any number of its tokens is
// the answer of one whose worker was not, for every kind of request, whole and
// streamed; and so with workers that leave as planned, which no limit counts.
func TestEveryToken(t *testing.T) {
	t.Parallel()
	f, planned := startFleets(t, worker.Config{})
	everyToken(t, f, planned, movable(t, f))
}

// TestEveryTokenOfThought is the same for a model that reasons.
func TestEveryTokenOfThought(t *testing.T) {
	t.Parallel()
	f, planned := startFleets(t, worker.Config{ReasoningParser: "deepseek_r1"})
	say := `"messages":[{"role":"user","content":"Where does the water go?"}]`
	requests := map[string]movableRequest{
		"chat":      {"/v1/chat/completions", say + `,"max_tokens":8,"temperature":1,"seed":3,"n":2`},
		"messages":  {"/v1/messages", say + `,"max_tokens":8,"temperature":0`},
		"responses": {"/v1/responses", `"input":"Where does the water go?","max_output_tokens":8,"temperature":0`},
	}
	if a := f.ask(t, requests["chat"], "whole", false); !strings.Contains(a, `"reasoning_tokens":16`) {
		t.Errorf("the model does not reason: %s", a)
	}
	everyToken(t, f, planned, requests)
}

// startFleets starts a fleet whose workers may fail, and one whose workers may only
// leave as planned.
func startFleets(t *testing.T, wc worker.Config) (f, planned *fleet) {
	f = startFleet(t, fleetConfig{workers: 3, worker: wc, pretend: true, frontend: frontend.Config{MigrationLimit: new(2)}})
	planned = startFleet(t, fleetConfig{workers: 3, worker: wc, pretend: true, frontend: frontend.Config{MigrationLimit: new(0)}})
	return f, planned
}

func everyToken(t *testing.T, f, planned *fleet, requests map[string]movableRequest) {
	t.Helper()
	var jobs []func()
	var mu sync.Mutex
	made := map[string]int{} // cuts, by name
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		r := requests[name]
		for _, stream := range []bool{false, true} {
			kind := fmt.Sprint(name, " ", map[bool]string{false: "whole", true: "streamed"}[stream])
			want := f.ask(t, r, "whole-"+strconv.Itoa(len(jobs)), stream)
			// At every token, until the answer ends before it.
			last := 64
			if name == "prompts" { // each prompt is a call of its own; the first is cut
				last = 16
			}
			for k := beforeAccepted; k <= last; k++ {
				fleet, code := f, fault.Unavailable
				if len(jobs)%2 == 0 {
					fleet, code = planned, fault.Draining
				}
				cuts := []cut{{k, code}}
				if k%3 == 0 { // at the same place, or a little later, once more
					cuts = append(cuts, cut{k % 2 * 2, code})
				}
				id := fmt.Sprintf("%d-%d", len(jobs), k+1)
				jobs = append(jobs, func() {
					fleet.cuts.plan(id, cuts...)
					got := fleet.ask(t, r, id, stream)
					mu.Lock()
					defer mu.Unlock()
					made[kind] += len(cuts) - fleet.cuts.left(id)
					if got != want {
						t.Errorf("%s, cut at %v:\n got %s\nwant %s", kind, cuts, got, want)
					}
				})
				if k > 2 && k%4 == 0 && f.short(t, r, k, len(jobs)) {
					break
				}
			}
		}
	}
	sideBySide(jobs)
	for _, kind := range slices.Sorted(maps.Keys(made)) {
		if made[kind] < 3 {
			t.Errorf("%s: %d cuts were made: the test proves nothing", kind, made[kind])
		}
	}
	t.Logf("%d answers, cuts %v", len(jobs), made)
	f.idle()
	planned.idle()
}

// short reports whether the answer to r has fewer than k tokens.
func (f *fleet) short(t *testing.T, r movableRequest, k, n int) bool {
	t.Helper()
	id := fmt.Sprintf("short-%d-%d", n, k)
	f.cuts.plan(id, cut{k, fault.Unavailable})
	f.ask(t, r, id, false)
	return f.cuts.left(id) == 1
}

// TestLoseWorkers: streams go on, the same, when the worker under them is killed, and
// when it leaves without the time to finish them.
func TestLoseWorkers(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, f *fleet, worker int){
		"killed": func(t *testing.T, f *fleet, worker int) { f.cuts.kill(addr(worker)) },
		"left": func(t *testing.T, f *fleet, worker int) {
			if err := f.leave[worker-1](); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			const requests, tokens = 12, 96
			f := startFleet(t, fleetConfig{workers: 3, worker: worker.Config{DrainTimeout: time.Millisecond}, frontend: frontend.Config{MigrationLimit: new(2)}})
			want := make([]answer, requests)
			for i := range want {
				want[i] = f.complete("/v1/completions", sampled(i, tokens))
			}
			var wg sync.WaitGroup
			for i := range requests {
				wg.Go(func() {
					got, err := f.stream(t.Context(), "/v1/completions", sampled(i, tokens))
					if err != nil || got.text != want[i].text || got.output != tokens || got.err != "" {
						t.Errorf("request %d: %+v, %v\nalone: %+v", i, got, err, want[i])
					}
				})
			}
			f.eventually("tokens are coming", func() bool {
				running := 0
				for _, e := range f.engines {
					running += e.Load().Running
				}
				return running > requests/2
			})
			lose(t, f, 1)
			lose(t, f, 2)
			wg.Wait()
			f.eventually("all is free", func() bool {
				for _, w := range f.workers() {
					if w.Load.ActiveRequests != 0 || w.Load.ActiveBlocks != 0 {
						return false
					}
				}
				for _, e := range f.engines {
					if l := e.Load(); l.Running != 0 || l.Waiting != 0 || l.UsedBlocks != 0 {
						return false
					}
				}
				return true
			})
		})
	}
}

// TestRollingRestart: every worker is replaced by its next life, one after another,
// beneath streams that do not notice. None of the workers waits for its streams.
func TestRollingRestart(t *testing.T) {
	const workers, clients, tokens = 3, 8, 48
	f := startFleet(t, fleetConfig{workers: workers, engines: 2 * workers, worker: worker.Config{DrainTimeout: time.Millisecond}})
	want := make([]answer, clients)
	for i := range want {
		want[i] = f.complete("/v1/completions", sampled(i, tokens))
	}
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	var wg sync.WaitGroup
	var answers atomic.Int64
	for i := range clients {
		wg.Go(func() {
			for range 1000 {
				if ctx.Err() != nil {
					return
				}
				got, err := f.stream(t.Context(), "/v1/completions", sampled(i, tokens))
				if err != nil || got.status != http.StatusOK || got.text != want[i].text || got.output != tokens || got.err != "" {
					t.Errorf("request %d: %+v, %v\nalone: %+v", i, got, err, want[i])
					return
				}
				answers.Add(1)
			}
		})
	}
	for id := 1; id <= workers; id++ {
		f.eventually("it is at work", func() bool { return f.engines[id-1].Load().Running > 0 })
		if err := f.leave[id-1](); err != nil {
			t.Error(err)
		}
		f.join(id, 2, f.engines[workers+id-1])
		f.eventually("its next life is known", func() bool { return f.known() == workers })
	}
	before := answers.Load()
	f.eventually("answers come from new lives", func() bool { return answers.Load() > before+clients })
	enough()
	wg.Wait()
	f.idle()
}

// TestLeave: a client that goes frees what its request holds, wherever it is.
func TestLeave(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(t *testing.T, f *fleet) // what makes the request get there
		there  func(f *fleet) bool          // it has
		body   map[string]any
	}{
		{
			name:   "queued",
			before: func(t *testing.T, f *fleet) { f.occupy(t) },
			there:  func(f *fleet) bool { return f.engines[0].Load().Waiting > 0 },
			body:   sampled(1, 300),
		},
		{
			name:  "prefill",
			there: func(f *fleet) bool { l := f.engines[0].Load(); return l.PrefillTokens > 0 && l.UsedBlocks > 0 },
			body:  map[string]any{"model": "penstock-tiny", "prompt": longPrompt(1) + longPrompt(2) + longPrompt(3), "max_tokens": 100},
		},
		{
			name:  "decode",
			there: func(f *fleet) bool { l := f.engines[0].Load(); return l.PrefillTokens == 0 && l.UsedBlocks > 2 },
			body:  sampled(2, 1500),
		},
		{
			name: "between workers",
			there: func(f *fleet) bool {
				if f.engines[0].Load().UsedBlocks > 2 {
					f.cuts.kill(addr(1))
				}
				alive, _ := f.cuts.alive(addr(1))
				return !alive && f.engines[0].Load().UsedBlocks == 0
			},
			body: sampled(3, 1500),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := startFleet(t, fleetConfig{workers: 1, engine: tiny.Config{MaxSeqs: 1, TokenBudget: 16}})
			if tt.before != nil {
				tt.before(t, f)
			}
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				if a, err := f.stream(ctx, "/v1/completions", tt.body); err == nil {
					t.Errorf("the answer came: %+v", a)
				}
			}()
			f.eventually("the request is "+tt.name, func() bool { return tt.there(f) })
			leave()
			<-left
			f.eventually("nothing of it is left", func() bool {
				for _, w := range f.workers() {
					if w.Load.ActiveRequests > f.occupied || w.Load.ActiveRequests == 0 && w.Load.ActiveBlocks != 0 {
						return false
					}
				}
				l := f.engines[0].Load()
				return l.Waiting == 0 && l.Running <= f.occupied && (f.occupied > 0 || l.UsedBlocks == 0) && f.inflight() == f.occupied
			})
		})
	}
}
