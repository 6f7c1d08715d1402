package python

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
	"penstock/internal/fixturetest"
	"penstock/internal/zmtp"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// call is what a function is called with.
type call struct {
	TokenIDs []kv.Token `json:"token_ids"`
	Salt     string     `json:"cache_salt"`
	Stops    struct {
		Min    int        `json:"min_tokens"`
		Tokens []kv.Token `json:"stop_token_ids"`
	} `json:"stop_conditions"`
	Sampling struct {
		Seed        uint64  `json:"seed"`
		Temperature float64 `json:"temperature"`
	} `json:"sampling_options"`
}

// describeModel returns an answer of /v1/models.
func describeModel(blockSize, blocks int) string {
	return fmt.Sprintf(`{"data":[{"id":"m","root":"","owned_by":"penstock-python","max_model_len":512,"block_size":%d,"blocks":%d}]}`, blockSize, blocks)
}

const (
	vocabulary = 500
	key        = "k"
)

// startServer starts a server whose function yields what yield writes, and returns the configuration of its adapter.
func startServer(t testing.TB, models string, yield func(w http.ResponseWriter, r *http.Request, c *call)) Config {
	return startChangingServer(t, func() string { return models }, yield)
}

// startChangingServer is startServer with an answer of /v1/models which can change.
func startChangingServer(t testing.TB, models func() string, yield func(w http.ResponseWriter, r *http.Request, c *call)) Config {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, models()) })
	mux.HandleFunc("POST /generate", func(w http.ResponseWriter, r *http.Request) {
		var c call
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		yield(w, r, &c)
	})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+key {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Spec:      remote.Spec{Kind: "python", URL: u, APIKey: key, Rank: remote.AnyRank, Ranks: 1, Mode: remote.ModeTokens, SaltWait: time.Minute},
		Tokenizer: engine.TokenizerRef{Kind: "builtin"}, VocabSize: vocabulary, EOS: []kv.Token{1},
	}
}

func yieldEvent(w http.ResponseWriter, format string, args ...any) {
	_, _ = fmt.Fprintf(w, "data: "+format+"\n\n", args...)
	_ = http.NewResponseController(w).Flush()
}

// yieldChain yields tokens which are a function of those before them, and of the seed if they are drawn, until the call
// ends. It knows neither the limit nor stop tokens, except that none of them comes before the minimum.
func yieldChain(w http.ResponseWriter, r *http.Request, c *call) {
	last := uint64(0)
	for _, t := range c.TokenIDs {
		last = last*31 + uint64(t)
	}
	if c.Sampling.Temperature > 0 {
		last += c.Sampling.Seed
	}
	for n := 0; r.Context().Err() == nil; n++ {
		token := kv.Token(last * 2654435761 % (vocabulary - 2))
		for n < c.Stops.Min && slices.Contains(c.Stops.Tokens, token+2) {
			token = (token + 1) % (vocabulary - 2)
		}
		last = last*31 + uint64(token) + 2
		yieldEvent(w, `{"token_ids":[%d]}`, token+2)
	}
}

// prefixCache is the KV cache of a function: it forgets nothing.
type prefixCache struct {
	sync.Mutex
	blocks map[string]bool
}

// storePrompt stores the full blocks of a prompt before its last token, and returns how many tokens of them were there.
func (p *prefixCache) storePrompt(c *call, blockSize int) (cached int) {
	p.Lock()
	defer p.Unlock()
	for end := blockSize; end < len(c.TokenIDs); end += blockSize {
		block := fmt.Sprint(c.Salt, c.TokenIDs[:end])
		if p.blocks[block] {
			cached = end
		}
		p.blocks[block] = true
	}
	return cached
}

func openEngine(t testing.TB, cfg Config) *Engine {
	t.Helper()
	return enginetest.OpenAdapter(t, Open, cfg)
}

// newRequest returns a greedy request for at most 20 tokens.
func newRequest(prompt ...kv.Token) *engine.Request {
	return &engine.Request{ID: "r", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: prompt, Stop: engine.Stop{MaxTokens: 20}}
}

// TestSuite runs the conformance suite over real sockets.
func TestSuite(t *testing.T) {
	enginetest.Test(t, enginetest.Options{Redraws: true, NoLogprobs: true, New: func(t testing.TB) engine.Engine {
		const blockSize = 16
		cache := prefixCache{blocks: map[string]bool{}}
		return openEngine(t, startServer(t, describeModel(blockSize, 64), func(w http.ResponseWriter, r *http.Request, c *call) {
			yieldEvent(w, `{"cached_tokens":%d}`, cache.storePrompt(c, blockSize))
			yieldChain(w, r, c)
		}))
	}})
}

// TestResume: a stream which another worker continues after any token is the one which was not interrupted.
func TestResume(t *testing.T) {
	e := openEngine(t, startServer(t, describeModel(16, 0), yieldChain))
	ctx := enginetest.Start(t, e)
	req := newRequest(3, 4)
	whole := enginetest.MustGenerate(t, ctx, e, req)[0].Tokens
	if len(whole) != 20 {
		t.Fatalf("%d tokens, want 20", len(whole))
	}
	for cut := range whole {
		resumed := *req
		resumed.Attempt, resumed.Generated = 2, [][]kv.Token{whole[:cut]}
		if rest := enginetest.MustGenerate(t, ctx, e, &resumed)[0].Tokens; !slices.Equal(rest, whole[cut:]) {
			t.Errorf("after %d tokens came %v, want %v", cut, rest, whole[cut:])
		}
	}
}

// TestCancel: the end of a request reaches the function, and the end of the function's process in the middle of an
// answer sends the request elsewhere.
func TestCancel(t *testing.T) {
	ended := make(chan struct{}, 1)
	e := openEngine(t, startServer(t, describeModel(16, 0), func(w http.ResponseWriter, r *http.Request, c *call) {
		yieldEvent(w, `{"token_ids":[5]}`)
		if c.TokenIDs[0] == 4 {
			panic(http.ErrAbortHandler)
		}
		<-r.Context().Done()
		ended <- struct{}{}
	}))
	ctx, cancel := context.WithCancel(enginetest.Start(t, e))
	defer cancel()
	req := newRequest(4)
	if _, err := enginetest.Generate(ctx, e, req); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("an answer which broke off: %v", err)
	}
	req.Prompt = []kv.Token{3}
	err := e.Generate(ctx, req, func(d *engine.Delta) error {
		if len(d.Tokens) > 0 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
	select {
	case <-ended:
	case <-time.After(fixturetest.TimeLeft(t)):
		t.Error("the function was not cancelled")
	}
}

// TestReplaced: a server which serves another model than before is sent nothing.
func TestReplaced(t *testing.T) {
	var replaced atomic.Bool
	describe := func() string {
		if replaced.Load() {
			return strings.Replace(describeModel(16, 0), `"m"`, `"n"`, 1)
		}
		return describeModel(16, 0)
	}
	e := openEngine(t, startChangingServer(t, describe, func(http.ResponseWriter, *http.Request, *call) {
		replaced.Store(true)
		panic(http.ErrAbortHandler)
	}))
	ctx := enginetest.Start(t, e)
	for deadline := time.Now().Add(fixturetest.TimeLeft(t)); ; {
		_, err := enginetest.Generate(ctx, e, newRequest(3))
		if fault.CodeOf(err) == fault.Unavailable && strings.Contains(err.Error(), "another model") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still %v", err)
		}
	}
}

func TestCard(t *testing.T) {
	for _, c := range []struct {
		models  string
		blocks  int    // set by Penstock
		events  string // the endpoint which publishes them
		want    string
		problem string
	}{
		{models: describeModel(32, 0), want: "32 0 512 true false"},
		{models: describeModel(32, 64), want: "32 64 512 false true"},
		{models: describeModel(32, 64), blocks: 32, want: "32 64 512 false true"},
		{models: describeModel(32, 64), events: "tcp://127.0.0.1:1", want: "32 64 512 false false"},
		{models: describeModel(32, 0), events: "tcp://127.0.0.1:1", want: "32 0 512 false false"},
		{models: describeModel(32, 64), blocks: 64, problem: "block-size is 64"},
		{models: describeModel(1, 64), problem: "block_size must be"},
		{models: describeModel(32, -1), problem: "blocks must not be negative"},
		{models: `{"data":[{"id":"m"},{"id":"n"}]}`, problem: "serves 2 models"},
	} {
		cfg := startServer(t, c.models, yieldChain)
		cfg.Spec.BlockSize = c.blocks
		if c.events != "" {
			var err error
			if cfg.Spec.Events, err = zmtp.ParseEndpoint(c.events); err != nil {
				t.Fatal(err)
			}
		}
		e, err := Open(t.Context(), cfg)
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: %v, want %s", c.models, err, c.problem)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		e.Client().Close()
		card := e.Card()
		if got := fmt.Sprint(card.BlockSize, card.Blocks, card.ContextLength, card.NoPrefixCache, card.KVPredicted); got != c.want {
			t.Errorf("%s: %s, want %s", c.models, got, c.want)
		}
	}
}

// TestAnswers: what a function yields, and what becomes of it.
func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		events string // separated by spaces
		min    int    // of the request's tokens
		want   []kv.Token
		finish engine.Finish
		code   fault.Code // of an error
		says   string
	}{
		"stop":              {events: `{"token_ids":[5,6]} {"token_ids":[7],"finish_reason":"stop"} [DONE]`, want: []kv.Token{5, 6, 7}, finish: engine.FinishStop},
		"eos":               {events: `{"token_ids":[5,1],"finish_reason":"eos"} [DONE]`, want: []kv.Token{5, 1}, finish: engine.FinishStop},
		"length":            {events: `{"token_ids":[5],"finish_reason":"length","index":0,"text":null} [DONE]`, want: []kv.Token{5}, finish: engine.FinishLength},
		"at the limit":      {events: `{"token_ids":[5,6,7,8]}`, want: []kv.Token{5, 6, 7, 8}, finish: engine.FinishLength},
		"over the limit":    {events: `{"token_ids":[5,6,7,8,9]} {"token_ids":[10]}`, want: []kv.Token{5, 6, 7, 8}, finish: engine.FinishLength},
		"after EOS":         {events: `{"token_ids":[5,1,6]} {"token_ids":[7]}`, want: []kv.Token{5, 1}, finish: engine.FinishStop},
		"a stop token":      {events: `{"token_ids":[99]} {"token_ids":[7]}`, want: []kv.Token{99}, finish: engine.FinishStop},
		"EOS before a min.": {events: `{"token_ids":[5,1,6]} {"token_ids":[7]}`, min: 3, want: []kv.Token{5, 1, 6, 7}, finish: engine.FinishLength},
		"EOS after a min.":  {events: `{"token_ids":[5]} {"token_ids":[1,6,99,7]}`, min: 2, want: []kv.Token{5, 1, 6, 99}, finish: engine.FinishStop},
		"error at the end":  {events: `{"token_ids":[5],"finish_reason":"stop"} {"error":{"message":"KeyError","code":500}}`, want: []kv.Token{5}, finish: engine.FinishStop},
		"tokens at the end": {events: `{"token_ids":[5],"finish_reason":"stop"} {"token_ids":[6],"finish_reason":"x"} [DONE]`, want: []kv.Token{5}, finish: engine.FinishStop},
		"no end":            {events: `{"token_ids":[5]} [DONE]`, want: []kv.Token{5}, code: fault.Unavailable, says: "before it was complete"},
		"given up":          {events: `{"token_ids":[5],"finish_reason":"cancelled"}`, code: fault.Unavailable, says: "cancelled"},
		"invalid":           {events: `{"error":{"message":"no","code":400}}`, code: fault.Invalid, says: "no"},
		"failed":            {events: `{"error":{"message":"KeyError","code":500}}`, code: fault.EngineError, says: "KeyError"},
		"another worker":    {events: `{"token_ids":[5]} {"error":{"message":"moving","code":503}}`, want: []kv.Token{5}, code: fault.Unavailable, says: "moving"},
		"no token":          {events: `{"token_ids":[4294967296]}`, code: fault.Internal, says: "cannot be read"},
		"no JSON":           {events: `{"token_ids":[5]`, code: fault.Internal, says: "cannot be read"},
		"out of vocabulary": {events: `{"token_ids":[500]}`, code: fault.Internal, says: "outside the vocabulary"},
	} {
		t.Run(name, func(t *testing.T) {
			e := openEngine(t, startServer(t, describeModel(16, 0), func(w http.ResponseWriter, _ *http.Request, _ *call) {
				for event := range strings.SplitSeq(c.events, " ") {
					yieldEvent(w, "%s", event)
				}
			}))
			req := newRequest(3)
			req.Stop = engine.Stop{MaxTokens: 4, MinTokens: c.min, Tokens: []kv.Token{99}}
			var got []kv.Token
			finish := engine.NotFinished
			err := e.Generate(enginetest.Start(t, e), req, func(d *engine.Delta) error {
				got, finish = append(got, d.Tokens...), d.Finish
				return nil
			})
			if !slices.Equal(got, c.want) || finish != c.finish {
				t.Errorf("%v, finish %v, want %v, %v", got, finish, c.want, c.finish)
			}
			if (err == nil) != (c.says == "") || err != nil && (fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want %v with %q", err, c.code, c.says)
			}
		})
	}
}

// TestCached: what the function says it had cached comes with the first tokens.
func TestCached(t *testing.T) {
	e := openEngine(t, startServer(t, describeModel(16, 0), func(w http.ResponseWriter, _ *http.Request, _ *call) {
		yieldEvent(w, `{"token_ids":[5],"cached_tokens":2}`)
		yieldEvent(w, `{"token_ids":[6],"cached_tokens":2,"finish_reason":"stop"}`)
		yieldEvent(w, "[DONE]")
	}))
	req := newRequest(3, 4, 5)
	var cached []int
	err := e.Generate(enginetest.Start(t, e), req, func(d *engine.Delta) error {
		if len(d.Tokens) > 0 {
			cached = append(cached, d.Cached)
		}
		return nil
	})
	if err != nil || cached[0] != 2 {
		t.Errorf("%v, %v, want 2 first", cached, err)
	}
}

// TestCalls: the body of a call, which docs/format/python.md describes.
func TestCalls(t *testing.T) {
	card := engine.Card{
		Name: "m", Engine: "python", Numerics: "x", BlockSize: 16, Ranks: 1, ContextLength: 512, VocabSize: vocabulary,
		EOS: []kv.Token{1}, Tokenizer: engine.TokenizerRef{Kind: "builtin"},
	}
	req := *newRequest(3, 4)
	req.Stop.MaxTokens = 9
	full := req
	full.Attempt, full.Generated, full.Salt = 2, [][]kv.Token{{7, 8}}, kv.Salt{Namespace: "a"}
	full.Stop = engine.Stop{MaxTokens: 9, MinTokens: 3, Tokens: []kv.Token{2}, IgnoreEOS: true}
	full.Sampling = engine.Sampling{
		Temperature: 0.5, TopK: 3, TopP: 0.9, MinP: 0.1, RepetitionPenalty: 1.1, PresencePenalty: 0.2, FrequencyPenalty: 0.3, Seed: 5,
		Bias: []engine.TokenBias{{Token: 6, Bias: -1}},
	}
	for _, c := range []struct {
		req  engine.Request
		want string
	}{
		{req, `{"request_id":"r-1-1","model":"m","token_ids":[3,4],"eos_token_ids":[1],"stop_conditions":{"max_tokens":9},"sampling_options":{"seed":0,"temperature":0}}`},
		{full, `{"request_id":"r-2-1","model":"m","token_ids":[3,4,7,8],"eos_token_ids":[1],"cache_salt":"a",` +
			`"stop_conditions":{"max_tokens":7,"min_tokens":1,"ignore_eos":true,"stop_token_ids":[2]},` +
			`"sampling_options":{"seed":SEED,"temperature":0.5,"top_k":3,"top_p":0.9,"min_p":0.1,"repetition_penalty":1.1,"presence_penalty":0.2,"frequency_penalty":0.3,"logit_bias":{"6":-1}}}`},
	} {
		d := &functionDialect{model: "m", eos: card.EOS}
		run, err := remote.RunDialect(card, remote.LeaderFirst, d, &c.req, [][]byte{[]byte(`{"token_ids":[5],"finish_reason":"stop"}`)}, func(*engine.Delta) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		var sent call
		if err := json.Unmarshal([]byte(run.Body), &sent); err != nil {
			t.Fatal(err)
		}
		if want := strings.Replace(c.want, "SEED", fmt.Sprint(sent.Sampling.Seed), 1); run.Path != pathGenerate || run.Body != want {
			t.Errorf("%s %s, want %s", run.Path, run.Body, want)
		}
	}
	req.Logprobs = 0
	if _, err := remote.RunDialect(card, remote.LeaderFirst, &functionDialect{}, &req, nil, nil); fault.CodeOf(err) != fault.Unimplemented {
		t.Errorf("log-probabilities: %v", err)
	}
}

// FuzzDecode reads events made of numbers, which must come back, and any bytes, which must do no harm.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{1, 2, 250}, 7, "stop", []byte(`{"token_ids":[4294967296]}`))
	f.Add([]byte{}, 0, "", []byte(`{"error":null,"token_ids":null,"finish_reason":3}`))
	f.Add([]byte{9}, 1, "é\n", []byte(`{"token_ids":[1],"token_ids":[2],"error":"x"}`))
	f.Fuzz(func(t *testing.T, ids []byte, cached int, finish string, raw []byte) {
		if e, _ := decodeEvent(raw, nil); len(e.tokens) > len(raw) || e.cached < -1 {
			t.Errorf("%+v of %q", e, raw)
		}
		tokens := []kv.Token{}
		for _, id := range ids {
			tokens = append(tokens, kv.Token(id)<<kv.Token(id%24))
		}
		cached &= 0xffff
		finish = strings.ToValidUTF8(finish, "")
		data, err := json.Marshal(map[string]any{"a": string(raw), "token_ids": tokens, "finish_reason": finish, "cached_tokens": cached, "error": nil})
		if err != nil {
			t.Fatal(err)
		}
		e, err := decodeEvent(data, nil)
		if err != nil || !slices.Equal(e.tokens, tokens) || e.cached != cached || e.finish != finish || e.isError {
			t.Errorf("%+v of %s: %v", e, data, err)
		}
	})
}
