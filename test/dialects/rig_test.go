package dialects

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/sim"
	"penstock/internal/engine/tiny"
	"penstock/internal/enginemock"
	"penstock/internal/fixturetest"
	"penstock/internal/node"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

const blockSize = 16

// house is Penstock in front of servers of one dialect.
type house struct {
	t       *testing.T
	dialect enginemock.Dialect
	engines []*back
	url     string
	block   int // tokens of a block, as the router has them
	client  *http.Client
	log     *logBuffer
}

// back is one of those servers, with the engines that it had.
type back struct {
	*enginemock.Server
	die    context.CancelFunc // ends it for good
	faulty bool               // from its start
	mu     sync.Mutex
	last   engine.Engine
	// own are blocks that the adapter's own questions left in the first engine, where events do not tell of their salts.
	own   map[string]bool
	first engine.Engine
}

// now is the engine that the server has now.
func (b *back) now() engine.Engine {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

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

// plan is what a house is made of; zero fields are as usual.
type plan struct {
	servers  int // 2
	blocks   int // of each; 512
	speedup  float64
	tiny     bool // the engines compute, so that one goes on with what another one said
	mimic    func(*enginemock.Config)
	spec     string // of each engine, beside where it is
	sees     bool   // the model is one that shows images
	settings []string
}

// modelDir is a directory with the tokenizer and the facts of the built-in model.
func modelDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	builtin, err := token.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	tokenizer, tokenizerConfig := token.BuiltinFiles()
	for name, data := range map[string][]byte{
		"tokenizer.json": tokenizer, "tokenizer_config.json": tokenizerConfig, "config.json": fmt.Appendf(nil, `{"vocab_size":%d,"max_position_embeddings":4096}`, builtin.VocabSize()),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// serve starts one server.
func serve(t *testing.T, dialect enginemock.Dialect, dir string, p plan) *back {
	t.Helper()
	pipe, err := chat.Open(chat.Ref{Kind: "dir", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	timing, err := sim.PresetTiming("mocker")
	if err != nil {
		t.Fatal(err)
	}
	timing.Speedup = 100
	if p.speedup != 0 {
		timing.Speedup = p.speedup
	}
	blocks := 512
	if p.blocks != 0 {
		blocks = p.blocks
	}
	encode := func(text string) []kv.Token { return pipe.Tokenizer.Encode(nil, text, prep.EncodeOptions{}) }
	size := pipe.Tokenizer.VocabSize()
	b := &back{}
	cfg := enginemock.Config{
		Dialect: dialect, Pipe: pipe, Models: []string{"m"}, Root: dir, Seed: 5, KVEvents: "tcp://127.0.0.1:0", KVReplay: "tcp://127.0.0.1:0", Fetch: fetchFile,
		Open: func(int) (e engine.Engine, err error) {
			if p.tiny {
				e, err = tiny.New(t.Context(), tiny.Config{Name: "m", Vocabulary: tiny.Vocabulary{Size: size}, BlockSize: blockSize, Blocks: blocks})
			} else {
				e, err = sim.New(sim.Config{
					Name: "m", Vocabulary: sim.Vocabulary{Size: size}, Text: sim.BuiltinText(encode), BlockSize: blockSize, Blocks: blocks, ContextLength: 4096,
					Timing: timing, Output: 20,
				})
			}
			b.mu.Lock()
			b.last = e
			b.mu.Unlock()
			return e, err
		},
	}
	if dialect == enginemock.LlamaCPP || dialect == enginemock.TRTLLM {
		cfg.KVEvents, cfg.KVReplay = "", ""
	}
	if p.mimic != nil {
		p.mimic(&cfg)
	}
	b.faulty = len(cfg.Faults) > 0
	if b.Server, err = enginemock.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.die = cancel
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return b
}

// fetchFile fetches for a server, which has no guards of its own.
func fetchFile(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// spec is what up is told of a server.
func (b *back) spec(dialect enginemock.Dialect) string {
	s := strings.TrimSuffix(string(dialect), "-legacy") + "=" + b.URL()
	if at := b.EventsAddr(); at != "" {
		s += ",events=" + at
	}
	if at := b.ReplayAddr(); at != "" {
		s += ",replay=" + at
	}
	return s
}

// build starts a house.
func build(t *testing.T, dialect enginemock.Dialect, p plan) *house {
	t.Helper()
	h := &house{t: t, dialect: dialect, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, log: &logBuffer{}}
	dir := modelDir(t)
	if p.sees {
		openEyes(t, dir)
	}
	var specs []string
	for range cmp.Or(p.servers, 2) {
		b := serve(t, dialect, dir, p)
		h.engines = append(h.engines, b)
		specs = append(specs, b.spec(dialect)+p.spec)
	}
	// The prompts have some tens of tokens, which hardly matter in predicted times: mode kv counts blocks.
	env := []string{"PENSTOCK_HTTP_ADDR=127.0.0.1:0", "PENSTOCK_ROUTER_SEED=1", "PENSTOCK_ROUTER_MODE=kv", "PENSTOCK_ROUTER_PREDICTED_TTL=0s", "PENSTOCK_PROMPT_WAIT=1h", "PENSTOCK_MODEL_PATH=" + dir, "PENSTOCK_ENGINE=" + strings.Join(specs, ",")}
	for _, s := range p.settings {
		env = append(env, "PENSTOCK_"+s)
	}
	cfg, err := config.Load("", env, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan node.Ready, 1), make(chan error, 1)
	go func() { ended <- node.RunUp(ctx, cfg, h.log, func(r node.Ready) { ready <- r }) }()
	select {
	case r := <-ready:
		h.url, h.block = r.URL, r.BlockSize
	case err := <-ended:
		cancel()
		t.Fatalf("up: %v\n%s", err, h.log)
	case <-time.After(fixturetest.TimeLeft(t)):
		cancel()
		t.Fatalf("up does not become ready: %v\n%s", <-ended, h.log)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("up: %v\n%s", err, h.log)
		}
		if t.Failed() {
			t.Logf("the log:\n%s", h.log)
		}
	})
	if !slices.ContainsFunc(h.engines, func(b *back) bool { return b.faulty }) {
		h.proven()
		for _, b := range h.engines {
			if dialect == enginemock.TRTLLM {
				b.own, b.first = b.truth(t), b.now()
			}
		}
	}
	return h
}

// proven waits until it is known of each engine whether it keeps cache salts apart, so that no question of the adapters'
// own meets a fault of the test.
func (h *house) proven() {
	h.t.Helper()
	h.eventually(func() error {
		said := h.log.String()
		if n := strings.Count(said, "the engine keeps cache salts apart") + strings.Count(said, "requests with a cache salt are refused"); n < len(h.engines) {
			return fmt.Errorf("%d of %d engines are proven", n, len(h.engines))
		}
		return nil
	})
}

// answer is what came of a request.
type answer struct {
	id       string // that it has in the routers' books
	status   int
	worker   int // whose first it was, from 0
	expected int // tokens that the router predicts to be cached
	cached   int // as the engine reports
	text     string
	finish   string
	err      string
}

// ask sends a completion of token ids; each hears of every piece of a stream.
func (h *house) ask(prompt []int, tokens int, stream bool, each func()) answer {
	h.t.Helper()
	return h.askModel("m", prompt, tokens, stream, each)
}

// askModel is ask for a model by name.
func (h *house) askModel(model string, prompt []int, tokens int, stream bool, each func()) answer {
	h.t.Helper()
	return h.post("/v1/completions", map[string]any{
		"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "temperature": 0, "stream": stream, "stream_options": options(stream),
	}, each)
}

// post sends a request and returns the answer; each, which may be nil, hears of every piece of a stream.
func (h *house) post(path string, fields map[string]any, each func()) answer {
	h.t.Helper()
	body, err := json.Marshal(fields)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), fixturetest.TimeLeft(h.t))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+path, bytes.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	res, err := h.client.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	a := answer{status: res.StatusCode, id: res.Header.Get("x-request-id")}
	a.worker, _ = strconv.Atoi(res.Header.Get("x-penstock-worker"))
	a.worker--
	blocks, _ := strconv.Atoi(res.Header.Get("x-penstock-overlap-blocks"))
	a.expected = blocks * h.block
	if fields["stream"] != true || res.StatusCode != http.StatusOK {
		data, err := io.ReadAll(res.Body)
		if err != nil {
			h.t.Fatal(err)
		}
		a.fold(h.t, data)
		return a
	}
	in := bufio.NewScanner(res.Body)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		a.fold(h.t, []byte(data))
		if each != nil {
			each()
		}
	}
	if err := in.Err(); err != nil {
		a.err = err.Error()
	}
	return a
}

func options(stream bool) map[string]any {
	if !stream {
		return nil
	}
	return map[string]any{"include_usage": true}
}

func (a *answer) fold(t *testing.T, data []byte) {
	t.Helper()
	var c struct {
		Choices []struct {
			Text   string `json:"text"`
			Finish string `json:"finish_reason"`
		} `json:"choices"`
		Usage *struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
		Error *struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	for _, ch := range c.Choices {
		a.text += ch.Text
		if ch.Finish != "" {
			a.finish = ch.Finish
		}
	}
	if c.Usage != nil {
		a.cached = c.Usage.Details.Cached
	}
	if c.Error != nil {
		a.err = c.Error.Message
	}
}

// index is what the router knows of each worker.
func (h *house) index() []map[string]bool {
	h.t.Helper()
	res, err := h.client.Get(h.url + "/v1/router/index/dump")
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	out := make([]map[string]bool, len(h.engines))
	for i := range out {
		out[i] = map[string]bool{}
	}
	in := bufio.NewScanner(res.Body)
	for in.Scan() {
		var row struct {
			Worker int    `json:"worker_id"`
			Seq    string `json:"seq"`
		}
		if err := json.Unmarshal(in.Bytes(), &row); err != nil {
			h.t.Fatalf("%v: %s", err, in.Bytes())
		}
		if row.Worker >= 1 && row.Worker <= len(out) {
			out[row.Worker-1][row.Seq] = true
		}
	}
	return out
}

// truth is what a server's engine has, by its own account.
func (b *back) truth(t *testing.T) map[string]bool {
	t.Helper()
	e := b.now()
	enough := errors.New("enough")
	out := map[string]bool{}
	err := e.(engine.KVSource).WatchKV(t.Context(), func(events []kv.Event) error {
		for _, ev := range events {
			parent := ev.Parent
			for i, block := range ev.Blocks {
				parent = kv.ExtendSeq(parent, ev.Start+uint32(i), block)
				out[fmt.Sprintf("%016x", uint64(parent))] = true
			}
		}
		return enough
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	return out
}

// proofBlocks is how many blocks the proof of salts leaves in an engine: four under each of two salts.
const proofBlocks = 8

// fresh reports whether an engine, whose events do not tell of salts, was proven after own was noted, or that was not noted.
func (b *back) fresh(h *house) bool { return h.dialect == enginemock.TRTLLM && b.first != b.now() }

// settled waits until the router knows exactly what is cached.
func (h *house) settled() {
	h.t.Helper()
	h.eventually(func() error {
		index := h.index()
		for i, b := range h.engines {
			have, want := index[i], b.truth(h.t)
			maps.DeleteFunc(want, func(k string, _ bool) bool { return b.own[k] })
			maps.DeleteFunc(have, func(k string, _ bool) bool { return b.own[k] })
			if b.fresh(h) && within(have, want) && len(want)-len(have) == proofBlocks {
				continue
			}
			if !same(have, want) {
				return fmt.Errorf("worker %d: %d blocks are known, %d are cached", i+1, len(have), len(want))
			}
		}
		return nil
	})
}

func same(a, b map[string]bool) bool { return len(a) == len(b) && within(a, b) }

// within reports whether all of a is in b.
func within(a, b map[string]bool) bool {
	for k := range a {
		if !b[k] {
			return false
		}
	}
	return true
}

// eventually waits until f has nothing to say.
func (h *house) eventually(f func() error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), fixturetest.TimeLeft(h.t))
	defer cancel()
	var err error
	if backoff.Poll(ctx, 5*time.Millisecond, func() bool { err = f(); return err == nil }) != nil {
		h.t.Fatal(err)
	}
}

// prompt is n token ids that depend on seed.
func prompt(seed, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = 300 + (seed*7919+i*31)%900
	}
	return out
}

// get returns the body of a page.
func (h *house) get(path string) string {
	h.t.Helper()
	res, err := h.client.Get(h.url + path)
	if err != nil {
		h.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(data)
}
