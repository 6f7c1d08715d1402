package llamacpp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/engine/remote"
)

// halves are tokens whose text is half a character: llama.cpp omits them from streams, so that a stream
// jumps.
const halves kv.Token = 500

// fake is a llama.cpp server whose streams omit tokens. The token after a token depends on it alone.
type fake struct {
	*httptest.Server
	mu struct {
		sync.Mutex
		asked []map[string]any
		slots map[int][]kv.Token
	}
}

func after(t kv.Token) kv.Token { return (t*31 + 7) % 600 }

func newFake(t *testing.T) *fake {
	f := &fake{}
	f.mu.slots = map[int][]kv.Token{}
	mux := http.NewServeMux()
	answer := func(path string, v string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, v) })
	}
	answer("/health", `{"status":"ok"}`)
	answer("/v1/models", `{"data":[{"id":"/models/small-Q4.gguf","meta":{"n_vocab":600}}]}`)
	answer("/props", `{"total_slots":2,"build_info":"b1","modalities":{"vision":true,"audio":true},"model_path":"/models/small-Q4.gguf","default_generation_settings":{"n_ctx":512}}`)
	answer("/lora-adapters", `[{"id":0,"path":"/lora/poems.gguf","scale":0}]`)
	answer("/slots", `[{"id":0,"is_processing":true},{"id":1,"is_processing":false}]`)
	mux.HandleFunc("POST /completion", f.complete)
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

func (f *fake) complete(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Prompt  []kv.Token `json:"prompt"`
		Predict int        `json:"n_predict"`
		Stream  bool       `json:"stream"`
		Bias    [][2]any   `json:"logit_bias"`
		Slot    int        `json:"id_slot"`
		Reuse   bool       `json:"cache_prompt"`
	}
	body, _ := io.ReadAll(r.Body)
	var asked map[string]any
	if json.Unmarshal(body, &q) != nil || json.Unmarshal(body, &asked) != nil {
		http.Error(w, "no JSON", http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	f.mu.asked = append(f.mu.asked, asked)
	f.mu.Unlock()
	never := func(t kv.Token) bool {
		return slices.ContainsFunc(q.Bias, func(b [2]any) bool { return b[1] == false && b[0] == float64(t) })
	}
	var all []kv.Token
	for t, n := q.Prompt[len(q.Prompt)-1], 0; n < q.Predict; n++ {
		for t = after(t); never(t); t = after(t) {
		}
		all = append(all, t)
	}
	type object = map[string]any
	cached := f.reuse(q.Slot, slices.Concat(q.Prompt, all), q.Reuse)
	final := object{
		"tokens": []kv.Token{}, "content": "", "stop": true, "stop_type": "limit", "id_slot": q.Slot,
		"tokens_predicted": len(all), "timings": object{"cache_n": min(cached, len(q.Prompt)-1)},
	}
	if !q.Stream {
		final["tokens"] = all
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_ = json.NewEncoder(w).Encode(final)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	say := func(v any) {
		text, _ := json.Marshal(v)
		fmt.Fprintf(w, ": ping\n\ndata: %s\n\n", text)
	}
	say(object{"tokens": []kv.Token{0}, "content": "", "stop": false, "tokens_predicted": 0, "prompt_progress": object{"total": len(q.Prompt), "cache": min(cached, len(q.Prompt)-1), "processed": 1}})
	for i, t := range all {
		if t >= halves {
			continue
		}
		content := "x"
		if i > 0 && all[i-1] >= halves {
			content = "é"
		}
		say(object{"tokens": []kv.Token{t}, "content": content, "stop": false, "tokens_predicted": i + 1})
	}
	say(final)
}

// reuse makes a slot compute a sequence, and returns how many tokens of it the slot had.
func (f *fake) reuse(slot int, sequence []kv.Token, may bool) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.mu.slots[slot]
	for may && n < min(len(old), len(sequence)) && old[n] == sequence[n] {
		n++
	}
	f.mu.slots[slot] = sequence
	return n
}

// openFake opens an adapter of f and runs it.
func openFake(t *testing.T, f *fake, change func(*Config)) (*Engine, context.Context) {
	t.Helper()
	u, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Spec:      remote.Spec{Kind: "llamacpp", URL: u, Rank: remote.AnyRank, Ranks: 1},
		Tokenizer: engine.TokenizerRef{Kind: "builtin"}, VocabSize: 600, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	e := opened(t, cfg)
	return e, enginetest.Start(t, e)
}

func (f *fake) take() []map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.mu.asked
	f.mu.asked = nil
	return asked
}

// TestHoles checks that all tokens are delivered, including the ones that the streams omit.
func TestHoles(t *testing.T) {
	f := newFake(t)
	e, ctx := openFake(t, f, nil)
	left := 0
	for first := range kv.Token(40) {
		for _, n := range []int{1, 7, 30} {
			req := &engine.Request{ID: "holes", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: []kv.Token{1, 2, first}, Stop: engine.Stop{MaxTokens: n, IgnoreEOS: true}}
			want := []kv.Token{}
			for token := first; len(want) < n; {
				token = after(token)
				if want = append(want, token); token >= halves {
					left++
				}
			}
			got := enginetest.MustGenerate(t, ctx, e, req)[0]
			if !slices.Equal(got.Tokens, want) || got.Finish != engine.FinishLength {
				t.Fatalf("after %d: %v, finish %d, want %v", first, got.Tokens, got.Finish, want)
			}
		}
	}
	if left == 0 {
		t.Fatal("the streams left nothing out")
	}
}

// TestHolesAfterResume checks that an answer is the same wherever an earlier attempt broke off, also before
// tokens that the streams omit.
func TestHolesAfterResume(t *testing.T) {
	f := newFake(t)
	e, ctx := openFake(t, f, nil)
	req := &engine.Request{ID: "resumed", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: []kv.Token{1, 2, 3}, Stop: engine.Stop{MaxTokens: 60, IgnoreEOS: true}}
	whole := enginetest.MustGenerate(t, ctx, e, req)[0].Tokens
	inFront := 0
	for n := 1; n < len(whole); n++ {
		if whole[n] >= halves {
			inFront++
		}
		req.Attempt++
		req.Generated = [][]kv.Token{whole[:n]}
		got := enginetest.MustGenerate(t, ctx, e, req)[0]
		if !slices.Equal(got.Tokens, whole[n:]) {
			t.Errorf("after %d tokens: %v, want %v", n, got.Tokens, whole[n:])
		}
	}
	if inFront == 0 {
		t.Fatal("nothing was left out right after a resume")
	}
}

// TestStops checks that stop tokens, which the engine does not support, end choices, and not before the least
// number of tokens.
func TestStops(t *testing.T) {
	f := newFake(t)
	e, ctx := openFake(t, f, nil)
	req := &engine.Request{ID: "stops", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: []kv.Token{1, 2, 3}, Stop: engine.Stop{MaxTokens: 20, IgnoreEOS: true}}
	whole := enginetest.MustGenerate(t, ctx, e, req)[0].Tokens
	req.Stop.Tokens = []kv.Token{whole[4]}
	if got := enginetest.MustGenerate(t, ctx, e, req)[0]; !slices.Equal(got.Tokens, whole[:5]) || got.Finish != engine.FinishStop {
		t.Errorf("%v, finish %d, want %v", got.Tokens, got.Finish, whole[:5])
	}
	req.Stop.MinTokens = 8
	got := enginetest.MustGenerate(t, ctx, e, req)[0]
	if len(got.Tokens) < 8 || slices.Contains(got.Tokens[:8], whole[4]) {
		t.Errorf("with a least number of 8: %v", got.Tokens)
	}
}

func TestWhatIsAsked(t *testing.T) {
	f := newFake(t)
	e, ctx := openFake(t, f, nil)
	f.take()
	req := &engine.Request{
		ID: "asked", Attempt: 1, Choices: 1, Logprobs: -1, Prompt: []kv.Token{1, 2, 3}, Generated: [][]kv.Token{{9}},
		Sampling: engine.Sampling{Temperature: 0.5, TopK: 7, TopP: 0.5, MinP: 0.25, RepetitionPenalty: 1.5, PresencePenalty: 0.75, FrequencyPenalty: -0.5, Seed: 1 << 40, Bias: []engine.TokenBias{{Token: 4, Bias: -2}}},
		Stop:     engine.Stop{MaxTokens: 3, IgnoreEOS: true}, Salt: kv.Salt{LoRA: "poems"},
	}
	enginetest.MustGenerate(t, ctx, e, req)
	asked := f.take()[0]
	for name, want := range map[string]string{
		"prompt": "[1,2,3,9]", "n_predict": "2", "stream": "true", "return_tokens": "true", "cache_prompt": "true",
		"temperature": "0.5", "top_k": "7", "top_p": "0.5", "min_p": "0.25", "repeat_penalty": "1.5", "presence_penalty": "0.75",
		"frequency_penalty": "-0.5", "logit_bias": "[[4,-2]]", "ignore_eos": "true", "lora": `[{"id":0,"scale":1}]`,
	} {
		if got, _ := json.Marshal(asked[name]); string(got) != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if asked["seed"] == float64(0) || asked["id_slot"] == nil {
		t.Errorf("seed %v, id_slot %v", asked["seed"], asked["id_slot"])
	}
	// A sequence of another salt is not reused.
	for _, salt := range []string{"other", "third"} { // in both slots
		req.Salt = kv.Salt{Namespace: salt}
		enginetest.MustGenerate(t, ctx, e, req)
	}
	f.take()
	req.Salt = kv.Salt{}
	enginetest.MustGenerate(t, ctx, e, req)
	if asked := f.take()[0]; asked["cache_prompt"] != false {
		t.Errorf("among sequences of other salts cache_prompt is %v", asked["cache_prompt"])
	}
	req.Salt = kv.Salt{LoRA: "unknown"}
	if _, err := enginetest.Generate(ctx, e, req); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("an adapter that the engine has not: %v", err)
	}
	req.Salt, req.Generated, req.OutputSchema = kv.Salt{}, nil, &engine.OutputSchema{Schema: []byte(`{"type":"object"}`)}
	req.Stop.MinTokens, req.Stop.IgnoreEOS = 2, false
	if _, err := enginetest.Generate(ctx, e, req); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a schema and a least number of tokens: %v", err)
	}
}

func TestCard(t *testing.T) {
	f := newFake(t)
	e, _ := openFake(t, f, nil)
	c := e.Card()
	if c.Name != "small-Q4" || !slices.Equal(c.Aliases, []string{"/models/small-Q4.gguf"}) || c.ContextLength != 512 || c.Blocks != 32 || !c.KVPredicted || !c.StructuredOutput {
		t.Errorf("%+v", c)
	}
	if !slices.Equal(c.Media, []string{"audio", "image"}) || c.MediaKeys != "" || c.AcceptsObjects {
		t.Errorf("it sees %v", c.Media)
	}
	if !slices.Equal(c.Adapters, []string{"poems"}) {
		t.Errorf("adapters %v", c.Adapters)
	}
	if w := e.Warnings(); len(w) != 0 {
		t.Errorf("warnings %+v", w)
	}
}

// TestOpenAIOnly opens servers based on llama.cpp without its own API.
func TestOpenAIOnly(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"data":[{"id":"small"}]}`) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); string(body) == "{}" {
			http.Error(w, `{"detail":"messages missing"}`, http.StatusUnprocessableEntity)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`)
	})
	f := &fake{Server: httptest.NewServer(mux)}
	t.Cleanup(f.Close)
	e, ctx := openFake(t, f, nil)
	card := e.Card()
	if card.KVPredicted || card.StructuredOutput || !slices.Equal(e.PassthroughPaths(), []string{"/v1/chat/completions"}) {
		t.Errorf("%+v, passes %v", card, e.PassthroughPaths())
	}
	codes := map[string]bool{}
	for _, w := range e.Warnings() {
		codes[w.Code] = true
	}
	if !codes[engine.WarnTextOnly] || !codes[engine.WarnNoCache] || !codes[engine.WarnNoMetrics] {
		t.Errorf("warnings %v", codes)
	}
	var answer strings.Builder
	err := e.PassThrough(ctx, &engine.PassthroughRequest{ID: "pass", Attempt: 1, Model: card.Name, Path: "/v1/chat/completions", Body: []byte(`{"model":"x","messages":[]}`)}, func(p *engine.PassthroughChunk) error {
		answer.Write(p.Data)
		return nil
	})
	if err != nil || !strings.Contains(answer.String(), `"hi"`) {
		t.Errorf("%q, %v", answer.String(), err)
	}
	err = e.PassThrough(ctx, &engine.PassthroughRequest{ID: "pass", Attempt: 1, Model: card.Name, Path: "/v1/chat/completions", Body: []byte(`{"cache_salt":"mine","messages":[]}`)}, func(*engine.PassthroughChunk) error { return nil })
	if f := (*fault.Error)(nil); !errors.As(err, &f) || f.Code != fault.Ineligible || f.Param != "cache_salt" {
		t.Errorf("a salt that the engine does not heed: %v", err)
	}
	if _, err := e.Preprocess(ctx, &engine.PreprocessRequest{Attempt: 1, Text: "x"}); fault.CodeOf(err) != fault.Unimplemented {
		t.Errorf("a prompt: %v", err)
	}
	u, _ := url.Parse(f.URL)
	cfg := Config{Spec: remote.Spec{Kind: "llamacpp", URL: u, Rank: remote.AnyRank, Mode: remote.ModeTokens}, Tokenizer: engine.TokenizerRef{Kind: "builtin"}, VocabSize: 600}
	if _, err := Open(ctx, cfg); err == nil || !strings.Contains(err.Error(), "mode=pass") {
		t.Errorf("tokens of such a server: %v", err)
	}
}

// TestPredictions checks that the engine reports exactly what the model of its slots predicts.
func TestPredictions(t *testing.T) {
	s, card := rig.StartServer(t, "llamacpp", nil)
	e := opened(t, config(t, s, card))
	ctx := enginetest.Start(t, e)
	var history []kv.Token
	for turn := range 40 {
		if turn%9 == 0 {
			history = []kv.Token{kv.Token(turn + 1), 7, 8, 9, 10, 11, 12, 13}
		}
		req := &engine.Request{ID: fmt.Sprint("turn-", turn), Attempt: 1, Choices: 1, Logprobs: -1, Prompt: slices.Clone(history), Stop: engine.Stop{MaxTokens: 5, IgnoreEOS: true}}
		history = append(history, enginetest.MustGenerate(t, ctx, e, req)[0].Tokens...)
		history = append(history, kv.Token(20+turn), 21, 22)
	}
	stats := e.Stats()
	if stats.Compared != 40 || stats.Predicted != stats.Reported || stats.Reported < 400 {
		t.Errorf("%d tokens predicted, %d reported, of %d requests", stats.Predicted, stats.Reported, stats.Compared)
	}
}
