package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/route"
	"penstock/internal/edge/api"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// cluster is a router and workers on planes in memory. It runs in a bubble.
type cluster struct {
	t        *testing.T
	rpc      *rpc.MemPlane
	bus      *bustest.FaultyBus
	registry *servetest.Registry
	metrics  *obs.Metrics
	router   *router.Router
	engines  map[kv.WorkerID]*servetest.Engine
	stops    map[kv.WorkerID]func()
	wmetrics *worker.Metrics
	said     bytes.Buffer // the router's log, from info on
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{
		t: t, rpc: rpc.NewMemPlane(), bus: bustest.WithFaults(bus.NewMemBus(), 1, bustest.BusFaults{}), registry: servetest.NewRegistry(),
		metrics: obs.NewMetrics(), engines: map[kv.WorkerID]*servetest.Engine{}, stops: map[kv.WorkerID]func(){},
	}
	c.wmetrics = worker.NewMetrics(c.metrics)
	return c
}

// run runs f, which ends with its context, until the returned function is called.
func (c *cluster) run(what string, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("%s: %v", what, err)
		}
		synctest.Wait()
	}
}

func (c *cluster) startRouter(cfg router.Config) (stop func()) {
	c.t.Helper()
	return c.startRouterOver(c.rpc, cfg)
}

// startRouterOver starts the router with the given request plane.
func (c *cluster) startRouterOver(calls rpc.Plane, cfg router.Config) (stop func()) {
	c.t.Helper()
	planes := router.Planes{Bus: c.bus, Registry: c.registry, RPC: calls}
	log := slog.New(slog.NewTextHandler(&c.said, &slog.HandlerOptions{Level: slog.LevelInfo}))
	r, err := router.New(cfg, planes, byteTokens{}, c.metrics, log)
	if err != nil {
		c.t.Fatal(err)
	}
	c.router = r
	return c.run("router", r.Run)
}

// startWorker runs a worker until its entry in stops is called.
func (c *cluster) startWorker(id kv.WorkerID, epoch uint64) {
	c.t.Helper()
	c.startWorkerOf(id, epoch, servetest.ModelCard("m"))
}

func (c *cluster) startWorkerOf(id kv.WorkerID, epoch uint64, card engine.Card) {
	c.t.Helper()
	e := servetest.New(servetest.Config{Card: card, Step: 10 * time.Millisecond})
	w, err := worker.New(worker.Config{ID: id, Epoch: epoch, Role: card.Role}, e, worker.Planes{RPC: c.rpc, Bus: c.bus, Registry: c.registry}, c.wmetrics, slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatal(err)
	}
	c.engines[id] = e
	c.stops[id] = c.run(fmt.Sprint("worker ", id), w.Run)
}

func (c *cluster) stopWorkers() {
	for _, id := range []kv.WorkerID{1, 2, 3} {
		if stop := c.stops[id]; stop != nil {
			delete(c.stops, id)
			stop()
		}
	}
}

// byteTokens uses every byte as a token.
type byteTokens struct{}

func (byteTokens) MakePrompt(_ context.Context, q *api.Request) (prep.Prompt, error) {
	var text string
	if !q.Endpoint.IsConversation() {
		text = q.Prompts[0].Text
	}
	for _, m := range q.Messages {
		text += m.Role + ":" + m.Content + string(m.ToolCalls) + "\n"
	}
	if q.ToolChoice.Mode != api.ToolNone {
		text += string(q.ToolsJSON)
	}
	text += string(q.TemplateArgs)
	if strings.Contains(text, "refuse") {
		return prep.Prompt{}, fault.InvalidParam("messages", "the template refuses the conversation")
	}
	var p prep.Prompt
	for _, b := range []byte(text) {
		p.Tokens = append(p.Tokens, kv.Token(b))
	}
	return p, nil
}

// prompt returns n tokens; the last differs for each tail.
func prompt(first, n, tail int) []kv.Token {
	tokens := make([]kv.Token, n)
	for i := range tokens {
		tokens[i] = kv.Token(first + i)
	}
	tokens[n-1] = kv.Token(tail)
	return tokens
}

// serve sends one request the way a frontend does.
func (c *cluster) serve(id string, tokens []kv.Token) (route.Decision, error) {
	req := &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: tokens}
	d, err := c.router.Route(c.t.Context(), req)
	if err != nil {
		return d, err
	}
	defer c.router.FreeReservation(id, 1, 0)
	ereq := &engine.Request{ID: id, Attempt: 1, Model: "m", Prompt: tokens, Choices: 1, Stop: engine.Stop{MaxTokens: 2}, Logprobs: -1}
	err = c.rpc.Call(c.t.Context(), d.Addr, engine.MethodGenerate, engine.AppendRequest(nil, ereq), func([]byte) error {
		c.router.MarkPrefilled(id, 1, 0)
		return nil
	})
	synctest.Wait()
	return d, err
}

func (c *cluster) mustServe(id string, tokens []kv.Token) route.Decision {
	c.t.Helper()
	d, err := c.serve(id, tokens)
	if err != nil {
		c.t.Fatalf("request %s: %v", id, err)
	}
	return d
}

// get calls the router API.
func (c *cluster) get(path string, v any) {
	c.t.Helper()
	rec := httptest.NewRecorder()
	c.router.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(c.t.Context(), http.MethodGet, path, nil))
	if rec.Code != 200 {
		c.t.Fatalf("%s: status %d: %s", path, rec.Code, rec.Body)
	}
	if err := json.Unmarshal(rec.Body.Bytes(), v); err != nil {
		c.t.Fatalf("%s: %v", path, err)
	}
}

type workerRow struct {
	WorkerID kv.WorkerID `json:"worker_id"`
	State    string
	Problem  string

	Namespace, Component, Endpoint string

	BlockSize int `json:"block_size"`
	Load      struct {
		ActiveRequests int `json:"active_requests"`
		PrefillTokens  int `json:"prefill_tokens"`
	}
	CachedBlocks int `json:"cached_blocks"`
	Feed         struct {
		State                              string
		Gaps, Repaired, Described, Missing int
		GivenUp                            int `json:"given_up"`
		Resyncs                            int
		Lagging                            bool
	}
}

func (c *cluster) workers() map[kv.WorkerID]workerRow {
	c.t.Helper()
	var table struct{ Rows []workerRow }
	c.get("/v1/router/workers", &table)
	rows := map[kv.WorkerID]workerRow{}
	for _, r := range table.Rows {
		rows[r.WorkerID] = r
	}
	return rows
}

// dump returns the index' prefixes of each worker, ascending.
func (c *cluster) dump() map[kv.WorkerID][]kv.SeqHash {
	c.t.Helper()
	rec := httptest.NewRecorder()
	c.router.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(c.t.Context(), http.MethodGet, "/v1/router/index/dump", nil))
	held := map[kv.WorkerID][]kv.SeqHash{}
	d := json.NewDecoder(rec.Body)
	for {
		var row struct {
			WorkerID kv.WorkerID `json:"worker_id"`
			Tier     string
			Seq      string
		}
		if err := d.Decode(&row); err == io.EOF {
			break
		} else if err != nil {
			c.t.Fatal(err)
		}
		seq, err := strconv.ParseUint(row.Seq, 16, 64)
		if err != nil || row.Tier != "device" {
			c.t.Fatalf("row %+v: %v", row, err)
		}
		held[row.WorkerID] = append(held[row.WorkerID], kv.SeqHash(seq))
	}
	for _, h := range held {
		slices.Sort(h)
	}
	return held
}

// checkIndex compares the index with what the engines hold.
func (c *cluster) checkIndex() {
	c.t.Helper()
	held := c.dump()
	for id, e := range c.engines {
		if want := e.HeldPrefixes(); !slices.Equal(held[id], want) {
			c.t.Errorf("worker %d: the index has %d blocks, the engine %d", id, len(held[id]), len(want))
		}
		delete(held, id)
	}
	for id, h := range held {
		c.t.Errorf("the index has %d blocks of worker %d, which is not there", len(h), id)
	}
}

func TestPrefixGoesToHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		c.startWorker(2, 1)

		holder := map[int]kv.WorkerID{}
		for p := range 8 {
			holder[p] = c.mustServe(fmt.Sprint("first-", p), prompt(1000*p, 42, 1)).Worker.ID
		}
		for p := range 8 {
			d := c.mustServe(fmt.Sprint("second-", p), prompt(1000*p, 42, 2))
			if d.Worker.ID != holder[p] || d.OverlapBlocks != 10 || d.BlockSize != 4 || d.Mode != route.Time {
				t.Errorf("prompt %d was on worker %d and went to %+v", p, holder[p], d)
			}
		}
		c.checkIndex()
		c.engines[holder[0]].EvictBlocks(3)
		synctest.Wait()
		c.checkIndex()
		for id, row := range c.workers() {
			if row.State != "ready" || row.Feed.State != "live" || row.Feed.Gaps != 0 || row.Load.ActiveRequests != 0 ||
				row.Namespace != "penstock" || row.Component != "backend" || row.Endpoint != "generate" || row.BlockSize != 4 {
				t.Errorf("worker %d: %+v", id, row)
			}
		}
	})
}

func TestWorkerGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		c.mustServe("a", prompt(0, 40, 1))
		c.startWorker(2, 1)
		if n := len(c.dump()[1]); n != 10 {
			t.Fatalf("%d blocks of worker 1, want 10", n)
		}

		// A request is active on worker 1 when it is removed.
		if _, err := c.router.Route(t.Context(), &route.Request{ID: "b", Attempt: 1, Model: "m", Tokens: prompt(0, 40, 2)}); err != nil {
			t.Fatal(err)
		}
		c.stops[1]()
		delete(c.stops, 1)
		delete(c.engines, 1)
		c.checkIndex()
		c.router.FreeReservation("b", 1, 0) // the reservation is gone already: no harm
		if d := c.mustServe("c", prompt(0, 40, 3)); d.Worker.ID != 2 || d.OverlapBlocks != 0 {
			t.Errorf("routed to %+v", d)
		}
		_, err := c.router.Route(t.Context(), &route.Request{ID: "d", Attempt: 1, Model: "m", Tokens: prompt(0, 40, 1), Pin: kv.Worker{ID: 1}})
		if fault.CodeOf(err) != fault.NotFound || err == nil {
			t.Errorf("pinned to the worker that is gone: %v", err)
		}
		c.stops[2]()
		delete(c.stops, 2)
		_, err = c.router.Route(t.Context(), &route.Request{ID: "e", Attempt: 1, Model: "m", Tokens: prompt(0, 40, 1)})
		if fault.CodeOf(err) != fault.Unavailable || err == nil {
			t.Errorf("without workers: %v, want unavailable", err)
		}
		_, err = c.router.Route(t.Context(), &route.Request{ID: "e", Attempt: 1, Model: "other", Tokens: prompt(0, 40, 1)})
		if fault.CodeOf(err) != fault.NotFound || err == nil {
			t.Errorf("unknown model: %v, want not found", err)
		}
	})
}

// TestRestart: a worker that restarts under its id with an empty cache.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		c.mustServe("a", prompt(0, 40, 1))
		old := c.registry.Instances()[0]
		c.stops[1]()
		c.registry.Set(old) // its lease outlives it
		synctest.Wait()
		c.startWorker(1, 2)
		c.checkIndex()
		c.mustServe("b", prompt(500, 40, 1))
		c.checkIndex()
	})
}

// TestEventsOfALaterLife: events of an epoch that discovery does not confirm, as after a clock was set
// back between two runs on the same data, do not stay in the index for ever, and do not block events of
// the real epoch.
func TestEventsOfALaterLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		later := kvfeed.Record{Worker: kv.Worker{ID: 1}, Epoch: 9, First: 1, BlockSize: 4, Events: []kv.Event{
			{Kind: kv.Cleared}, {Kind: kv.Stored, Blocks: []kv.BlockHash{1, 2, 3}},
		}}
		publish := func() {
			t.Helper()
			if err := c.bus.Publish(t.Context(), bus.KVEventsTopic("penstock", "backend"), "1/0", kvfeed.AppendRecord(nil, &later)); err != nil {
				t.Fatal(err)
			}
		}
		publish()
		c.startWorker(1, 5)
		c.mustServe("a", prompt(0, 40, 1))
		<-time.After(time.Minute) // the grace plus a margin
		c.checkIndex()
		publish()                 // once more, while the worker is known
		<-time.After(time.Minute) // the grace plus a margin
		c.mustServe("b", prompt(500, 40, 1))
		c.checkIndex()
	})
}

// TestGapHeals: whatever the event plane does to the records, the index is correct again some time
// after it has stopped.
func TestGapHeals(t *testing.T) {
	for _, f := range []bustest.BusFaults{
		{Drop: 0.3},
		{Lose: 0.3},
		{Duplicate: 0.5},
		{Reorder: 0.4},
		{Fail: 0.4},
		{Drop: 0.1, Lose: 0.1, Duplicate: 0.2, Reorder: 0.2, Fail: 0.2, Delay: 50 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			t.Logf("faults %+v", f)
			c := newCluster(t)
			defer c.startRouter(router.Config{})()
			defer c.stopWorkers()
			c.startWorker(1, 1)
			c.startWorker(2, 1)
			f.Topics = []string{"penstock.backend.kv-events", "penstock.kv-resync"}
			c.bus.Set(f)
			for i := range 60 {
				c.mustServe(fmt.Sprint(i), prompt(100*(i%20), 24, i))
				if i%7 == 0 {
					c.engines[kv.WorkerID(1+i%2)].EvictBlocks(2)
				}
				c.neverMore()
			}
			c.bus.Set(bustest.BusFaults{})
			<-time.After(2 * time.Minute) // the longest backoff plus a margin
			c.checkIndex()
			for id, row := range c.workers() {
				if row.Feed.State != "live" || row.Feed.Lagging {
					t.Errorf("worker %d: %+v", id, row)
				}
			}
		})
	}
}

// neverMore checks that the index has no block that its worker never had.
func (c *cluster) neverMore() {
	c.t.Helper()
	for id, held := range c.dump() {
		for _, seq := range held {
			if e := c.engines[id]; e == nil || !e.HasHeld(seq) {
				c.t.Fatalf("the index has a block of worker %d that it never held", id)
			}
		}
	}
}

// TestLostTail: the loss of the last events of a worker that falls silent is detected too.
func TestLostTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		c.mustServe("a", prompt(0, 40, 1))
		c.bus.Set(bustest.BusFaults{Lose: 1, Topics: []string{"penstock.backend.kv-events"}})
		c.engines[1].EvictBlocks(5)
		<-time.After(100 * time.Millisecond)
		c.bus.Set(bustest.BusFaults{})
		if n := len(c.dump()[1]); n != 10 {
			t.Fatalf("%d blocks right after the loss, want 10: the test has not lost anything", n)
		}
		<-time.After(4 * time.Second)
		if !c.workers()[1].Feed.Lagging {
			t.Error("the feed does not count as lagging")
		}
		<-time.After(30 * time.Second)
		c.checkIndex()
		if row := c.workers()[1]; row.Feed.Gaps != 1 || row.Feed.Lagging {
			t.Errorf("afterwards: %+v", row.Feed)
		}
	})
}

// TestRepair: missing events in the middle are repeated; meanwhile the known state is kept but not
// used.
func TestRepair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		c.mustServe("a", prompt(0, 40, 1))
		lost := []string{"penstock.backend.kv-events"}
		c.bus.Set(bustest.BusFaults{Lose: 1, Topics: lost})
		c.engines[1].EvictBlocks(5)
		<-time.After(100 * time.Millisecond)
		c.bus.Set(bustest.BusFaults{Lose: 1, Topics: []string{"penstock.kv-resync"}})
		c.engines[1].EvictBlocks(1)
		synctest.Wait()
		if row := c.workers()[1]; row.Feed.State != "repairing" || row.CachedBlocks != 10 {
			t.Fatalf("after the loss: %+v", row)
		}
		if d := c.mustServe("b", prompt(0, 40, 2)); d.OverlapBlocks != 0 {
			t.Errorf("%d blocks are believed though events are missing", d.OverlapBlocks)
		}
		c.bus.Set(bustest.BusFaults{})
		<-time.After(time.Second)
		row := c.workers()[1]
		if f := row.Feed; f.State != "live" || f.Gaps != 1 || f.Repaired != 1 || f.Described+f.GivenUp+f.Missing != 0 || f.Resyncs < 2 {
			t.Errorf("afterwards: %+v", f)
		}
		c.checkIndex()
	})
}

// TestWrongBlockSize: events with another block size than the card's are not used, and that is logged
// once, not with every record.
func TestWrongBlockSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var said bytes.Buffer
		r, err := router.New(router.Config{}, router.Planes{Bus: c.bus, Registry: c.registry, RPC: c.rpc}, byteTokens{}, c.metrics, slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		c.router = r
		defer c.run("router", r.Run)()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		c.mustServe("a", prompt(0, 40, 1))
		w := kv.Worker{ID: 1}
		for i := range 5 {
			rec := &kvfeed.Record{Worker: w, Epoch: 1, First: uint64(100 + i), BlockSize: 7, Events: []kv.Event{{Kind: kv.Cleared}, {Kind: kv.Stored, Blocks: []kv.BlockHash{1}}}}
			if err := c.bus.Publish(t.Context(), bus.KVEventsTopic("penstock", "backend"), engine.WorkerKey(w), kvfeed.AppendRecord(nil, rec)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if row := c.workers()[1]; row.Feed.State != "mismatch" || row.CachedBlocks != 0 || !strings.Contains(row.Problem, "7") {
			t.Errorf("%+v", row)
		}
		if n := strings.Count(said.String(), "cache events not used"); n != 1 {
			t.Errorf("%d warnings about five records:\n%s", n, &said)
		}
	})
}

// leakyBus loses stored cache events before they are read, while it leaks.
type leakyBus struct {
	bus.Bus
	leaks *atomic.Bool
}

func (b leakyBus) Subscribe(ctx context.Context, t bus.Topic, from uint64, sink func(bus.Message) error, ready func()) error {
	return b.Bus.Subscribe(ctx, t, from, func(m bus.Message) error {
		if t.Durable && b.leaks.Load() {
			return nil
		}
		return sink(m)
	}, ready)
}

// TestLostRetention: where the plane lost events before they were read, no worker's entries are used
// until it has confirmed that none is missing, or sent them, even if no further event would show it.
func TestLostRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		leaks := new(atomic.Bool)
		planes := router.Planes{Bus: leakyBus{c.bus, leaks}, Registry: c.registry, RPC: c.rpc}
		r, err := router.New(router.Config{}, planes, byteTokens{}, c.metrics, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		c.router = r
		defer c.run("router", r.Run)()
		defer c.stopWorkers()
		for id := range kv.WorkerID(3) {
			c.startWorker(id+1, 1)
		}
		for i := range 6 {
			c.mustServe(fmt.Sprint(i), prompt(100*i, 40, i))
		}
		<-time.After(10 * time.Second)
		leaks.Store(true)
		c.engines[1].EvictBlocks(2) // nothing will show this
		c.engines[2].EvictBlocks(2)
		<-time.After(10 * time.Millisecond)
		leaks.Store(false)
		c.bus.Set(bustest.BusFaults{Lose: 1, Topics: []string{"penstock.kv-resync"}})
		c.engines[2].EvictBlocks(1)
		<-time.After(10 * time.Millisecond)
		for id, row := range c.workers() {
			if row.Feed.State != "repairing" || row.CachedBlocks == 0 {
				t.Errorf("after the loss worker %d: %+v", id, row)
			}
		}
		c.bus.Set(bustest.BusFaults{})
		<-time.After(time.Second)
		c.checkIndex()
		for id, row := range c.workers() {
			if f := row.Feed; f.State != "live" || f.Described+f.GivenUp+f.Missing != 0 {
				t.Errorf("afterwards worker %d: %+v", id, f)
			}
		}
	})
}

// TestLateRouterAsksForMissingEvents: a router that starts late on a stream without its beginning reads all
// there is before it asks, and then asks only the workers whose events it still misses.
func TestLateRouterAsksForMissingEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		stop := c.startRouter(router.Config{})
		defer c.stopWorkers()
		for id := range kv.WorkerID(3) {
			c.startWorker(id+1, 1)
		}
		for i := range 12 {
			c.mustServe(fmt.Sprint(i), prompt(100*i, 40, i))
		}
		<-time.After(5 * time.Second)
		topic := bus.KVEventsTopic("penstock", "backend")
		span, err := c.bus.DescribeTopic(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.bus.Purge(t.Context(), topic, span.Last-2); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"1/0", "2/0"} { // they describe their caches, for another router
			if err := c.bus.Publish(t.Context(), bus.KVResyncTopic("penstock"), key, nil); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(5 * time.Second)
		stop()
		c.metrics = obs.NewMetrics()
		defer c.startRouter(router.Config{})()
		<-time.After(10 * time.Second)
		c.checkIndex()
		rows := c.workers()
		for id, want := range map[kv.WorkerID]int{1: 0, 2: 0, 3: 1} {
			if f := rows[id].Feed; f.State != "live" || f.Resyncs != want {
				t.Errorf("worker %d was asked %d times, want %d: %+v", id, f.Resyncs, want, f)
			}
		}
	})
}

// lateRegistry lists the workers only after a while.
type lateRegistry struct {
	disco.Registry
	late time.Duration
}

func (l lateRegistry) Watch(ctx context.Context, kind disco.Kind, sink func([]disco.Instance)) error {
	select {
	case <-time.After(l.late):
	case <-ctx.Done():
	}
	return l.Registry.Watch(ctx, kind, sink)
}

// TestEventsBeforeWorkers: a router that receives events before discovery lists their workers asks for
// the missing ones as soon as they are listed, and not after the wait for an answer to a request that
// it could not send.
func TestEventsBeforeWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		stop := c.startRouter(router.Config{})
		defer c.stopWorkers()
		for id := range kv.WorkerID(3) {
			c.startWorker(id+1, 1)
		}
		for i := range 12 {
			c.mustServe(fmt.Sprint(i), prompt(100*i, 40, i))
		}
		stop()
		topic := bus.KVEventsTopic("penstock", "backend")
		span, err := c.bus.DescribeTopic(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.bus.Purge(t.Context(), topic, span.Last); err != nil {
			t.Fatal(err)
		}
		c.metrics = obs.NewMetrics()
		planes := router.Planes{Bus: c.bus, Registry: lateRegistry{c.registry, 100 * time.Millisecond}, RPC: c.rpc}
		if c.router, err = router.New(router.Config{}, planes, byteTokens{}, c.metrics, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		defer c.run("router", c.router.Run)()
		<-time.After(150 * time.Millisecond)
		synctest.Wait()
		asked := 0
		for id, row := range c.workers() {
			if asked += row.Feed.Resyncs; row.Feed.Resyncs > 0 && row.Feed.State != "live" {
				t.Errorf("worker %d: %+v", id, row.Feed)
			}
		}
		if asked != 1 { // no event of the others has arrived, so nothing is known to be missing yet
			t.Errorf("%d questions, want 1", asked)
		}
	})
}

// TestForgedNumbers: a forged record in a worker's name, with a number far from the worker's, makes its
// true events look old, or the end of its doubt look too early. The worker's own report decides.
func TestForgedNumbers(t *testing.T) {
	for name, events := range map[string][]kv.Event{
		"a cleared cache": {{Kind: kv.Cleared}},
		"a gap":           {{Kind: kv.Removed, Seqs: []kv.SeqHash{1}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			defer c.startRouter(router.Config{})()
			defer c.stopWorkers()
			c.startWorker(1, 1)
			c.mustServe("a", prompt(0, 40, 1))
			w := kv.Worker{ID: 1}
			rec := &kvfeed.Record{Worker: w, Epoch: 1, First: 1 << 40, BlockSize: uint32(servetest.ModelCard("m").BlockSize), Events: events}
			if err := c.bus.Publish(t.Context(), bus.KVEventsTopic("penstock", "backend"), engine.WorkerKey(w), kvfeed.AppendRecord(nil, rec)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if d := c.mustServe("b", prompt(0, 40, 1)); d.OverlapBlocks != 0 {
				t.Fatalf("%s: %d blocks are believed after the forgery", name, d.OverlapBlocks)
			}
			<-time.After(30 * time.Second)
			c.engines[1].EvictBlocks(2)
			c.mustServe("c", prompt(500, 40, 1))
			<-time.After(time.Second)
			c.checkIndex()
			if row := c.workers()[1]; row.Feed.State != "live" || len(c.dump()[1]) == 0 {
				t.Errorf("%s: %+v", name, row.Feed)
			}
		})
	}
}

// TestBusyFeed: a worker's report is always slightly older than its events, which does not cause doubt.
func TestBusyFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		gaps := 0
		for i := range 600 {
			c.mustServe(fmt.Sprint(i), prompt(100*(i%20), 24, i))
			<-time.After(70 * time.Millisecond)
			gaps = max(gaps, c.workers()[1].Feed.Gaps)
		}
		if gaps != 0 {
			t.Errorf("%d gaps", gaps)
		}
		c.checkIndex()
	})
}

// TestLateRouter: a router that starts late learns what is cached, from the stored events or, if the
// first ones are gone, from the workers.
func TestLateRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.startWorker(1, 1)
		defer c.stopWorkers()
		stop := c.startRouter(router.Config{})
		c.mustServe("a", prompt(0, 40, 1))
		stop()
		c.metrics = obs.NewMetrics()
		stop = c.startRouter(router.Config{})
		c.checkIndex()
		stop()

		<-time.After(2 * time.Hour) // the bus keeps events for one
		c.metrics = obs.NewMetrics()
		defer c.startRouter(router.Config{})()
		<-time.After(10 * time.Second)
		c.checkIndex()
		if n := len(c.dump()[1]); n != 10 {
			t.Errorf("%d blocks, want 10", n)
		}
	})
}

// TestReservations: the load of a request, and its end.
func TestReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{ReservationTTL: time.Minute})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		req := &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: prompt(0, 40, 1)}
		load := func() (requests, prefill int) {
			l := c.workers()[1].Load
			return l.ActiveRequests, l.PrefillTokens
		}
		expect := func(when string, requests, prefill int) {
			t.Helper()
			if r, p := load(); r != requests || p != prefill {
				t.Errorf("%s: %d requests and %d tokens to prefill, want %d and %d", when, r, p, requests, prefill)
			}
		}
		route := func() error {
			_, err := c.router.Route(t.Context(), req)
			return err
		}
		if err := route(); err != nil {
			t.Fatal(err)
		}
		expect("routed", 1, 40)
		if err := route(); fault.CodeOf(err) != fault.Conflict || err == nil {
			t.Errorf("the same attempt again: %v, want conflict", err)
		}
		if _, err := c.router.Explain(t.Context(), req); err != nil {
			t.Error(err)
		}
		expect("explained", 1, 40)
		c.router.MarkPrefilled("a", 1, 0)
		expect("prefilled", 1, 0)
		c.router.FreeReservation("a", 1, 0)
		c.router.FreeReservation("a", 1, 0)
		expect("freed", 0, 0)

		if err := route(); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			<-time.After(30 * time.Second)
			c.router.RenewReservation("a", 1)
			c.router.RenewReservation("unknown", 1)
		}
		expect("renewed for longer than the TTL", 1, 0) // its prefill should be over by now
		<-time.After(2 * time.Minute)                   // it is neither renewed nor freed
		expect("leaked", 0, 0)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.router.Route(ctx, req); fault.CodeOf(err) != fault.Canceled || err == nil {
			t.Errorf("for a client that is gone: %v", err)
		}
		expect("not routed", 0, 0)
	})
}

// TestDrainingWorker: a worker that reports that it drains gets no more requests, even while discovery
// still lists it.
func TestDrainingWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		c.startWorker(2, 1)
		report, err := engine.EncodeLoadReport(engine.LoadReport{WorkerID: 1, Epoch: 1, State: engine.StateDraining})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.bus.Publish(t.Context(), bus.LoadTopic("penstock"), "1/0", report); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i := range 10 {
			req := &route.Request{ID: fmt.Sprint(i), Attempt: 1, Model: "m", Tokens: prompt(0, 8, i)}
			if d, err := c.router.Route(t.Context(), req); err != nil || d.Worker.ID != 2 {
				t.Errorf("routed to %+v, %v", d, err)
			}
		}
		if row := c.workers()[1]; row.State != "draining" {
			t.Errorf("worker 1 is %s", row.State)
		}
	})
}

// TestUnreadableRecords: of four records of a worker the second is of an unknown format version, and
// the third is truncated. Earlier events count; from the fourth on the worker counts for nothing until
// the two arrive.
func TestUnreadableRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		card := servetest.ModelCard("m")
		card.KVEvents = true
		meta, err := engine.EncodeCard(card)
		if err != nil {
			t.Fatal(err)
		}
		c.registry.Set(disco.Instance{Kind: disco.KindWorker, ID: 1, Epoch: 1, Namespace: "penstock", Component: "backend", Endpoint: "generate", Addr: "nowhere", Meta: meta})
		record := func(first uint64, events ...kv.Event) []byte {
			return kvfeed.AppendRecord(nil, &kvfeed.Record{Worker: kv.Worker{ID: 1}, Epoch: 1, First: first, BlockSize: uint32(card.BlockSize), Events: events})
		}
		stored := func(b kv.BlockHash) kv.Event {
			return kv.Event{Kind: kv.Stored, Blocks: []kv.BlockHash{b}}
		}
		told := func(data []byte) {
			if err := c.bus.Publish(t.Context(), bus.KVEventsTopic("penstock", "backend"), "1/0", data); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		held := func(state string, want ...kv.SeqHash) {
			t.Helper()
			if got := c.dump()[1]; !slices.Equal(got, want) {
				t.Errorf("the index has %v, want %v", got, want)
			}
			if row := c.workers()[1]; row.Feed.State != state {
				t.Errorf("the feed is %+v, want %s", row.Feed, state)
			}
		}
		told(record(4, kv.Event{Kind: kv.Cleared}, stored(11)))
		held("live", 11)
		newer, cut := record(6, stored(12)), record(7, stored(13))
		newer[1]++
		told(newer)
		told(cut[:len(cut)-3])
		held("live", 11)
		told(record(8, stored(14)))
		if row := c.workers()[1]; row.Feed.State != "repairing" || row.Feed.Gaps != 1 || row.Feed.Missing != 3 {
			t.Errorf("after the gap: %+v", row.Feed)
		}
		told(record(6, stored(12)))
		told(record(7, stored(13)))
		told(record(8, stored(14)))
		held("live", 11, 12, 13, 14)
	})
}

// TestStrangers: entries of a worker that discovery never lists are dropped.
func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		c.startWorker(1, 1)
		c.mustServe("a", prompt(0, 40, 1))
		in := c.registry.Instances()[0]
		c.registry.Delete(in)
		synctest.Wait()
		if n := len(c.dump()); n != 0 {
			t.Errorf("%d workers have entries after the only one left", n)
		}
		// It is alive, and publishes.
		if err := c.bus.Publish(t.Context(), bus.KVResyncTopic("penstock"), "1/0", nil); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)
		if n := len(c.dump()[1]); n != 10 {
			t.Errorf("%d blocks of the stranger, want 10 for now", n)
		}
		<-time.After(time.Minute)
		if n := len(c.dump()); n != 0 {
			t.Errorf("%d strangers have entries after the grace", n)
		}
		c.registry.Set(in)
		<-time.After(10 * time.Second)
		c.checkIndex()
		c.stopWorkers()
	})
}

// TestWithoutEvents: a policy that does not look at caches reads no events.
func TestWithoutEvents(t *testing.T) {
	for _, cfg := range []route.Config{{Mode: route.RoundRobin}, {OverlapWeight: new(0.0)}} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			defer c.startRouter(router.Config{Route: cfg})()
			defer c.stopWorkers()
			c.startWorker(1, 1)
			c.mustServe("a", prompt(0, 40, 1))
			<-time.After(10 * time.Second)
			if row := c.workers()[1]; row.Feed.State != "off" || row.CachedBlocks != 10 {
				t.Errorf("worker 1: %+v", row)
			}
			if n := len(c.dump()); n != 0 {
				t.Errorf("the index has entries of %d workers", n)
			}
		})
	}
}

// TestUnconfirmed: a worker whose lease is in doubt is still used.
func TestUnconfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		c.mustServe("a", prompt(0, 40, 1))
		in := c.registry.Instances()[0]
		in.Unconfirmed = true
		c.registry.Set(in)
		synctest.Wait()
		if d := c.mustServe("b", prompt(0, 40, 2)); d.OverlapBlocks != 9 {
			t.Errorf("routed to %+v", d)
		}
		if row := c.workers()[1]; row.State != "unconfirmed" {
			t.Errorf("worker 1 is %s", row.State)
		}
	})
}

// TestPlanesAway: a router whose planes fail continues with its state.
func TestPlanesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		away := &awayOnce{Registry: c.registry}
		r, err := router.New(router.Config{}, router.Planes{Bus: c.bus, Registry: away}, nil, c.metrics, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		c.router = r
		defer c.run("router", r.Run)()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		<-time.After(time.Second)
		c.mustServe("a", prompt(0, 40, 1))
	})
}

// awayOnce is a registry whose first watch fails.
type awayOnce struct {
	disco.Registry
	failed bool
}

func (a *awayOnce) Watch(ctx context.Context, kind disco.Kind, sink func([]disco.Instance)) error {
	if kind == disco.KindWorker && !a.failed {
		a.failed = true
		return fault.New(fault.Unavailable, "the store is away")
	}
	return a.Registry.Watch(ctx, kind, sink)
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		c.mustServe("a", prompt(0, 41, 1))
		c.mustServe("b", prompt(0, 41, 2))
		rec := httptest.NewRecorder()
		c.metrics.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		for _, want := range []string{
			`penstock_router_decision_seconds_count{stage="match"} 2`,
			`penstock_router_overlap_blocks_sum 10`,
			`penstock_router_predicted_cached_tokens_total 40`,
			`penstock_router_decisions_total{outcome="ok"} 2`,
			`penstock_index_blocks 10`,
			`penstock_index_events_total{kind="stored",outcome="apply"} 10`,
			`penstock_index_events_total{kind="cleared",outcome="apply"} 1`,
			`penstock_feed_gaps_total 0`,
			`penstock_feed_lag_seconds 0`,
			`penstock_worker_requests_total{outcome="ok",worker="1"} 2`,
			`penstock_worker_cached_tokens_total{worker="1"} 40`,
			`penstock_worker_output_tokens_total{worker="1"} 4`,
			`penstock_worker_kv_events_total{kind="stored",worker="1"} 10`,
		} {
			if !bytes.Contains(rec.Body.Bytes(), []byte(want+"\n")) {
				t.Errorf("%s is missing", want)
			}
		}
	})
}

// TestGenerate: the generate call of the router API.
func TestGenerate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		post := func(body string) *httptest.ResponseRecorder {
			rec := httptest.NewRecorder()
			c.router.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/router/generate", strings.NewReader(body)))
			return rec
		}
		rec := post(`{"model":"m","token_ids":[5,6,7,8,9],"stop_conditions":{"max_tokens":2},"sampling_options":{"temperature":0.5}}`)
		want := `data: {"token_ids":[10],"worker_id":1,"dp_rank":0}

data: {"token_ids":[11],"finish_reason":"length","worker_id":1,"dp_rank":0}

data: [DONE]

`
		if rec.Code != 200 || rec.Body.String() != want || rec.Header().Get("Content-Type") != "text/event-stream" {
			t.Errorf("status %d, body\n%s", rec.Code, rec.Body)
		}
		for body, want := range map[string]int{
			`{"model":"m","token_ids":[]}`:                                            400,
			`{"model":"m","token_ids":[1],"stop_conditions":{"max_tokens":-1}}`:       400,
			`{"model":"m","token_ids":[1],"sampling_options":{"temperature":"warm"}}`: 400,
			`{"model":"m","token_ids":[1],"sampling_options":{"temprature":1}}`:       400,
			`{"model":"m","token_ids":[1],"worker_id":9}`:                             404,
			`{"model":"x","token_ids":[1]}`:                                           404,
		} {
			if rec := post(body); rec.Code != want {
				t.Errorf("%s: status %d, want %d: %s", body, rec.Code, want, rec.Body)
			}
		}
		// Beyond the wire's range, and still an error about the field.
		for _, n := range []string{"3", "1000000000000000000"} {
			rec := post(`{"model":"m","token_ids":[1],"stop_conditions":{"max_tokens":2,"min_tokens":` + n + `}}`)
			if rec.Code != 400 || !strings.Contains(rec.Body.String(), `"param":"stop_conditions.min_tokens"`) {
				t.Errorf("min_tokens %s: status %d: %s", n, rec.Code, rec.Body)
			}
		}
		synctest.Wait()
		if row := c.workers()[1]; row.Load.ActiveRequests != 0 {
			t.Errorf("%d requests are still active", row.Load.ActiveRequests)
		}
	})
}

// TestGenerateIsRenewed: a request of the router API that runs longer than ReservationTTL counts as
// load until its end.
func TestGenerateIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{ReservationTTL: 30 * time.Second})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		done := make(chan int)
		go func() {
			rec := httptest.NewRecorder()
			body := `{"model":"m","token_ids":[1,2,3],"stop_conditions":{"max_tokens":9000}}`
			c.router.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/router/generate", strings.NewReader(body)))
			done <- rec.Code
		}()
		<-time.After(time.Minute)
		if row := c.workers()[1]; row.Load.ActiveRequests != 1 {
			t.Errorf("%d requests are active while one runs", row.Load.ActiveRequests)
		}
		if code := <-done; code != 200 {
			t.Errorf("status %d", code)
		}
		if row := c.workers()[1]; row.Load.ActiveRequests != 0 {
			t.Errorf("%d requests are active after its end", row.Load.ActiveRequests)
		}
	})
}

// TestConcurrent decides while events, reports and memberships change; in the end nothing is left.
func TestConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{Decisions: 16})()
		defer c.stopWorkers()
		c.startWorker(1, 1)
		c.startWorker(2, 1)
		var clients sync.WaitGroup
		for client := range 8 {
			clients.Go(func() {
				for i := range 40 {
					id := fmt.Sprint(client, "-", i)
					req := &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: prompt(100*(i%5), 40, i)}
					if i%4 == 0 {
						if _, err := c.router.Explain(t.Context(), req); err != nil {
							t.Error(err)
						}
					}
					d, err := c.router.Route(t.Context(), req)
					if err != nil {
						t.Error(err)
						continue
					}
					ereq := &engine.Request{ID: id, Attempt: 1, Model: "m", Prompt: req.Tokens, Choices: 1, Stop: engine.Stop{MaxTokens: 1}, Logprobs: -1}
					// The worker may be draining: then the call fails, and the request is freed all the
					// same.
					_ = c.rpc.Call(t.Context(), d.Addr, engine.MethodGenerate, engine.AppendRequest(nil, ereq), func([]byte) error { return nil })
					c.router.MarkPrefilled(id, 1, 0)
					c.router.FreeReservation(id, 1, 0)
				}
			})
		}
		clients.Go(func() {
			in := c.registry.Instances()[0]
			for range 20 {
				c.registry.Delete(in)
				<-time.After(5 * time.Millisecond)
				c.registry.Set(in)
				<-time.After(5 * time.Millisecond)
			}
		})
		clients.Wait()
		<-time.After(time.Minute)
		c.checkIndex()
		for id, row := range c.workers() {
			if row.Load.ActiveRequests != 0 || row.Load.PrefillTokens != 0 {
				t.Errorf("worker %d: %+v", id, row.Load)
			}
		}
	})
}

func BenchmarkRoute(b *testing.B) {
	const workers = 64
	mem, registry := bus.NewMemBus(), servetest.NewRegistry()
	r, err := router.New(router.Config{}, router.Planes{Bus: mem, Registry: registry}, nil, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	meta, err := engine.EncodeCard(servetest.ModelCard("m"))
	if err != nil {
		b.Fatal(err)
	}
	tokens := prompt(0, 8192, 1)
	hasher, err := kv.NewHasher(4, kv.Salt{})
	if err != nil {
		b.Fatal(err)
	}
	for id := range kv.WorkerID(workers) {
		registry.Set(disco.Instance{Kind: disco.KindWorker, ID: id + 1, Epoch: 1, Namespace: "penstock", Component: "backend", Meta: meta})
		rec := kvfeed.Record{Worker: kv.Worker{ID: id + 1}, Epoch: 1, First: 1, BlockSize: 4, Events: []kv.Event{
			{Kind: kv.Cleared}, {Kind: kv.Stored, Blocks: hasher.AppendBlockHashes(nil, tokens[:128*(id+1)], nil)},
		}}
		if err := mem.Publish(b.Context(), bus.KVEventsTopic("penstock", "backend"), engine.WorkerKey(rec.Worker), kvfeed.AppendRecord(nil, &rec)); err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(ctx)
	}()
	defer func() { cancel(); <-done }()
	best := func() int {
		d, err := r.Route(ctx, &route.Request{ID: "r", Attempt: 1, Model: "m", Tokens: tokens})
		r.FreeReservation("r", 1, 0)
		if err != nil {
			return -1
		}
		return d.OverlapBlocks
	}
	for begin := time.Now(); best() != 2048; runtime.Gosched() {
		if time.Since(begin) > time.Minute {
			b.Fatal("the events were not applied")
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		best()
	}
}
