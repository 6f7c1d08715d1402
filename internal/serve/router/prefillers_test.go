package router_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

// startExchanging starts a worker of a role which exchanges blocks through memory of a host.
func (c *cluster) startExchanging(id kv.WorkerID, role engine.Role, host string) {
	c.t.Helper()
	card := servetest.ModelCard("m")
	card.Role = role
	e := servetest.New(servetest.Config{Card: card, Step: 10 * time.Millisecond})
	cfg := worker.Config{ID: id, Epoch: 1, Role: role, LoadInterval: time.Hour, OpenExchange: func(context.Context, string, worker.ExchangeObserver) (*worker.Exchange, error) {
		return &worker.Exchange{
			Metadata: disagg.Metadata{
				Epoch: 1, BlockSize: card.BlockSize, TokenBytes: 4096, Layout: "tokens", Type: "float32", Numerics: card.Numerics,
				Transports: []disagg.TransportAddress{{Name: "shm", Scope: host, Address: "socket"}, {Name: "tcp", Address: "10.0.0.1:7000"}},
			},
			Run: func(ctx context.Context) error { <-ctx.Done(); return nil },
		}, nil
	}}
	w, err := worker.New(cfg, e, worker.Planes{RPC: c.rpc, Bus: c.bus, Registry: c.registry}, c.wmetrics, slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatal(err)
	}
	c.engines[id] = e
	c.stops[id] = c.run(fmt.Sprint("worker ", id), w.Run)
}

// cache has the engine of a worker compute a prompt.
func (c *cluster) cache(id kv.WorkerID, tokens []kv.Token) {
	c.t.Helper()
	req := &engine.Request{ID: "x", Attempt: 1, Model: "m", Prompt: tokens, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 1}}
	if err := c.engines[id].Generate(c.t.Context(), req, func(*engine.Delta) error { return nil }); err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

// reportPrefill publishes a load report of a worker which has so many tokens to compute.
func (c *cluster) reportPrefill(id kv.WorkerID, tokens int) {
	c.t.Helper()
	b, err := engine.EncodeLoadReport(engine.LoadReport{WorkerID: id, Epoch: 1, State: engine.StateReady, Load: engine.Load{PrefillTokens: tokens}})
	if err == nil {
		err = c.bus.Publish(c.t.Context(), bus.LoadTopic("penstock"), engine.WorkerKey(kv.Worker{ID: id}), b)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	synctest.Wait()
}

// TestPrefillHolders: a decision for a decode worker names the prefill workers which hold most of the prompt, except for
// busy ones and ones which do not answer. They are no reason to refuse a request.
func TestPrefillHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.startExchanging(1, engine.RoleDecode, "a")
		c.startExchanging(2, engine.RolePrefill, "a")
		c.startExchanging(3, engine.RolePrefill, "a")
		defer c.startRouter(router.Config{Route: route.Config{Busy: route.BusyThresholds{PrefillTokens: 500}}})()
		defer c.stopWorkers()
		tokens := prompt(0, 64, 1)
		number := 0
		ask := func(tokens []kv.Token) string {
			t.Helper()
			number++
			d, err := c.router.Route(t.Context(), &route.Request{ID: fmt.Sprint("r", number), Attempt: 1, Model: "m", Tokens: tokens})
			if err != nil || d.Worker.ID != 1 {
				t.Fatalf("%+v, %v", d, err)
			}
			c.router.FreeReservation(fmt.Sprint("r", number), 1, 0)
			return fmt.Sprint(d.Prefill)
		}
		if got := ask(tokens); got != "[]" {
			t.Errorf("before anything is cached: %s", got)
		}
		size := servetest.ModelCard("m").BlockSize
		c.cache(2, tokens[:2*size])
		c.cache(3, tokens)
		whole := len(tokens) / size * size
		both := fmt.Sprint([]kv.PrefixHolder{{Worker: 3, Tokens: whole}, {Worker: 2, Tokens: 2 * size}})
		if got := ask(tokens); got != both {
			t.Errorf("two hold it: %s, want %s", got, both)
		}
		if got := ask(prompt(5000, 64, 1)); got != "[]" {
			t.Errorf("of another prompt: %s", got)
		}
		second := fmt.Sprint([]kv.PrefixHolder{{Worker: 2, Tokens: 2 * size}})
		c.reportPrefill(3, 501)
		if got := ask(tokens); got != second {
			t.Errorf("worker 3 is busy: %s, want %s", got, second)
		}
		c.reportPrefill(2, 501)
		if got := ask(tokens); got != "[]" {
			t.Errorf("both are busy: %s", got)
		}
		c.reportPrefill(2, 500)
		c.reportPrefill(3, 0)
		if got := ask(tokens); got != both {
			t.Errorf("none is busy any more: %s, want %s", got, both)
		}
		c.stops[3]()
		delete(c.stops, 3)
		if got := ask(tokens); got != second {
			t.Errorf("without worker 3: %s, want %s", got, second)
		}
		// A worker which is not asked to compute prompts by others is told of none.
		c.stops[1]()
		c.startWorker(1, 2)
		if got := ask(tokens); got != "[]" {
			t.Errorf("an aggregated worker: %s", got)
		}
	})
}

// TestNearestDecodeWorker: of decode workers which are as good otherwise, a prompt goes to one on the host of the prefill
// worker which holds it. If none holds it, or all are on one host, it makes no difference.
func TestNearestDecodeWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.startExchanging(1, engine.RoleDecode, "a")
		c.startExchanging(2, engine.RoleDecode, "b")
		c.startExchanging(3, engine.RolePrefill, "b")
		c.startExchanging(4, engine.RolePrefill, "a")
		defer c.startRouter(router.Config{PredictedTTL: new(time.Duration)})() // what is sent is not predicted to be cached
		defer func() { c.stops[4]() }()
		defer c.stopWorkers()
		explain := func(tokens []kv.Token) (near []kv.WorkerID) {
			t.Helper()
			ex, err := c.router.Explain(t.Context(), &route.Request{ID: "e", Attempt: 1, Model: "m", Tokens: tokens})
			if err != nil || len(ex.Candidates) != 2 {
				t.Fatalf("%+v, %v", ex, err)
			}
			for i := range ex.Candidates {
				if a := &ex.Candidates[i]; a.TransferAffinity > 0 && a.Affinity == a.TransferAffinity {
					near = append(near, a.Worker.ID)
				}
			}
			return near
		}
		one, other := prompt(0, 64, 1), prompt(5000, 64, 1)
		if near := explain(one); !slices.Equal(near, []kv.WorkerID{1, 2}) {
			t.Errorf("none holds it, and near are %v", near)
		}
		c.cache(3, one)
		c.cache(4, other)
		c.cache(4, one[:32]) // another one holds more of it
		for i := range 4 {
			for want, tokens := range map[kv.WorkerID][]kv.Token{2: one, 1: other} {
				id := fmt.Sprint(want, " ", i)
				d, err := c.router.Route(t.Context(), &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: tokens})
				if err != nil || d.Worker.ID != want || !slices.Equal(explain(tokens), []kv.WorkerID{want}) {
					t.Errorf("the prompt which is held on the host of worker %d went to %+v, %v; near is %v", want, d, err, explain(tokens))
				}
				c.router.FreeReservation(id, 1, 0)
			}
		}
		c.stops[2]()
		c.stops[3]()
		delete(c.stops, 2)
		delete(c.stops, 3)
		c.startExchanging(2, engine.RoleDecode, "a")
		if near := explain(other); near != nil {
			t.Errorf("all are on one host, and near are %v", near)
		}
	})
}

// TestBusyPrefillLegs: the busy thresholds of a model hold for its prefill workers, also for ones which come later. When
// these are busy requests are served all the same, and what they have to do makes no decode worker busy.
func TestBusyPrefillLegs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		start := func(id kv.WorkerID, role engine.Role) {
			card := servetest.ModelCard("m")
			card.Role, card.KVConnector = role, engine.NIXLConnector
			c.startWorkerOf(id, 1, card)
		}
		start(1, engine.RoleDecode)
		start(2, engine.RolePrefill)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		if status, body := c.call("/busy_threshold", `{"model":"m","active_prefill_tokens_threshold":100}`); status != 200 {
			t.Fatalf("%d: %s", status, body)
		}
		number := 0
		expect := func(when string, role route.WorkerRole, want kv.WorkerID) {
			t.Helper()
			number++
			tokens := prompt(1000*number, 200, 1)
			if role == route.ServingWorkers {
				tokens = tokens[:8]
			}
			d, err := c.router.Route(t.Context(), &route.Request{ID: fmt.Sprint(number), Attempt: 1, Model: "m", Role: role, Tokens: tokens})
			if d.Worker.ID != want || (want == 0) != (fault.CodeOf(err) == fault.Overloaded) {
				t.Errorf("%s: %+v, %v", when, d, err)
			}
		}
		expect("the first leg", route.PrefillWorkers, 2)
		expect("the second leg", route.PrefillWorkers, 0)
		expect("a whole request", route.ServingWorkers, 1)
		start(3, engine.RolePrefill)
		expect("a leg with another worker", route.PrefillWorkers, 3)
		expect("one more leg", route.PrefillWorkers, 0)
		c.stops[2]()
		c.stops[3]()
		delete(c.stops, 2)
		delete(c.stops, 3)
		start(2, engine.RolePrefill)
		expect("a leg after all had left", route.PrefillWorkers, 2)
		expect("the second leg after that", route.PrefillWorkers, 0)
		expect("a whole request", route.ServingWorkers, 1)
	})
}
