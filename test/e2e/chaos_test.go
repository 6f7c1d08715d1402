package e2e

import (
	"context"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/fixturetest"
)

// sampled is request i of a storm: some greedy, some seeded, with prompts that
// share a beginning and differ in length around the edges of blocks.
func sampled(i, maxTokens int) map[string]any {
	prompt := make([]int, 0, 128)
	for j := range 30 + i*7%90 {
		prompt = append(prompt, 300+(j*31+j/32*(i%5)*17)%1200)
	}
	body := map[string]any{
		"model": "penstock-tiny", "prompt": prompt, "max_tokens": maxTokens, "ignore_eos": true, "temperature": 0,
	}
	if i%2 == 1 {
		body["temperature"], body["seed"], body["top_p"], body["frequency_penalty"] = 1.1, i, 0.95, 0.5
	}
	return body
}

// TestSameTokensUnderPreemption: what a request gets alone it gets in a crowd that
// does not fit the cache, whatever the sizes of blocks and batches.
func TestSameTokensUnderPreemption(t *testing.T) {
	t.Parallel()
	const requests, tokens = 32, 64
	want := make([]answer, requests)
	// A small model: the test is about batches and blocks, and computes every answer five times.
	small := []string{"model-path=" + ownCheckpoint(t), "served-model-name=penstock-tiny"}
	quiet := start(t, small...)
	for i := range want {
		want[i] = quiet.complete("/v1/completions", sampled(i, tokens))
		if want[i].status != 200 || want[i].output != tokens {
			t.Fatalf("request %d alone: %+v", i, want[i])
		}
	}
	for _, tc := range [][]string{
		// Room for 3 of the longest sequences per worker while 16 want to run.
		{"kv-cache-blocks=32", "max-num-seqs=16", "max-num-batched-tokens=32"},
		{"kv-cache-blocks=200", "kv-cache-block-size=2", "max-num-seqs=50", "max-num-batched-tokens=50"},
		{"kv-cache-blocks=8", "kv-cache-block-size=64", "max-num-seqs=9", "max-num-batched-tokens=9", "workers=4"},
		{"kv-cache-blocks=12", "max-num-seqs=1", "max-num-batched-tokens=1"},
	} {
		t.Run(strings.Join(tc, " "), func(t *testing.T) {
			s := start(t, append(tc, small...)...)
			var wg sync.WaitGroup
			for i := range requests {
				wg.Go(func() {
					got, err := s.stream(t.Context(), "/v1/completions", sampled(i, tokens))
					if err != nil || got.text != want[i].text || got.output != tokens || got.prompt != want[i].prompt {
						t.Errorf("request %d: %+v, %v\nalone: %+v", i, got, err, want[i])
					}
				})
			}
			wg.Wait()
			s.idle()
		})
	}
}

// TestCancelledRequestsLeaveNothing: requests that end while they are queued, in
// prefill or in decode leave no block, reservation, goroutine or memory behind.
func TestCancelledRequestsLeaveNothing(t *testing.T) {
	s := start(t, "kv-cache-blocks=96", "max-num-seqs=8", "max-num-batched-tokens=64", "max-waiting=512")
	storm := func() {
		var clients sync.WaitGroup
		for i := range 200 {
			clients.Go(func() {
				ctx, leave := context.WithTimeout(t.Context(), time.Duration(i*7%1000)*time.Millisecond)
				defer leave()
				body := sampled(i, 300)
				if i%3 == 0 {
					body["n"], body["temperature"] = 4, 0.7
				}
				// Few get as far as an answer; what becomes of the others is looked at below.
				_, _ = s.stream(ctx, "/v1/completions", body)
			})
		}
		clients.Wait()
		s.idle()
		s.client.CloseIdleConnections()
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	storm() // connections, pools and caches have grown
	before, goroutines := heap(), countGoroutines()
	for range 2 {
		storm()
	}
	s.goroutinesGone(goroutines)
	if after := heap(); after > before+8<<20 {
		t.Errorf("live heap grew from %d to %d KiB", before>>10, after>>10)
	}
}

// TestStopWithAWatcher: a stream of cache events has no end of its own, and does
// not hold up the end of the process for the drain timeout.
func TestStopWithAWatcher(t *testing.T) {
	s := start(t, "drain-timeout=24h")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/v1/router/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	select {
	case err := <-stopped:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(fixturetest.TimeLeft(t)):
		t.Error("it waits for the watcher")
		resp.Body.Close()
	}
}
