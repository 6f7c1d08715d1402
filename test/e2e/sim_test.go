package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"

	"penstock/internal/config"
)

// simulated is the name of the simulated engine's own model.
const simulated = "penstock-sim"

// TestSimulatedAnswers: the simulated engine answers like any other: readable text,
// the same for the same request, streamed or whole, at every worker, with its usage.
func TestSimulatedAnswers(t *testing.T) {
	t.Parallel()
	s := start(t, "engine=sim", "workers=3", "sim-speedup=100")
	if s.ready.Engine != "sim" || s.ready.Model != simulated || s.ready.Simulation != "mocker, 100 times as fast" || s.ready.Blocks != 65536 {
		t.Errorf("it says of itself %+v", s.ready)
	}
	text := func() map[string]any {
		return map[string]any{"model": simulated, "prompt": longPrompt(1), "max_tokens": 40, "temperature": 0}
	}
	for path, body := range map[string]func() map[string]any{
		"/v1/chat/completions": func() map[string]any { return chatOf(simulated, longPrompt(1), 40) },
		"/v1/completions":      text,
	} {
		first := s.complete(path, body())
		if first.status != http.StatusOK || first.output != 40 || first.finish != "length" || first.prompt < 300 {
			t.Fatalf("%s: %+v", path, first)
		}
		if words := strings.Fields(first.text); len(words) < 15 || !utf8.ValidString(first.text) || strings.ContainsRune(first.text, unicode.ReplacementChar) {
			t.Errorf("%s: %q is nothing to read", path, first.text)
		}
		streamed, err := s.stream(t.Context(), path, body())
		if err != nil || streamed.text != first.text || streamed.output != 40 || streamed.prompt != first.prompt {
			t.Errorf("%s streamed: %+v, %v, want %q", path, streamed, err, first.text)
		}
		for id := 1; id <= 3; id++ {
			if a := s.complete(path, body(), "x-worker-instance-id", fmt.Sprint(id)); a.text != first.text || a.worker != fmt.Sprint(id) {
				t.Errorf("%s at worker %d: %+v, want %q", path, id, a, first.text)
			}
		}
	}
	open := chatOf(simulated, "hello", 0)
	delete(open, "max_tokens")
	if a := s.complete("/v1/chat/completions", open); a.finish != "stop" || a.output < 2 || a.output > 10*256 {
		t.Errorf("without a limit: %+v", a)
	}
	s.idle()
}

// TestSimulatedEcho: the prompt comes back.
func TestSimulatedEcho(t *testing.T) {
	t.Parallel()
	s := start(t, "engine=sim", "workers=1", "sim-speedup=100", "sim-text=echo", "served-model-name=mirror")
	body := map[string]any{"model": "mirror", "prompt": "The water goes on.", "max_tokens": 64}
	if a := s.complete("/v1/completions", body); !strings.HasPrefix(a.text, "The water goes on.") {
		t.Errorf("echo: %+v", a)
	}
}

// TestSimulatedFleetSharesPrefixes: among 64 workers a prompt goes to the one that has
// its beginning, and what that one has is not computed again.
func TestSimulatedFleetSharesPrefixes(t *testing.T) {
	t.Parallel()
	const books = 12
	s := start(t, "engine=sim", "workers=64", "sim-speedup=100")
	holder := make([]answer, books)
	for i := range holder {
		holder[i] = s.complete("/v1/chat/completions", chatOf(simulated, longPrompt(i), 4))
	}
	spread := map[string]bool{}
	for i := range holder {
		spread[holder[i].worker] = true
		s.eventually("the router knows which worker has it", func() bool {
			for _, w := range s.workers() {
				if fmt.Sprint(w.WorkerID) == holder[i].worker {
					return w.CachedBlocks >= holder[i].prompt/16
				}
			}
			return false
		})
	}
	if len(spread) < books/2 {
		t.Errorf("%d prompts that share nothing went to %d of 64 workers", books, len(spread))
	}
	var clients sync.WaitGroup
	for i := range 3 * books {
		clients.Go(func() {
			first := holder[i%books]
			a, err := s.stream(t.Context(), "/v1/chat/completions", chatOf(simulated, longPrompt(i%books), 4))
			if err != nil || a.worker != first.worker || a.cached != (first.prompt-1)/16*16 || a.text != first.text {
				t.Errorf("book %d: %+v, %v, first %+v", i%books, a, err, first)
			}
		})
	}
	clients.Wait()
	s.idle()
}

// TestSimulatedTime: time passes by the model. Prompts that take a second each are
// overtaken by as many of the same length that are in the cache.
func TestSimulatedTime(t *testing.T) {
	t.Parallel()
	// 2 ms a token: 1.2 s for a prompt of 600, and at most 32 ms for what is not in full blocks. So many take half a
	// minute, and a second: a slow machine is not taken for a slow model.
	const prompts = 30
	s := start(t, "engine=sim", "workers=2", "sim-prefill=0,2", "sim-decode=1")
	cached := s.complete("/v1/chat/completions", chatOf(simulated, longPrompt(1), 2), "x-worker-instance-id", "1")
	if cached.output != 2 {
		t.Fatalf("the first answer: %+v", cached)
	}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		var fresh []string
		for i := range prompts {
			fresh = append(fresh, longPrompt(2+i))
		}
		_, err := s.stream(ctx, "/v1/completions", map[string]any{"model": simulated, "prompt": fresh, "max_tokens": 2, "nvext": map[string]any{"backend_instance_id": 2}})
		ended <- err
	}()
	s.eventually("the other prompts are computed", func() bool {
		for _, w := range s.workers() {
			if r := w.Load.Reported; r != nil && r.Running > 0 && w.WorkerID == 2 {
				return true
			}
		}
		return false
	})
	for i := range prompts {
		if a := s.complete("/v1/chat/completions", chatOf(simulated, longPrompt(1), 2)); a.cached != (a.prompt-1)/16*16 || a.worker != "1" {
			t.Errorf("answer %d: %+v", 2+i, a)
		}
	}
	select {
	case err := <-ended:
		t.Errorf("prompts that are computed were as fast as one in the cache: %v", err)
	default:
		leave()
		<-ended
	}
	leave()
}

// TestSimulatedStreamMoves: worker processes with simulated engines join a fleet, and
// a stream whose worker leaves goes on at another one as if nothing had happened.
func TestSimulatedStreamMoves(t *testing.T) {
	t.Parallel()
	front := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", "router-seed=1")
	workers := map[uint64]*process{}
	for range 2 {
		w := launch(t, config.Worker, "nats="+front.started.NATS, "engine=sim", "sim-prefill=1", "sim-decode=20", "served-model-name=llama,also", "drain-timeout=1ms")
		if w.started.Model != "llama" {
			t.Errorf("it serves %q", w.started.Model)
		}
		workers[uint64(w.started.WorkerID)] = w
	}
	front.serves("llama", 2)
	undisturbed := front.complete("/v1/chat/completions", chatOf("also", longPrompt(3), 100))
	if undisturbed.status != http.StatusOK || undisturbed.output != 100 {
		t.Fatalf("answer %+v", undisturbed)
	}
	front.idle()
	moved := make(chan answer, 1)
	go func() {
		a, err := front.stream(t.Context(), "/v1/chat/completions", chatOf("llama", longPrompt(3), 100))
		if err != nil {
			t.Errorf("the stream: %v", err)
		}
		moved <- a
	}()
	var serves uint64
	front.eventually("tokens of the stream are out", func() bool {
		for _, w := range front.workers() {
			if w.Load.ActiveRequests == 1 && w.Load.PrefillTokens == 0 {
				serves = w.WorkerID
				return true
			}
		}
		return false
	})
	if err := workers[serves].stop(); err != nil {
		t.Error(err)
	}
	if a := <-moved; a.text != undisturbed.text || a.output != 100 || a.finish != "length" || a.worker != fmt.Sprint(serves) {
		t.Errorf("the stream that began at worker %d: %+v, want %+v", serves, a, undisturbed)
	}
	if _, data := front.do(http.MethodGet, "/metrics", nil); !strings.Contains(string(data), "\npenstock_frontend_migrations_total{kind=\"ongoing_request\"} 1\n") {
		t.Error("no stream has moved with its tokens")
	}
}

// TestSimulatedPool: what one worker computed is copied into the pool that both share, the
// router hears of it, and the other worker fetches it in place of computing it. Experts that its
// blocks are labelled with are asked for in the same question: they are labels of the pooled blocks too, so the
// other worker also serves a request which demands them.
func TestSimulatedPool(t *testing.T) {
	t.Parallel()
	s := start(t, "engine=sim", "workers=2", "sim-speedup=100", "sim-cxl=7:4096:1ms", "sim-moe=1:4")
	first := s.complete("/v1/chat/completions", chatOf(simulated, longPrompt(1), 4), "x-worker-instance-id", "1")
	blocks := (first.prompt - 1) / 16
	s.eventually("the prompt is in the pool", func() bool {
		var index struct {
			Pools []struct {
				Pool   uint32 `json:"pool_id"`
				Pooled int    `json:"pooled_blocks"`
				Access []any  `json:"accessible_workers"`
			} `json:"pools"`
		}
		s.get("/v1/router/index", &index)
		return len(index.Pools) == 1 && index.Pools[0].Pool == 7 && index.Pools[0].Pooled >= blocks && len(index.Pools[0].Access) == 2
	})
	question := chatOf(simulated, longPrompt(1), 4)
	question["router_config_override"] = map[string]any{"moe_query": map[string]any{"layer_id": 0}}
	_, data := s.do(http.MethodPost, "/v1/router/explain", question)
	var ex struct {
		Candidates []struct {
			WorkerID uint64         `json:"worker_id"`
			Overlap  map[string]int `json:"overlap_blocks"`
			MoE      int            `json:"moe_scores"`
			CXL      int            `json:"cxl_accessible_scores"`
		} `json:"candidates"`
	}
	if err := json.Unmarshal(data, &ex); err != nil || len(ex.Candidates) != 2 {
		t.Fatalf("%v: %s", err, data)
	}
	for _, c := range ex.Candidates {
		if c.CXL < blocks || c.MoE < blocks || (c.WorkerID == 1) != (c.Overlap["device"] >= blocks) {
			t.Errorf("a prompt of %d blocks: %+v", blocks, c)
		}
	}
	strict := chatOf(simulated, longPrompt(1), 4)
	strict["nvext"] = map[string]any{
		"allowed_worker_ids":     []int{2},
		"router_config_override": map[string]any{"moe_query": map[string]any{"layer_id": 0, "fallback_to_unlabeled": false}},
	}
	other := s.complete("/v1/chat/completions", strict)
	if other.worker != "2" || other.cached != blocks*16 || other.text != first.text {
		t.Errorf("from the pool: %+v, computed: %+v", other, first)
	}
	s.idle()
}
