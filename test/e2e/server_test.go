package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/backoff"
	"penstock/internal/config"
	"penstock/internal/fixturetest"
	"penstock/internal/node"
)

func TestMain(m *testing.M) {
	if settings := os.Getenv(workerProcessEnv); settings != "" {
		os.Exit(runWorkerProcess(strings.Split(settings, "\n")))
	}
	if os.Getenv(roleProcessEnv) != "" {
		os.Exit(runRoleProcess(os.Args[1:]))
	}
	fixturetest.RunTests(m)
}

// server is a running Penstock.
type server struct {
	t      *testing.T
	url    string
	client *http.Client
	ready  node.Ready
	log    *logBuffer
	stop   func() error // asks it to stop and waits
}

// logBuffer keeps what a server logs.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// routedByBlocks is the mode of the router unless a test sets another. Most tests count hits of prompts of some tens of
// tokens: mode kv counts blocks, while in predicted times so few tokens hardly matter.
const routedByBlocks = "PENSTOCK_ROUTER_MODE=kv"

// start runs Penstock with the given settings, as "key=value", until the test
// ends.
func start(t *testing.T, settings ...string) *server {
	t.Helper()
	env := []string{"PENSTOCK_HTTP_ADDR=127.0.0.1:0", "PENSTOCK_ROUTER_SEED=1", routedByBlocks}
	for _, s := range settings {
		key, value, _ := strings.Cut(s, "=")
		env = append(env, config.EnvName(key)+"="+value)
	}
	cfg, err := config.Load("", env, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{t: t, log: &logBuffer{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	ready := make(chan node.Ready, 1)
	ended := make(chan error, 1)
	go func() { ended <- node.RunUp(ctx, cfg, s.log, func(r node.Ready) { ready <- r }) }()
	select {
	case s.ready = <-ready:
		s.url = s.ready.URL
	case err := <-ended:
		cancel()
		t.Fatalf("up: %v\n%s", err, s.log)
	}
	s.stop = sync.OnceValue(func() error {
		s.client.CloseIdleConnections()
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("up: %v\n%s", err, s.log)
		}
	})
	return s
}

// do sends a request with an optional JSON body.
func (s *server) do(method, path string, body any, header ...string) (*http.Response, []byte) {
	s.t.Helper()
	var in io.Reader
	switch b := body.(type) {
	case nil:
	case io.Reader:
		in = b
	case string:
		in = strings.NewReader(b)
	default:
		data, err := json.Marshal(b)
		if err != nil {
			s.t.Fatal(err)
		}
		in = bytes.NewReader(data)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), fixturetest.TimeLeft(s.t))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, in)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp, data
}

// get decodes the JSON answer of a GET into out.
func (s *server) get(path string, out any) {
	s.t.Helper()
	resp, data := s.do(http.MethodGet, path, nil)
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("GET %s: %s: %s", path, resp.Status, data)
	}
	if err := json.Unmarshal(data, out); err != nil {
		s.t.Fatalf("GET %s: %v: %s", path, err, data)
	}
}

// answer is what the tests read of a completion, streamed or whole.
type answer struct {
	status  int
	worker  string // x-penstock-worker
	overlap string // x-penstock-overlap-blocks
	text    string
	finish  string
	prompt  int
	output  int
	cached  int
	err     string // error message, of a status or inside the stream
}

// completion is the JSON of a chunk or a whole answer.
type completion struct {
	Choices []struct {
		Index        int     `json:"index"`
		FinishReason *string `json:"finish_reason"`
		Text         string  `json:"text"`
		Delta        struct {
			Content string `json:"content"`
		} `json:"delta"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// fold adds the first choice of c to a.
func (a *answer) fold(c *completion) {
	for _, ch := range c.Choices {
		if ch.Index != 0 {
			continue
		}
		a.text += ch.Text + ch.Delta.Content + ch.Message.Content
		if ch.FinishReason != nil {
			a.finish = *ch.FinishReason
		}
	}
	if c.Usage != nil {
		a.prompt, a.output, a.cached = c.Usage.PromptTokens, c.Usage.CompletionTokens, c.Usage.Details.CachedTokens
	}
	if c.Error != nil {
		a.err = c.Error.Message
	}
}

// complete sends a whole completion request to path.
func (s *server) complete(path string, body map[string]any, header ...string) answer {
	s.t.Helper()
	resp, data := s.do(http.MethodPost, path, body, header...)
	a := answer{status: resp.StatusCode, worker: resp.Header.Get("x-penstock-worker"), overlap: resp.Header.Get("x-penstock-overlap-blocks")}
	var c completion
	if err := json.Unmarshal(data, &c); err != nil {
		s.t.Fatalf("%s: %v: %s", path, err, data)
	}
	a.fold(&c)
	return a
}

// stream sends a streamed request and folds its chunks; ctx may end it early.
func (s *server) stream(ctx context.Context, path string, body map[string]any) (answer, error) {
	body["stream"] = true
	body["stream_options"] = map[string]any{"include_usage": true}
	data, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(data))
	if err != nil {
		return answer{}, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, worker: resp.Header.Get("x-penstock-worker"), overlap: resp.Header.Get("x-penstock-overlap-blocks")}
	if resp.StatusCode != http.StatusOK {
		var c completion
		err := json.NewDecoder(resp.Body).Decode(&c)
		a.fold(&c)
		return a, err
	}
	done := false
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		chunk, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if chunk == "[DONE]" {
			done = true
			continue
		}
		var c completion
		if err := json.Unmarshal([]byte(chunk), &c); err != nil {
			return a, err
		}
		a.fold(&c)
	}
	if err := lines.Err(); err != nil {
		return a, err
	}
	if !done && a.err == "" {
		return a, io.ErrUnexpectedEOF
	}
	return a, nil
}

// workerRow is what the tests read of /v1/router/workers.
type workerRow struct {
	WorkerID     uint64 `json:"worker_id"`
	State        string `json:"state"`
	CachedBlocks int    `json:"cached_blocks"`
	Load         struct {
		ActiveRequests int `json:"active_requests"`
		ActiveBlocks   int `json:"active_blocks"`
		PrefillTokens  int `json:"prefill_tokens"`
		Reported       *struct {
			Running      int `json:"running"`
			Waiting      int `json:"waiting"`
			Encoding     int `json:"encoding"`
			UsedBlocks   int `json:"used_blocks"`
			CachedBlocks int `json:"cached_blocks"`
		} `json:"reported"`
	} `json:"load"`
	Feed struct {
		State string `json:"state"`
		Gaps  int    `json:"gaps"`
	} `json:"feed"`
}

func (s *server) workers() []workerRow {
	s.t.Helper()
	var table struct {
		Rows []workerRow `json:"rows"`
	}
	s.get("/v1/router/workers", &table)
	return table.Rows
}

// eventually asks until ok says yes: state that travels over the bus has no
// moment at which it must have arrived.
func (s *server) eventually(what string, ok func() bool) {
	s.t.Helper()
	if err := backoff.Poll(fixturetest.PatientContext(s.t), 5*time.Millisecond, ok); err != nil {
		s.t.Errorf("still not: %s\n%s", what, s.log)
		s.t.Fatalf("workers: %+v", s.workers()) // which may fail too
	}
}

// goroutinesGone waits until the process has hardly more goroutines than before, a number of countGoroutines.
func (s *server) goroutinesGone(before int) {
	s.t.Helper()
	gone := func() bool { return countGoroutines() <= before+10 }
	if err := backoff.Poll(fixturetest.PatientContext(s.t), 5*time.Millisecond, gone); err != nil {
		s.t.Fatalf("%d goroutines, before %d:\n%s", countGoroutines(), before, goroutineStacks())
	}
}

// countGoroutines counts the goroutines with a function of this repository or of net/http on their stacks. Others belong
// to the NATS server of this process, which starts some for each stream, and on a busy machine streams are made late.
func countGoroutines() (n int) {
	for stack := range bytes.SplitSeq(goroutineStacks(), []byte("\n\n")) {
		if bytes.Contains(stack, []byte("penstock/")) || bytes.Contains(stack, []byte("net/http.")) {
			n++
		}
	}
	return n
}

// goroutineStacks returns the stacks of all goroutines, as a panic shows them.
func goroutineStacks() []byte {
	stacks := make([]byte, 4<<20)
	return stacks[:runtime.Stack(stacks, true)]
}

// idle waits until no request is accounted for anywhere and no block is in use.
func (s *server) idle() {
	s.t.Helper()
	s.eventually("idle", func() bool {
		for _, w := range s.workers() {
			if w.Load.ActiveRequests != 0 || w.Load.ActiveBlocks != 0 || w.Load.PrefillTokens != 0 {
				return false
			}
			if r := w.Load.Reported; r == nil || r.Running != 0 || r.Waiting != 0 || r.UsedBlocks != 0 {
				return false
			}
		}
		return true
	})
}
