package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock/internal/enginemock/enginemocktest"
	"penstock/internal/node/engines"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/snapshot"
	"penstock/internal/catalog"
	"penstock/internal/config"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
	"penstock/internal/plane/rpc"
)

// findFinding returns the finding of a check, and fails unless there is exactly one.
func findFinding(t *testing.T, found []Finding, check string) Finding {
	t.Helper()
	var of []Finding
	for _, f := range found {
		if f.Check == check {
			of = append(of, f)
		}
	}
	if len(of) != 1 {
		t.Errorf("%s was checked %d times in %+v", check, len(of), found)
		return Finding{}
	}
	return of[0]
}

// checkFinding checks the outcome of a check, and that there is a remedy exactly if something is wrong.
func checkFinding(t *testing.T, found []Finding, check, status, words string) {
	t.Helper()
	f := findFinding(t, found, check)
	if f.Status != status || !strings.Contains(f.Detail, words) || (f.Remedy == "") != (status == CheckOK) {
		t.Errorf("%s: %+v, want %s with %q", check, f, status, words)
	}
}

// checkNoFinding checks that there is no finding of a check.
func checkNoFinding(t *testing.T, found []Finding, check string) {
	t.Helper()
	if slices.ContainsFunc(found, func(f Finding) bool { return f.Check == check }) {
		t.Errorf("%s was checked: %+v", check, found)
	}
}

// answerAt serves pings over TCP until the end of the test.
func answerAt(t *testing.T, plane rpc.Plane, pong engine.Pong) (addr string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, served := make(chan string, 1), make(chan error, 1)
	go func() {
		served <- plane.Serve(ctx, "127.0.0.1:0", func(_ context.Context, method string, _ []byte, send func([]byte) error) error {
			if method != engine.MethodPing {
				return fault.New(fault.Unimplemented, "only pings")
			}
			b, err := json.Marshal(pong)
			if err != nil {
				return err
			}
			return send(b)
		}, func(addr string) { ready <- addr })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return <-ready
}

// TestExamineFleet: every worker in discovery is checked, and a problem is attributed to its worker.
func TestExamineFleet(t *testing.T) {
	server, err := natsd.Start(natsd.Config{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, err := server.Connect("test")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cfg := enginemocktest.LoadSettings(t, config.Worker, "NATS="+server.URL(), "SERVED_MODEL_NAME=m")
	examine := func() []Finding {
		return Examine(t.Context(), Examination{Config: cfg, Timeout: fixturetest.TimeLeft(t) / 4})
	}

	// No process has registered yet, and the check does not change that.
	found := examine()
	checkFinding(t, found, "nats", CheckOK, "answers after")
	checkFinding(t, found, "jetstream", CheckOK, "0 streams")
	checkFinding(t, found, "discovery", CheckWarn, "no process has registered yet")
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.KeyValue(t.Context(), "penstock_discovery"); !errors.Is(err, jetstream.ErrBucketNotFound) {
		t.Errorf("the doctor made the bucket: %v", err)
	}

	registry, err := disco.NewNATSRegistry(conn, disco.NATSRegistryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	plane, err := rpc.NewTCPPlane(rpc.TCPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer plane.Close()
	began := uint64(time.Now().Add(-time.Hour).UnixMilli())
	here, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	host := "node-1" // of the next registration
	put := func(id kv.WorkerID, component, addr string, change func(*engine.Card)) {
		card := engine.Card{Name: "m", BlockSize: 32, Ranks: 1, ContextLength: 100, VocabSize: 32}
		change(&card)
		meta, err := engine.EncodeCard(card)
		if err != nil {
			t.Fatal(err)
		}
		if id == 6 {
			meta = []byte("{}")
		}
		_, err = registry.Register(t.Context(), disco.Instance{
			Kind: catalog.KindOf(card.Role), ID: id, Epoch: began, Namespace: "penstock", Component: component, Addr: addr, Host: host, PID: 7, Meta: meta,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	same := func(*engine.Card) {}
	pong := func(state string, epoch uint64) engine.Pong {
		return engine.Pong{LoadReport: engine.LoadReport{State: state, Epoch: epoch}}
	}
	nowhere := "tcp://" + fixturetest.ReserveAddr(t)
	put(1, "backend", answerAt(t, plane, pong(engine.StateReady, began)), same)
	put(2, "backend", answerAt(t, plane, pong(engine.StateReady, began)), func(c *engine.Card) { c.ContextLength = 99 })
	put(3, "backend", nowhere, same)
	put(9, "backend", answerAt(t, plane, pong(engine.StateReady, began+1)), same) // another worker's, at that port of this host
	host = here
	put(10, "backend", nowhere, same)
	put(4, "backend", answerAt(t, plane, pong(engine.StateReady, began+1)), same)
	put(5, "backend", answerAt(t, plane, pong(engine.StateDraining, began)), same)
	put(6, "backend", "tcp://127.0.0.1:1", same)
	put(7, "backend", "mem-1", func(c *engine.Card) { c.Name, c.Aliases = "n", []string{"large", "m"} })
	put(15, "backend", "mem-2", func(c *engine.Card) { c.Name, c.Aliases = "o", []string{"large"} })
	put(8, "other", nowhere, same)
	put(11, "backend", answerWithoutChecksums(t, pong(engine.StateReady, began)), same)

	put(12, "backend", answerAt(t, plane, pong(engine.StateReady, began)), func(c *engine.Card) { c.Role, c.BlockSize = engine.RolePrefill, 64 })
	put(13, "backend", answerAt(t, plane, pong(engine.StateReady, began)), func(c *engine.Card) { c.Role, c.Numerics = engine.RolePrefill, "other" })
	put(14, "backend", answerAt(t, plane, pong(engine.StateReady, began)), func(c *engine.Card) { c.Role = engine.RoleEncode })

	found = examine()
	checkFinding(t, found, "discovery", CheckOK, "14 workers are registered in namespace penstock, component backend")
	checkFinding(t, found, "worker 1", CheckOK, "node-1 (pid 7) for 1h0m")
	checkFinding(t, found, "worker 2", CheckFail, "context_length is 99 here and 100 there")
	checkFinding(t, found, "worker 3", CheckFail, "node-1 (pid 7) for 1h")
	checkFinding(t, found, "worker 3", CheckFail, "tells others the loopback address "+nowhere)
	checkFinding(t, found, "worker 9", CheckFail, "loopback address")
	checkFinding(t, found, "worker 10", CheckFail, "does not answer")
	checkFinding(t, found, "worker 4", CheckWarn, fmt.Sprintf("is in epoch %d, and discovery says %d", began+1, began))
	checkFinding(t, found, "worker 5", CheckWarn, "is draining")
	checkFinding(t, found, "worker 6", CheckFail, "its model card cannot be read")
	checkFinding(t, found, "worker 7", CheckOK, "within its process")
	checkNoFinding(t, found, "worker 8")
	checkFinding(t, found, "alias large", CheckWarn, "the models n and o are both called large: requests for it go to n")
	checkFinding(t, found, "alias m", CheckWarn, "the models m and n are both called m: requests for it go to m")
	checkFinding(t, found, "worker 12", CheckWarn, "role prefill serves nothing with this engine")
	checkFinding(t, found, "worker 13", CheckFail, `numerics is "other" here and "" there`)
	checkFinding(t, found, "worker 14", CheckWarn, "role encode serves nothing with this engine")
	checkFinding(t, found, "worker 11", CheckWarn, "its version has no checksums")
	checkFinding(t, found, "block size", CheckFail, "blocks of 32 tokens, and these settings say 16")
	checkFinding(t, found, "stream KV_penstock_discovery", CheckOK, "messages")
	checkFinding(t, found, "router snapshots", CheckOK, "there is none yet of penstock/backend")
	testSnapshots(t, conn, examine)

	// As the process that embeds that server, and as a frontend.
	cfg = enginemocktest.LoadSettings(t, config.Frontend, "NATS_LISTEN="+strings.TrimPrefix(server.URL(), "nats://"), "HTTP_ADDR=127.0.0.1:0")
	found = examine()
	checkFinding(t, found, "worker 1", CheckOK, "answers after")
	checkNoFinding(t, found, "block size")
}

// testSnapshots lets the doctor check snapshots in all their states.
func testSnapshots(t *testing.T, conn *nats.Conn, examine func() []Finding) {
	t.Helper()
	archive, err := bus.NewNATSArchive(conn, bus.ArchiveConfig{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := bus.NewNATSBus(conn, bus.NATSBusConfig{})
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, data []byte) {
		if err := archive.Put(t.Context(), "penstock.backend.snapshot."+name, data); err != nil {
			t.Fatal(err)
		}
	}
	taken := func(life, seq uint64) []byte {
		return snapshot.NewWriter(nil, snapshot.Header{StreamID: life, Seq: seq, Taken: time.Now().Add(-time.Minute).UnixMilli()}).Finish()
	}
	const check = "router snapshots"
	put("1", taken(5, 1))
	checkFinding(t, examine(), check, CheckWarn, "is of a stream that is not there any more")
	topic := bus.KVEventsTopic("penstock", "backend")
	for range 3 {
		if err := events.Publish(t.Context(), topic, "k", nil); err != nil {
			t.Fatal(err)
		}
	}
	span, err := events.DescribeTopic(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	put("2", taken(5, 1))
	checkFinding(t, examine(), check, CheckWarn, "is of a stream that is not there any more")
	put("3", taken(span.Incarnation, 9))
	checkFinding(t, examine(), check, CheckWarn, "ends at message 9; the stream has 1 to 3")
	put("4", taken(span.Incarnation, 2))
	found := examine()
	checkFinding(t, found, check, CheckOK, "taken 1m") // plus the time of the test
	checkFinding(t, found, check, CheckOK, "s ago; 1 messages came since")
	put("5", []byte("x"))
	checkFinding(t, examine(), check, CheckWarn, "the newest of 5 cannot be read")
}

// TestExamineWithoutServer: a missing NATS server is a failure, except for the process that would embed it.
func TestExamineWithoutServer(t *testing.T) {
	addr := fixturetest.ReserveAddr(t)
	found := Examine(t.Context(), Examination{Config: enginemocktest.LoadSettings(t, config.Frontend, "NATS=nats://user:hidden@"+addr, "HTTP_ADDR=127.0.0.1:0")})
	checkFinding(t, found, "nats", CheckFail, "check that a NATS server runs there")
	if b, err := json.Marshal(found); err != nil || strings.Contains(string(b), "hidden") {
		t.Errorf("the password is shown: %s", b)
	}
	found = Examine(t.Context(), Examination{Config: enginemocktest.LoadSettings(t, config.Frontend, "NATS_LISTEN="+addr, "HTTP_ADDR=127.0.0.1:0")})
	checkFinding(t, found, "nats-listen", CheckOK, "is free")
	checkNoFinding(t, found, "nats")
}

// TestExamineFiles: a discovery directory is read and not created.
func TestExamineFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	cfg := enginemocktest.LoadSettings(t, config.Frontend, "DISCOVERY=file", "DISCOVERY_DIR="+dir, "HTTP_ADDR=127.0.0.1:0")
	checkFinding(t, Examine(t.Context(), Examination{Config: cfg}), "discovery", CheckWarn, "is not there")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the doctor made the directory: %v", err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	checkFinding(t, Examine(t.Context(), Examination{Config: cfg}), "discovery", CheckFail, "not a directory")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	checkFinding(t, Examine(t.Context(), Examination{Config: cfg}), "discovery", CheckWarn, "no worker is registered in namespace penstock")
}

// TestExamineListed: an address of static discovery where no worker answers is named.
func TestExamineListed(t *testing.T) {
	const addr = "tcp://127.0.0.1:1" // which no test is given, as it may be given a port that was free a moment ago
	plane, err := rpc.NewTCPPlane(rpc.TCPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer plane.Close()
	there := answerAt(t, plane, engine.Pong{LoadReport: engine.LoadReport{State: engine.StateReady}})
	cfg := enginemocktest.LoadSettings(t, config.Frontend, "DISCOVERY=static", "STATIC_WORKERS="+addr+","+there, "HTTP_ADDR=127.0.0.1:0")
	found := Examine(t.Context(), Examination{Config: cfg})
	checkFinding(t, found, "worker at "+addr, CheckFail, "no answer")
	checkNoFinding(t, found, "worker at "+there)
}

// TestExamineServerWithoutNATS: a fleet without NATS has no cache events, and no worker is blamed for that.
func TestExamineServerWithoutNATS(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/router/workers" {
			fmt.Fprint(w, `{"rows":[{"worker_id":1,"state":"unconfirmed","feed":{"state":"waiting"}},{"worker_id":2,"state":"ready","feed":{"state":"resync"}}]}`)
			return
		}
		fmt.Fprint(w, `{"status":"healthy"}`)
	}))
	defer server.Close()
	cfg := enginemocktest.LoadSettings(t, config.Frontend, "DISCOVERY=file", "DISCOVERY_DIR="+t.TempDir(), "HTTP_ADDR=127.0.0.1:0")
	found := Examine(t.Context(), Examination{Config: cfg, Server: server.URL, Timeout: fixturetest.TimeLeft(t) / 4})
	checkNoFinding(t, found, "events of 1/0")
	checkNoFinding(t, found, "events of 2/0")
	checkFinding(t, found, "events", CheckOK, "without NATS there are none")
	if f := findFinding(t, found, "worker 1 rank 0"); !strings.Contains(f.Remedy, "--discovery-dir") {
		t.Errorf("the remedy of an unconfirmed worker is %q", f.Remedy)
	}
}

// TestExaminePorts: the finding of a busy port names its process.
func TestExaminePorts(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	addr := ln.Addr().String()
	cfg := enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR="+addr)
	ports := func() []Finding {
		d := &examiner{cfg: cfg, http: http.Client{Timeout: 100 * time.Millisecond}}
		d.checkPorts(t.Context())
		return d.findings
	}
	if runtime.GOOS == "linux" {
		// This process runs the same program as the doctor, as a running Penstock does.
		checkFinding(t, ports(), "http-addr", CheckOK, fmt.Sprintf("running Penstock (pid %d)", os.Getpid()))
	}
	// Frontends lend at rpc-addr, and workers receive at bulk-addr.
	for setting, command := range map[string]config.Command{"rpc-addr": config.Frontend, "bulk-addr": config.Worker} {
		env := strings.ReplaceAll(strings.ToUpper(setting), "-", "_") + "="
		d := &examiner{cfg: enginemocktest.LoadSettings(t, command, "NATS=nats://127.0.0.1:1", env+"127.0.0.1:0")}
		d.checkPorts(t.Context())
		checkFinding(t, d.findings, setting, CheckOK, "127.0.0.1:0 is free")
	}

	// Another program receives the socket.
	file, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	other := exec.CommandContext(ctx, "sleep", "60")
	other.ExtraFiles = []*os.File{file}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	file.Close()
	ln.Close()
	want := "is in use by another process"
	if runtime.GOOS == "linux" {
		want = fmt.Sprintf("(pid %d)", other.Process.Pid)
	}
	checkFinding(t, ports(), "http-addr", CheckFail, want)
	stop()
	_ = other.Wait() // it was killed
	checkFinding(t, ports(), "http-addr", CheckOK, "is free")

	cfg = enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR=203.0.113.1:8000") // an address of no machine
	checkFinding(t, ports(), "http-addr", CheckFail, "203.0.113.1:8000")
}

// TestExamineMachine: the needs of the settings are compared with the machine.
func TestExamineMachine(t *testing.T) {
	if engines.MemoryLimit() != 0 {
		cfg := enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR=127.0.0.1:0", "WORKERS=1024", "KV_CACHE_BLOCKS=16777216")
		checkFinding(t, Examine(t.Context(), Examination{Config: cfg}), "memory", CheckFail, "the engines reserve")
		cfg = enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR=127.0.0.1:0", "ENGINE=sim", "KV_CACHE_BLOCKS=10000")
		checkFinding(t, Examine(t.Context(), Examination{Config: cfg}), "memory", CheckOK, "take up to 9 MiB, with full caches")
		cfg = enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR=127.0.0.1:0", "ENGINE=sim", "WORKERS=1024", "KV_CACHE_BLOCKS=16777216")
		checkFinding(t, Examine(t.Context(), Examination{Config: cfg}), "memory", CheckWarn, "with full caches")
		checkpoint := t.TempDir()
		f, err := os.Create(filepath.Join(checkpoint, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(3<<20), f.Close()); err != nil { // a sparse file
			t.Fatal(err)
		}
		cfg = enginemocktest.LoadSettings(t, config.Worker, "NATS_LISTEN=127.0.0.1:0", "MODEL_PATH="+checkpoint)
		checkFinding(t, Examine(t.Context(), Examination{Config: cfg}), "memory", CheckOK, "3 MiB")
	}
	if n, known := fileLimit(); known {
		cfg := enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR=127.0.0.1:0", fmt.Sprintf("MAX_INFLIGHT=%d", min(n, 1<<24)))
		checkFinding(t, Examine(t.Context(), Examination{Config: cfg}), "files", CheckWarn, "may be needed")
	}
	dir := t.TempDir()
	cfg := enginemocktest.LoadSettings(t, config.Up, "HTTP_ADDR=127.0.0.1:0", "DATA_DIR="+filepath.Join(dir, "to", "be", "made"))
	if f := findFinding(t, Examine(t.Context(), Examination{Config: cfg}), "data-dir"); f.Status == CheckFail || !strings.Contains(f.Detail, dir) {
		t.Errorf("%+v", f)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the doctor left %v there, %v", entries, err)
	}
}

// TestExamineServer: a running process's reports of its workers become findings.
func TestExamineServer(t *testing.T) {
	date := time.Now()
	answers := map[string]string{
		"/health": `{"status":"healthy","models":[{"id":"k","workers":1,"aliases":["a"]},{"id":"m","workers":2,"aliases":["a"]},{"id":"n","aliases":["a"],"workers":0,"reason":"no worker"}]}`,
		"/v1/router/workers": `{"rows":[
			{"worker_id":1,"state":"ready","feed":{"state":"live"}},
			{"worker_id":2,"state":"unfit","problem":"its card differs","feed":{"state":"live"}},
			{"worker_id":3,"state":"draining","host":"h3","feed":{"state":"resync","gaps":2}},
			{"worker_id":4,"state":"ready","feed":{"state":"mismatch"}},
			{"worker_id":5,"state":"ready","feed":{"state":"waiting"}},
			{"worker_id":6,"state":"ready","feed":{"state":"live","lagging":true,"last_seq":9}}]}`,
		"/v1/router/index": `{"events":true,"caught_up":false}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", date.UTC().Format(http.TimeFormat))
		body, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, body)
	}))
	defer server.Close()
	examine := func() []Finding {
		return Examine(t.Context(), Examination{Invalid: errors.New("a: wrong\nb: too"), Server: strings.TrimPrefix(server.URL, "http://"), Timeout: fixturetest.TimeLeft(t) / 4})
	}
	found := examine()
	checkFinding(t, found, "config", CheckFail, "a: wrong; b: too")
	checkFinding(t, found, "server", CheckOK, "serving k (workers: 1), m (workers: 2)")
	checkFinding(t, found, "alias a", CheckWarn, "the models k and m are both called a: requests for it go to k")
	checkFinding(t, found, "model n", CheckWarn, "no worker")
	checkFinding(t, found, "clock", CheckOK, "agree")
	checkFinding(t, found, "workers", CheckOK, "4 of 6 are ready")
	checkFinding(t, found, "worker 2 rank 0", CheckFail, "unfit: its card differs")
	checkFinding(t, found, "worker 3 rank 0", CheckWarn, "draining")
	checkFinding(t, found, "events of 3/0", CheckWarn, "2 gaps")
	checkFinding(t, found, "events of 4/0", CheckFail, "another block size")
	checkFinding(t, found, "events of 5/0", CheckWarn, "no event")
	checkFinding(t, found, "events of 6/0", CheckWarn, "at event 9")
	checkFinding(t, found, "events", CheckWarn, "2 of 6")
	checkFinding(t, found, "index", CheckWarn, "has not read all")

	for _, apart := range []time.Duration{time.Hour, -time.Hour} {
		date = time.Now().Add(apart)
		checkFinding(t, examine(), "clock", CheckWarn, "apart")
	}
	answers["/health"] = `{"status":"unhealthy","models":0}`
	delete(answers, "/v1/router/workers")
	answers["/v1/router/index"] = `{"events":false}`
	found = examine()
	checkFinding(t, found, "server", CheckFail, "unhealthy")
	checkFinding(t, found, "index", CheckOK, "does not follow")
	checkNoFinding(t, found, "workers")
	answers["/live"] = `{"status":"live"}`
	answers["/health"] = "what"
	checkFinding(t, examine(), "server", CheckFail, "not what this version expects")
	delete(answers, "/health")
	checkFinding(t, examine(), "server", CheckFail, "404")
}

// TestExamineWarnings: the workers' warnings about their engines are passed on.
func TestExamineWarnings(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
			_, _ = w.Write([]byte(`{"status":"healthy"}`))
		case "/v1/router/workers":
			_, _ = w.Write([]byte(`{"rows":[{"worker_id":3,"dp_rank":0,"state":"ready","host":"h","feed":{"state":"live","guessed":true,"events":1},"warnings":[{"code":"block_size","detail":"they differ","remedy":"set one"}]},` +
				`{"worker_id":4,"role":"prefill","state":"ready","feed":{"state":"live","events":1},"warnings":[{"code":"role_unused","detail":"it serves nothing"}]}]}`))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	found := Examine(t.Context(), Examination{Invalid: errors.New("none"), Server: server.URL, Timeout: fixturetest.TimeLeft(t) / 4})
	checkFinding(t, found, "block_size of 3/0", CheckWarn, "they differ")
	checkFinding(t, found, "role_unused of 4/0", CheckWarn, "it serves nothing")
	checkFinding(t, found, "workers", CheckOK, "1 of 1 are ready")
	checkFinding(t, found, "events", CheckOK, "1 of them are guesses")
}

// TestExamineSilentEngines: a feed that works up to the worker is not called good if the engine sends the
// worker nothing, and an engine that does not serve yet is named.
func TestExamineSilentEngines(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
			_, _ = w.Write([]byte(`{"status":"healthy","engines":[{"kind":"vllm","url":"http://a:1","state":"waiting","detail":"nobody listens"},` +
				`{"kind":"vllm","url":"http://b:1","state":"refused","detail":"another tokenizer"},{"kind":"vllm","url":"http://c:1","state":"serving"}]}`))
		case "/v1/router/workers":
			_, _ = w.Write([]byte(`{"rows":[{"worker_id":1,"state":"ready","feed":{"state":"live","events":1},"warnings":[{"code":"no_kv_events","detail":"not reached"}]},` +
				`{"worker_id":2,"state":"ready","feed":{"state":"live","events":1},"warnings":[{"code":"no_metrics","detail":"none"}]}]}`))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	found := Examine(t.Context(), Examination{Invalid: errors.New("none"), Server: server.URL, Timeout: fixturetest.TimeLeft(t) / 4})
	checkFinding(t, found, "events", CheckWarn, "1 of 2 event feeds")
	checkFinding(t, found, "engine vllm=http://a:1", CheckWarn, "waiting: nobody listens")
	checkFinding(t, found, "engine vllm=http://b:1", CheckFail, "another tokenizer")
	checkNoFinding(t, found, "engine vllm=http://c:1")
	checkFinding(t, Examine(t.Context(), Examination{Invalid: errors.New("none"), Server: server.URL, Timeout: 1}), "server", CheckFail, "exceeded")
}

// TestExamineOldNATS: a NATS server that is too old is a failure.
func TestExamineOldNATS(t *testing.T) {
	for _, command := range []config.Command{config.Worker, config.Frontend, config.Router} {
		cfg := enginemocktest.LoadSettings(t, command, "NATS="+natsdtest.ServeVersion(t, "2.9.10"), "HTTP_ADDR=127.0.0.1:0")
		found := Examine(t.Context(), Examination{Config: cfg})
		checkFinding(t, found, "nats", CheckFail, "2.9.10")
		checkNoFinding(t, found, "jetstream")
	}
}

// TestExamineDeafEventPlane: a process that is registered but cannot be reached is named.
func TestExamineDeafEventPlane(t *testing.T) {
	addr := fixturetest.ReserveAddr(t)
	cfg := enginemocktest.LoadSettings(t, config.Frontend, "DISCOVERY=static", "STATIC_WORKERS=tcp://"+addr, "EVENT_PLANE=zmq", "EVENT_PEERS="+addr, "HTTP_ADDR=127.0.0.1:0")
	found := Examine(t.Context(), Examination{Config: cfg})
	checkFinding(t, found, "events at tcp://"+addr, CheckFail, "")
	checkNoFinding(t, found, "event plane")
}
