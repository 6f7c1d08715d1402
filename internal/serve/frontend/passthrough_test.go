package frontend

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// passer is how a scripted engine answers passthrough requests.
type passer struct {
	refuse   error  // instead of accepting
	status   int    // 0 is 200
	kind     string // "" is what the request asks for
	pieces   []engine.PassthroughChunk
	pause    time.Duration // before each
	dieAfter int           // pieces, counted from 1; 0 is never
	dieWith  error         // nil is Unavailable
	hang     bool          // after the pieces, instead of ending
	raw      [][]byte      // sent after accepting
}

// events are the pieces of a stream, and its end with the engine's counts.
func events(prompt, output, cached int, texts ...string) (pieces []engine.PassthroughChunk) {
	for _, text := range texts {
		pieces = append(pieces, engine.PassthroughChunk{Data: []byte("data: " + text + "\n\n"), Tokens: 1})
	}
	return append(pieces, engine.PassthroughChunk{Data: []byte("data: [DONE]\n\n"), Last: true, PromptTokens: prompt, OutputTokens: output, Cached: cached})
}

func (s *script) pass(ctx context.Context, body []byte, send func([]byte) error) error {
	var req engine.PassthroughRequest
	if err := engine.DecodePassthroughRequest(body, &req); err != nil {
		return err
	}
	if err := req.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.passed = append(s.mu.passed, req)
	s.mu.Unlock()
	p := &s.passer
	if p.refuse != nil {
		return p.refuse
	}
	emit := func(piece engine.PassthroughChunk) error {
		piece.Attempt = req.Attempt
		return send(engine.AppendPassthroughChunk(nil, &piece))
	}
	accepted := engine.PassthroughChunk{Accepted: true, Status: max(p.status, 200), Type: "application/json"}
	if p.status != 0 {
		accepted.Status = p.status
	}
	if req.Stream {
		accepted.Type = "text/event-stream; charset=utf-8"
	}
	if p.kind != "" {
		accepted.Type = p.kind
	}
	if err := emit(accepted); err != nil {
		return err
	}
	for _, frame := range p.raw {
		if err := send(frame); err != nil {
			return err
		}
	}
	for i, piece := range p.pieces {
		if p.dieAfter > 0 && i == p.dieAfter-1 {
			if p.dieWith != nil {
				return p.dieWith
			}
			return fault.New(fault.Unavailable, "the scripted worker died")
		}
		if p.pause > 0 {
			select {
			case <-time.After(p.pause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := emit(piece); err != nil {
			return err
		}
	}
	if p.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// passes returns the passthrough requests of the script.
func (s *script) passes() []engine.PassthroughRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.passed)
}

const allPaths = "/v1/chat/completions /v1/completions /v1/messages /v1/responses"

// opaque makes a card of a model whose tokenizer only the engine has.
func opaque(c *engine.Card) {
	c.Name, c.Aliases, c.Tokenizer = "closed", []string{"c"}, engine.TokenizerRef{Kind: engine.TokenizerOfEngine}
	c.PassthroughPaths = strings.Fields(allPaths)
}

// TestPass: requests of every API pass through to the engine, and its answers back, with Penstock's
// headers and metrics.
func TestPass(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := &script{passer: passer{pieces: events(21, 3, 16, `{"a":1}`, `{"b":2}`), pause: time.Second}}
		w.worker(7, s, opaque, preprocesses)
		w.worker(9, constant("hi")) // another, ordinary model
		for _, path := range strings.Fields(allPaths) {
			body := `{ "model": "c", "stream" : true, "unknown":[{"x":1e40}], "messages":[{"role":"user","content":"hi"}],"prompt":"hi" }`
			got := w.post(path, body, "x-request-id", "R")
			if want := "data: {\"a\":1}\n\ndata: {\"b\":2}\n\ndata: [DONE]\n\n"; got.status != 200 || got.body != want || got.err != nil {
				t.Errorf("%s: %v", path, got)
			}
			h := got.header
			if h.Get("Content-Type") != "text/event-stream; charset=utf-8" || h.Get("x-request-id") != "R" || h.Get("x-penstock-worker") != "7" || h.Get("X-Accel-Buffering") != "no" {
				t.Errorf("%s: headers %v", path, h)
			}
			all := s.passes()
			last := all[len(all)-1]
			if string(last.Body) != body || last.Path != path || last.Model != "closed" || !last.Stream || last.ID != "R" || last.Attempt != 1 {
				t.Errorf("%s: the engine got %+v", path, last)
			}
		}
		if said := fmt.Sprint(w.router.said()); said != "map[R#1:16]" {
			t.Errorf("the router was told %s", said)
		}
		s.passer.pieces = []engine.PassthroughChunk{{Data: []byte(`{"whole":`)}, {Data: []byte(`true}`), Tokens: 2, Last: true, PromptTokens: 5, OutputTokens: 2, Cached: engine.CachedUnknown}}
		got := w.post("/v1/chat/completions", `{"model":"closed","messages":[{"role":"user","content":"hi"}]}`)
		if got.status != 200 || got.body != `{"whole":true}` || got.header.Get("Content-Type") != "application/json" || got.header.Get("Content-Length") != "14" || got.header.Get("x-penstock-worker") != "7" {
			t.Error(got)
		}
		for series, want := range map[string]string{
			`frontend_requests_total{endpoint="chat_completions",model="closed",status="200"}`: "2",
			`frontend_requests_total{endpoint="messages",model="closed",status="200"}`:         "1",
			`frontend_prompt_tokens_total{model="closed"}`:                                     "89",
			`frontend_output_tokens_total{model="closed"}`:                                     "14",
			`frontend_cached_tokens_total{model="closed"}`:                                     "64",
			`frontend_time_to_first_token_seconds_sum{model="closed"}`:                         "4",
			`frontend_time_to_first_token_seconds_count{model="closed"}`:                       "4",
			`frontend_inter_token_latency_seconds_sum{model="closed"}`:                         "4",
			`frontend_inter_token_latency_seconds_count{model="closed"}`:                       "4",
		} {
			if n := w.metric(series); n != want {
				t.Errorf("%s is %s, want %s", series, n, want)
			}
		}
		if a := w.post("/v1/completions", `{"model":"bytes","prompt":"x"}`); a.status != 200 || !strings.Contains(a.body, `"text":"hi"`) {
			t.Error(a)
		}
		if h := w.get("/health"); h.status != 200 || strings.Contains(h.body, "tokenizer") || strings.Contains(w.log.String(), "tokenizer of") {
			t.Errorf("%s; %s", h.body, w.log)
		}
		if a := w.get("/v1/models"); !strings.Contains(a.body, `"id":"closed"`) || w.f.WorkerCount("closed") != 1 {
			t.Errorf("%s, %d workers", a.body, w.f.WorkerCount("closed"))
		}
	})
}

// TestPassRoutes: such a request is routed by the tokens that the model's engines make of it, whatever
// its other fields are, in bounded time, and by its client's hints.
func TestPassRoutes(t *testing.T) {
	ok := passer{pieces: events(1, 1, 0, "{}")}
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := &script{passer: ok}
		w.worker(7, s, opaque, preprocesses, func(c *engine.Card) { c.Adapters = []string{"law"} })
		w.worker(8, &script{passer: ok}, opaque, func(c *engine.Card) { c.PassthroughPaths = []string{"/v1/completions"} })
		routed := func() (int, kv.Salt, string) {
			all := w.router.routed()
			r := all[len(all)-1]
			return len(r.Tokens), r.Salt, fmt.Sprint(r.Model, r.Pin.ID, r.Session.ID, r.Allowed, r.ExpectedOutput, r.Exclude)
		}
		chat := `"messages":[{"role":"user","content":"hi"}],"vendor_field":{"a":[1]}`
		if a := w.post("/v1/chat/completions", `{"model":"law","cache_salt":"s",`+chat+`}`, "x-session-id", "S"); a.status != 200 {
			t.Fatal(a)
		}
		seen := engineSees(&s.asked()[0])
		n, salt, rest := routed()
		if n != len(seen) || n < 10 || salt != (kv.Salt{LoRA: "law", Namespace: "s"}) || rest != "law0S[] 0 []" {
			t.Errorf("%d tokens, %+v, %s", n, salt, rest)
		}
		if last := s.passes()[0]; last.Model != "law" || last.Salt != salt || !slices.Equal(last.Prompt, seen) || last.Hints != nil {
			t.Errorf("%+v", last)
		}
		if a := w.post("/v1/chat/completions", `{"model":"closed","nvext":{"allowed_worker_ids":[7],"agent_hints":{"osl":9}},`+chat+`}`, "x-worker-instance-id", "7"); a.status != 200 {
			t.Fatal(a)
		}
		if _, _, rest := routed(); rest != "closed7[7] 9 [8]" {
			t.Error(rest)
		}
		if a := w.post("/v1/completions", `{"model":"closed","prompt":"hello"}`); a.status != 200 {
			t.Fatal(a)
		}
		if n, _, _ := routed(); n == 0 {
			t.Error("no tokens of a text")
		}
		if a := w.post("/v1/completions", `{"model":"closed","prompt":["one","two"]}`); a.status != 200 {
			t.Fatal(a)
		}
		if n, _, _ := routed(); n != 0 {
			t.Errorf("%d tokens of two prompts", n)
		}
		if a := w.post("/v1/completions", `{"model":"closed","prompt":"x","nvext":{"token_data":[1,2,3]}}`); a.status != 200 {
			t.Fatal(a)
		}
		if n, _, _ := routed(); n != 3 {
			t.Errorf("%d tokens of a client's 3", n)
		}

		s.maker.mute = true
		began := time.Now()
		if a := w.post("/v1/chat/completions", `{"model":"closed",`+chat+`}`); a.status != 200 || time.Since(began) != 2*time.Second {
			t.Errorf("after %v: %v", time.Since(began), a)
		}
		if n, _, _ := routed(); n != 0 {
			t.Errorf("%d tokens of an engine that tells none", n)
		}
		s.maker = maker{refuse: fault.New(fault.Invalid, "no")}
		if a := w.post("/v1/chat/completions", `{"model":"closed",`+chat+`}`); a.status != 200 {
			t.Error("a request fails since its tokens are not known", a)
		}
	})
}

// TestPassRefuses: a request that cannot be passed through is refused with the API's error.
func TestPassRefuses(t *testing.T) {
	inWorld(t, Config{MaxBodyBytes: 4096}, func(t *testing.T, w *world) {
		s := &script{passer: passer{pieces: events(1, 1, 0, "{}")}}
		w.worker(7, s, opaque, func(c *engine.Card) { c.PassthroughPaths = []string{"/v1/chat/completions"} })
		for name, tt := range map[string]struct {
			path, body string
			status     int
			has        string
		}{
			"another path":    {"/v1/messages", `{"model":"closed","messages":[]}`, 501, `{"type":"error"`},
			"another too":     {"/v1/completions", `{"model":"closed","prompt":"x"}`, 501, `"code":"not_implemented"`},
			"no JSON":         {"/v1/chat/completions", `{"model":"closed",`, 400, "JSON"},
			"a key twice":     {"/v1/chat/completions", `{"model":"closed","x":1,"x":2}`, 400, "x"},
			"more than one":   {"/v1/chat/completions", `{"model":"closed"}{}`, 400, "JSON"},
			"no object":       {"/v1/chat/completions", `["closed"]`, 400, "object"},
			"stream is none":  {"/v1/chat/completions", `{"model":"closed","stream":"yes"}`, 400, "stream"},
			"a bad extension": {"/v1/chat/completions", `{"model":"closed","nvext":{"backend_instance_id":"x"}}`, 400, "backend_instance_id"},
			"a query":         {"/v1/chat/completions", `{"model":"closed","nvext":{"annotations":["query_instance_id"]}}`, 501, "best_worker"},
			"Dynamo's query":  {"/v1/chat/completions", `{"model":"closed","nvext":{"annotations":["query_instance_id:"]}}`, 501, "best_worker"},
			"an annotation":   {"/v1/chat/completions", `{"model":"closed","nvext":{"annotations":["token_ids"]}}`, 400, "nvext.annotations"},
			"an extra field":  {"/v1/chat/completions", `{"model":"closed","nvext":{"extra_fields":["worker_id"]}}`, 400, "nvext.extra_fields"},
			"greed":           {"/v1/chat/completions", `{"model":"closed","nvext":{"greed_sampling":true}}`, 400, "nvext.greed_sampling"},
			"another salt":    {"/v1/chat/completions", `{"model":"closed","nvext":{"cache_salt":"s"}}`, 400, "nvext.cache_salt"},
			"oversized":       {"/v1/chat/completions", `{"model":"closed","x":"` + strings.Repeat("x", 5000) + `"}`, 413, "larger"},
			"another model":   {"/v1/chat/completions", `{"model":"other","messages":[{"role":"user","content":"x"}]}`, 404, "does not exist"},
			"a bad header":    {"/v1/chat/completions", `{"model":"closed"}`, 400, "x-worker-instance-id"},
			"embeddings":      {"/v1/embeddings", `{"model":"closed","input":"x"}`, 501, "tokens of texts"},
			"tokenize":        {"/tokenize", `{"model":"closed","prompt":"x"}`, 501, "tokens of texts"},
			"detokenize":      {"/detokenize", `{"model":"closed","tokens":[1]}`, 501, "tokens become text"},
			"count":           {"/v1/messages/count_tokens", `{"model":"closed","messages":[{"role":"user","content":"x"}]}`, 501, "tokens of texts"},
		} {
			var headers []string
			if name == "a bad header" {
				headers = []string{"x-worker-instance-id", "x"}
			}
			if a := w.post(tt.path, tt.body, headers...); a.status != tt.status || !strings.Contains(a.body, tt.has) {
				t.Errorf("%s: %d %s, want %d and %s", name, a.status, a.body, tt.status, tt.has)
			}
		}
		if n := len(s.passes()); n != 0 {
			t.Errorf("%d requests were passed on", n)
		}
		w.registry.remove(7)
		synctest.Wait()
		if a := w.post("/v1/chat/completions", `{"model":"closed"}`); a.status != 503 {
			t.Error(a)
		}
		w.worker(8, s, opaque, preprocesses)
		if a := w.post("/tokenize", `{"model":"closed","prompt":"x"}`); a.status != 200 || !strings.Contains(a.body, `"count":`) {
			t.Error(a)
		}
		if a := w.post("/v1/messages/count_tokens", `{"model":"closed","messages":[{"role":"user","content":"x"}]}`); a.status != 200 {
			t.Error(a)
		}
		if a := w.post("/v1/embeddings", `{"model":"closed","input":"x"}`); a.status != 400 || !strings.Contains(a.body, "makes no embeddings") {
			t.Error(a)
		}
	})
}

// TestPassAnswers: the client gets the engine's own refusals, not as a stream even if it asked for one.
func TestPassAnswers(t *testing.T) {
	for _, stream := range []string{"false", "true"} {
		inWorld(t, Config{MaxBodyBytes: 4096}, func(t *testing.T, w *world) {
			const unknown = engine.CachedUnknown
			s := &script{passer: passer{
				status: 422, kind: "application/problem+json",
				pieces: []engine.PassthroughChunk{{Data: []byte(`{"detail":"no"}`), Last: true, PromptTokens: unknown, OutputTokens: unknown, Cached: unknown}},
			}}
			w.worker(7, s, opaque)
			body := `{"model":"closed","stream":` + stream + `}`
			a := w.post("/v1/chat/completions", body)
			if a.status != 422 || a.body != `{"detail":"no"}` || a.header.Get("Content-Type") != "application/problem+json" || len(s.passes()) != 1 {
				t.Error(a)
			}
			if n := w.metric(`frontend_requests_total{endpoint="chat_completions",model="closed",status="422"}`); n != "1" {
				t.Errorf("%s requests are counted", n)
			}
			s.passer = passer{kind: "text/plain", pieces: []engine.PassthroughChunk{{Data: []byte(strings.Repeat("x", 3000))}, {Data: []byte(strings.Repeat("x", 3000)), Last: true}}}
			if a := w.post("/v1/chat/completions", body); a.status != 500 || !strings.Contains(a.body, `"code":"internal_error"`) {
				t.Error("too large an answer:", a)
			}
		})
	}
}

// TestPassMoves: before a byte of the answer is sent another worker is tried; after it the client gets
// an error event of its API.
func TestPassMoves(t *testing.T) {
	good := passer{pieces: events(4, 1, 4, `"good"`)}
	const body = `{"model":"closed","stream":true}`
	want := "data: \"good\"\n\ndata: [DONE]\n\n"
	for name, bad := range map[string]passer{
		"unavailable": {refuse: fault.New(fault.Unavailable, "gone")},
		"overloaded":  {refuse: fault.New(fault.Overloaded, "full")},
		"draining":    {refuse: fault.New(fault.Draining, "leaving")},
		"accepted":    {pieces: events(1, 1, 0, "bad"), dieAfter: 1},
		"silent":      {hang: true},
	} {
		for _, stream := range []bool{true, false} {
			inWorld(t, Config{StallTimeout: time.Minute}, func(t *testing.T, w *world) {
				first := &script{passer: bad}
				w.worker(1, first, opaque)
				w.worker(2, &script{passer: good}, opaque)
				b := body
				if !stream {
					b = `{"model":"closed"}`
				}
				a := w.post("/v1/chat/completions", b)
				if a.status != 200 || strings.ReplaceAll(a.body, keepAlive, "") != want || len(first.passes()) != 1 {
					t.Errorf("%s, stream %v: %v", name, stream, a)
				}
				if n := w.metric(`frontend_migrations_total{kind="new_request"}`); n != "1" {
					t.Errorf("%s: %s further attempts", name, n)
				}
			})
		}
	}
	for path, event := range map[string]string{
		"/v1/chat/completions": `data: {"error":{"message":"the engine did not finish`,
		"/v1/completions":      `data: {"error":{"message":"the engine did not finish`,
		"/v1/responses":        "event: error\ndata: {\"type\":\"error\",\"sequence_number\":0,\"code\":\"",
		"/v1/messages":         "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"the engine did not",
	} {
		inWorld(t, Config{}, func(t *testing.T, w *world) {
			s := &script{passer: passer{pieces: events(9, 2, 0, "{}", "{}"), dieAfter: 2}}
			w.worker(1, s, opaque)
			w.worker(2, &script{passer: good}, opaque)
			a := w.post(path, body)
			rest, ok := strings.CutPrefix(a.body, "data: {}\n\n")
			if a.status != 200 || !ok || !strings.HasPrefix(rest, event) || !strings.HasSuffix(rest, "}\n\n") {
				t.Errorf("%s: %v", path, a)
			}
			data := rest[strings.Index(rest, "data: ")+6:]
			if !json.Valid([]byte(data)) {
				t.Errorf("%s: %s is no JSON", path, data)
			}
			if n := w.metric(`frontend_output_tokens_total{model="closed"}`); n != "1" {
				t.Errorf("%s: %s tokens are counted", path, n)
			}
			if failed := w.router.failed(); !slices.Equal(failed, []kv.WorkerID{1}) {
				t.Errorf("%s: the router was told of the failures of %v", path, failed)
			}
		})
	}
	// A whole answer moves while nothing of it is sent.
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(1, &script{passer: passer{pieces: events(9, 2, 0, "{}", "{}"), dieAfter: 3}}, opaque)
		w.worker(2, &script{passer: good}, opaque)
		if a := w.post("/v1/chat/completions", `{"model":"closed"}`); a.status != 200 || a.body != want {
			t.Error(a)
		}
	})
	// A stream that has started does not continue with another kind of answer.
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(1, &script{passer: passer{pieces: events(9, 2, 0, "{}"), dieAfter: 1}}, opaque)
		w.worker(2, &script{passer: passer{status: 422, kind: "text/plain", pieces: []engine.PassthroughChunk{{Data: []byte("no"), Last: true}}}}, opaque)
		if a := w.post("/v1/chat/completions", body); a.status != 200 || !strings.HasPrefix(a.body, `data: {"error":{`) || !strings.Contains(a.body, "internal_error") {
			t.Error(a)
		}
	})
	// No worker remains.
	inWorld(t, Config{MigrationWait: new(time.Duration(0))}, func(t *testing.T, w *world) {
		w.worker(1, &script{passer: passer{refuse: fault.New(fault.Overloaded, "full")}}, opaque)
		if a := w.post("/v1/messages", body); a.status != 503 && a.status != 529 || !strings.Contains(a.body, `"overloaded_error"`) {
			t.Error(a)
		}
	})
}

// TestPassBroken: a worker's contract violation is a defect, which trying another worker would only
// hide.
func TestPassBroken(t *testing.T) {
	frame := func(p engine.PassthroughChunk) []byte { p.Attempt = 1; return engine.AppendPassthroughChunk(nil, &p) }
	for name, p := range map[string]passer{
		"no frame":        {raw: [][]byte{{9}}},
		"a second status": {raw: [][]byte{frame(engine.PassthroughChunk{Accepted: true, Status: 200})}},
		"a bad count":     {raw: [][]byte{frame(engine.PassthroughChunk{Tokens: -1})}},
		"a bad status":    {status: 503},
	} {
		inWorld(t, Config{}, func(t *testing.T, w *world) {
			w.worker(1, &script{passer: p}, opaque)
			w.worker(2, &script{passer: passer{pieces: events(1, 1, 0, "{}")}}, opaque)
			if a := w.post("/v1/chat/completions", `{"model":"closed"}`); a.status != 500 {
				t.Errorf("%s: %v", name, a)
			}
		})
	}
	// Late frames of an earlier attempt are ignored, and frames after the end are not awaited.
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		late := engine.AppendPassthroughChunk(nil, &engine.PassthroughChunk{Attempt: 9, Data: []byte("late")})
		w.worker(1, &script{passer: passer{raw: [][]byte{late}, pieces: events(1, 1, 0, "{}")}}, opaque)
		if a := w.post("/v1/chat/completions", `{"model":"closed","stream":true}`); a.status != 200 || strings.Contains(a.body, "late") {
			t.Error(a)
		}
	})
}

// TestPassKeepsAlive: an idle stream sends keep-alives, only between events.
func TestPassKeepsAlive(t *testing.T) {
	inWorld(t, Config{KeepAlive: 10 * time.Second}, func(t *testing.T, w *world) {
		w.worker(7, &script{passer: passer{pieces: events(1, 1, 0, "{}"), pause: 25 * time.Second}}, opaque)
		a := w.post("/v1/chat/completions", `{"model":"closed","stream":true}`)
		if want := keepAlive + keepAlive + "data: {}\n\n" + keepAlive + keepAlive + "data: [DONE]\n\n"; a.body != want {
			t.Errorf("%q", a.body)
		}
	})
}

// TestPassEnds: a client that disconnects, or reads nothing, ends its request at the engine, and so
// does the end of a drain.
func TestPassEnds(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := &script{passer: passer{pieces: events(1, 1, 0, "{}")[:1], hang: true}}
		w.worker(7, s, opaque)
		ctx, leave := context.WithCancel(t.Context())
		resp := w.send(ctx, http.MethodPost, "/v1/chat/completions", strings.NewReader(`{"model":"closed","stream":true}`))
		synctest.Wait()
		if running, _ := s.state(); running != 1 {
			t.Errorf("%d calls run", running)
		}
		leave()
		_ = resp.Body.Close()
		synctest.Wait()
		if running, cancelled := s.state(); running != 0 || cancelled != 1 {
			t.Errorf("%d calls run, %d were cancelled", running, cancelled)
		}
		if n := w.metric(`frontend_requests_total{endpoint="chat_completions",model="closed",status="499"}`); n != "1" {
			t.Errorf("%s clients went away", n)
		}
	})
	inWorld(t, Config{WriteTimeout: 5 * time.Second}, func(t *testing.T, w *world) {
		large := engine.PassthroughChunk{Data: bytes.Repeat([]byte("data: {}\n\n"), 10000), Tokens: 1}
		s := &script{passer: passer{pieces: slices.Repeat([]engine.PassthroughChunk{large}, 100), hang: true}}
		w.worker(7, s, opaque)
		resp := w.send(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(`{"model":"closed","stream":true}`))
		time.Sleep(time.Minute) // of virtual time, in which the client reads nothing
		synctest.Wait()
		if running, cancelled := s.state(); running != 0 || cancelled != 1 {
			t.Errorf("%d calls run, %d were cancelled", running, cancelled)
		}
		_ = resp.Body.Close()
	})
	inWorld(t, Config{DrainTimeout: 10 * time.Second}, func(t *testing.T, w *world) {
		s := &script{passer: passer{pieces: events(1, 1, 0, "{}")[:1], hang: true}}
		w.worker(7, s, opaque)
		resp := w.send(t.Context(), http.MethodPost, "/v1/messages", strings.NewReader(`{"model":"closed","stream":true}`))
		synctest.Wait()
		w.stop()
		a := read(resp)
		if !strings.HasPrefix(a.body, "data: {}\n\nevent: error\n") || !strings.Contains(a.body, "shutting down") {
			t.Error(a)
		}
	})
}

// TestPassLimits: the limits of keys apply to passthrough requests, and their tokens count.
func TestPassLimits(t *testing.T) {
	inGuardedWorld(t, Config{}, func(t *testing.T, w *world, access *bytes.Buffer) {
		s := &script{passer: passer{pieces: events(15, 10, 3, "{}")}}
		w.worker(7, s, opaque)
		w.worker(8, s, opaque, func(c *engine.Card) { c.Name = "tiny" })
		ask := func(key, model string) int {
			return w.post("/v1/chat/completions", `{"model":"`+model+`","stream":true}`, "Authorization", "Bearer "+key).status
		}
		if a, b, c := ask(tinyKey, "closed"), ask(tinyKey, "tiny"), ask("sk-wrong", "closed"); a != 404 || b != 200 || c != 401 {
			t.Errorf("%d, %d, %d", a, b, c)
		}
		if a, b := ask(slowKey, "closed"), ask(slowKey, "closed"); a != 200 || b != 429 {
			t.Errorf("%d, then %d with 25 of 20 tokens used up", a, b)
		}
		line := access.String()
		line = line[strings.Index(line, `"key":"slow"`):]
		for _, has := range []string{`"model":"closed","stream":true`, `"prompt_tokens":15`, `"output_tokens":10`, `"cached_tokens":3`, `"attempts":1,"workers":[7]`} {
			if !strings.Contains(line, has) {
				t.Errorf("no %s in %s", has, line)
			}
		}
	})
}

// TestPassMemory: passthrough bodies count against the memory of all bodies.
func TestPassMemory(t *testing.T) {
	inWorld(t, Config{BodyMemory: 100 << 10, MaxBodyBytes: 50 << 10}, func(t *testing.T, w *world) {
		s := &script{passer: passer{hang: true}}
		w.worker(7, s, opaque)
		large := `{"model":"closed","x":"` + strings.Repeat("x", 30<<10) + `"}`
		ctx, leave := context.WithCancel(t.Context())
		first := make(chan struct{})
		go func() {
			defer close(first)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://penstock/v1/chat/completions", strings.NewReader(large))
			if err != nil {
				t.Error(err)
				return
			}
			if resp, err := w.client.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}()
		synctest.Wait()
		if a := w.post("/v1/chat/completions", large); a.status != 503 {
			t.Error(a)
		}
		leave()
		<-first
		synctest.Wait()
		// Once the answer starts the body is not needed.
		s.passer.pieces = events(1, 1, 0, "{}")[:1]
		ctx, leave = context.WithCancel(t.Context())
		resp := w.send(ctx, http.MethodPost, "/v1/chat/completions", strings.NewReader(strings.Replace(large, "{", `{"stream":true,`, 1)))
		synctest.Wait()
		if n := w.f.bodies.Used(); n != 0 || resp.StatusCode != 200 || len(s.passes()) != 2 {
			t.Errorf("%s, %d requests, %d bytes of bodies are held by an answer that has begun", resp.Status, len(s.passes()), n)
		}
		leave()
		_ = resp.Body.Close()
		synctest.Wait()
	})
}

// FuzzOpenEnvelope: the top level of a request is read as its API reads it, and the fields that
// determine its prompt are JSON.
func FuzzOpenEnvelope(f *testing.F) {
	f.Add([]byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}],"tools":null,"nvext":{"agent_hints":{"osl":3}},"cache_salt":"s"}`))
	f.Add([]byte(`{"prompt":[1,2],"model":"\u0041"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, d := range []apiDialect{openAI(0), openAI(1), responsesAPI(), messagesAPI()} {
			e, err := peekRequest(b, promptFields(d.endpoint))
			if e == nil && err == nil {
				t.Fatal("neither an envelope nor an error")
			}
			q, _, refused := d.decode(b)
			if refused == nil && (err != nil || e.model != q.Model || e.stream != q.Stream) {
				t.Fatalf("%v: %+v of %+v, which its API takes", err, e, q)
			}
			if e != nil && e.prompt != nil && !json.Valid(e.prompt) {
				t.Fatalf("%s is no JSON", e.prompt)
			}
		}
	})
}
