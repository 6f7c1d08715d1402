package enginemock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/paged"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/sim"
	"penstock/internal/enginemock"
	"penstock/internal/fixturetest"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// pipeline is the built-in pipeline, opened once.
var pipeline = sync.OnceValues(func() (*prep.Pipeline, error) { return chat.Open(chat.Ref{Kind: "builtin"}) })

// shape is the shape of the tests' simulated engines: small blocks and few of them, and no delays.
type shape struct {
	blocks, size, context int
	speedup               float64
	reuse                 paged.Switch
}

// opener makes simulated engines.
func opener(t testing.TB, sh shape) func(int) (engine.Engine, error) {
	t.Helper()
	pipe, err := pipeline()
	if err != nil {
		t.Fatal(err)
	}
	builtin, err := token.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	timing, err := sim.PresetTiming("mocker")
	if err != nil {
		t.Fatal(err)
	}
	timing.Speedup = sh.speedup
	if timing.Speedup == 0 {
		timing.Speedup = 1000
	}
	encode := func(text string) []kv.Token { return pipe.Tokenizer.Encode(nil, text, prep.EncodeOptions{}) }
	return func(rank int) (engine.Engine, error) {
		eos, _ := builtin.EOS()
		return sim.New(sim.Config{
			Vocabulary: sim.Vocabulary{Size: pipe.Tokenizer.VocabSize(), Mask: builtin.MaskedIDs(), EOS: []kv.Token{eos}},
			Text:       sim.BuiltinText(encode), Output: 64, BlockSize: sh.size, Blocks: sh.blocks, ContextLength: sh.context,
			Timing: timing, Worker: uint64(rank), Reuse: sh.reuse,
		})
	}
}

// start runs a server until the test ends.
func start(t testing.TB, cfg enginemock.Config) *enginemock.Server {
	t.Helper()
	pipe, err := pipeline()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Open == nil {
		cfg.Open = opener(t, shape{})
	}
	if cfg.Pipe == nil {
		cfg.Pipe = pipe
	}
	s, err := enginemock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return s
}

// client has no kept-alive connections, so that no goroutine remains.
func client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
}

// ask sends a request and returns status, headers and body.
func ask(t testing.TB, s *enginemock.Server, method, path, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	res, err := do(context.Background(), s, method, path, body, headers...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return res.StatusCode, res.Header, string(data)
}

func do(ctx context.Context, s *enginemock.Server, method, path, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.URL()+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return client().Do(req)
}

// post sends a request and decodes the JSON of the answer.
func post(t testing.TB, s *enginemock.Server, path string, body any) map[string]any {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	status, _, text := ask(t, s, "POST", path, string(data))
	if status != http.StatusOK {
		t.Fatalf("POST %s: %d %s", path, status, text)
	}
	out := map[string]any{}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("POST %s: %v in %s", path, err, text)
	}
	return out
}

// events returns the data of a stream's events.
func events(t testing.TB, body string) []string {
	t.Helper()
	var out []string
	for _, e := range strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		if e == ":" {
			continue
		}
		data, ok := strings.CutPrefix(e, "data: ")
		if !ok {
			t.Fatalf("an event is %q", e)
		}
		out = append(out, data)
	}
	return out
}

// at returns a nested value of JSON by keys and indexes.
func at(t testing.TB, v any, path ...any) any {
	t.Helper()
	for i, p := range path {
		switch p := p.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok {
				t.Fatalf("%v of %v is no object", path[:i], v)
			}
			v = m[p]
		case int:
			l, ok := v.([]any)
			if !ok || p >= len(l) {
				t.Fatalf("%v of %v has no element %d", path[:i], v, p)
			}
			v = l[p]
		}
	}
	return v
}

// prompt is n tokens that depend on seed.
func prompt(seed, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = 300 + (seed*7919+i*31)%500
	}
	return out
}

// decoded is JSON with the values replaced that vary between runs.
func decoded(t testing.TB, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	if err := d.Decode(&out); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return out
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
