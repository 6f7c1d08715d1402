package router_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/internal/obs"
	"penstock/internal/plane/bus/bustest"
	"penstock/internal/serve/router"
)

// second starts a second router over the same planes.
func (c *cluster) second(cfg router.Config) (r *router.Router, stop func()) {
	c.t.Helper()
	planes := router.Planes{Bus: c.bus, Registry: c.registry, RPC: c.rpc}
	r, err := router.New(cfg, planes, byteTokens{}, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatal(err)
	}
	return r, c.run("second router", r.Run)
}

// ask gets an answer of the router API of r.
func ask(t *testing.T, r *router.Router, path string) string {
	t.Helper()
	rec := httptest.NewRecorder()
	r.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	if rec.Code != 200 {
		t.Fatalf("%s: status %d: %s", path, rec.Code, rec.Body)
	}
	return rec.Body.String()
}

// TestRoutersTakeTurns: two routers which get requests at the same instants place them one after the other, the second
// one as soon as it has heard of the first. A queue which is full delays and refuses none which only waits for its turn.
func TestRoutersTakeTurns(t *testing.T) {
	for _, entries := range []int{100, 1} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			cfg := router.Config{Sync: true, Queue: queue.Config{MaxEntries: entries}}
			defer c.startRouter(cfg)()
			second, stop := c.second(cfg)
			defer stop()
			c.startWorker(1, 1)
			c.startWorker(2, 1)
			defer c.stopWorkers()
			time.Sleep(2 * time.Second) // virtual
			routers := []*router.Router{c.router, second}
			held := make([][]time.Duration, len(routers))
			for burst := range 20 {
				start := time.Now()
				var clients sync.WaitGroup
				var mu sync.Mutex
				held = make([][]time.Duration, len(routers))
				for i, r := range routers {
					for n := range 3 {
						id := fmt.Sprint(burst, i, n)
						clients.Go(func() {
							if _, err := r.Route(t.Context(), &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: prompt(burst, 64, 7)}); err != nil {
								t.Error(err)
							}
							mu.Lock()
							held[i] = append(held[i], time.Since(start))
							mu.Unlock()
							time.Sleep(50 * time.Millisecond) // virtual
							r.FreeReservation(id, 1, 0)
						})
					}
				}
				clients.Wait()
				time.Sleep(time.Second) // virtual
			}
			slices.SortFunc(held, func(a, b []time.Duration) int { return cmp.Compare(slices.Max(a), slices.Max(b)) })
			first, last := slices.Max(held[0]), held[1]
			slices.Sort(last)
			if entries > 1 && (first != 0 || last[0] < time.Millisecond || last[2] > 5*time.Millisecond) {
				t.Errorf("one router places its requests after %v, the other one after %v", first, last)
			}
			if entries == 1 && (last[0] != 0 || last[1] != 0 || last[2] == 0) {
				t.Errorf("with room for one, requests of a burst are placed after %v", last)
			}
		})
	}
}

// TestRoutersCountEachOthersRequests: a request that one router sends to a worker is counted by the
// other too, from start to end.
func TestRoutersCountEachOthersRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		cfg := router.Config{Sync: true, TrackOutput: true, Route: route.Config{Mode: route.KV}} // in which prefills make no progress
		defer c.startRouter(cfg)()
		second, stop := c.second(cfg)
		c.startWorker(1, 1)
		c.startWorker(2, 1)
		defer c.stopWorkers()
		time.Sleep(2 * time.Second) // virtual

		d, err := c.router.Route(t.Context(), &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: prompt(1, 64, 7)})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // virtual
		load := func(requests, blocks, left int) string {
			return fmt.Sprintf(`"load":{"active_requests":%d,"active_blocks":%d,"prefill_tokens":%d,"others":{"active_requests":%[1]d,"prefill_tokens":%[3]d}`, requests, blocks, left)
		}
		sees := func(what string) {
			t.Helper()
			if rows := ask(t, second, "/v1/router/workers"); !strings.Contains(rows, what) {
				t.Errorf("the second router does not see %s: %s", what, rows)
			}
		}
		sees(load(1, 64/blockSize(d), 64))
		for i := range 8 { // the busy worker is avoided
			e, err := second.Explain(t.Context(), &route.Request{ID: fmt.Sprint(i), Attempt: 1, Model: "m", Tokens: prompt(1000*i+1000, 64, 7)})
			if err != nil || e.Decision.Worker == d.Worker {
				t.Fatalf("the second router would choose %v: %v", e.Decision.Worker, err)
			}
		}
		c.router.MarkPrefilled("a", 1, 0)
		c.router.RecordOutput("a", 1, 2*blockSize(d))
		time.Sleep(300 * time.Millisecond) // virtual
		sees(load(1, 64/blockSize(d)+2, 0))
		if rows := ask(t, second, "/v1/router/replicas"); !strings.Contains(rows, `"sync":true,"requests":0,"rows":[{"router":"`) || !strings.Contains(rows, `"requests":1,"unplaced":0`) {
			t.Error(rows)
		}
		c.router.FreeReservation("a", 1, 0)
		time.Sleep(10 * time.Millisecond) // virtual
		sees(load(0, 0, 0))

		// A router that stops takes its requests along.
		if _, err := second.Route(t.Context(), &route.Request{ID: "b", Attempt: 1, Model: "m", Tokens: prompt(1, 64, 7)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // virtual
		if rows := ask(t, c.router, "/v1/router/replicas"); !strings.Contains(rows, `"requests":1`) {
			t.Error(rows)
		}
		stop()
		if rows := ask(t, c.router, "/v1/router/replicas"); !strings.Contains(rows, `"rows":[]`) {
			t.Error(rows)
		}
	})
}

func blockSize(d route.Decision) int { return d.BlockSize }

// TestLostChangesHeal: whatever the plane loses of the routers' messages, soon after the losses stop
// each has the other's state.
func TestLostChangesHeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		cfg := router.Config{Sync: true}
		defer c.startRouter(cfg)()
		second, stop := c.second(cfg)
		defer stop()
		c.startWorker(1, 1)
		defer c.stopWorkers()
		time.Sleep(2 * time.Second) // virtual

		c.bus.Set(bustest.BusFaults{Drop: 0.4, Duplicate: 0.2})
		for i := range 200 {
			r := c.router
			if i%2 == 0 {
				r = second
			}
			id := fmt.Sprint(i)
			if _, err := r.Route(t.Context(), &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: prompt(i, 64, 7)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond) // virtual
			r.MarkPrefilled(id, 1, 0)
			if i%20 > 1 {
				r.FreeReservation(id, 1, 0)
			}
		}
		c.bus.Set(bustest.BusFaults{})
		time.Sleep(3 * time.Second) // virtual
		for _, r := range []*router.Router{c.router, second} {
			if rows := ask(t, r, "/v1/router/workers"); !strings.Contains(rows, `"load":{"active_requests":20,`) || !strings.Contains(rows, `"others":{"active_requests":10,"prefill_tokens":0}`) {
				t.Error(rows)
			}
			if rows := ask(t, r, "/v1/router/replicas"); !strings.Contains(rows, `"behind_seconds":0}`) {
				t.Error(rows)
			}
		}
	})
}

// TestWithoutSync: a router without Sync neither publishes nor subscribes.
func TestWithoutSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.startRouter(router.Config{})()
		second, stop := c.second(router.Config{Sync: true})
		defer stop()
		c.startWorker(1, 1)
		defer c.stopWorkers()
		time.Sleep(2 * time.Second) // virtual
		if _, err := c.router.Route(t.Context(), &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: []kv.Token{1}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // virtual
		if rows := ask(t, second, "/v1/router/replicas"); !strings.Contains(rows, `"rows":[]`) {
			t.Error(rows)
		}
		if rows := ask(t, c.router, "/v1/router/replicas"); !strings.Contains(rows, `{"sync":false,"requests":1,"rows":[]}`) {
			t.Error(rows)
		}
	})
}
