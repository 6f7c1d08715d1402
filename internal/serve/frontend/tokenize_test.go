package frontend

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
)

// TestTokenizeRoundTrip: tokens of a real vocabulary become their original text, and equal the tokens
// that a worker gets.
func TestTokenizeRoundTrip(t *testing.T) {
	pipe, err := chat.Open(chat.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		w.opens = func(engine.TokenizerRef) (*prep.Pipeline, error) { return pipe, nil }
		s := constant("")
		w.worker(7, s, func(c *engine.Card) { c.VocabSize = pipe.Tokenizer.VocabSize() })
		for _, fields := range []string{
			`"prompt":"Water — 水 and 😀 — for the turbine."`,
			`"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"What is a penstock?"}]`,
		} {
			body := `{"model":"bytes",` + fields + `}`
			var tokenized struct {
				Count  int        `json:"count"`
				Tokens []kv.Token `json:"tokens"`
			}
			if err := json.Unmarshal([]byte(w.post("/tokenize", body).body), &tokenized); err != nil {
				t.Fatal(err)
			}
			path := "/v1/completions"
			if strings.Contains(fields, "messages") {
				path = "/v1/chat/completions"
			}
			w.post(path, body)
			seen := s.seen()
			sent, _ := json.Marshal(seen[len(seen)-1].Prompt)
			tokens, _ := json.Marshal(tokenized.Tokens)
			if string(tokens) != string(sent) || tokenized.Count != len(tokenized.Tokens) {
				t.Errorf("%s: %s, %d counted; the worker gets %s", fields, tokens, tokenized.Count, sent)
			}
			var text struct {
				Prompt string `json:"prompt"`
			}
			if err := json.Unmarshal([]byte(w.post("/detokenize", `{"model":"bytes","tokens":`+string(tokens)+`}`).body), &text); err != nil {
				t.Fatal(err)
			}
			want := "<|begin|>Water — 水 and 😀 — for the turbine."
			if path == "/v1/chat/completions" {
				want = "<|begin|><|system|>Be brief.<|end|><|user|>What is a penstock?<|end|><|assistant|>"
			}
			if text.Prompt != want {
				t.Errorf("%q, not %q", text.Prompt, want)
			}
		}
	})
}

// TestTokenizeIsBounded: neither answer takes more memory than requests may.
func TestTokenizeIsBounded(t *testing.T) {
	inWorld(t, Config{MaxBodyBytes: 64 << 10, BodyMemory: 128 << 10}, func(t *testing.T, w *world) {
		w.worker(7, constant("hi"))
		text := strings.Repeat("x", 20<<10)
		if a := w.post("/tokenize", `{"model":"bytes","prompt":"`+text+`"}`); a.status != http.StatusServiceUnavailable {
			t.Errorf("an answer beyond the budget: %d %.200s", a.status, a.body)
		}
		if a := w.post("/tokenize", `{"model":"bytes","prompt":"`+text[:4<<10]+`"}`); a.status != http.StatusOK {
			t.Errorf("an answer within the budget: %d %.200s", a.status, a.body)
		}
		if a := w.post("/detokenize", `{"model":"bytes","tokens":[`+strings.Repeat("257,", 12<<10)+`1]}`); a.status != http.StatusBadRequest || !strings.Contains(a.body, "the limit is 65536") {
			t.Errorf("a text beyond the limit: %d %.200s", a.status, a.body)
		}
		if a := w.post("/tokenize", `{"model":"bytes","prompt":"`+text+text+text+text+`"}`); a.status != http.StatusRequestEntityTooLarge {
			t.Errorf("a body beyond the limit: %d", a.status)
		}
	})
}

// elsewhere is an encoder whose engines do not answer.
type elsewhere struct{}

func (elsewhere) EncodeChat(ctx context.Context, _ *prep.Chat) (prep.Prompt, error) {
	<-ctx.Done()
	return prep.Prompt{}, ctx.Err()
}

func (elsewhere) EncodeText(context.Context, string, prep.EncodeOptions) (prep.Prompt, error) {
	return prep.Prompt{}, fault.New(fault.Unavailable, "the engine does not answer")
}

// TestEncoderFails: an encoder that waits ends with its request, and the client gets its errors.
func TestEncoderFails(t *testing.T) {
	inWorld(t, Config{RequestTimeout: pause}, func(t *testing.T, w *world) {
		w.worker(7, constant("hi"))
		w.f.catalog.current.Load().model("bytes").encoder = elsewhere{}
		for path, fields := range map[string]string{"/v1/completions": `"prompt":"x"`, "/tokenize": `"prompt":"x"`} {
			if a := w.post(path, `{"model":"bytes",`+fields+`}`); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "the engine does not answer") {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
		for _, path := range []string{"/v1/chat/completions", "/tokenize"} {
			if a := w.post(path, `{"model":"bytes","messages":[{"role":"user","content":"x"}]}`); a.status != http.StatusGatewayTimeout {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
		if n := len(w.router.routed()); n != 0 {
			t.Errorf("%d requests were routed", n)
		}
	})
}
