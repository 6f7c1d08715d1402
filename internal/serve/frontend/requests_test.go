package frontend

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
)

// Every time.Sleep here is in a bubble of inWorld: it passes virtual time and waits for nothing else.

// TestBadInputs: an invalid request gets a status and a message, and never reaches the router or a
// worker.
func TestBadInputs(t *testing.T) {
	const chat, text = "/v1/chat/completions", "/v1/completions"
	inWorld(t, Config{MaxBodyBytes: 4096}, func(t *testing.T, w *world) {
		s := constant("must not be asked")
		w.worker(7, s, func(c *engine.Card) { c.ContextLength = 64 })
		for _, tt := range []struct {
			path, body string
			status     int
			words      string
		}{
			{chat, ``, 400, "unexpected end"},
			{chat, `{"model":`, 400, "not valid JSON"},
			{chat, `{} {}`, 400, "unexpected data"},
			{chat, "{\"model\":\"\xff\"}", 400, "not valid UTF-8"},
			{chat, `{"model":"bytes","model":"bytes"}`, 400, "given twice"},
			{chat, `{"model":7}`, 400, "'model' must be a string"},
			{chat, `{"model":"bytes"}`, 400, "'messages' is required"},
			{chat, `{"model":"bytes","messages":"hi"}`, 400, "array of messages"},
			{chat, `{"model":"bytes","messages":[{"role":"robot","content":"x"}]}`, 400, "one of system"},
			{chat, `{"model":"bytes","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]}`, 400, "not supported by this model"},
			{chat, `{"model":"none","messages":[{"role":"user","content":"x"}]}`, 404, "available: 'bytes'"},
			{chat, `{"model":"bytes","messages":[{"role":"user","content":"x"}],"max_tokens":-1}`, 400, "at least 1, not -1"},
			{chat, `{"model":"bytes","messages":[{"role":"user","content":"` + strings.Repeat("x", 80) + `"}]}`, 400, "context length"},
			{text, `{"model":"bytes","prompt":"` + strings.Repeat("x", 5000) + `"}`, 413, "larger than 4096 bytes"},
			{text, `{"model":"bytes","prompt":["ok","` + strings.Repeat("x", 80) + `"]}`, 400, "context length"},
			{text, `{"model":"bytes","prompt":[[]]}`, 400, "no tokens"},
			{text, `{"model":"bytes","prompt":"x","stream":"yes"}`, 400, "must be a boolean"},
			{text, `{"model":"bytes","prompt":"x","best_of":4}`, 400, "best_of"},
		} {
			a := w.post(tt.path, tt.body, "x-request-id", "me")
			if a.status != tt.status || !strings.Contains(a.body, tt.words) || !strings.HasPrefix(a.body, `{"error":{"message":`) {
				t.Errorf("%.80s: %d %s", tt.body, a.status, a.body)
			}
			if a.header.Get("x-request-id") != "me" || a.header.Get("x-penstock-worker") != "" {
				t.Errorf("%.80s: headers %v", tt.body, a.header)
			}
		}
		if len(w.router.routed()) != 0 || len(s.seen()) != 0 {
			t.Errorf("%d routed, %d served", len(w.router.routed()), len(s.seen()))
		}
		if strings.Contains(w.log.String(), "must not be asked") || strings.Contains(w.log.String(), "xxxx") {
			t.Errorf("the log has what a client wrote:\n%s", w.log)
		}
	})
}

// endless is a body that never ends and counts the bytes read from it.
type endless struct{ read int64 }

func (e *endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	e.read += int64(len(b))
	return len(b), nil
}

// TestLargeBodies: a body over the limit is refused without reading it, or, if its length is unknown,
// as soon as the limit is passed.
func TestLargeBodies(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		const limit = 32 << 20
		for _, tt := range []struct{ declared, reads int64 }{{60_000_000, 0}, {-1, limit + 1<<20}} {
			body := &endless{}
			req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", io.LimitReader(body, 60_000_000)))
			req.ContentLength = tt.declared
			rec := &recorder{header: http.Header{}}
			w.f.Handler().ServeHTTP(rec, req)
			if rec.status != 413 || body.read > tt.reads {
				t.Errorf("declared %d: status %d after reading %d bytes", tt.declared, rec.status, body.read)
			}
		}
		// Over a connection the answer arrives although the body does not.
		resp := w.send(t.Context(), http.MethodPost, "/v1/chat/completions", http.NoBody)
		read(resp)
		conn := must(w.lis.dial(t.Context(), "", ""))
		_, err := io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n{")
		if err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 64)
		n, err := conn.Read(answer)
		if err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 413 ") {
			t.Errorf("%q %v", answer[:n], err)
		}
		conn.Close()
	})
}

// TestBodyMemory: bodies being read share their memory, and one that does not fit is refused, not
// queued. All memory is returned.
func TestBodyMemory(t *testing.T) {
	inWorld(t, Config{BodyMemory: 4 * firstBody}, func(t *testing.T, w *world) {
		half, rest := io.Pipe()
		first := make(chan int, 1)
		send := func(body io.Reader) int {
			req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", body))
			req.ContentLength = -1
			rec := &recorder{header: http.Header{}}
			w.f.Handler().ServeHTTP(rec, req)
			return rec.status
		}
		go func() { first <- send(half) }()
		if _, err := rest.Write(bytes.Repeat([]byte(" "), 2*firstBody+1)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // it holds all of the budget
		if status := send(strings.NewReader("{}")); status != http.StatusServiceUnavailable {
			t.Errorf("a second body: status %d", status)
		}
		rest.Close()
		if status := <-first; status != http.StatusBadRequest {
			t.Errorf("the first body, of spaces: status %d", status)
		}
		if status := send(strings.NewReader("{}")); status != http.StatusBadRequest {
			t.Errorf("a body after it: status %d", status)
		}
	})
}

func TestRequestIDs(t *testing.T) {
	const id = "my-id.1:a_B"
	if got := newRequestID(http.Header{"X-Request-Id": {id}}); got != id {
		t.Errorf("%q becomes %q", id, got)
	}
	for _, bad := range []string{"", "a b", "a/b", "a~b", "é", "a\n", strings.Repeat("a", 129)} {
		if got := newRequestID(http.Header{"X-Request-Id": {bad}}); len(got) != 32 || !isValidID(got) {
			t.Errorf("%q becomes %q", bad, got)
		}
	}
}

// TestSameRequestID: two running requests of one id do not share reservations.
func TestSameRequestID(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		finish := make(chan struct{})
		s := constant("hello")
		s.interlude = func() { <-finish }
		w.worker(1, s)
		came := make(chan answerOf, 2)
		for range 2 {
			go func() { came <- w.post("/v1/completions", hello, "x-request-id", "same") }()
			synctest.Wait()
		}
		close(finish)
		first, second := <-came, <-came
		if first.status != 200 || second.status != 200 || first.header.Get("x-request-id") == second.header.Get("x-request-id") {
			t.Errorf("%d %v and %d %v", first.status, first.header, second.status, second.header)
		}
	})
}

// TestPlan: the requests that the router and the engine get.
func TestPlan(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := constant("hi")
		w.opens = func(engine.TokenizerRef) (*prep.Pipeline, error) {
			p := bytePipeline()
			p.StopTokens = []kv.Token{byteTurn}
			return p, nil
		}
		w.worker(7, s, func(c *engine.Card) {
			c.DefaultMaxTokens = 20
			c.Defaults = engine.Sampling{Temperature: 0.7, TopK: 40, TopP: 0.9, RepetitionPenalty: 1.1}
		})
		for _, tt := range []struct {
			fields   string
			request  func(*engine.Request)
			decision func(*route.Request)
		}{
			{``, nil, nil},
			{
				`,"temperature":0,"top_k":-1,"top_p":0,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1,"logit_bias":{"5":2},"seed":9`,
				func(r *engine.Request) {
					r.Sampling = engine.Sampling{TopP: leastTopP, MinP: 0.1, PresencePenalty: 1, FrequencyPenalty: -1, RepetitionPenalty: 1, Seed: 9, Bias: []engine.TokenBias{{Token: 5, Bias: 2}}}
				}, nil,
			},
			{`,"max_tokens":1000`, func(r *engine.Request) { r.Stop.MaxTokens = 511 }, nil},
			{`,"max_tokens":30,"min_tokens":25,"stop_token_ids":[9],"logprobs":3`, func(r *engine.Request) {
				r.Stop = engine.Stop{MaxTokens: 30, MinTokens: 25, Tokens: []kv.Token{9, byteTurn}}
				r.Logprobs = 3
			}, nil},
			{`,"ignore_eos":true`, func(r *engine.Request) { r.Stop.IgnoreEOS, r.Stop.Tokens = true, nil }, nil},
			{`,"cache_salt":"tenant"`, func(r *engine.Request) { r.Salt.Namespace = "tenant" }, func(r *route.Request) { r.Salt.Namespace = "tenant" }},
			{
				`,"nvext":{"agent_hints":{"osl":12},"backend_instance_id":7,"router_config_override":{"overlap_score_weight":0}}`, nil,
				func(r *route.Request) {
					r.ExpectedOutput, r.Pin.ID, r.Override.OverlapWeight = 12, 7, new(float64)
				},
			},
			{
				`,"nvext":{"allowed_worker_ids":[7,8],"agent_hints":{"priority":5,"strict_priority":2},"session_control":{"session_id":"s","action":"close"},"router_config_override":{"moe_query":{"layer_id":3}}}`, nil,
				func(r *route.Request) {
					r.Allowed, r.Session = []kv.WorkerID{7, 8}, route.Session{ID: "s", Last: true}
					r.Priority = queue.Priority{Strict: 2, Jump: 5 * time.Second}
					r.Override.MoE = &route.MoEQuery{Layer: new(uint32(3))}
				},
			},
		} {
			if a := w.post("/v1/completions", `{"model":"b","prompt":"a"`+tt.fields+`}`, "x-request-id", "id"); a.status != 200 {
				t.Fatalf("%s: %d %s", tt.fields, a.status, a.body)
			}
			wantRequest := engine.Request{
				ID: "id", Attempt: 1, Model: "bytes", Prompt: []kv.Token{'a'}, Choices: 1, Logprobs: -1,
				Sampling: engine.Sampling{Temperature: 0.7, TopK: 40, TopP: 0.9, RepetitionPenalty: 1.1},
				Stop:     engine.Stop{MaxTokens: 20, Tokens: []kv.Token{byteTurn}},
			}
			wantRoute := route.Request{ID: "id", Attempt: 1, Model: "bytes", Tokens: []kv.Token{'a'}}
			if tt.request != nil {
				tt.request(&wantRequest)
			}
			if tt.decision != nil {
				tt.decision(&wantRoute)
			}
			seen, routed := s.seen(), w.router.routed()
			request, decision := seen[len(seen)-1], routed[len(routed)-1]
			if wantRequest.Sampling.Seed == 0 {
				request.Sampling.Seed = 0 // random
			}
			if diff := cmp.Diff(wantRequest, request); diff != "" {
				t.Errorf("%s: engine (-want +got)\n%s", tt.fields, diff)
			}
			if diff := cmp.Diff(wantRoute, decision); diff != "" {
				t.Errorf("%s: router (-want +got)\n%s", tt.fields, diff)
			}
		}
	})
}

// TestSessionHeader: the header also names the session, and takes precedence.
func TestSessionHeader(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(7, constant("hi"))
		const body = `{"model":"b","prompt":"a"`
		for _, tt := range []struct {
			body, header string
			want         route.Session
		}{
			{body + `}`, "h", route.Session{ID: "h"}},
			{body + `,"nvext":{"session_control":{"session_id":"s","action":"close"}}}`, "h", route.Session{ID: "h"}},
			{body + `,"nvext":{"session_control":{"session_id":"h","action":"close"}}}`, "h", route.Session{ID: "h", Last: true}},
		} {
			if a := w.post("/v1/completions", tt.body, "x-session-id", tt.header); a.status != 200 {
				t.Fatalf("%s: %d %s", tt.body, a.status, a.body)
			}
			routed := w.router.routed()
			if got := routed[len(routed)-1].Session; got != tt.want {
				t.Errorf("%s with %s: session %+v, want %+v", tt.body, tt.header, got, tt.want)
			}
		}
		if a := w.post("/v1/completions", body+`}`, "x-session-id", strings.Repeat("x", route.MaxSessionID+1)); a.status != 400 || !strings.Contains(a.body, "x-session-id") {
			t.Errorf("a header too long: %d %s", a.status, a.body)
		}
	})
}

// TestPrompts: prompts of one request share only what the client set: ids differ, and so do seeds
// unless one is given.
func TestPrompts(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := constant("hi")
		w.worker(7, s)
		w.post("/v1/completions", `{"model":"bytes","prompt":["a","b"]}`, "x-request-id", "id")
		w.post("/v1/completions", `{"model":"bytes","prompt":["a","b"],"seed":3}`, "x-request-id", "id")
		byID := map[string]engine.Request{}
		for i, r := range s.seen() {
			byID[r.ID+string(rune(r.Prompt[0]))+map[bool]string{true: " seeded"}[i >= 2]] = r
		}
		if len(byID) != 4 {
			t.Fatalf("%v", byID)
		}
		if byID["ida"].Sampling.Seed == byID["id/1b"].Sampling.Seed {
			t.Error("two prompts without a seed have the same one")
		}
		if byID["ida seeded"].Sampling.Seed != 3 || byID["id/1b seeded"].Sampling.Seed != 3 {
			t.Error("the client's seed does not reach both prompts")
		}
	})
}

// TestOnePromptFails: the others are canceled, and everything is released.
func TestOnePromptFails(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := &script{say: func(int) string { return "hello" }, frames: 2}
		s.veto = func(r *engine.Request) error {
			if r.Prompt[0] == 'b' {
				time.Sleep(pause) // the others are running
				return errors.New("broken")
			}
			return nil
		}
		w.worker(7, s)
		started := time.Now()
		a := w.post("/v1/completions", `{"model":"bytes","prompt":["a","b","c"]}`)
		synctest.Wait()
		if running, cancelled := s.state(); a.status != 500 || running != 0 || cancelled != 2 || time.Since(started) != pause {
			t.Errorf("after %v: %d %s: %d calls run, %d cancelled", time.Since(started), a.status, a.body, running, cancelled)
		}
	})
}

// TestUnfitWorkers: a worker that serves the name with a different card gets nothing, whichever came
// first, and health says how it differs.
func TestUnfitWorkers(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.worker(5, constant("five"))
		w.worker(3, constant("three"), func(c *engine.Card) { c.VocabSize = 300 })
		w.worker(4, constant("four"), func(c *engine.Card) { c.Tokenizer.Kind = "dir" })
		w.worker(6, constant("six"), func(c *engine.Card) { c.ContextLength = 100 })
		a := w.post("/v1/completions", `{"model":"bytes","prompt":"x"}`)
		if !strings.Contains(a.body, `"text":"five"`) {
			t.Errorf("%d %s", a.status, a.body)
		}
		h := w.get("/health").body
		if strings.Count(h, `"state":"unfit"`) != 3 || strings.Count(h, `"state":"ready"`) != 1 {
			t.Errorf("health is %s", h)
		}
		for _, want := range []string{"vocab_size is 300 here and ", "context_length is 100 here and 512 there"} {
			if !strings.Contains(h, want) {
				t.Errorf("health does not say %q: %s", want, h)
			}
		}
		if m := w.get("/v1/models").body; !strings.Contains(m, `"max_model_len":512`) {
			t.Errorf("models are %s: a worker that differs changes the model", m)
		}
		// After its last fitting worker is removed, the model is what the others serve.
		w.registry.remove(5)
		synctest.Wait()
		if a := w.post("/v1/completions", `{"model":"bytes","prompt":"x"}`); !strings.Contains(a.body, `"text":"three"`) {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

// TestTokenizerComesLater: a tokenizer that cannot be opened makes its model unavailable until it can.
func TestTokenizerComesLater(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		opens := 0
		w.opens = func(engine.TokenizerRef) (*prep.Pipeline, error) {
			if opens++; opens < 3 {
				return nil, errors.New("no such file")
			}
			return bytePipeline(), nil
		}
		w.worker(7, constant("hi"))
		if a := w.post("/v1/completions", `{"model":"bytes","prompt":"x"}`); a.status != 503 || !strings.Contains(a.body, "tokenizer") {
			t.Errorf("%d %s", a.status, a.body)
		}
		if h := w.get("/health"); h.status != 503 || !strings.Contains(h.body, "tokenizer cannot be opened") {
			t.Errorf("%d %s", h.status, h.body)
		}
		time.Sleep(2*retryOpen + pause) // virtual time (synctest): both failed opens are tried again
		if a := w.post("/v1/completions", `{"model":"bytes","prompt":"x"}`); a.status != 200 || opens != 3 {
			t.Errorf("%d %s after opening %d times", a.status, a.body, opens)
		}
		time.Sleep(2 * retryOpen) // virtual time (synctest): no further open is due
		if opens != 3 {
			t.Errorf("opened %d times", opens)
		}
		if n := strings.Count(w.log.String(), "no such file"); n != 1 {
			t.Errorf("%d complaints in the log:\n%s", n, w.log)
		}
	})
}

// TestDigestDiffers: files which differ from the workers' are not used.
func TestDigestDiffers(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.opens = func(engine.TokenizerRef) (*prep.Pipeline, error) {
			p := bytePipeline()
			p.Digest = "bb"
			return p, nil
		}
		w.worker(7, constant("hi"), func(c *engine.Card) { c.Tokenizer.Digest = "aa" })
		if a := w.post("/v1/completions", `{"model":"bytes","prompt":"x"}`); a.status != 503 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

// TestNames: a model's own name takes precedence over another's alias, and an invalid card affects no
// other worker.
func TestNames(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		name := func(name string, aliases ...string) func(*engine.Card) {
			return func(c *engine.Card) { c.Name, c.Aliases = name, aliases }
		}
		w.registry.set(disco.Instance{Kind: disco.KindWorker, ID: 1, Namespace: "penstock", Component: "backend", Meta: []byte("{")})
		w.worker(2, constant("two"), name("x", "y", "z"))
		w.worker(3, constant("three"), name("y", "z"))
		for model, text := range map[string]string{"x": "two", "y": "three", "z": "two"} {
			if a := w.post("/v1/completions", `{"model":"`+model+`","prompt":"p"}`); !strings.Contains(a.body, `"text":"`+text+`"`) {
				t.Errorf("%s: %d %s", model, a.status, a.body)
			}
		}
		if h := w.get("/health").body; !strings.Contains(h, "model card cannot be read") ||
			!strings.Contains(h, `{"id":"x","aliases":["z"],`) || !strings.Contains(h, `{"id":"y","status":`) {
			t.Errorf("health is %s", h)
		}
		// A probe asks for the model to which requests of the name go.
		w.router.mu.states = map[kv.WorkerID]string{3: "not_ready"}
		for name, want := range map[string]int{"x": 200, "y": 503, "z": 200} {
			if h := w.get("/ready?model=" + name); h.status != want {
				t.Errorf("%s is %s", name, h.body)
			}
		}
		w.router.mu.states = nil
		// When x is removed its alias serves y.
		w.registry.remove(2)
		synctest.Wait()
		if a := w.post("/v1/completions", `{"model":"z","prompt":"p"}`); !strings.Contains(a.body, `"text":"three"`) {
			t.Errorf("z: %d %s", a.status, a.body)
		}
		if a := w.post("/v1/completions", `{"model":"x","prompt":"p"}`); a.status != 503 {
			t.Errorf("x: %d %s", a.status, a.body)
		}
		// A successor serves the name of x.
		w.worker(4, constant("four"), name("zz", "x"))
		if a, h := w.post("/v1/completions", `{"model":"x","prompt":"p"}`), w.get("/ready?model=x"); a.status != 200 || h.status != 200 {
			t.Errorf("x: %d %s, and a probe: %d %s", a.status, a.body, h.status, h.body)
		}
	})
}

func TestMount(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		deps := w.f.deps
		deps.Metrics = obs.NewMetrics()
		deps.Mount = map[string]http.Handler{"/v1/router/": http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(http.StatusTeapot)
		})}
		f, err := New(Config{}, deps)
		if err != nil {
			t.Fatal(err)
		}
		for path, status := range map[string]int{"/v1/router/explain": http.StatusTeapot, "/v1/other": http.StatusNotFound} {
			rec := &recorder{header: http.Header{}}
			f.Handler().ServeHTTP(rec, must(http.NewRequest(http.MethodGet, path, nil)))
			if rec.status != status {
				t.Errorf("%s: %d", path, rec.status)
			}
		}
	})
}

func TestConfig(t *testing.T) {
	c := Config{MaxBodyBytes: -1, DrainTimeout: -1, RequestTimeout: -1}
	c.EnsureDefaults()
	err := c.Validate()
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("three fields are wrong: %v", err)
	}
	if *c.MigrationLimit != 3 || c.MaxInflight != 4096 {
		t.Errorf("defaults are %+v", c)
	}
	if _, err := New(Config{MaxInflight: -5}, Deps{}); err == nil {
		t.Error("a bad config is accepted")
	}
	if _, err := New(Config{}, Deps{Plane: rpc.NewMemPlane(), Log: slog.Default()}); err == nil {
		t.Error("missing dependencies are accepted")
	}
}

// TestCountsDoNotOverflow: the largest allowed numbers are accepted.
func TestCountsDoNotOverflow(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := constant("hi")
		w.worker(7, s)
		a := w.post("/v1/completions", `{"model":"bytes","prompt":"x","max_tokens":2147483647,"min_tokens":2147483647,"top_k":2147483647,"seed":9223372036854775807}`)
		if a.status != 200 || s.seen()[0].Stop.MaxTokens != 511 || s.seen()[0].Sampling.Seed != math.MaxInt64 {
			t.Errorf("%d %s: %+v", a.status, a.body, s.seen())
		}
	})
}
