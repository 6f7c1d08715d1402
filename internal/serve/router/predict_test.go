package router_test

import (
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
)

// burst routes n requests with one prompt, without events about it, and returns on how many workers
// they are. The prompt of each is computed before the next one is routed: otherwise waiting for a
// worker would cost as much as computing the prompt on another.
func burst(t *testing.T, c *cluster, id string, n int, tokens []kv.Token) int {
	t.Helper()
	on := map[kv.Worker]bool{}
	for i := range n {
		d, err := c.router.Route(t.Context(), &route.Request{ID: id, Attempt: uint32(i + 1), Model: "m", Tokens: tokens})
		if err != nil {
			t.Fatal(err)
		}
		on[d.Worker] = true
		c.router.MarkPrefilled(id, uint32(i+1), 0)
	}
	for i := range n {
		c.router.FreeReservation(id, uint32(i+1), 0)
	}
	return len(on)
}

// startWorkers starts three workers without requests.
func (c *cluster) startWorkers() {
	c.t.Helper()
	for id := range kv.WorkerID(3) {
		c.startWorker(id+1, 1)
	}
}

// TestSiblingsGoTogether: before the first event shows where a prompt is cached, requests with the same
// prompt go where it was sent, for PredictedTTL.
func TestSiblingsGoTogether(t *testing.T) {
	for _, tt := range []struct {
		name     string
		cfg      router.Config
		together bool
	}{
		{"by default", router.Config{}, true},
		{"without events", router.Config{NoKVEvents: true}, true},
		{"not predicted", router.Config{PredictedTTL: new(time.Duration(0))}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				defer c.startRouter(tt.cfg)()
				c.startWorkers()
				defer c.stopWorkers()
				if got := burst(t, c, "a", 8, prompt(0, 400, 1)); (got == 1) != tt.together {
					t.Errorf("eight siblings are on %d workers", got)
				}
			})
		})
	}
}

// TestPredictionsEnd: predictions expire after their TTL, entries from events do not.
func TestPredictionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		c.startWorker(1, 1)
		defer c.stopWorkers()
		sent := prompt(0, 41, 1)
		overlap := func(tokens []kv.Token) int {
			ex, err := c.router.Explain(t.Context(), &route.Request{Model: "m", Tokens: tokens})
			if err != nil {
				t.Fatal(err)
			}
			return ex.Decision.OverlapBlocks
		}
		lost := prompt(1000, 41, 1)
		burst(t, c, "lost", 1, lost) // it never reaches its worker
		c.mustServe("served", sent)
		size := c.engines[1].Card().BlockSize
		if got, want := overlap(lost), 40/size; got != want {
			t.Errorf("at once %d blocks are believed in, want %d", got, want)
		}
		<-time.After(4 * time.Second)
		if got := overlap(lost); got != 0 {
			t.Errorf("4 s later %d blocks are believed in", got)
		}
		if got, want := overlap(sent), 40/size; got != want {
			t.Errorf("of what was served %d blocks are known, want %d", got, want)
		}
	})
}

// TestPredictionsAfterAnAnswer: engines such as llama.cpp report the blocks of a running request as removed, and
// as stored again when it ends. Until that event arrives the router predicts the prompt which the worker has
// just computed, so that a client's next turn finds its worker. It predicts nothing of an attempt which ended
// before its prompt was computed.
func TestPredictionsAfterAnAnswer(t *testing.T) {
	for _, computed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			defer c.startRouter(router.Config{})()
			card := servetest.ModelCard("m")
			card.KVPredicted = true
			c.startWorkerOf(1, 1, card)
			defer c.stopWorkers()
			sent := prompt(0, 42, 1)
			size := c.engines[1].Card().BlockSize
			overlap := func() int {
				t.Helper()
				synctest.Wait()
				ex, err := c.router.Explain(t.Context(), &route.Request{Model: "m", Tokens: sent})
				if err != nil {
					t.Fatal(err)
				}
				return ex.Decision.OverlapBlocks
			}
			c.mustServe("cold", sent)
			<-time.After(4 * time.Second) // what is predicted of it expires; its events remain
			if got, want := overlap(), 41/size; got != want {
				t.Fatalf("%d blocks are known of what was served, want %d", got, want)
			}

			if _, err := c.router.Route(t.Context(), &route.Request{ID: "hot", Attempt: 1, Model: "m", Tokens: sent}); err != nil {
				t.Fatal(err)
			}
			c.engines[1].EvictBlocks(41 / size)
			<-time.After(time.Second)
			if got := overlap(); got != 0 {
				t.Errorf("while its request runs %d blocks of a removed prompt are predicted", got)
			}
			want := 0
			if computed {
				c.router.MarkPrefilled("hot", 1, 41/size*size)
				want = 41 / size
			}
			c.router.FreeReservation("hot", 1, 0)
			if got := overlap(); got != want {
				t.Errorf("computed %v: %d blocks are predicted after the answer, want %d", computed, got, want)
			}
			<-time.After(4 * time.Second)
			if got := overlap(); got != 0 {
				t.Errorf("computed %v: %d blocks are predicted 4 s later", computed, got)
			}
		})
	}
}

// TestNoReuse: nothing is predicted for an engine that recomputes every prompt, with or without events.
func TestNoReuse(t *testing.T) {
	for _, events := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			defer c.startRouter(router.Config{NoKVEvents: !events})()
			card := servetest.ModelCard("m")
			card.NoPrefixCache = true
			c.startWorkerOf(1, 1, card)
			defer c.stopWorkers()
			sent := prompt(0, 41, 1)
			burst(t, c, "sent", 1, sent)
			ex, err := c.router.Explain(t.Context(), &route.Request{Model: "m", Tokens: sent})
			if err != nil {
				t.Fatal(err)
			}
			if got := ex.Decision.OverlapBlocks; got != 0 {
				t.Errorf("events %v: %d blocks are believed in", events, got)
			}
		})
	}
}

// TestNoKVEvents: a router without events does not subscribe to any, predicts from what it sent, and
// uses the workers' reports.
func TestNoKVEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{NoKVEvents: true})()
		c.startWorker(1, 1)
		c.startWorker(2, 1)
		defer c.stopWorkers()

		// An event which says that worker 2 has the prompt.
		sent := prompt(0, 33, 1)
		size := c.engines[1].Card().BlockSize
		hasher, err := kv.NewHasher(size, kv.Salt{})
		if err != nil {
			t.Fatal(err)
		}
		rec := kvfeed.Record{Worker: kv.Worker{ID: 2}, Epoch: 1, First: 100, BlockSize: uint32(size), Events: []kv.Event{
			{Kind: kv.Cleared}, {Kind: kv.Stored, Blocks: hasher.AppendBlockHashes(nil, sent, nil)},
		}}
		if err := c.bus.Publish(t.Context(), bus.KVEventsTopic("penstock", "backend"), "2/0", kvfeed.AppendRecord(nil, &rec)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()

		send := func(id string, pin kv.WorkerID, cached int) int {
			d, err := c.router.Route(t.Context(), &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: sent, Pin: kv.Worker{ID: pin}})
			if err != nil {
				t.Fatal(err)
			}
			c.router.MarkPrefilled(id, 1, cached)
			c.router.FreeReservation(id, 1, 0)
			return d.OverlapBlocks
		}
		full := 32 / size
		if got := send("a", 2, 0); got != 0 {
			t.Errorf("worker 2 is believed to hold %d blocks by its events", got)
		}
		if got := send("b", 2, 32); got != full {
			t.Errorf("worker 2 is believed to hold %d blocks of what it was sent, want %d", got, full)
		}
		if got := send("c", 2, 2*size); got != full {
			t.Errorf("after it reported all of it %d blocks are believed in, want %d", got, full)
		}
		if got := send("d", 2, 32); got != 2 {
			t.Errorf("after it reported 2 blocks %d are believed in", got)
		}
		if got := send("e", 2, 32); got != full {
			t.Errorf("after it reported more than was believed %d blocks are believed in, want %d", got, full)
		}

		if got := send("unknown", 2, engine.CachedUnknown); got != full {
			t.Errorf("%d blocks are believed in before it is unknown what was cached, want %d", got, full)
		}
		if got := send("after", 2, 32); got != full {
			t.Errorf("after it was not said what was cached %d blocks are believed in, want %d", got, full)
		}
		if _, err := c.router.Route(t.Context(), &route.Request{ID: "late", Attempt: 1, Model: "m", Tokens: sent, Pin: kv.Worker{ID: 2}}); err != nil {
			t.Fatal(err)
		}
		c.router.MarkPrefilled("late", 1, engine.CachedUnknown)
		c.router.MarkPrefilled("late", 1, size)
		c.router.FreeReservation("late", 1, 0)
		if got := send("after late", 2, 32); got != 1 {
			t.Errorf("after it was said late that 1 block was cached %d are believed in", got)
		}

		// A request without a worker leaves nothing.
		c.stops[1]()
		delete(c.stops, 1)
		other := prompt(5000, 33, 1)
		if _, err := c.router.Route(t.Context(), &route.Request{ID: "f", Attempt: 1, Model: "m", Tokens: other, Pin: kv.Worker{ID: 1}}); err == nil {
			t.Fatal("a worker that is gone was chosen")
		}
		if ex, err := c.router.Explain(t.Context(), &route.Request{Model: "m", Tokens: other}); err != nil || ex.Decision.OverlapBlocks != 0 {
			t.Errorf("%d blocks are believed in of a prompt that was sent nowhere, %v", ex.Decision.OverlapBlocks, err)
		}

		// Another epoch of the worker has none of the earlier predictions.
		c.stops[2]()
		delete(c.stops, 2)
		c.startWorker(2, 2)
		if got := send("g", 2, 0); got != 0 {
			t.Errorf("a worker that is new is believed to hold %d blocks", got)
		}
		<-time.After(3 * time.Minute)
		if got := send("h", 2, 0); got != 0 {
			t.Errorf("after 3 minutes %d blocks are believed in", got)
		}
	})
}
