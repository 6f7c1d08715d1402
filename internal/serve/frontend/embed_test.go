package frontend

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
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

// embed answers with a vector that identifies the prompt: its length, its first token and its last.
func (s *script) embed(ctx context.Context, body []byte, send func([]byte) error) error {
	var req engine.EmbedRequest
	if err := engine.DecodeEmbedRequest(body, &req); err != nil {
		return err
	}
	if err := req.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	s.mu.embeds = append(s.mu.embeds, req)
	s.mu.Unlock()
	if s.veto != nil {
		if err := s.veto(&engine.Request{ID: req.ID, Prompt: req.Prompt}); err != nil {
			return err
		}
	}
	switch {
	case s.refuse != nil:
		return s.refuse
	case s.mute:
		<-ctx.Done()
		return ctx.Err()
	case s.beforehand != nil:
		s.beforehand()
	}
	for _, frame := range s.raw {
		if err := send(frame); err != nil {
			return err
		}
	}
	if s.endEarly {
		return nil
	}
	return send(engine.AppendEmbedding(nil, &engine.Embedding{Attempt: req.Attempt, Vector: told(req.Prompt)}))
}

func told(prompt []kv.Token) []float32 {
	return []float32{float32(len(prompt)), float32(prompt[0]), float32(prompt[len(prompt)-1])}
}

func (s *script) embedded() []engine.EmbedRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.embeds)
}

func embeds(c *engine.Card) { c.Embeddings = true }

// vectors are an answer's vectors in order, and its usage.
type vectors struct {
	Data []struct {
		Index     int
		Embedding []float32
	}
	Usage struct {
		Prompt int `json:"prompt_tokens"`
		Total  int `json:"total_tokens"`
	}
}

func vectorsOf(t *testing.T, a answerOf) (out [][]float32, tokens int) {
	t.Helper()
	var v vectors
	if err := json.Unmarshal([]byte(a.body), &v); err != nil || a.status != http.StatusOK || a.err != nil {
		t.Fatalf("status %d, %v, %v: %s", a.status, err, a.err, a.body)
	}
	for i, d := range v.Data {
		if d.Index != i {
			t.Errorf("embedding %d has index %d", i, d.Index)
		}
		out = append(out, d.Embedding)
	}
	if v.Usage.Prompt != v.Usage.Total {
		t.Errorf("usage %+v", v.Usage)
	}
	return out, v.Usage.Prompt
}

func TestEmbeddings(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := &script{}
		w.worker(3, s, embeds)
		for body, want := range map[string][][]float32{
			`"hello"`:               {{5, 'h', 'o'}},
			`["ab","c"]`:            {{2, 'a', 'b'}, {1, 'c', 'c'}},
			`[7,8,9]`:               {{3, 7, 9}},
			`[[7],[8,9]]`:           {{1, 7, 7}, {2, 8, 9}},
			`["a","b","a","b","a"]`: {{1, 'a', 'a'}, {1, 'b', 'b'}, {1, 'a', 'a'}, {1, 'b', 'b'}, {1, 'a', 'a'}},
		} {
			a := w.post("/v1/embeddings", `{"model":"b","input":`+body+`}`)
			got, tokens := vectorsOf(t, a)
			sum := 0
			for _, v := range want {
				sum += int(v[0])
			}
			if fmt.Sprint(got) != fmt.Sprint(want) || tokens != sum {
				t.Errorf("%s: %v of %d tokens, want %v of %d", body, got, tokens, want, sum)
			}
			if h := a.header; h.Get("x-penstock-worker") != "3" || h.Get("x-request-id") == "" || !strings.Contains(a.body, `"model":"b"`) {
				t.Errorf("%s: header %v, body %s", body, h, a.body)
			}
		}
		if a := w.post("/v1/embeddings", `{"model":"b","input":[7,8,9],"encoding_format":"base64"}`); !strings.Contains(a.body, `"embedding":"AABAQAAA4EAAABBB"`) {
			t.Errorf("base64: %s", a.body)
		}
		for _, r := range w.router.routed() {
			if r.Override.OverlapWeight == nil || *r.Override.OverlapWeight != 0 {
				t.Errorf("%s is routed by what is cached", r.ID)
			}
		}
		if n := w.metric(`frontend_requests_total{endpoint="embeddings",model="bytes",status="200"}`); n != "6" {
			t.Errorf("%q requests are counted, want 6", n)
		}
		if n := w.metric(`frontend_prompt_tokens_total{model="bytes"}`); n != "22" {
			t.Errorf("%q prompt tokens are counted, want 22", n)
		}
	})
}

// TestEmbeddingsMany: many inputs keep their order, and the concurrent ones are bounded.
func TestEmbeddingsMany(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		most := 0
		s := &script{}
		s.beforehand = func() {
			running, _ := s.state()
			s.mu.Lock()
			most = max(most, running)
			s.mu.Unlock()
			<-time.After(time.Second)
		}
		w.worker(3, s, embeds)
		var inputs []string
		for i := range 100 {
			inputs = append(inputs, fmt.Sprintf("[%d,%d]", i, 2*i))
		}
		got, _ := vectorsOf(t, w.post("/v1/embeddings", `{"model":"b","input":[`+strings.Join(inputs, ",")+`]}`))
		for i, v := range got {
			if !slices.Equal(v, []float32{2, float32(i), float32(2 * i)}) {
				t.Errorf("embedding %d is %v", i, v)
			}
		}
		if len(got) != 100 || most != maxParallel {
			t.Errorf("%d embeddings, at most %d at once; want 100 and %d", len(got), most, maxParallel)
		}
	})
}

func TestEmbeddingsRefused(t *testing.T) {
	inWorld(t, Config{MaxBodyBytes: 4096}, func(t *testing.T, w *world) {
		w.worker(3, &script{}, embeds)
		w.worker(4, &script{}, func(c *engine.Card) { c.Name, c.Aliases = "mute", nil })
		long := strings.Repeat("x", 512)
		for body, want := range map[string]string{
			`{"model":"b"}`: `400 "param":"input"`,
			`{"model":"b","input":"a","dimensions":3}`:   `400 "param":"dimensions"`,
			`{"model":"b","input":""}`:                   `400 "param":"input"`,
			`{"model":"b","input":["a",""]}`:             `400 "param":"input[1]"`,
			`{"model":"b","input":[[1],[100000]]}`:       `400 "param":"input[1]"`,
			`{"model":"b","input":["a","` + long + `"]}`: `400 "param":"input[1]"`,
			`{"model":"mute","input":"a"}`:               `400 "param":"model"`,
			`{"model":"none","input":"a"}`:               `404 "param":"model"`,
			`{"model":"b","input":"` + long + long + long + long + long + long + long + long + `"}`: `413 "code":`,
		} {
			a := w.post("/v1/embeddings", body)
			status, part, _ := strings.Cut(want, " ")
			if fmt.Sprint(a.status) != status || !strings.Contains(a.body, part) {
				t.Errorf("%.60s: %d %s, want %s", body, a.status, a.body, want)
			}
		}
		if a := w.get("/v1/embeddings"); a.status != http.StatusMethodNotAllowed {
			t.Errorf("GET: %d", a.status)
		}
		if n := len(w.router.routed()); n != 0 {
			t.Errorf("%d were routed", n)
		}
	})
}

// TestEmbeddingsMove: a failed worker is replaced by another, and a worker without embeddings is not
// asked.
func TestEmbeddingsMove(t *testing.T) {
	inWorld(t, Config{StallTimeout: 10 * time.Second}, func(t *testing.T, w *world) {
		cannot, fails, stalls, early, good := &script{}, &script{refuse: fault.New(fault.Unavailable, "dead")}, &script{mute: true}, &script{endEarly: true}, &script{}
		w.worker(1, cannot)
		w.worker(2, fails, embeds)
		w.worker(3, stalls, embeds)
		w.worker(4, early, embeds)
		w.worker(5, good, embeds)
		a := w.post("/v1/embeddings", `{"model":"b","input":[[7],[8]]}`)
		if got, _ := vectorsOf(t, a); fmt.Sprint(got) != "[[1 7 7] [1 8 8]]" || a.header.Get("x-penstock-worker") != "5" {
			t.Errorf("%v from worker %s", got, a.header.Get("x-penstock-worker"))
		}
		if n := len(cannot.embedded()); n != 0 {
			t.Errorf("the worker that cannot was asked %d times", n)
		}
		for _, req := range good.embedded() {
			if req.Attempt != 4 {
				t.Errorf("%s came with attempt %d, want 4", req.ID, req.Attempt)
			}
		}
		if n := w.metric(`frontend_migrations_total{kind="new_request"}`); n != "6" {
			t.Errorf("%q migrations are counted, want 6", n)
		}
		a = w.post("/v1/embeddings", `{"model":"b","input":[7]}`, "x-worker-instance-id", "2")
		if a.status != http.StatusServiceUnavailable {
			t.Errorf("pinned to the dead: %d %s", a.status, a.body)
		}
	})
}

// TestEmbeddingsBroken: an invalid embedding is a defect and not retried.
func TestEmbeddingsBroken(t *testing.T) {
	vector := func(v ...float32) []byte {
		return engine.AppendEmbedding(nil, &engine.Embedding{Attempt: 1, Vector: v})
	}
	for name, c := range map[string]struct {
		raw  [][]byte
		want int
	}{
		"late":       {[][]byte{engine.AppendEmbedding(nil, &engine.Embedding{Attempt: 9, Vector: []float32{1}})}, 200},
		"unreadable": {[][]byte{{9}}, 500},
		"empty":      {[][]byte{vector()}, 500},
		"not finite": {[][]byte{vector(1, float32(math.NaN()))}, 500},
		"second":     {[][]byte{vector(1), vector(1)}, 500},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, Config{}, func(t *testing.T, w *world) {
				bad := &script{raw: c.raw}
				w.worker(1, bad, embeds)
				if a := w.post("/v1/embeddings", `{"model":"b","input":[7]}`); a.status != c.want {
					t.Errorf("%d %s", a.status, a.body)
				}
				if n := len(bad.embedded()); n != 1 {
					t.Errorf("tried %d times", n)
				}
			})
		})
	}
}

// TestEmbeddingsOneFails: an input that can never be embedded ends the others.
func TestEmbeddingsOneFails(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := &script{mute: true, veto: func(req *engine.Request) error {
			if req.Prompt[0] == 9 {
				return fault.InvalidParam("input", "too odd")
			}
			return nil
		}}
		w.worker(3, s, embeds)
		begin := time.Now()
		a := w.post("/v1/embeddings", `{"model":"b","input":[[7],[8],[9],[10]]}`)
		if took := time.Since(begin); a.status != http.StatusBadRequest || !strings.Contains(a.body, "too odd") || took != 0 {
			t.Errorf("after %v: %d %s", took, a.status, a.body)
		}
	})
}

// TestEmbeddingsLengths: vectors of different lengths are an error.
func TestEmbeddingsLengths(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := &script{endEarly: true, raw: [][]byte{engine.AppendEmbedding(nil, &engine.Embedding{Attempt: 1, Vector: []float32{1}})}}
		w.worker(1, s, embeds)
		w.worker(2, &script{}, embeds)
		s.beforehand = func() { w.registry.remove(1) } // the next input goes to the other
		a := w.post("/v1/embeddings", `{"model":"b","input":[`+strings.Repeat("[7],", maxParallel*2)+`[8]]}`)
		if a.status != http.StatusInternalServerError || !strings.Contains(a.body, "different lengths") {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

// TestEmbeddingsClientLeaves: every call ends, and further ones are not started.
func TestEmbeddingsClientLeaves(t *testing.T) {
	inWorld(t, Config{}, func(t *testing.T, w *world) {
		s := &script{mute: true}
		w.worker(3, s, embeds)
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			body := `{"model":"b","input":[` + strings.Repeat("[7],", 99) + `[8]]}`
			req := must(http.NewRequestWithContext(ctx, http.MethodPost, "http://penstock/v1/embeddings", strings.NewReader(body)))
			if resp, err := w.client.Do(req); err == nil {
				t.Errorf("answered with %d", resp.StatusCode)
				resp.Body.Close()
			}
		}()
		synctest.Wait()
		if running, _ := s.state(); running != maxParallel {
			t.Fatalf("%d inputs are at work, want %d", running, maxParallel)
		}
		leave()
		<-done
		synctest.Wait()
		if running, cancelled := s.state(); running != 0 || cancelled != maxParallel {
			t.Errorf("%d calls go on, %d were ended, want 0 and %d", running, cancelled, maxParallel)
		}
		if n := w.metric(`frontend_requests_total{endpoint="embeddings",model="bytes",status="499"}`); n != "1" {
			t.Errorf("%q requests are counted as left, want 1", n)
		}
	})
}
