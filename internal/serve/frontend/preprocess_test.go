package frontend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/api"
	"penstock/internal/edge/openai"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// maker is how a scripted engine makes prompts.
type maker struct {
	refuse   error
	mute     bool // never answers
	endEarly bool
	breaks   error      // after raw
	raw      [][]byte   // sent before the answer
	media    []kv.Media // in the prompts of conversations
	features []byte     // made of them, if requested
	shown    func(*engine.PreprocessRequest) *engine.Preprocessed
}

// preprocess answers with a prompt that identifies its input, and that the frontend's own pipeline
// would never make.
func (s *script) preprocess(ctx context.Context, body []byte, send func([]byte) error) error {
	var req engine.PreprocessRequest
	if err := engine.DecodePreprocessRequest(body, &req); err != nil {
		return err
	}
	if err := req.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.asked = append(s.mu.asked, req)
	s.mu.Unlock()
	m := &s.maker
	switch {
	case m.refuse != nil:
		return m.refuse
	case m.mute:
		<-ctx.Done()
		return ctx.Err()
	}
	for _, frame := range m.raw {
		if err := send(frame); err != nil {
			return err
		}
	}
	if m.endEarly || m.breaks != nil {
		return m.breaks
	}
	p := &engine.Preprocessed{Attempt: req.Attempt, Tokens: engineSees(&req)}
	if len(req.Chat) > 0 {
		p.Media = m.media
	}
	if req.Features {
		p.Features = m.features
	}
	if m.shown != nil {
		p = m.shown(&req)
		p.Attempt = req.Attempt
	}
	return p.SendFrames(send)
}

func engineSees(req *engine.PreprocessRequest) []kv.Token {
	return encodeBytes(fmt.Sprintf("E%s%s%t%t", req.Chat, req.Text, req.ParseSpecial, req.AddSpecial))
}

// asked returns the preprocessing requests of the script.
func (s *script) asked() []engine.PreprocessRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.asked)
}

func preprocesses(c *engine.Card) { c.Preprocess = true }

// untemplated opens pipelines without a template.
func untemplated(engine.TokenizerRef) (*prep.Pipeline, error) {
	p := bytePipeline()
	p.Template, p.TemplateName = nil, "none; it says {% bogus %}"
	return p, nil
}

const (
	askChat = `{"model":"b","messages":[{"role":"user","content":"hi"},` +
		`{"role":"assistant","reasoning_content":"hm","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},` +
		`{"role":"tool","tool_call_id":"c","content":"7"}],"chat_template_kwargs":{"k": 1}}`
	seenChat = `{"messages":[{"role":"user","content":"hi"},` +
		`{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},` +
		`{"role":"tool","content":"7","tool_call_id":"c"}],"chat_template_kwargs":{"k": 1},"add_generation_prompt":true,"continue_final_message":false}`
)

// TestPreprocessedByEngine: every endpoint gets its prompts from the engine, and the engine's media
// keys go to the router and back to an engine.
func TestPreprocessedByEngine(t *testing.T) {
	inWorld(t, Config{Preprocess: PreprocessEngine}, func(t *testing.T, w *world) {
		w.opens = untemplated
		cannot, s := constant("no"), constant("fine")
		s.maker.media = []kv.Media{{Hash: 77, Start: 1, End: 4}}
		w.worker(1, cannot, embeds)
		w.worker(2, s, embeds, preprocesses)
		w.router.pinned(2)
		chat := engineSees(&engine.PreprocessRequest{Chat: []byte(seenChat)})
		text := func(text string) []kv.Token {
			return engineSees(&engine.PreprocessRequest{Text: text, ParseSpecial: true, AddSpecial: true})
		}

		a := w.post("/v1/chat/completions", askChat, "x-request-id", "mine")
		if a.status != http.StatusOK || !strings.Contains(a.body, `"content":"fine"`) {
			t.Fatalf("chat: %d %s", a.status, a.body)
		}
		got := s.seen()[0]
		if !slices.Equal(got.Prompt, chat) || !slices.Equal(got.Media, s.maker.media) {
			t.Errorf("the engine got %v and %v", got.Prompt, got.Media)
		}
		if r := w.router.routed()[0]; !slices.Equal(r.Tokens, chat) || !slices.Equal(r.Media, s.maker.media) {
			t.Errorf("the router got %v and %v", r.Tokens, r.Media)
		}
		if asked := s.asked()[0]; asked.ID != "mine" || asked.Attempt != 1 || asked.Model != "bytes" || string(asked.Chat) != seenChat {
			t.Errorf("the engine was asked %+v", asked)
		}

		w.post("/v1/completions", `{"model":"b","prompt":["one","two","three"]}`)
		var prompts []string
		for _, r := range s.seen()[1:] {
			if len(r.Media) > 0 {
				t.Errorf("a text shows media: %v", r.Media)
			}
			prompts = append(prompts, fmt.Sprint(r.Prompt))
		}
		slices.Sort(prompts)
		want := []string{fmt.Sprint(text("one")), fmt.Sprint(text("two")), fmt.Sprint(text("three"))}
		slices.Sort(want)
		if diff := cmp.Diff(want, prompts); diff != "" {
			t.Errorf("completions: %s", diff)
		}

		w.post("/v1/embeddings", `{"model":"b","input":["x","y"]}`)
		for i, e := range s.embedded() {
			if !slices.Equal(e.Prompt, text("x")) && !slices.Equal(e.Prompt, text("y")) {
				t.Errorf("embedding %d is of %v", i, e.Prompt)
			}
		}
		if n := len(s.embedded()); n != 2 {
			t.Errorf("%d embeddings", n)
		}

		for body, want := range map[string][]kv.Token{
			askChat:                      chat,
			`{"model":"b","prompt":"x"}`: text("x"),
			`{"model":"b","prompt":"x","add_special_tokens":false}`: engineSees(&engine.PreprocessRequest{Text: "x", ParseSpecial: true}),
			`{"model":"b","prompt":"x","return_token_strs":true}`:   text("x"),
			`{"model":"b","prompt":"","add_special_tokens":false}`:  engineSees(&engine.PreprocessRequest{ParseSpecial: true}),
		} {
			var tokenized struct {
				Tokens []kv.Token `json:"tokens"`
			}
			if a := w.post("/tokenize", body); json.Unmarshal([]byte(a.body), &tokenized) != nil || !slices.Equal(tokenized.Tokens, want) {
				t.Errorf("/tokenize %s: %s", body, a.body)
			}
		}
		q, err := openai.Decode(api.Chat, []byte(askChat))
		if err != nil {
			t.Fatal(err)
		}
		p, err := w.f.MakePrompt(t.Context(), q)
		if diff := cmp.Diff(prep.Prompt{Tokens: chat, Media: s.maker.media}, p); err != nil || diff != "" {
			t.Errorf("Prompt: %v %s", err, diff)
		}
		if n := len(cannot.asked()); n != 0 {
			t.Errorf("the engine that cannot was asked %d times", n)
		}
		if log := w.log.String(); strings.Contains(log, "template:") {
			t.Errorf("the log says that chat is refused:\n%s", log)
		}
	})
}

// TestPreprocessTurns: capable workers are used round-robin.
func TestPreprocessTurns(t *testing.T) {
	inWorld(t, Config{Preprocess: PreprocessEngine}, func(t *testing.T, w *world) {
		all := []*script{{}, {}, {}}
		for i, s := range all {
			w.worker(kv.WorkerID(i+1), s, preprocesses)
		}
		for range 6 {
			if a := w.post("/tokenize", `{"model":"b","prompt":"x"}`); a.status != http.StatusOK {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
		for i, s := range all {
			if n := len(s.asked()); n != 2 {
				t.Errorf("worker %d was asked %d times, want 2", i+1, n)
			}
		}
	})
}

// TestPreprocessMany: the texts of one request are sent concurrently, within bounds.
func TestPreprocessMany(t *testing.T) {
	inWorld(t, Config{Preprocess: PreprocessEngine}, func(t *testing.T, w *world) {
		s := &script{maker: maker{mute: true}}
		w.worker(1, s, embeds, preprocesses)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			body := `{"model":"b","input":[` + strings.Repeat(`"x",`, 99) + `"x"]}`
			req := must(http.NewRequestWithContext(ctx, http.MethodPost, "http://penstock/v1/embeddings", strings.NewReader(body)))
			if resp, err := w.client.Do(req); err == nil {
				t.Errorf("answered with %d", resp.StatusCode)
				resp.Body.Close()
			}
		}()
		synctest.Wait()
		if running, _ := s.state(); running != maxParallel {
			t.Errorf("%d texts are with the worker, want %d", running, maxParallel)
		}
		leave()
		<-left
		synctest.Wait()
		if running, cancelled := s.state(); running != 0 || cancelled != maxParallel {
			t.Errorf("%d calls go on, %d were ended", running, cancelled)
		}
		if n := w.metric(`frontend_requests_total{endpoint="embeddings",model="bytes",status="499"}`); n != "1" {
			t.Errorf("%q requests are counted as left, want 1", n)
		}
	})
}

// TestPreprocessMoves: a worker that fails, blocks or sends nothing is replaced by another, and the
// request never waits longer than its bounds.
func TestPreprocessMoves(t *testing.T) {
	inWorld(t, Config{Preprocess: PreprocessEngine, PreprocessTimeout: 10 * time.Second}, func(t *testing.T, w *world) {
		good := constant("fine")
		w.worker(1, &script{maker: maker{refuse: fault.New(fault.Overloaded, "busy")}}, preprocesses)
		w.worker(2, &script{maker: maker{mute: true}}, preprocesses)
		w.worker(3, &script{maker: maker{endEarly: true}}, preprocesses)
		w.worker(4, good, preprocesses)
		w.router.pinned(4)
		// The round-robin skips failed workers, so that the order is 1, 3, 2 and 4.
		begin := time.Now()
		a := w.post("/v1/chat/completions", askChat)
		if took := time.Since(begin); a.status != http.StatusOK || took < 10*time.Second || took > 10*time.Second+pause {
			t.Errorf("after %v: %d %s", took, a.status, a.body)
		}
		if asked := good.asked(); len(asked) != 1 || asked[0].Attempt != 4 {
			t.Errorf("the good worker was asked %+v", asked)
		}
		if n := w.metric(`frontend_migrations_total{kind="preprocess"}`); n != "3" {
			t.Errorf("%q migrations are counted, want 3", n)
		}
		w.registry.remove(4)
		synctest.Wait()
		begin = time.Now()
		a = w.post("/v1/chat/completions", askChat)
		if took := time.Since(begin); a.status != http.StatusServiceUnavailable || took > 22*time.Second { // one that blocks, and the wait for another
			t.Errorf("with nobody left, after %v: %d %s", took, a.status, a.body)
		}
	})
}

// TestPreprocessRequestEnds: RequestTimeout applies while the request waits for a worker.
func TestPreprocessRequestEnds(t *testing.T) {
	inWorld(t, Config{Preprocess: PreprocessEngine, RequestTimeout: time.Second}, func(t *testing.T, w *world) {
		s := &script{maker: maker{mute: true}}
		w.worker(1, s, preprocesses)
		for path, body := range map[string]string{"/v1/chat/completions": askChat, "/v1/completions": `{"model":"b","prompt":"x"}`, "/tokenize": askChat} {
			if a := w.post(path, body); a.status != http.StatusGatewayTimeout {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
		synctest.Wait()
		if running, cancelled := s.state(); running != 0 || cancelled != 3 {
			t.Errorf("%d calls go on, %d were ended", running, cancelled)
		}
		ctx, leave := context.WithCancelCause(t.Context())
		leave(errors.New("gone"))
		q := &api.Request{Endpoint: api.Chat, Model: "b", Messages: []api.Message{{Role: "user"}}}
		if _, err := w.f.MakePrompt(ctx, q); fault.CodeOf(err) != fault.Canceled {
			t.Errorf("Prompt for nobody: %v", err)
		}
	})
}

// TestPreprocessBroken: an invalid prompt is a defect and not retried; an engine's refusal is the
// client's error.
func TestPreprocessBroken(t *testing.T) {
	frame := func(attempt uint32, media []kv.Media, tokens ...kv.Token) []byte {
		return engine.AppendPreprocessed(nil, &engine.Preprocessed{Attempt: attempt, Tokens: tokens, Media: media})
	}
	for name, c := range map[string]struct {
		maker maker
		want  int
		says  string
	}{
		"late":           {maker{raw: [][]byte{frame(9, nil, 1)}}, 200, ""},
		"unreadable":     {maker{raw: [][]byte{{9}}}, 500, "cannot be read"},
		"second":         {maker{raw: [][]byte{frame(1, nil, 1)}}, 500, "second prompt"},
		"vocabulary":     {maker{raw: [][]byte{frame(1, nil, byteVocab)}, endEarly: true}, 500, "a prompt that is none"},
		"media outside":  {maker{raw: [][]byte{frame(1, []kv.Media{{End: 2}}, 1)}, endEarly: true}, 500, "a prompt that is none"},
		"media in text":  {maker{raw: [][]byte{frame(1, []kv.Media{{End: 1}}, 1)}, endEarly: true}, 500, "media for a text"},
		"empty":          {maker{raw: [][]byte{frame(1, nil)}, endEarly: true}, 400, `"param":"prompt"`},
		"beyond context": {maker{raw: [][]byte{frame(1, nil, make([]kv.Token, 600)...)}, endEarly: true}, 400, "600 tokens"},
		"refused":        {maker{refuse: fault.InvalidParam("messages[0].role", "no such role")}, 400, `"param":"messages[0].role"`},
		"unshown":        {maker{refuse: fault.New(fault.Unimplemented, "no tools here")}, 501, "no tools here"},
		"defect":         {maker{refuse: errors.New("secret")}, 500, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Config{Preprocess: PreprocessEngine}, func(t *testing.T, w *world) {
				s := constant("fine")
				s.maker = c.maker
				w.worker(1, s, preprocesses)
				a := w.post("/v1/completions", `{"model":"b","prompt":"x"}`)
				if a.status != c.want || !strings.Contains(a.body, c.says) || strings.Contains(a.body, "secret") {
					t.Errorf("%d %s, want %d and %q", a.status, a.body, c.want, c.says)
				}
				if n := len(s.asked()); n != 1 {
					t.Errorf("tried %d times", n)
				}
				if n := len(w.router.routed()); (n > 0) != (c.want == 200) {
					t.Errorf("routed %d times", n)
				}
			})
		})
	}
}

// TestPreprocessNobody: without a capable engine, the client's error and the log say what to do, until
// one is added.
func TestPreprocessNobody(t *testing.T) {
	inWorld(t, Config{Preprocess: PreprocessEngine}, func(t *testing.T, w *world) {
		w.worker(1, constant("no"), embeds)
		for path, body := range map[string]string{
			"/v1/chat/completions": askChat, "/v1/completions": `{"model":"b","prompt":"x"}`, "/tokenize": `{"model":"b","prompt":"x"}`,
			"/v1/embeddings": `{"model":"b","input":"x"}`,
		} {
			a := w.post(path, body)
			if a.status != http.StatusNotImplemented || !strings.Contains(a.body, "model 'bytes'") || !strings.Contains(a.body, "--preprocess local") {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
		if a := w.post("/v1/completions", `{"model":"b","prompt":[1,2]}`); a.status != http.StatusOK {
			t.Errorf("token ids: %d %s", a.status, a.body)
		}
		if !strings.Contains(w.log.String(), "--preprocess local") {
			t.Errorf("the log does not say what to do:\n%s", w.log)
		}
		w.worker(2, constant("yes"), preprocesses)
		if a := w.post("/v1/chat/completions", askChat); a.status != http.StatusOK {
			t.Errorf("with an engine that can: %d %s", a.status, a.body)
		}
	})
}

// TestPreprocessIsTheWay: if a template is refused, the client's error and the log suggest --preprocess
// engine if an engine supports it, and nothing otherwise.
func TestPreprocessIsTheWay(t *testing.T) {
	for _, able := range []bool{true, false} {
		inWorld(t, Config{}, func(t *testing.T, w *world) {
			w.opens = untemplated
			s := constant("fine")
			w.worker(1, s, func(c *engine.Card) { c.Preprocess = able })
			for _, path := range []string{"/v1/chat/completions", "/tokenize"} {
				a := w.post(path, askChat)
				if a.status != http.StatusNotImplemented || strings.Contains(a.body, "--preprocess engine") != able || !strings.Contains(a.body, "/v1/completions") {
					t.Errorf("%s, able %v: %d %s", path, able, a.status, a.body)
				}
			}
			if a := w.post("/v1/completions", `{"model":"b","prompt":"x"}`); a.status != http.StatusOK {
				t.Errorf("completions: %d %s", a.status, a.body)
			}
			log := w.log.String()
			if strings.Contains(log, "--preprocess engine") != able || !strings.Contains(log, "bogus") || strings.Count(log, "chat completions are refused") != 1 {
				t.Errorf("able %v: the log is\n%s", able, log)
			}
			if n := len(s.asked()); n != 0 {
				t.Errorf("the engine was asked %d times", n)
			}
		})
	}
}

// TestPreprocessWithoutTokenizer: without a tokenizer tokens cannot become text; with engines that make
// prompts everything else is served.
func TestPreprocessWithoutTokenizer(t *testing.T) {
	const prompt = `{"model":"b","prompt":"x"}`
	for _, mode := range []Preprocess{PreprocessLocal, PreprocessEngine} {
		inWorld(t, Config{Preprocess: mode}, func(t *testing.T, w *world) {
			w.opens = func(engine.TokenizerRef) (*prep.Pipeline, error) { return nil, errors.New("a model of type Odd") }
			w.worker(1, &script{}, embeds, preprocesses)
			for path, body := range map[string]string{
				"/v1/chat/completions": askChat, "/v1/completions": prompt, "/detokenize": `{"model":"b","tokens":[1]}`,
				"/tokenize": `{"model":"b","prompt":"x","return_token_strs":true}`,
			} {
				if a := w.post(path, body); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "no tokens can become text") {
					t.Errorf("%s, %s: %d %s", mode, path, a.status, a.body)
				}
			}
			for path, body := range map[string]string{"/tokenize": prompt, "/v1/embeddings": `{"model":"b","input":"x"}`} {
				a := w.post(path, body)
				if mode == PreprocessEngine && a.status != http.StatusOK ||
					mode == PreprocessLocal && (a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "--preprocess engine")) {
					t.Errorf("%s, %s: %d %s", mode, path, a.status, a.body)
				}
			}
			if log := w.log.String(); !strings.Contains(log, "type Odd") || strings.Contains(log, "--preprocess engine") != (mode == PreprocessLocal) {
				t.Errorf("%s: the log is\n%s", mode, log)
			}
		})
	}
}

// TestPreprocessMemory: bodies count while prompts are made from them, and prompts that are too large
// to be made concurrently wait for each other.
func TestPreprocessMemory(t *testing.T) {
	inWorld(t, Config{Preprocess: PreprocessEngine, MaxBodyBytes: 64 << 10, BodyMemory: 128 << 10}, func(t *testing.T, w *world) {
		w.worker(1, &script{maker: maker{mute: true}}, preprocesses)
		text := strings.Repeat("x", 60<<10)
		held := int64(2 * (len(`{"model":"b","prompt":"`+text+`"}`) + 1)) // with a Content-Length, no more than arrives
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		for range 2 {
			go func() {
				defer func() { left <- struct{}{} }()
				req := must(http.NewRequestWithContext(ctx, http.MethodPost, "http://penstock/tokenize", strings.NewReader(`{"model":"b","prompt":"`+text+`"}`)))
				if resp, err := w.client.Do(req); err == nil {
					resp.Body.Close()
				}
			}()
			synctest.Wait()
		}
		if bodies, prompts := w.f.bodies.Used(), w.f.prompts.Used(); bodies != held || prompts != 128<<10 {
			t.Errorf("%d bytes of bodies and %d of prompts are accounted for", bodies, prompts)
		}
		if a := w.post("/tokenize", `{"model":"b","prompt":"`+text+`"}`); a.status != http.StatusServiceUnavailable {
			t.Errorf("beyond the budget: %d %.200s", a.status, a.body)
		}
		leave()
		<-left
		<-left
	})
}

func TestPreprocessConfig(t *testing.T) {
	for mode, ok := range map[Preprocess]bool{"": true, PreprocessLocal: true, PreprocessEngine: true, "both": false} {
		c := Config{Preprocess: mode}
		c.EnsureDefaults()
		if err := c.Validate(); (err == nil) != ok {
			t.Errorf("%q: %v", mode, err)
		}
	}
}

// TestFormattedPrompt: the annotation formatted_prompt returns the text of the prompt, whichever
// process made its tokens.
func TestFormattedPrompt(t *testing.T) {
	const question = `"model":"b","messages":[{"role":"user","content":"hi"}],"nvext":{"annotations":["formatted_prompt"]`
	for preprocess, want := range map[Preprocess]string{
		PreprocessLocal:  `"formatted_prompt":"user:hi<|turn|>assistant:"`,
		PreprocessEngine: `"formatted_prompt":"E{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],`,
	} {
		inWorld(t, Config{Preprocess: preprocess}, func(t *testing.T, w *world) {
			w.worker(7, constant("fine"), preprocesses)
			for body, want := range map[string]string{
				`{` + question + `}}`:                        want,
				`{` + question + `,"token_data":[104,257]}}`: `"formatted_prompt":"h<|turn|>"`,
			} {
				if a := w.post("/v1/chat/completions", strings.ReplaceAll(body, `"b"`, `"bytes"`)); a.status != 200 || !strings.Contains(a.body, want) {
					t.Errorf("%s: %s: %d %s, want %s", preprocess, body, a.status, a.body, want)
				}
			}
		})
	}
}
