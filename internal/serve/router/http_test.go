package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
)

// TestHTTP runs the scripts in testdata against a router whose workers are only
// said to exist. Its commands:
//
//	worker id=N [epoch=N] [model=NAME] [alias=NAME] [adapters=NAME+…] [block-size=N] [feed=off] [role=NAME] [namespace=NAME] [component=NAME] [unconfirmed]
//	garbage id=N                          an instance with a broken card
//	gone id=N
//	events id=N seq=N [epoch=N] [block-size=N] [lora=NAME]
//	    cleared | stored TOKEN… | removed TOKEN… (prefixes that the tokens end)
//	load id=N running=N state=NAME [warn=CODE] [adapters=NAME+…]
//	route id=NAME [attempt=N] model=NAME [worker=N] tokens=N..N
//	failed id=N code=NAME                 a call to a worker
//	silent id=N, loud id=N                no more answers to pings, and again
//	prefilled id=NAME [cached=TOKENS], free id=NAME [attempt=N]
//	split id=NAME [attempt=N] [by=N]       a report of where the prompt was computed, with why that failed
//	tries worker=N times=N [apart=DURATION] tokens=N..N [mode=NAME] [cached=TOKENS]   requests that are served at once
//	log                                   the lines of level warn and above since the last time
//	metrics of=PREFIX
//	served                                what probes say of models and instances
//	advance by=DURATION
//	METHOD PATH, with a body: get, post, put
func TestHTTP(t *testing.T) {
	for _, name := range []string{"queries", "state", "feeds", "errors", "health", "busy", "predictions", "adapters", "availability", "roles", "disagg"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{cluster: newCluster(t), in: map[kv.WorkerID]disco.Instance{}}
				defer s.startRouterOver(s, router.Config{Component: "backend", MaxBodyBytes: 4096, Route: route.Config{Mode: route.KV}})()
				datadriven.RunTest(t, "testdata/"+name+".txt", s.command)
			})
		})
	}
}

// script is also the request plane of its router: it answers pings to workers, unless the worker is
// silent, without a load report.
type script struct {
	*cluster
	in     map[kv.WorkerID]disco.Instance
	silent sync.Map // addresses
	tried  int      // requests of the command tries
}

func (s *script) isSilent(addr string) bool {
	v, _ := s.silent.Load(addr)
	return v == true
}

// Serve implements rpc.Plane; it serves nothing.
func (s *script) Serve(context.Context, string, rpc.Handler, func(string)) error {
	return fault.New(fault.Unimplemented, "nothing is served here")
}

// Call implements rpc.Plane.
func (s *script) Call(_ context.Context, addr, method string, _ []byte, _ func([]byte) error) error {
	if method == engine.MethodPing && !s.isSilent(addr) {
		return fault.New(fault.Unimplemented, "no pings")
	}
	return fault.New(fault.Unavailable, "no worker serves %s", addr)
}

func (s *script) command(t *testing.T, d *datadriven.TestData) string {
	defer synctest.Wait()
	switch d.Cmd {
	case "get", "post", "put":
		return s.http(d)
	case "worker", "garbage":
		s.worker(d)
	case "gone":
		s.registry.Delete(s.in[arg[kv.WorkerID](d, "id", 0)])
	case "events":
		s.events(d)
	case "load":
		s.load(d)
	case "route":
		return s.route(d)
	case "prefilled":
		s.router.MarkPrefilled(arg(d, "id", ""), arg(d, "attempt", uint32(1)), arg(d, "cached", 0))
	case "tries":
		s.tries(d)
	case "log":
		defer s.said.Reset()
		return regexp.MustCompile(`(?m)^time=\S+ `).ReplaceAllString(s.said.String(), "")
	case "metrics":
		return s.scrape(d)
	case "served":
		var out strings.Builder
		for _, m := range s.router.Models() {
			fmt.Fprintf(&out, "%s %v %s: %d of %d ready %s\n", m.ID, m.Aliases, m.Status, m.Ready, m.Workers, m.Reason)
		}
		for _, in := range s.router.Instances() {
			fmt.Fprintf(&out, "worker %d of %q %s %s\n", in.WorkerID, in.Model, in.State, in.Reason)
		}
		return out.String()
	case "split":
		s.router.RecordSplit(arg(d, "id", ""), arg(d, "attempt", uint32(1)), &engine.SplitReport{
			Policy: disagg.ByThreshold, MaxLocalPrefillLength: 10, MaxPrefillQueueSize: 2, Remote: true, Rule: "the prefill is long",
			Failure: d.Input, Tokens: 11, Cached: 4, PrefillWorkers: 3, QueuedJobs: 1, LocalMs: 20.00049, RemoteMs: 7,
			By: kv.Worker{ID: arg(d, "by", kv.WorkerID(0))},
		})
	case "free":
		s.router.FreeReservation(arg(d, "id", ""), arg(d, "attempt", uint32(1)), 0)
	case "failed":
		code, ok := map[string]fault.Code{"unavailable": fault.Unavailable, "draining": fault.Draining, "overloaded": fault.Overloaded}[arg(d, "code", "")]
		if !ok {
			d.Fatalf(t, "which code?")
		}
		s.router.ReportFailure(kv.Worker{ID: arg(d, "id", kv.WorkerID(0))}, fault.New(code, "the call failed"))
	case "silent", "loud":
		s.silent.Store(s.in[arg[kv.WorkerID](d, "id", 0)].Addr, d.Cmd == "silent")
	case "advance":
		by, err := time.ParseDuration(arg(d, "by", ""))
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		<-time.After(by)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return ""
}

// arg returns an argument of a command, or its default.
func arg[T any](d *datadriven.TestData, name string, def T) T {
	for _, a := range d.CmdArgs {
		if a.Key == name && len(a.Vals) == 1 {
			if _, err := fmt.Sscan(a.Vals[0], &def); err != nil {
				panic(fmt.Sprintf("%s: %s: %v", d.Pos, name, err))
			}
		}
	}
	return def
}

func (s *script) worker(d *datadriven.TestData) {
	id := arg(d, "id", kv.WorkerID(0))
	card := servetest.ModelCard(arg(d, "model", "m"))
	card.BlockSize = arg(d, "block-size", 4)
	card.KVEvents = arg(d, "feed", "on") == "on"
	card.Role = arg(d, "role", engine.RoleAggregated)
	if alias := arg(d, "alias", ""); alias != "" {
		card.Aliases = []string{alias}
	}
	if adapters := arg(d, "adapters", ""); adapters != "" {
		card.Adapters = strings.Split(adapters, "+")
	}
	meta, err := engine.EncodeCard(card)
	if err != nil {
		panic(err)
	}
	if d.Cmd == "garbage" {
		meta = []byte(`{"name":"m"}`)
	}
	in := disco.Instance{
		Kind: catalog.KindOf(card.Role), ID: id, Epoch: arg(d, "epoch", uint64(1)), Namespace: arg(d, "namespace", "penstock"), Component: arg(d, "component", "backend"),
		Addr: fmt.Sprint("addr-", id), Host: "host", PID: 100 + int(id), Meta: meta, Unconfirmed: d.HasArg("unconfirmed"),
	}
	s.in[id] = in
	s.registry.Set(in)
}

func (s *script) events(d *datadriven.TestData) {
	w := kv.Worker{ID: arg(d, "id", kv.WorkerID(0))}
	size := arg(d, "block-size", 4)
	rec := kvfeed.Record{Worker: w, Epoch: arg(d, "epoch", uint64(1)), First: arg(d, "seq", uint64(1)), BlockSize: uint32(size)}
	hasher, err := kv.NewHasher(size, kv.Salt{LoRA: arg(d, "lora", "")})
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(d.Input) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		var tokens []kv.Token
		for _, f := range strings.Fields(rest) {
			tokens = append(tokens, span(f)...)
		}
		switch kind {
		case "cleared":
			rec.Events = append(rec.Events, kv.Event{Kind: kv.Cleared})
		case "stored":
			rec.Events = append(rec.Events, kv.Event{Kind: kv.Stored, Blocks: hasher.AppendBlockHashes(nil, tokens, nil)})
		case "removed":
			chain := hasher.AppendSeqHashes(nil, tokens, nil)
			rec.Events = append(rec.Events, kv.Event{Kind: kv.Removed, Seqs: chain[len(chain)-1:]})
		default:
			d.Fatalf(s.t, "unknown event %s", kind)
		}
	}
	if err := s.bus.Publish(s.t.Context(), bus.KVEventsTopic("penstock", "backend"), engine.WorkerKey(w), kvfeed.AppendRecord(nil, &rec)); err != nil {
		d.Fatalf(s.t, "%v", err)
	}
}

// span reads tokens: "3" or "0..9".
func span(text string) (tokens []kv.Token) {
	var from, to kv.Token
	if n, _ := fmt.Sscanf(text, "%d..%d", &from, &to); n < 2 {
		to = from
	}
	for t := from; t <= to; t++ {
		tokens = append(tokens, t)
	}
	return tokens
}

// tries routes requests which their workers serve at once.
func (s *script) tries(d *datadriven.TestData) {
	req := route.Request{Model: "m", Tokens: span(arg(d, "tokens", "")), Pin: kv.Worker{ID: arg(d, "worker", kv.WorkerID(0))}}
	if mode := route.Mode(arg(d, "mode", "")); mode != "" {
		req.Override.Mode = &mode
	}
	apart, err := time.ParseDuration(arg(d, "apart", "0s"))
	if err != nil {
		d.Fatalf(s.t, "%v", err)
	}
	for range arg(d, "times", 1) {
		s.tried++
		req.ID, req.Attempt = fmt.Sprint("try", s.tried), 1
		if _, err := s.router.Route(s.t.Context(), &req); err != nil {
			d.Fatalf(s.t, "%v", err)
		}
		s.router.MarkPrefilled(req.ID, 1, engine.CachedUnknown)
		s.router.MarkPrefilled(req.ID, 1, arg(d, "cached", engine.CachedUnknown))
		s.router.FreeReservation(req.ID, 1, 0)
		<-time.After(apart)
	}
}

// scrape returns the series whose names begin with a prefix.
func (s *script) scrape(d *datadriven.TestData) string {
	rec := httptest.NewRecorder()
	s.metrics.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	var out strings.Builder
	for line := range strings.Lines(rec.Body.String()) {
		if strings.HasPrefix(line, "penstock_"+arg(d, "of", "")) {
			out.WriteString(line)
		}
	}
	return out.String()
}

func (s *script) load(d *datadriven.TestData) {
	id := arg(d, "id", kv.WorkerID(0))
	var warnings []engine.Warning
	if code := arg(d, "warn", ""); code != "" {
		warnings = []engine.Warning{{Code: code, Detail: "it is so", Remedy: "change it"}}
	}
	b, err := engine.EncodeLoadReport(engine.LoadReport{
		Warnings: warnings, Adapters: strings.Split(arg(d, "adapters", ""), "+"),
		WorkerID: id, Epoch: arg(d, "epoch", uint64(1)), State: arg(d, "state", engine.StateReady),
		Load: engine.Load{Running: arg(d, "running", 0), TotalBlocks: 64},
	})
	if err == nil {
		err = s.bus.Publish(s.t.Context(), bus.LoadTopic("penstock"), engine.WorkerKey(kv.Worker{ID: id}), b)
	}
	if err != nil {
		d.Fatalf(s.t, "%v", err)
	}
}

func (s *script) route(d *datadriven.TestData) string {
	dec, err := s.router.Route(s.t.Context(), &route.Request{
		ID: arg(d, "id", ""), Attempt: arg(d, "attempt", uint32(1)), Model: arg(d, "model", "m"),
		Tokens: span(arg(d, "tokens", "")), Pin: kv.Worker{ID: arg(d, "worker", kv.WorkerID(0))},
	})
	if err != nil {
		return err.Error() + "\n"
	}
	return fmt.Sprintf("worker %d at %s, overlap %d\n", dec.Worker.ID, dec.Addr, dec.OverlapBlocks)
}

func (s *script) http(d *datadriven.TestData) string {
	body := d.Input
	if n := arg(d, "fill", 0); n > 0 {
		body = strings.Repeat(body, n)
	}
	rec := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(s.t.Context(), strings.ToUpper(d.Cmd), d.CmdArgs[0].String(), strings.NewReader(body))
	s.router.Handler().ServeHTTP(rec, req)
	var out bytes.Buffer
	fmt.Fprintf(&out, "%d %s", rec.Code, rec.Header().Get("Content-Type"))
	for _, h := range []string{"Allow", "Retry-After"} {
		if v := rec.Header().Get(h); v != "" {
			fmt.Fprintf(&out, ", %s: %s", h, v)
		}
	}
	out.WriteByte('\n')
	if rec.Header().Get("Content-Type") == "application/json" {
		if err := json.Indent(&out, rec.Body.Bytes(), "", " "); err != nil {
			d.Fatalf(s.t, "%v in %s", err, rec.Body)
		}
	} else {
		out.Write(rec.Body.Bytes())
	}
	return bytesUsed.ReplaceAllString(out.String(), `${1}…`)
}

// bytesUsed matches the memory of a structure, which this test ignores.
var bytesUsed = regexp.MustCompile(`("bytes": )[1-9][0-9]*`)

// TestEventsStream: events reach the watchers, a client that does not read is told what it missed, and
// the streams end with the router.
func TestEventsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		stop := c.startRouter(router.Config{})
		s := &script{cluster: c, in: map[kv.WorkerID]disco.Instance{}}
		publish := func(first uint64, n int) {
			rec := kvfeed.Record{Worker: kv.Worker{ID: 1}, Epoch: 1, First: first, BlockSize: 4}
			for range n {
				rec.Events = append(rec.Events, kv.Event{Kind: kv.Cleared})
			}
			if err := c.bus.Publish(t.Context(), bus.KVEventsTopic("penstock", "backend"), "1/0", kvfeed.AppendRecord(nil, &rec)); err != nil {
				t.Fatal(err)
			}
		}
		publish(1, 1) // before anything watches
		synctest.Wait()

		w := newGate()
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.router.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/router/events", nil))
		}()
		synctest.Wait()
		s.events(&datadriven.TestData{
			CmdArgs: []datadriven.CmdArg{{Key: "id", Vals: []string{"1"}}, {Key: "seq", Vals: []string{"2"}}},
			Input:   "stored 1..8\nremoved 1..8\n",
		})
		synctest.Wait()
		want := []string{
			": cache events",
			`data: {"worker_id":1,"dp_rank":0,"epoch":1,"seq":2,"kind":"stored","outcome":"apply","tier":"device","block_size":4,"blocks":["`,
			`data: {"worker_id":1,"dp_rank":0,"epoch":1,"seq":3,"kind":"removed","outcome":"apply","tier":"device","block_size":4,"seqs":["`,
		}
		got := w.take()
		if len(got) != len(want) {
			t.Fatalf("%d events: %q", len(got), got)
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("event %d is %s, want %s", i, got[i], want[i])
			}
		}

		w.close() // the client stops reading
		publish(4, 400)
		synctest.Wait()
		w.open()
		synctest.Wait()
		got = w.take()
		// One event was being written and 256 were queued.
		if n := len(got); n != 258 || !slices.Contains(got, "event: dropped\ndata: {\"dropped\":143}") {
			t.Errorf("%d messages arrived: %q … %q", n, got[:3], got[n-2:])
		}
		<-time.After(15 * time.Second)
		synctest.Wait()
		if got := w.take(); len(got) != 1 || got[0] != ":" {
			t.Errorf("a quiet stream sends %q", got)
		}
		stop()
		<-done
	})
}

// gate is a response writer that can be blocked.
type gate struct {
	header http.Header
	pass   chan struct{} // holds a token while writes go through
	buf    bytes.Buffer
}

func newGate() *gate {
	g := &gate{header: http.Header{}, pass: make(chan struct{}, 1)}
	g.open()
	return g
}

func (g *gate) open()               { g.pass <- struct{}{} }
func (g *gate) close()              { <-g.pass }
func (g *gate) Header() http.Header { return g.header }
func (g *gate) WriteHeader(int)     {}
func (g *gate) Flush()              {}

func (g *gate) Write(p []byte) (int, error) {
	<-g.pass
	defer func() { g.pass <- struct{}{} }()
	return g.buf.Write(p)
}

// take returns the messages written since the last call.
func (g *gate) take() []string {
	<-g.pass
	defer func() { g.pass <- struct{}{} }()
	text := strings.TrimSuffix(g.buf.String(), "\n\n")
	g.buf.Reset()
	return strings.Split(text, "\n\n")
}

func TestEventsWatchersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		stop := c.startRouter(router.Config{})
		watch := func() int {
			rec := httptest.NewRecorder()
			c.router.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/router/events", nil))
			return rec.Code
		}
		for range 64 {
			go watch()
		}
		synctest.Wait()
		if code := watch(); code != 503 {
			t.Errorf("watcher 65: status %d, want 503", code)
		}
		stop()
		if code := watch(); code != 503 {
			t.Errorf("after the router's end: status %d, want 503", code)
		}
	})
}

// TestCallsAreBounded: one call more than allowed is refused, but calls without a body are not.
func TestCallsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{MaxCalls: 1})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		ask := func(method, path, body string) *httptest.ResponseRecorder {
			rec := httptest.NewRecorder()
			c.router.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
			return rec
		}
		done := make(chan int)
		go func() {
			done <- ask(http.MethodPost, "/v1/router/generate", `{"model":"m","token_ids":[1,2,3],"stop_conditions":{"max_tokens":4}}`).Code
		}()
		synctest.Wait() // the engine is slow
		question := `{"model":"m","token_ids":[1,2,3]}`
		if rec := ask(http.MethodPost, "/v1/router/explain", question); rec.Code != 503 || rec.Header().Get("Retry-After") == "" {
			t.Errorf("one call too many: %d %s", rec.Code, rec.Body)
		}
		if rec := ask(http.MethodGet, "/v1/router/workers", ""); rec.Code != 200 {
			t.Errorf("a call without body: %d %s", rec.Code, rec.Body)
		}
		if code := <-done; code != 200 {
			t.Errorf("the first call: %d", code)
		}
		if rec := ask(http.MethodPost, "/v1/router/explain", question); rec.Code != 200 {
			t.Errorf("after it: %d %s", rec.Code, rec.Body)
		}
	})
}

func TestNewReportsEverything(t *testing.T) {
	cfg := router.Config{BlockSize: 1, Decisions: -1, Grace: -1, MaxBodyBytes: -1, Route: route.Config{Mode: "best"}}
	_, err := router.New(cfg, router.Planes{}, nil, obs.NewMetrics(), nil)
	for _, want := range []string{"block size", "decision", "grace", "body", `"best"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not reported in: %v", want, err)
		}
	}
}

// FuzzQuery: whatever a client sends, the error helps it.
func FuzzQuery(f *testing.F) {
	f.Add([]byte(`{"model":"m","token_ids":[1,2,3,4],"router_config_override":{"router_temperature":0.5}}`))
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`))
	f.Add([]byte(`{"model":"m","prompt":"x","cache_salt":"y"}`))
	meta, err := engine.EncodeCard(servetest.ModelCard("m"))
	if err != nil {
		f.Fatal(err)
	}
	registry := servetest.NewRegistry()
	registry.Set(disco.Instance{Kind: disco.KindWorker, ID: 1, Epoch: 1, Namespace: "penstock", Component: "backend", Meta: meta})
	told := make(signals, 1)
	r, err := router.New(router.Config{}, router.Planes{Bus: bus.NewMemBus(), Registry: toldRegistry{registry, told}}, byteTokens{}, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	<-told
	f.Cleanup(func() { cancel(); <-done })
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"explain", "best_worker", "potential_loads", "generate"} {
			rec := httptest.NewRecorder()
			r.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/router/"+path, bytes.NewReader(body)))
			if rec.Code >= 500 && rec.Code != http.StatusNotImplemented || !json.Valid(rec.Body.Bytes()) {
				t.Fatalf("%s: status %d, %s", path, rec.Code, rec.Body)
			}
		}
	})
}
