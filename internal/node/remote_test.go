package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/internal/enginemock/enginemocktest"
	"penstock/internal/node/engines"

	"penstock/internal/backoff"
	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
)

// openerOf opens the adapters of stubs.
func openerOf(s *enginemocktest.Stubs) engines.AdapterOpener {
	return func(_ context.Context, of *config.RemoteEngine, rank, ranks int, _ string, m *engines.RemoteModel, _ *slog.Logger) (engine.Engine, error) {
		return s.OpenStub(of, rank, ranks, m.Ref)
	}
}

// startUpWithStubs runs up with the stubs' engines until the end of the test, and returns what it announces
// once it is ready, or its error.
func startUpWithStubs(t *testing.T, s *enginemocktest.Stubs, env ...string) (Ready, *enginemocktest.LogBuffer, error) {
	t.Helper()
	cfg := enginemocktest.LoadSettings(t, config.Up, append([]string{"HTTP_ADDR=127.0.0.1:0"}, env...)...)
	ctx, cancel := context.WithCancel(context.Background())
	log := &enginemocktest.LogBuffer{}
	ready, ended := make(chan Ready, 1), make(chan error, 1)
	go func() {
		ended <- runRole(ctx, cfg, log, func(p *process) role {
			p.supervision.OpenAdapter = openerOf(s)
			return newUpRole(p, func(r Ready) { ready <- r })
		})
	}()
	select {
	case r := <-ready:
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("%v\n%s", err, log)
			}
		})
		return r, log, nil
	case err := <-ended:
		cancel()
		return Ready{}, log, err
	}
}

// answerFrom asks for a completion and returns the worker that gave it.
func answerFrom(t *testing.T, url, model string) (worker string) {
	t.Helper()
	resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model": %q, "prompt": "Where does the water go", "max_tokens": 3}`, model)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var b bytes.Buffer
		_, _ = b.ReadFrom(resp.Body)
		t.Fatalf("%s answers %s: %s", model, resp.Status, &b)
	}
	return resp.Header.Get("x-penstock-worker")
}

// TestUpInFrontOfEngines: running engines are served as soon as they answer, each with its own model. One
// that is down does not delay the others and is added later, and its problem is reported.
func TestUpInFrontOfEngines(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048}`, "")
	a, b, c := enginemocktest.StartFakeEngine(t, "m", dir), enginemocktest.StartFakeEngine(t, "m", dir), enginemocktest.StartFakeEngine(t, "other", dir)
	b.Loading.Store(true)
	s := &enginemocktest.Stubs{Change: func(of *config.RemoteEngine, s *enginemocktest.StubAdapter) {
		if of.Name == "other" {
			s.Problems = []engine.Warning{{Code: engine.WarnNoEvents, Detail: "no events are configured", Remedy: "give events="}}
			s.ReportedCard.KVPredicted = true
		}
	}}
	r, log, err := startUpWithStubs(t, s, fmt.Sprintf("ENGINE=vllm=%s,vllm=%s,sglang=%s,name=other,ranks=2,model-path=%s", a.URL, b.URL, c.URL, dir))
	if err != nil {
		t.Fatal(err)
	}
	if r.Workers != 3 || r.Model != "m" || r.Engine != "vllm" || r.BlockSize != 16 || len(r.Engines) != 3 {
		t.Errorf("ready with %+v", r)
	}
	first, down, third := r.Engines[0], r.Engines[1], r.Engines[2]
	if first.State != engines.StateServing || first.Model != "m" || first.Events != engines.EventsYes || first.Tokenizer != dir || !slices.Equal(first.Workers, []uint64{1}) || !first.Chat {
		t.Errorf("the first engine: %+v", first)
	}
	if down.State != engines.StateWaiting || down.Detail != "loading (503)" || down.URL != b.URL {
		t.Errorf("the one that loads: %+v", down)
	}
	if third.State != engines.StateServing || third.Model != "other" || third.Events != engines.EventsGuessed || !slices.Equal(third.Workers, []uint64{3, 4}) || len(third.Warnings) != 2 {
		t.Errorf("the one with two ranks: %+v", third)
	}
	if text := metricsOf(t, r.URL); !strings.Contains(text, fmt.Sprintf(`penstock_engine_up{engine="vllm=%s"} 1`, a.URL)) || !strings.Contains(text, fmt.Sprintf(`penstock_engine_up{engine="vllm=%s"} 0`, b.URL)) || strings.Count(text, "penstock_engine_feed_gaps_total{") != 3 {
		t.Errorf("the metrics of engines are not as they should be:\n%s", text)
	}
	if got := enginesIn(t, r.URL+"/health"); len(got) != 3 || got[1].State != engines.StateWaiting || got[2].Warnings[0].Code != engine.WarnNoEvents {
		t.Errorf("/health has %+v", got)
	}
	if got := answerFrom(t, r.URL, "m"); got != "1" {
		t.Errorf("m was answered by worker %s", got)
	}
	if got := answerFrom(t, r.URL, "other"); got != "3" && got != "4" {
		t.Errorf("other was answered by worker %s", got)
	}
	waitFor(t, func() bool { return strings.Contains(log.String(), "no events are configured") })

	b.Loading.Store(false)
	waitFor(t, func() bool {
		resp, err := http.Get(r.URL + "/v1/router/workers")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var table struct {
			Rows []struct {
				ID    uint64 `json:"worker_id"`
				State string `json:"state"`
			} `json:"rows"`
		}
		return json.NewDecoder(resp.Body).Decode(&table) == nil && len(table.Rows) == 4 && table.Rows[1].ID == 2 && table.Rows[1].State == "ready"
	})
	if n := strings.Count(log.String(), "no events are configured"); n != 2 { // one for each rank
		t.Errorf("the warning is in the log %d times", n)
	}
}

// TestPathsAreNoNames: engines which clients know by one name serve one model, whatever their own names are.
func TestPathsAreNoNames(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048}`, "")
	a, b := enginemocktest.StartFakeEngine(t, "m", dir), enginemocktest.StartFakeEngine(t, "m", dir)
	s := &enginemocktest.Stubs{Change: func(of *config.RemoteEngine, s *enginemocktest.StubAdapter) {
		s.ReportedCard.Aliases = []string{of.URL.Path + "/models/" + of.URL.Port()}
	}}
	r, _, err := startUpWithStubs(t, s, "ENGINE=sglang="+a.URL+",name=x,sglang="+b.URL+",name=x")
	if err != nil || r.Workers != 2 {
		t.Fatalf("%+v %v", r, err)
	}
	resp, err := http.Get(r.URL + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || strings.Contains(string(text), "/models/") || !strings.Contains(string(text), `"x"`) {
		t.Errorf("%s (%v)", text, err)
	}
}

// metricsOf returns the metrics of engines.
func metricsOf(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var all, engines strings.Builder
	if _, err := io.Copy(&all, resp.Body); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(all.String()) {
		if strings.HasPrefix(line, "penstock_engine_") {
			engines.WriteString(line)
		}
	}
	return engines.String()
}

// enginesIn returns the engines that /health lists.
func enginesIn(t *testing.T, url string) []engines.Status {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var h struct {
		Engines []engines.Status `json:"engines"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&h); err != nil {
		t.Fatal(err)
	}
	return h.Engines
}

// waitFor waits until ok reports true.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixturetest.TimeLeft(t))
	defer cancel()
	if err := backoff.Poll(ctx, time.Millisecond, ok); err != nil {
		t.Fatal(err)
	}
}

// TestEnginesThatCannotBeServed: a wrong setting of an engine ends the process at the start, with a remedy.
func TestEnginesThatCannotBeServed(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048}`, "")
	for name, c := range map[string]struct {
		env     func(a, b string) string
		stub    func(of *config.RemoteEngine, s *enginemocktest.StubAdapter)
		refuse  func(of *config.RemoteEngine) error
		prepare func(o *enginemocktest.FakeEngine)
		want    string
	}{
		"another tokenizer": {
			env:  func(a, _ string) string { return "vllm=" + a },
			stub: func(_ *config.RemoteEngine, s *enginemocktest.StubAdapter) { s.Shift = 1 },
			want: "is not the engine's",
		},
		"no tokenizer for tokens": {
			env:     func(a, _ string) string { return "vllm=" + a + ",mode=tokens" },
			prepare: func(o *enginemocktest.FakeEngine) { o.Models = `{"data":[{"id":"m","root":"org/model"}]}` },
			want:    "mode=tokens needs the model's tokenizer",
		},
		"a key": {
			env:     func(a, _ string) string { return "vllm=" + a },
			prepare: func(o *enginemocktest.FakeEngine) { o.Key = "k" },
			want:    "put that into a file and name it with api-key-file=FILE",
		},
		"not an engine": {
			env:     func(a, _ string) string { return "vllm=" + a + "/elsewhere" },
			prepare: func(o *enginemocktest.FakeEngine) {},
			want:    "is the path of the URL right",
		},
		"two cards of one name": {
			env:  func(a, b string) string { return "vllm=" + a + ",vllm=" + b + ",block-size=32" },
			want: "block_size is",
		},
		"the adapter refuses": {
			env: func(a, _ string) string { return "llamacpp=" + a },
			refuse: func(*config.RemoteEngine) error {
				return errors.New("its blocks have 32 tokens; give block-size=32")
			},
			want: "give block-size=32",
		},
		"different ranks": {
			env:  func(a, _ string) string { return "vllm=" + a + ",api-key-file=" + dir + "/none" },
			want: "api-key-file",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := enginemocktest.StartFakeEngine(t, "m", dir), enginemocktest.StartFakeEngine(t, "m", dir)
			if c.prepare != nil {
				c.prepare(a)
			}
			_, log, err := startUpWithStubs(t, &enginemocktest.Stubs{Change: c.stub, Refuse: c.refuse}, "ENGINE="+c.env(a.URL, b.URL))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), a.URL) && name != "two cards of one name" {
				t.Errorf("%v, want %q\n%s", err, c.want, log)
			}
		})
	}
}

// TestNoEngineAnswers: a start without any engine ends after its time limit, as not ready.
func TestNoEngineAnswers(t *testing.T) {
	a := enginemocktest.StartFakeEngine(t, "m", "")
	a.Loading.Store(true)
	_, _, err := startUpWithStubs(t, &enginemocktest.Stubs{}, "ENGINE=vllm="+a.URL, "ENGINE_WAIT=1ms")
	if !errors.Is(err, config.ErrNotReady) || !strings.Contains(err.Error(), "vllm="+a.URL+": loading (503)") {
		t.Errorf("%v", err)
	}
}

// TestEngineIsStillOpened: the error of a start says of an engine which answers that it is being opened.
func TestEngineIsStillOpened(t *testing.T) {
	a := enginemocktest.StartFakeEngine(t, "m", "")
	cfg := enginemocktest.LoadSettings(t, config.Up, "ENGINE=vllm="+a.URL, "HTTP_ADDR=127.0.0.1:0", "ENGINE_WAIT=1ms")
	log := &enginemocktest.LogBuffer{}
	err := runRole(t.Context(), cfg, log, func(p *process) role {
		p.supervision.OpenAdapter = func(ctx context.Context, _ *config.RemoteEngine, _, _ int, _ string, _ *engines.RemoteModel, _ *slog.Logger) (engine.Engine, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return newUpRole(p, func(Ready) {})
	})
	if want := "vllm=" + a.URL + ": it answers, and is still being opened"; !errors.Is(err, config.ErrNotReady) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q\n%s", err, want, log)
	}
}

// TestEngineThatReturnsAsAnother: an engine which answers while its adapter considers it unreachable is
// reopened.
func TestEngineThatReturnsAsAnother(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048}`, "")
	a := enginemocktest.StartFakeEngine(t, "m", dir)
	var opened atomic.Int32
	s := &enginemocktest.Stubs{Change: func(_ *config.RemoteEngine, s *enginemocktest.StubAdapter) {
		if opened.Add(1) == 1 {
			s.Problems = []engine.Warning{{Code: engine.WarnUnreachable, Detail: "another model"}}
		}
	}}
	cfg := enginemocktest.LoadSettings(t, config.Up, "ENGINE=vllm="+a.URL, "HTTP_ADDR=127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log, ended := &enginemocktest.LogBuffer{}, make(chan error, 1)
	go func() {
		ended <- runRole(ctx, cfg, log, func(p *process) role {
			p.supervision.OpenAdapter = openerOf(s)
			p.supervision.ReturnInterval = time.Millisecond
			return newUpRole(p, func(Ready) {})
		})
	}()
	waitFor(t, func() bool { return opened.Load() == 2 && strings.Contains(log.String(), "the engine serves") })
	if !strings.Contains(log.String(), "it is opened again") || strings.Contains(log.String(), "cannot be used") {
		t.Error(log)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestStopWhileEnginesLoad: stopping a process that waits for engines does not wait for them.
func TestStopWhileEnginesLoad(t *testing.T) {
	a := enginemocktest.StartFakeEngine(t, "m", "")
	a.Loading.Store(true)
	cfg := enginemocktest.LoadSettings(t, config.Up, "ENGINE=vllm="+a.URL, "HTTP_ADDR=127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended, made := make(chan error, 1), make(chan *upRole, 1)
	go func() {
		ended <- runRole(ctx, cfg, &enginemocktest.LogBuffer{}, func(p *process) role {
			u := newUpRole(p, func(Ready) { t.Error("it is ready without an engine") })
			return builtRole{u, func() { made <- u }}
		})
	}()
	u := <-made
	waitFor(t, func() bool { return u.remoteEngines.Statuses()[0].State == engines.StateWaiting })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// builtRole is a role that reports when it has been built.
type builtRole struct {
	role
	tell func()
}

func (b builtRole) buildServices() error {
	defer b.tell()
	return b.role.buildServices()
}

// TestLateMistakeIsTriedAgain: an engine that appears late and cannot be served does not affect the others,
// and is added once it can.
func TestLateMistakeIsTriedAgain(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048}`, "")
	a, b := enginemocktest.StartFakeEngine(t, "m", dir), enginemocktest.StartFakeEngine(t, "m", dir)
	b.Loading.Store(true)
	var refused atomic.Int32
	s := &enginemocktest.Stubs{Refuse: func(of *config.RemoteEngine) error {
		if of.URL.String() == b.URL && refused.Add(1) == 1 {
			return errors.New("it is not what it was")
		}
		return nil
	}}
	r, log, err := startUpWithStubs(t, s, "ENGINE=vllm="+a.URL+",vllm="+b.URL)
	if err != nil {
		t.Fatal(err)
	}
	b.Loading.Store(false)
	waitFor(t, func() bool { return strings.Contains(log.String(), "it is not what it was") })
	answerFrom(t, r.URL, "m")
	waitFor(t, func() bool { return strings.Count(log.String(), "the engine serves") == 2 })
}

// TestWorkerInFrontOfEngine: a worker serves all ranks of its engine, and reports them.
func TestWorkerInFrontOfEngine(t *testing.T) {
	dir := enginemocktest.WriteCheckpoint(t, `{"vocab_size": 2048}`, "")
	a := enginemocktest.StartFakeEngine(t, "m", dir)
	s := &enginemocktest.Stubs{}
	cfg := enginemocktest.LoadSettings(t, config.Worker, "ENGINE=vllm="+a.URL+",ranks=3", "NATS_LISTEN=127.0.0.1:0", "HTTP_ADDR=127.0.0.1:0", "WORKER_ID=77")
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan Started, 1), make(chan error, 1)
	go func() {
		ended <- runRole(ctx, cfg, &enginemocktest.LogBuffer{}, func(p *process) role {
			p.supervision.OpenAdapter = openerOf(s)
			return &workerRole{process: p, ready: func(s Started) { started <- s }}
		})
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	var is Started
	select {
	case is = <-started:
	case err := <-ended:
		t.Fatal(err)
	}
	if is.WorkerID != 77 || is.Model != "m" || is.Addr == "" || len(is.Engines) != 1 || len(is.Engines[0].Workers) != 3 || is.Engines[0].Workers[0] != 77 {
		t.Errorf("%+v", is)
	}
	if !slices.Equal(s.Made, []string{"vllm 0/3", "vllm 1/3", "vllm 2/3"}) {
		t.Errorf("adapters: %q", s.Made)
	}
	resp, err := http.Get(is.URL + "/health")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var h workerHealth
	if err := json.NewDecoder(resp.Body).Decode(&h); err != nil || resp.StatusCode != http.StatusOK || h.Status != "ready" || h.Engine == nil || h.Engine.State != engines.StateServing {
		t.Errorf("%s %+v (%v)", resp.Status, h, err)
	}
}
