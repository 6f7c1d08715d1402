package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"testing"
)

// embed returns the embeddings of the inputs, as one request.
func (s *server) embed(input any, header ...string) [][]float32 {
	s.t.Helper()
	resp, body := s.do(http.MethodPost, "/v1/embeddings", map[string]any{"model": "penstock-tiny", "input": input}, header...)
	var answer struct {
		Data []struct {
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || resp.StatusCode != http.StatusOK || answer.Usage.Prompt == 0 {
		s.t.Fatalf("embeddings: status %d, %v: %s", resp.StatusCode, err, body)
	}
	var all [][]float32
	for _, d := range answer.Data {
		all = append(all, d.Embedding)
	}
	return all
}

// TestSameEmbeddings wants the bits of an embedding to be those of its text:
// alone and among others, on either worker, in one piece and in chunks, with the
// text in the cache and without.
func TestSameEmbeddings(t *testing.T) {
	t.Parallel()
	var texts []string
	for seed := range 3 {
		texts = append(texts, longPrompt(seed)[:100+500*seed])
	}
	whole := start(t)
	var want [][]float32
	for _, text := range texts {
		want = append(want, whole.embed(text)[0])
	}
	for i, v := range want {
		var squares float64
		for _, x := range v {
			squares += float64(x) * float64(x)
		}
		if math.Abs(squares-1) > 1e-5 || i > 0 && slices.Equal(v, want[i-1]) {
			t.Errorf("embedding %d has length %v", i, math.Sqrt(squares))
		}
	}
	check := func(what string, got [][]float32) {
		t.Helper()
		if !slices.EqualFunc(got, want, slices.Equal[[]float32]) {
			t.Errorf("%s: not the embeddings that the texts have alone", what)
		}
	}
	for _, worker := range []string{"1", "2"} {
		check("on worker "+worker, whole.embed(texts, "x-worker-instance-id", worker))
	}
	for _, text := range texts {
		whole.complete("/v1/completions", map[string]any{"model": "penstock-tiny", "prompt": text, "max_tokens": 1})
	}
	if n := whole.spread(texts); n != 2 {
		t.Errorf("the inputs of one request went to %d workers, want both", n)
	}
	check("with the texts in the cache", whole.embed(texts))
	whole.idle()
	chunked := start(t, "max-num-batched-tokens=48", "max-num-seqs=16", "workers=1")
	check("in chunks", chunked.embed(texts))
	chunked.idle()
}

// spread embeds the texts three times over, and returns how many workers they
// went to.
func (s *server) spread(texts []string) int {
	s.t.Helper()
	s.embed(slices.Concat(texts, texts, texts), "x-request-id", "spread")
	workers := map[uint64]bool{}
	for i := range 3 * len(texts) {
		id := "spread"
		if i > 0 {
			id = fmt.Sprintf("spread/%d", i)
		}
		var d struct {
			Attempts []struct {
				WorkerID uint64 `json:"worker_id"`
			} `json:"attempts"`
		}
		s.get("/v1/router/decisions?request_id="+url.QueryEscape(id), &d)
		for _, a := range d.Attempts {
			workers[a.WorkerID] = true
		}
	}
	return len(workers)
}

func TestClientThatLeavesItsEmbeddingsFreesTheirBlocks(t *testing.T) {
	s := start(t, "max-num-batched-tokens=64", "max-num-seqs=16")
	s.idle()
	var texts []string
	for seed := range 60 {
		texts = append(texts, longPrompt(seed))
	}
	body, err := json.Marshal(map[string]any{"model": "penstock-tiny", "input": texts})
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/embeddings", bytes.NewReader(body))
		if err != nil {
			done <- err
			return
		}
		resp, err := s.client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		done <- err
	}()
	s.eventually("the request runs", func() bool {
		for _, w := range s.workers() {
			if r := w.Load.Reported; r != nil && r.UsedBlocks > 0 {
				return true
			}
		}
		return false
	})
	leave()
	if err := <-done; err == nil {
		t.Error("the answer came before the client left")
	}
	s.idle()
}
