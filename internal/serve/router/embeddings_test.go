package router_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/embcache"
	"penstock/core/kv"
	"penstock/core/kvfeed/embfeed"
	"penstock/core/route"
	"penstock/internal/engine/watch"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

// startEncodingWorker runs a worker with an embedding cache, and returns the function which changes the cache.
func (c *cluster) startEncodingWorker(id kv.WorkerID, encoder string) (publish func(...embfeed.Event)) {
	c.t.Helper()
	card := servetest.ModelCard("m")
	card.Encoder, card.MaxBatchedTokens = encoder, 64
	e := servetest.New(servetest.Config{Card: card, Step: 10 * time.Millisecond})
	cache := embeddingSource{watch.New(watch.MinBacklog, func(*embfeed.Event) int { return 1 })}
	w, err := worker.New(worker.Config{ID: id, Epoch: 1, Embeddings: cache}, e, worker.Planes{RPC: c.rpc, Bus: c.bus, Registry: c.registry}, c.wmetrics, slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatal(err)
	}
	c.engines[id] = e
	c.stops[id] = c.run("worker", w.Run)
	return func(events ...embfeed.Event) {
		cache.watchers.Publish(events)
		time.Sleep(100 * time.Millisecond) // virtual time (synctest): the published events are delivered
		synctest.Wait()
	}
}

// embeddingSource is an embedding cache which is empty at the start.
type embeddingSource struct {
	watchers *watch.Broadcaster[embfeed.Event]
}

func (s embeddingSource) WatchEmbeddings(ctx context.Context, sink func([]embfeed.Event) error) error {
	return s.watchers.Watch(ctx, func() { s.watchers.SendDescription([]embfeed.Event{{Kind: embfeed.Cleared}}) }, errors.New("ended"), sink)
}

// TestHoldersArePreferred: a request goes to the worker which holds the embedding of its picture, made by that
// worker's own encoder for the request's salt, until the worker has evicted it or is gone.
func TestHoldersArePreferred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		defer c.stopWorkers()
		one, two := c.startEncodingWorker(1, "a"), c.startEncodingWorker(2, "b")
		picture, other := kv.Digest{1}, kv.Digest{2}
		event := func(kind embfeed.Kind, encoder, salt string, object kv.Digest) embfeed.Event {
			return embfeed.Event{Kind: kind, Key: embcache.EventKey(encoder, salt, object), Rows: 64, Bytes: 65536}
		}
		// affinities returns the preferences of the workers for a prompt which shows an object.
		affinities := func(salt string, object kv.Digest) map[kv.WorkerID]float64 {
			t.Helper()
			ex, err := c.router.Explain(t.Context(), &route.Request{
				ID: "r", Attempt: 1, Model: "m", Tokens: prompt(0, 80, 7), Salt: kv.Salt{Namespace: salt},
				Media: []kv.Media{{Hash: 9, Digest: object, Start: 8, End: 72}},
			})
			if err != nil {
				t.Fatal(err)
			}
			got := map[kv.WorkerID]float64{}
			for _, c := range ex.Candidates {
				if c.EmbeddingAffinity != c.Affinity || (c.HeldTokens == 64) != (c.Affinity > 0) {
					t.Errorf("%+v", c)
				}
				if c.Affinity > 0 {
					got[c.Worker.ID] = c.Affinity
					if ex.Decision.Worker != c.Worker {
						t.Errorf("salt %q: %d is preferred, %d chosen", salt, c.Worker.ID, ex.Decision.Worker.ID)
					}
				}
			}
			return got
		}
		expect := func(what, salt string, object kv.Digest, want kv.WorkerID) {
			t.Helper()
			got := affinities(salt, object)
			if _, ok := got[want]; len(got) > 1 || ok != (want != 0) {
				t.Errorf("%s: preferred %v, want %d", what, got, want)
			}
		}
		expect("at the start", "", picture, 0)
		two(event(embfeed.Added, "b", "", picture))
		expect("the holder", "", picture, 2)
		expect("of another picture", "", other, 0)
		expect("for another salt", "s", picture, 0)
		expect("of an object without a digest", "", kv.Digest{}, 0)
		one(event(embfeed.Added, "a", "s", picture))
		expect("the holder for the salt", "s", picture, 1)
		expect("the holder without a salt", "", picture, 2)
		var row struct {
			Embeddings struct {
				Workers, Entries, Holdings int
				Feeds                      []struct {
					Held  int
					State string
				}
			}
		}
		c.get("/v1/router/index", &row)
		if e := row.Embeddings; e.Entries != 2 || e.Holdings != 2 || len(e.Feeds) != 2 || e.Feeds[1].Held != 1 || e.Feeds[1].State != "live" {
			t.Errorf("/v1/router/index: %+v", e)
		}
		two(event(embfeed.Evicted, "b", "", picture))
		expect("after the eviction", "", picture, 0)
		two(event(embfeed.Added, "b", "", picture))
		expect("added again", "", picture, 2)
		c.stops[2]()
		delete(c.stops, 2)
		expect("after its worker has gone", "", picture, 0)
		expect("the other worker stays", "s", picture, 1)
	})
}

// TestQueuedRequestPrefersHolder: a request which waited is placed with what is held at that moment.
func TestQueuedRequestPrefersHolder(t *testing.T) {
	costs := map[bool]float64{}
	for _, held := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			defer c.startRouter(router.Config{Route: route.Config{QueueThreshold: new(0.5)}})()
			defer c.stopWorkers()
			publish := c.startEncodingWorker(1, "a")
			picture := kv.Digest{1}
			ask := func(id string) route.Decision {
				d, err := c.router.Route(t.Context(), &route.Request{
					ID: id, Attempt: 1, Model: "m", Tokens: prompt(100*len(id), 80, 7), Media: []kv.Media{{Hash: 9, Digest: picture, Start: 8, End: 72}},
				})
				if err != nil {
					t.Error(err)
				}
				return d
			}
			ask("first")
			placed := make(chan route.Decision, 1)
			go func() { placed <- ask("waiting") }()
			synctest.Wait()
			key := embcache.EventKey("a", "", picture)
			if !held {
				key[0]++
			}
			publish(embfeed.Event{Kind: embfeed.Added, Key: key})
			if len(placed) > 0 {
				t.Error("the request does not wait")
			}
			c.router.FreeReservation("first", 1, 0)
			costs[held] = (<-placed).Cost
			c.router.FreeReservation("waiting", 1, 0)
		})
	}
	if !(costs[true] < costs[false]) {
		t.Errorf("with and without the embedding it costs %v", costs)
	}
}
