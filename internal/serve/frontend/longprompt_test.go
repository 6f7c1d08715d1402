package frontend

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
)

// slowTokenizer has at most four bytes in a token, by its own account, and waits for done before it encodes a text
// of more than slowText bytes. It counts the bytes that it encodes.
type slowTokenizer struct {
	byteTokenizer
	done    chan struct{}
	encoded *atomic.Int64
}

const slowText = 4 << 10

func (s slowTokenizer) MaxTokenBytes() int { return 4 }

func (s slowTokenizer) Encode(dst []kv.Token, text string, opts prep.EncodeOptions) []kv.Token {
	if len(text) > slowText {
		<-s.done
	}
	s.encoded.Add(int64(len(text)))
	return s.byteTokenizer.Encode(dst, text, opts)
}

// inSlowWorld is inWorld with a slowTokenizer and a context of 512 tokens.
func inSlowWorld(t *testing.T, cfg Config, test func(t *testing.T, w *world, s slowTokenizer)) {
	inWorld(t, cfg, func(t *testing.T, w *world) {
		s := slowTokenizer{done: make(chan struct{}), encoded: new(atomic.Int64)}
		w.opens = func(engine.TokenizerRef) (*prep.Pipeline, error) {
			return &prep.Pipeline{Tokenizer: s, Template: byteTemplate{}, TemplateName: "bytes"}, nil
		}
		w.worker(7, constant("hi"), func(c *engine.Card) { c.Embeddings = true })
		test(t, w, s)
	})
}

// TestPromptThatCannotFit: a text too long for the context whatever its tokens are is refused before it is encoded,
// with the error of any long prompt, and a shorter one with its number of tokens.
func TestPromptThatCannotFit(t *testing.T) {
	inSlowWorld(t, Config{}, func(t *testing.T, w *world, s slowTokenizer) {
		const most = countedContexts * 512
		long, less := strings.Repeat("x", 4*most+4), strings.Repeat("x", 600)
		for _, tt := range []struct{ path, body, param, says string }{
			{"/v1/chat/completions", `"messages":[{"role":"user","content":"TEXT"}]`, "messages", "shorten the prompt"},
			{"/v1/completions", `"prompt":"TEXT"`, "prompt", "shorten the prompt"},
			{"/v1/responses", `"input":"TEXT"`, "input", "shorten the prompt"},
			{"/v1/messages", `"max_tokens":1,"messages":[{"role":"user","content":"TEXT"}]`, "", "shorten the prompt"},
			{"/v1/embeddings", `"input":"TEXT"`, "input", "shorten it"},
		} {
			ask := func(text string) answerOf {
				s.encoded.Store(0)
				return w.post(tt.path, `{"model":"bytes",`+strings.ReplaceAll(tt.body, "TEXT", text)+`}`)
			}
			a := ask(long)
			if a.status != http.StatusBadRequest || !strings.Contains(a.body, " has at least 10") || !strings.Contains(a.body, tt.says) || !strings.Contains(a.body, tt.param) || s.encoded.Load() > 0 {
				t.Errorf("%s: %d bytes are encoded: %d %.300s", tt.path, s.encoded.Load(), a.status, a.body)
			}
			a = ask(less)
			if a.status != http.StatusBadRequest || !strings.Contains(a.body, " has 6") || !strings.Contains(a.body, tt.says) || s.encoded.Load() == 0 {
				t.Errorf("%s: %d bytes are encoded: %d %.300s", tt.path, s.encoded.Load(), a.status, a.body)
			}
			if a = ask(less[:400]); a.status != http.StatusOK {
				t.Errorf("%s: a prompt which fits: %d %.300s", tt.path, a.status, a.body)
			}
		}
		// Nothing is generated for these, so nothing is too long.
		close(s.done)
		if a := w.post("/tokenize", `{"model":"bytes","prompt":"`+long+`"}`); a.status != http.StatusOK {
			t.Errorf("tokenize: %d %.300s", a.status, a.body)
		}
		if a := w.post("/v1/messages/count_tokens", `{"model":"bytes","messages":[{"role":"user","content":"`+long+`"}]}`); a.status != http.StatusOK {
			t.Errorf("count_tokens: %d %.300s", a.status, a.body)
		}
	})
}

// TestLongTextLeavesMemory: while a text which takes all memory for prompts is encoded, others are served.
func TestLongTextLeavesMemory(t *testing.T) {
	for name, body := range map[string]string{"text": `"prompt":"TEXT"`, "conversation": `"messages":[{"role":"user","content":"TEXT"}]`} {
		t.Run(name, func(t *testing.T) {
			inSlowWorld(t, Config{BodyMemory: 256 << 10, MaxBodyBytes: 64 << 10, RequestTimeout: pause}, func(t *testing.T, w *world, s slowTokenizer) {
				text := strings.Repeat("x", (256<<10)/promptCost)
				answered := make(chan answerOf)
				go func() {
					answered <- w.post("/tokenize", `{"model":"bytes",`+strings.ReplaceAll(body, "TEXT", text)+`}`)
				}()
				synctest.Wait()
				if a := w.post("/v1/completions", `{"model":"bytes","prompt":"more than rounding leaves"}`); a.status != http.StatusOK {
					t.Errorf("beside a long text: %d %s", a.status, a.body)
				}
				close(s.done)
				<-answered
			})
		})
	}
}
