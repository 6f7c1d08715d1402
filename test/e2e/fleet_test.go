package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"penstock/internal/doctor"
	"penstock/internal/fixturetest"

	"penstock/internal/config"
	"penstock/internal/node"
	"penstock/internal/serve/worker"
)

// process is a process of one role, in the process of the test.
type process struct {
	server  // its HTTP, if it has any
	started node.Started
	ended   <-chan error // gets what it ended with
}

// starter is how package node runs a role.
type starter func(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready func(node.Started)) error

func roleOf(command config.Command) starter {
	switch command {
	case config.Frontend:
		return node.RunFrontend
	case config.Worker:
		return node.RunWorker
	case config.PlannerCommand:
		return node.RunPlanner
	case config.Up:
		return func(ctx context.Context, cfg *config.Loaded, stderr io.Writer, ready func(node.Started)) error {
			return node.RunUp(ctx, cfg, stderr, func(r node.Ready) { ready(node.Started{URL: r.URL}) })
		}
	}
	return node.RunRouter
}

// loadRole returns the settings of a process, given as "key=value".
func loadRole(t *testing.T, command config.Command, settings ...string) *config.Loaded {
	t.Helper()
	var env []string
	if command != config.Worker {
		env = append(env, routedByBlocks)
	}
	if command == config.Frontend {
		env = append(env, "PENSTOCK_HTTP_ADDR=127.0.0.1:0", "PENSTOCK_DRAIN_GRACE=0s", "PENSTOCK_ACCESS_LOG=off")
	}
	for _, s := range settings {
		if strings.HasPrefix(s, "OTEL_") { // of another program's settings
			env = append(env, s)
			continue
		}
		key, value, _ := strings.Cut(s, "=")
		env = append(env, config.EnvName(key)+"="+value)
	}
	cfg, err := config.Load("", env, config.NoFlags(command))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// launch runs a process until the test ends.
func launch(t *testing.T, command config.Command, settings ...string) *process {
	t.Helper()
	cfg := loadRole(t, command, settings...)
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{server: server{t: t, log: &logBuffer{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}}
	ready := make(chan node.Started, 1)
	ended := make(chan error, 1)
	p.ended = ended
	go func() { ended <- roleOf(command)(ctx, cfg, p.log, func(s node.Started) { ready <- s }) }()
	select {
	case p.started = <-ready:
		p.url = p.started.URL
	case err := <-ended:
		cancel()
		t.Fatalf("%s: %v\n%s", command, err, p.log)
	}
	p.stop = sync.OnceValue(func() error {
		p.client.CloseIdleConnections()
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Errorf("%s: %v\n%s", command, err, p.log)
		}
	})
	return p
}

// serves waits until a frontend serves a model with so many workers.
func (p *process) serves(model string, workers int) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("%s with %d workers", model, workers), func() bool {
		var health struct {
			Models []struct {
				ID      string
				Workers int
			}
		}
		_, data := p.do(http.MethodGet, "/health", nil)
		if err := json.Unmarshal(data, &health); err != nil {
			p.t.Fatalf("%v: %s", err, data)
		}
		for _, m := range health.Models {
			if m.ID == model {
				return m.Workers == workers
			}
		}
		return false
	})
}

// chatOf is a greedy request to a model.
func chatOf(model, prompt string, maxTokens int) map[string]any {
	body := chat(prompt, maxTokens)
	body["model"] = model
	return body
}

// TestFleet: two frontends, three workers of two models and a router, each a
// process of its own, give the answers of one process.
func TestFleet(t *testing.T) {
	t.Parallel()
	alone := start(t, "workers=1")
	want := map[int]string{}
	for i := range 4 {
		want[i] = alone.complete("/v1/chat/completions", chat(longPrompt(i), 12)).text
	}

	// The frontend is there before any worker: it serves none, and says so.
	first := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", "router-seed=1")
	if resp, data := first.do(http.MethodGet, "/health", nil); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("without workers /health is %s: %s", resp.Status, data)
	}
	if a := first.complete("/v1/chat/completions", chat("hello", 1)); a.status != http.StatusServiceUnavailable || !strings.Contains(a.err, "no model is being served yet") {
		t.Errorf("without workers: %+v", a)
	}
	nats := "nats=" + first.started.NATS
	workers := []*process{
		launch(t, config.Worker, nats),
		launch(t, config.Worker, nats),
		launch(t, config.Worker, nats, "served-model-name=other", "http-addr=127.0.0.1:0"),
	}
	router := launch(t, config.Router, nats, "http-addr=127.0.0.1:0")
	second := launch(t, config.Frontend, nats, "component=router")
	first.serves("penstock-tiny", 2)
	first.serves("other", 1)
	second.serves("penstock-tiny", 1)
	second.serves("other", 1)

	ids := map[string]bool{}
	for _, w := range workers {
		ids[fmt.Sprint(w.started.WorkerID)] = true
	}
	if len(ids) != 3 {
		t.Fatalf("the workers' ids are %v", ids)
	}
	for name, f := range map[string]*process{"beside workers": first, "behind a router": second} {
		var clients sync.WaitGroup
		for i := range 8 {
			clients.Go(func() {
				a, err := f.stream(t.Context(), "/v1/chat/completions", chat(longPrompt(i%4), 12))
				if err != nil || a.text != want[i%4] || a.output != 12 {
					t.Errorf("%s, prompt %d: %+v, %v, want %q", name, i%4, a, err, want[i%4])
				}
			})
		}
		clients.Wait()
		if a := f.complete("/v1/chat/completions", chatOf("other", longPrompt(0), 12)); a.status != http.StatusOK || a.text != want[0] {
			t.Errorf("%s, the other model: %+v", name, a)
		}
		if resp, data := f.do(http.MethodPost, "/v1/embeddings", map[string]any{"model": "other", "input": "water"}); resp.StatusCode != http.StatusOK {
			t.Errorf("%s, embeddings: %s %s", name, resp.Status, data)
		}
	}
	first.idle()

	// A prompt that one frontend sent to a worker is known to the other and to the router.
	held := first.complete("/v1/chat/completions", chat(longPrompt(9), 2))
	tokens := first.tokens(longPrompt(9))
	router.eventually("the router knows which worker holds the prompt", func() bool {
		for _, c := range explainTokens(&router.server, tokens) {
			if fmt.Sprint(c.WorkerID) == held.worker {
				return c.Overlap.Device == len(tokens)/16
			}
		}
		return false
	})
	router.idle() // it counts the first frontend's requests too, until it hears that they are over
	if a := second.complete("/v1/chat/completions", chat(longPrompt(9), 2)); a.cached < held.prompt-16 {
		t.Errorf("the other frontend: %+v, although %s holds the prompt", a, held.worker)
	}

	for path, want := range map[string]int{"/health": 200, "/live": 200, "/metrics": 200, "/v1/config": 200, "/v1/chat/completions": 404} {
		for _, p := range []*process{workers[2], router} {
			if resp, data := p.do(http.MethodGet, path, nil); resp.StatusCode != want {
				t.Errorf("%s %s: %s %.200s", p.started.Role, path, resp.Status, data)
			}
		}
	}
	if resp, data := router.do(http.MethodPost, "/v1/router/best_worker", map[string]any{"model": "other", "token_ids": []int{400, 401, 402}}); resp.StatusCode != 200 ||
		!strings.Contains(string(data), fmt.Sprint(workers[2].started.WorkerID)) {
		t.Errorf("best_worker: %s %s", resp.Status, data)
	}
}

// TestFleetWorkerComesBack: a worker that is restarted on its directory is the
// same instance in a later life, and its absence is no error but a pause.
func TestFleetWorkerComesBack(t *testing.T) {
	t.Parallel()
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
	nats, dir := "nats="+f.started.NATS, "data-dir="+filepath.Join(t.TempDir(), "worker")
	w := launch(t, config.Worker, nats, dir)
	f.serves("penstock-tiny", 1)
	want := f.complete("/v1/chat/completions", chat(longPrompt(1), 8))
	if want.status != http.StatusOK {
		t.Fatalf("%+v", want)
	}
	epoch := f.epochs()[0]
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	f.serves("penstock-tiny", 0)
	if a := f.complete("/v1/chat/completions", chat("hello", 1)); a.status != http.StatusServiceUnavailable || !strings.Contains(a.err, "no worker now") {
		t.Errorf("without its worker: %+v", a)
	}
	again := launch(t, config.Worker, nats, dir)
	f.serves("penstock-tiny", 1)
	if again.started.WorkerID != w.started.WorkerID {
		t.Errorf("it was worker %d and is %d", w.started.WorkerID, again.started.WorkerID)
	}
	if got := f.complete("/v1/chat/completions", chat(longPrompt(1), 8)); got.text != want.text || got.worker != want.worker || got.cached != 0 {
		t.Errorf("afterwards %+v, before %+v", got, want)
	}
	f.eventually("a later epoch", func() bool { e := f.epochs(); return len(e) == 1 && e[0] > epoch })
	other := launch(t, config.Worker, nats)
	f.serves("penstock-tiny", 2)
	if other.started.WorkerID == w.started.WorkerID {
		t.Error("two workers have one id")
	}
}

// TestFleetOneIDTwice: of two processes with one id the later takes the registration,
// and the earlier ends, with an error that says so, instead of running on unseen.
func TestFleetOneIDTwice(t *testing.T) {
	for _, command := range []config.Command{config.Worker, config.Router} {
		t.Run(string(command), func(t *testing.T) {
			t.Parallel()
			f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0", "component="+map[config.Command]string{config.Worker: "backend", config.Router: "router"}[command])
			nats := "nats=" + f.started.NATS
			if command == config.Router {
				launch(t, config.Worker, nats)
			}
			first := launch(t, command, nats, "worker-id=5")
			f.serves("penstock-tiny", 1)
			second := launch(t, command, nats, "worker-id=5")
			err := <-first.ended
			first.stop = func() error { return nil }
			if !errors.Is(err, worker.ErrReplaced) || !strings.Contains(err.Error(), "another --worker-id") {
				t.Errorf("the first ended with %v", err)
			}
			f.serves("penstock-tiny", 1)
			if a := f.complete("/v1/chat/completions", chat("hello", 1)); a.status != http.StatusOK {
				t.Errorf("afterwards: %+v", a)
			}
			select {
			case err := <-second.ended:
				second.stop = func() error { return nil }
				t.Errorf("the second ended with %v", err)
			default:
			}
		})
	}
}

// epochs returns the epochs of the workers' feeds, by worker.
func (p *process) epochs() []uint64 {
	p.t.Helper()
	var table struct {
		Rows []struct {
			Feed struct {
				Epoch uint64 `json:"epoch"`
			} `json:"feed"`
		} `json:"rows"`
	}
	p.get("/v1/router/workers", &table)
	var out []uint64
	for _, r := range table.Rows {
		out = append(out, r.Feed.Epoch)
	}
	return out
}

// TestFleetPlanes: requests travel over every plane, and processes on different
// ones are one fleet.
func TestFleetPlanes(t *testing.T) {
	t.Parallel()
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
	nats := "nats=" + f.started.NATS
	for _, plane := range []string{"tcp", "http", "nats"} {
		w := launch(t, config.Worker, nats, "request-plane="+plane, "served-model-name="+plane)
		if !strings.HasPrefix(w.started.Addr, plane+"://") {
			t.Errorf("the worker on %s is at %s", plane, w.started.Addr)
		}
	}
	want := ""
	for _, plane := range []string{"tcp", "http", "nats"} {
		f.serves(plane, 1)
		a, err := f.stream(t.Context(), "/v1/chat/completions", chatOf(plane, longPrompt(2), 10))
		if err != nil || a.output != 10 || want != "" && a.text != want {
			t.Errorf("over %s: %+v, %v, want %q", plane, a, err, want)
		}
		want = a.text
	}
	f.idle()
}

// TestFleetGuarded: with TLS, certificates on both sides and tokens the fleet
// works, and a process which lacks one of them is told what to do, or gets nothing.
func TestFleetGuarded(t *testing.T) {
	dir := t.TempDir()
	cert, key, token, other := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "token"), filepath.Join(dir, "other")
	certify(t, "host", cert, key)
	write(t, token, []byte("a-token-of-the-fleet\n"))
	write(t, other, []byte("another-token\n"))
	guard := []string{"rpc-tls-cert=" + cert, "rpc-tls-key=" + key, "rpc-tls-ca=" + cert, "rpc-token-file=" + token, "nats-token-file=" + token}
	f := launch(t, config.Frontend, append(guard, "nats-listen=127.0.0.1:0")...)
	nats := "nats=" + f.started.NATS
	for _, plane := range []string{"tcp", "http"} {
		launch(t, config.Worker, append(guard, nats, "request-plane="+plane, "served-model-name="+plane)...)
		f.serves(plane, 1)
		if a := f.complete("/v1/chat/completions", chatOf(plane, "hello", 3)); a.status != http.StatusOK || a.output != 3 {
			t.Errorf("over %s: %+v\n%s", plane, a, f.log)
		}
	}
	for name, wrong := range map[string][]string{
		"no token":        {"nats-token-file="},
		"another's token": {"nats-token-file=" + other},
	} {
		err := node.RunWorker(t.Context(), loadRole(t, config.Worker, append(wrong, nats)...), io.Discard, func(node.Started) { t.Error("ready") })
		if err == nil || !strings.Contains(err.Error(), "--nats-token-file") || strings.Contains(err.Error(), "another-token") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, lacks := range map[string][]string{
		"another's token": {"rpc-tls-cert=" + cert, "rpc-tls-key=" + key, "rpc-tls-ca=" + cert, "rpc-token-file=" + other},
		"no certificate":  {"rpc-tls-ca=" + cert, "rpc-token-file=" + token},
		"no TLS":          {"rpc-token-file=" + token},
	} {
		stranger := launch(t, config.Frontend, append(lacks, nats, "nats-token-file="+token, "migration-wait=0s")...)
		stranger.serves("tcp", 1)
		for _, model := range []string{"tcp", "http"} {
			if a := stranger.complete("/v1/chat/completions", chatOf(model, "hello", 1)); a.status < 400 {
				t.Errorf("%s, %s: %+v", name, model, a)
			}
		}
	}
}

// TestFleetWithoutNATS: discovery by a directory, and by a list of addresses.
func TestFleetWithoutNATS(t *testing.T) {
	dir := []string{"discovery=file", "discovery-dir=" + t.TempDir()}
	w := launch(t, config.Worker, dir...)
	listed := launch(t, config.Worker, "discovery=static", "served-model-name=listed")
	for name, f := range map[string]*process{
		"file":   launch(t, config.Frontend, dir...),
		"static": launch(t, config.Frontend, "discovery=static", "static-workers="+w.started.Addr+","+listed.started.Addr),
	} {
		f.serves("penstock-tiny", 1)
		if a := f.complete("/v1/chat/completions", chat("hello", 3)); a.status != http.StatusOK || a.output != 3 {
			t.Errorf("%s: %+v", name, a)
		}
		if name == "static" {
			f.serves("listed", 1)
		}
	}
}

// TestFleetOverZMQ: with a directory for discovery and ZeroMQ for events a fleet has
// all that it has with NATS but snapshots, and no server: routers know caches, those
// that start later too, and each other's requests.
func TestFleetOverZMQ(t *testing.T) {
	t.Parallel()
	plane := []string{"discovery=file", "discovery-dir=" + t.TempDir(), "event-plane=zmq"}
	first := launch(t, config.Frontend, plane...)
	for range 2 {
		launch(t, config.Worker, plane...)
	}
	second := launch(t, config.Frontend, plane...)
	for _, f := range []*process{first, second} {
		f.serves("penstock-tiny", 2)
	}
	want := first.complete("/v1/chat/completions", chat(longPrompt(1), 8))
	if want.status != http.StatusOK {
		t.Fatalf("%+v", want)
	}
	later := launch(t, config.Frontend, plane...)
	later.serves("penstock-tiny", 2)
	for _, f := range []*process{second, later} {
		f.eventually("the first one's cache is known", func() bool {
			var index struct {
				Blocks int  `json:"blocks"`
				Caught bool `json:"caught_up"`
			}
			f.get("/v1/router/index", &index)
			return index.Caught && index.Blocks >= want.prompt/16
		})
		f.idle() // it counts the first one's request too, until it hears that it is over
		if got := f.complete("/v1/chat/completions", chat(longPrompt(1), 8)); got.text != want.text || got.worker != want.worker || got.cached == 0 {
			t.Errorf("%+v, the first answer was %+v", got, want)
		}
	}
	first.eventually("two routers beside it", func() bool {
		var replicas struct{ Rows []struct{} }
		first.get("/v1/router/replicas", &replicas)
		return len(replicas.Rows) == 2
	})
	found := doctor.Examine(t.Context(), doctor.Examination{Config: loadRole(t, config.Frontend, plane...), Server: first.url, Timeout: fixturetest.TimeLeft(t) / 4})
	heard := false
	for _, f := range found {
		if f.Status == doctor.CheckFail {
			t.Errorf("%s: %s", f.Check, f.Detail)
		}
		heard = heard || f.Check == "event plane" && strings.Contains(f.Detail, "all 5 processes")
	}
	if !heard {
		t.Errorf("the event plane is not among %+v", found)
	}
}

// TestFleetKeepsToOneCard: of two workers that serve one name with other settings,
// and could not see each other, one gets all requests, and the other is named by
// the frontend and its router with what is other.
func TestFleetKeepsToOneCard(t *testing.T) {
	t.Parallel()
	a := launch(t, config.Worker, "discovery=static")
	b := launch(t, config.Worker, "discovery=static", "kv-cache-block-size=32")
	f := launch(t, config.Frontend, "discovery=static", "static-workers="+a.started.Addr+","+b.started.Addr)
	f.serves("penstock-tiny", 1)
	for _, path := range []string{"/health", "/v1/router/workers"} {
		f.eventually(path+" to name the other", func() bool {
			_, body := f.do(http.MethodGet, path, nil)
			return strings.Count(string(body), `"unfit"`) == 1 && strings.Contains(string(body), "block_size is ")
		})
	}
	for i := range 4 {
		if a := f.complete("/v1/chat/completions", chat(longPrompt(i), 3)); a.status != http.StatusOK || a.output != 3 {
			t.Errorf("%+v", a)
		}
	}
}

// TestFleetStartFailsWithAReason: what is wrong at the start is said with what to
// do about it.
func TestFleetStartFailsWithAReason(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write(t, file, []byte("two words\n"))
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
	nats := "nats=" + f.started.NATS
	dir := "data-dir=" + t.TempDir()
	launch(t, config.Worker, nats, dir)
	for name, tc := range map[string]struct {
		command  config.Command
		settings []string
		want     []string
	}{
		"no server at the URL": {config.Worker, []string{"nats=nats://user:secret@127.0.0.1:1", "nats-wait=1ms"}, []string{"127.0.0.1:1", "check that a NATS server runs there", "--nats-listen", "--nats-wait"}},
		"a token that is none": {config.Worker, []string{nats, "rpc-token-file=" + file}, []string{"rpc-token-file", "openssl rand"}},
		"no certificate":       {config.Router, []string{nats, "rpc-tls-ca=" + file}, []string{"rpc-tls-ca", "PEM"}},
		"a directory in use":   {config.Worker, []string{nats, dir}, []string{"in use by process", "choose another directory"}},
		"a router to itself":   {config.Router, []string{nats, "component=router"}, []string{"router-component", "choose another"}},
		"another model card":   {config.Worker, []string{nats, "kv-cache-block-size=32"}, []string{"block_size is 32 here and 16 at worker", "another name"}},
		"a wildcard address":   {config.Worker, []string{nats, "rpc-addr=0.0.0.0:0"}, []string{"listens on every address", "advertise"}},
	} {
		err := roleOf(tc.command)(t.Context(), loadRole(t, tc.command, tc.settings...), io.Discard, func(node.Started) { t.Errorf("%s: ready", name) })
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v\nlacks %q", name, err, want)
			}
		}
	}
}

// TestFleetResetRefusedBeforeItServes: a frontend or router that may not throw the states
// away ends, and was at no time ready. Alone it throws them away and serves.
func TestFleetResetRefusedBeforeItServes(t *testing.T) {
	f := launch(t, config.Frontend, "nats-listen=127.0.0.1:0")
	nats := "nats=" + f.started.NATS
	for _, command := range []config.Command{config.Frontend, config.Router} {
		cfg := loadRole(t, command, nats, "router-reset-states=on", "drain-grace=1h")
		err := roleOf(command)(t.Context(), cfg, io.Discard, func(node.Started) { t.Errorf("%s: ready", command) })
		if err == nil || !strings.Contains(err.Error(), "1 other routers of penstock/backend") {
			t.Errorf("%s: %v", command, err)
		}
		launch(t, command, nats, "router-reset-states=on", "namespace=another-"+string(command))
	}
}
