package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"penstock/internal/config"
	"penstock/internal/fixturetest"
	"penstock/internal/node"
)

// longPrompt returns a prompt of about 600 tokens, more than a step computes, that
// shares no block with the prompt of another seed.
func longPrompt(seed int) string {
	var b strings.Builder
	for i := range 20 {
		fmt.Fprintf(&b, "Note %d of book %d: the water rises, and gate %d stays shut. ", i, seed, (i*7+seed)%13)
	}
	return b.String()
}

// chat is a greedy request.
func chat(prompt string, maxTokens int) map[string]any {
	return map[string]any{
		"model": "penstock-tiny", "max_tokens": maxTokens, "temperature": 0,
		"messages": []map[string]string{{"role": "user", "content": prompt}},
	}
}

func TestSharedPrefixGoesToItsHolder(t *testing.T) {
	s := start(t)
	blockSize := s.ready.BlockSize
	for seed := range 4 {
		prompt := longPrompt(seed)
		first := s.complete("/v1/chat/completions", chat(prompt, 8))
		if first.status != 200 || first.output != 8 {
			t.Fatalf("first answer: %+v", first)
		}
		full := first.prompt / blockSize
		held := func() bool {
			for _, c := range explain(s, prompt) {
				if fmt.Sprint(c.WorkerID) == first.worker {
					return c.Overlap.Device >= full
				}
			}
			return false
		}
		s.eventually("the router knows the blocks", held)
		second := s.complete("/v1/chat/completions", chat(prompt, 8))
		want := (first.prompt - 1) / blockSize * blockSize
		if second.worker != first.worker || second.cached != want || second.text != first.text {
			t.Errorf("prompt %d: first %+v, second %+v, want worker %s and %d cached tokens", seed, first, second, first.worker, want)
		}
		if second.overlap != fmt.Sprint(full) {
			t.Errorf("prompt %d: overlap header %q, want %d", seed, second.overlap, full)
		}
	}
	s.idle()
}

type candidate struct {
	WorkerID uint64 `json:"worker_id"`
	Overlap  struct {
		Device int `json:"device"`
	} `json:"overlap_blocks"`
	Cost              float64 `json:"cost"`
	EmbeddingAffinity float64 `json:"embedding_affinity"`
}

func explain(s *server, prompt string) []candidate {
	s.t.Helper()
	return explainOf(s, map[string]any{
		"model": "penstock-tiny", "messages": []map[string]string{{"role": "user", "content": prompt}},
	})
}

// explainTokens is explain for a router without a tokenizer.
func explainTokens(s *server, tokens []int) []candidate {
	s.t.Helper()
	return explainOf(s, map[string]any{"model": "penstock-tiny", "token_ids": tokens})
}

func explainOf(s *server, question map[string]any) []candidate {
	s.t.Helper()
	resp, data := s.do(http.MethodPost, "/v1/router/explain", question)
	var e struct {
		Candidates []candidate `json:"candidates"`
	}
	if err := json.Unmarshal(data, &e); err != nil || resp.StatusCode != 200 {
		s.t.Fatalf("explain: %s %v: %s", resp.Status, err, data)
	}
	return e.Candidates
}

// tokens returns the tokens of a conversation of one message.
func (s *server) tokens(prompt string) []int {
	s.t.Helper()
	resp, data := s.do(http.MethodPost, "/tokenize", map[string]any{
		"model": "penstock-tiny", "messages": []map[string]string{{"role": "user", "content": prompt}},
	})
	var out struct {
		Tokens []int `json:"tokens"`
	}
	if err := json.Unmarshal(data, &out); err != nil || resp.StatusCode != 200 || len(out.Tokens) == 0 {
		s.t.Fatalf("tokenize: %s %v: %s", resp.Status, err, data)
	}
	return out.Tokens
}

func TestRandomModeIgnoresTheCache(t *testing.T) {
	s := start(t, "router-mode=random")
	prompt := longPrompt(1)
	seen := map[string]bool{}
	for range 24 {
		seen[s.complete("/v1/chat/completions", chat(prompt, 1)).worker] = true
	}
	if len(seen) != 2 {
		t.Errorf("24 requests for one prompt went to %v, want both workers", seen)
	}
}

func TestStreamFoldsToTheWhole(t *testing.T) {
	s := start(t)
	for _, body := range []map[string]any{
		chat("Tell me of rivers.", 40),
		{"model": "penstock-tiny", "prompt": "The mill", "max_tokens": 30, "temperature": 1.0, "seed": 11},
	} {
		path := "/v1/completions"
		if body["messages"] != nil {
			path = "/v1/chat/completions"
		}
		whole := s.complete(path, body)
		streamed, err := s.stream(t.Context(), path, body)
		if err != nil {
			t.Fatal(err)
		}
		if whole.text == "" || whole.text != streamed.text || whole.finish != streamed.finish || whole.output != streamed.output {
			t.Errorf("whole %+v\nstreamed %+v", whole, streamed)
		}
	}
}

func TestPinnedWorker(t *testing.T) {
	s := start(t)
	for _, id := range []string{"1", "2"} {
		if a := s.complete("/v1/chat/completions", chat("hello", 1), "x-worker-instance-id", id); a.worker != id {
			t.Errorf("pinned to %s, served by %q: %+v", id, a.worker, a)
		}
	}
	if a := s.complete("/v1/chat/completions", chat("hello", 1), "x-worker-instance-id", "99"); a.status < 400 || a.err == "" {
		t.Errorf("a worker that does not exist: %+v", a)
	}
}

func TestBadInputLeavesNothingBehind(t *testing.T) {
	s := start(t, "max-body-bytes=4194304")
	chatBody := func(extra string) string {
		return `{"model":"penstock-tiny","messages":[{"role":"user","content":"hi"}]` + extra + `}`
	}
	for _, tc := range []struct {
		name, path string
		body       any
		status     int
		want       string
	}{
		{"malformed JSON", "/v1/chat/completions", `{"model":`, 400, "JSON"},
		{"wrong type", "/v1/chat/completions", chatBody(`,"max_tokens":"many"`), 400, "max_tokens"},
		{"unknown model", "/v1/chat/completions", `{"model":"gpt-9","messages":[{"role":"user","content":"hi"}]}`, 404, "penstock-tiny"},
		{"prompt over the context", "/v1/completions", map[string]any{"model": "penstock-tiny", "prompt": strings.Repeat("river ", 20000)}, 400, "8192"},
		{"negative max_tokens", "/v1/chat/completions", chatBody(`,"max_tokens":-1`), 400, "max_tokens"},
		{"body too large", "/v1/chat/completions", io.LimitReader(spaces{}, 60<<20), 413, "4194304"},
		{"invalid UTF-8", "/v1/chat/completions", "{\"model\":\"penstock-tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400, "UTF-8"},
		{"unknown role", "/v1/chat/completions", `{"model":"penstock-tiny","messages":[{"role":"king","content":"hi"}]}`, 400, "role"},
		{"unknown path", "/v1/nothing", `{}`, 404, "/v1/nothing"},
		{"token outside the vocabulary", "/v1/completions", `{"model":"penstock-tiny","prompt":[1,999999]}`, 400, "999999"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			resp, data := s.do(http.MethodPost, tc.path, tc.body)
			var e struct {
				Error struct {
					Message, Type string
				} `json:"error"`
			}
			if err := json.Unmarshal(data, &e); err != nil {
				t.Fatalf("%s: not JSON: %.200s", resp.Status, data)
			}
			if resp.StatusCode != tc.status || !strings.Contains(e.Error.Message, tc.want) || e.Error.Type == "" {
				t.Errorf("%s: %.300s; want %d and %q", resp.Status, data, tc.status, tc.want)
			}
			if resp.Header.Get("x-penstock-worker") != "" {
				t.Errorf("a request that was never routed names a worker")
			}
		})
	}
	s.idle()
}

// spaces reads as blanks without end.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestClientThatLeavesFreesItsBlocks(t *testing.T) {
	s := start(t)
	s.idle()
	for range 3 {
		ctx, leave := context.WithCancel(t.Context())
		body := chat(longPrompt(7), 4000)
		body["ignore_eos"] = true
		done := make(chan error, 1)
		go func() {
			_, err := s.stream(ctx, "/v1/chat/completions", body)
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
			t.Error("the stream ended before the client left")
		}
		s.idle()
	}
}

func TestManyClients(t *testing.T) {
	s := start(t)
	s.complete("/v1/chat/completions", chat("warm up", 4))
	s.client.CloseIdleConnections()
	runtime.GC()
	before := countGoroutines()
	const clients, rounds = 64, 2
	var wg sync.WaitGroup
	errs := make(chan error, clients*rounds)
	for c := range clients {
		wg.Go(func() {
			for r := range rounds {
				a, err := s.stream(t.Context(), "/v1/chat/completions", chat(fmt.Sprintf("client %d of group %d, round %d", c, c%5, r), 6))
				if err != nil || a.status != 200 || a.output != 6 {
					errs <- fmt.Errorf("client %d: %+v: %w", c, a, err)
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	s.idle()
	s.client.CloseIdleConnections()
	s.goroutinesGone(before)
}

func TestDrainFinishesWhatRuns(t *testing.T) {
	s := start(t)
	type result struct {
		a   answer
		err error
	}
	done := make(chan result, 1)
	go func() {
		body := chat(longPrompt(3), 60)
		body["ignore_eos"] = true
		a, err := s.stream(context.Background(), "/v1/chat/completions", body)
		done <- result{a, err}
	}()
	s.eventually("the request runs", func() bool {
		rows := s.workers()
		return rows[0].Load.ActiveRequests+rows[1].Load.ActiveRequests > 0
	})
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.err != nil || r.a.err != "" || r.a.output != 60 {
		t.Errorf("the running request: %+v", r)
	}
}

// TestStopDoesNotWaitForWatchers: a stream of events ends by nothing but its
// client, so it is no request whose end the drain waits for.
func TestStopDoesNotWaitForWatchers(t *testing.T) {
	s := start(t, "workers=1", "drain-timeout=1h")
	ctx, cancel := context.WithTimeout(t.Context(), fixturetest.TimeLeft(t))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/v1/router/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if ctx.Err() != nil {
		t.Error("the server waited until its client had left")
	}
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Errorf("the stream did not end by itself: %v", err)
	}
}

func TestObservability(t *testing.T) {
	s := start(t)
	s.complete("/v1/chat/completions", chat(longPrompt(2), 4))
	_, metrics := s.do(http.MethodGet, "/metrics", nil)
	for _, name := range []string{
		"penstock_frontend_requests_total", "penstock_frontend_time_to_first_token_seconds", "penstock_frontend_cached_tokens_total",
		"penstock_router_decision_seconds", "penstock_index_blocks", "penstock_worker_requests_total",
	} {
		if !strings.Contains(string(metrics), name) {
			t.Errorf("/metrics lacks %s", name)
		}
	}
	var rows struct {
		Rows []config.Setting `json:"rows"`
	}
	s.get("/v1/config", &rows)
	if len(rows.Rows) == 0 {
		t.Error("/v1/config is empty")
	}
	if strings.Contains(s.log.String(), "the water rises") {
		t.Error("a prompt is in the log")
	}
	for _, path := range []string{"/health", "/live", "/v1/models", "/v1/router/index"} {
		if resp, data := s.do(http.MethodGet, path, nil); resp.StatusCode != 200 || !json.Valid(data) {
			t.Errorf("%s: %s %s", path, resp.Status, data)
		}
	}
}

// up runs Penstock with settings that it cannot start with.
func up(t *testing.T, settings ...string) error {
	t.Helper()
	cfg, err := config.Load("", settings, nil)
	if err != nil {
		t.Fatal(err)
	}
	return node.RunUp(t.Context(), cfg, io.Discard, func(node.Ready) { t.Error("it became ready") })
}

func TestStartFailsWithAReason(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	broken := brokenCheckpoint(t)
	for _, tc := range []struct {
		name, want string
		settings   []string
	}{
		{"port in use", ln.Addr().String(), []string{"PENSTOCK_HTTP_ADDR=" + ln.Addr().String()}},
		{"unwritable data directory", file, []string{"PENSTOCK_HTTP_ADDR=127.0.0.1:0", "PENSTOCK_DATA_DIR=" + filepath.Join(file, "data")}},
		{"truncated safetensors", "model.safetensors", []string{"PENSTOCK_HTTP_ADDR=127.0.0.1:0", "PENSTOCK_MODEL_PATH=" + broken}},
		{"no checkpoint", "tokenizer.json", []string{"PENSTOCK_HTTP_ADDR=127.0.0.1:0", "PENSTOCK_MODEL_PATH=" + t.TempDir()}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := up(t, tc.settings...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("err = %v, want one that names %s", err, tc.want)
			}
		})
	}
}
