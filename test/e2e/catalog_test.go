package e2e

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/internal/edge/prep"
	open "penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

// watchedRegistry counts the watches of workers.
type watchedRegistry struct {
	*servetest.Registry
	watches atomic.Int32
}

func (r *watchedRegistry) Watch(ctx context.Context, kind disco.Kind, sink func([]disco.Instance)) error {
	if kind == disco.KindWorker {
		r.watches.Add(1)
	}
	return r.Registry.Watch(ctx, kind, sink)
}

// TestOneCatalog: frontend and router judge workers by one watch of the registry. When workers of two cards
// arrive together, in whichever order, both serve the same card, and a request that is sent in the moment in
// which the frontend lists the model is served at once. Time is virtual.
func TestOneCatalog(t *testing.T) {
	pipe, err := open.Open(open.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		const step = 10 * time.Millisecond
		calls, events, metrics, log := rpc.NewMemPlane(), bus.NewMemBus(), obs.NewMetrics(), slog.New(slog.DiscardHandler)
		registry := &watchedRegistry{Registry: servetest.NewRegistry()}
		r, err := router.New(router.Config{}, router.Planes{Bus: events, Registry: registry, RPC: calls}, nil, metrics, log)
		if err != nil {
			t.Fatal(err)
		}
		f, err := frontend.New(frontend.Config{}, frontend.Deps{
			Router: r, Plane: calls, Catalog: r.Catalog(), Metrics: metrics, Log: log,
			OpenTokenizer: func(engine.TokenizerRef) (*prep.Pipeline, error) { return pipe, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var parts sync.WaitGroup
		defer parts.Wait()
		defer stop()
		run := func(part func(context.Context) error) {
			parts.Go(func() {
				if err := part(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		run(r.Run)
		run(func(ctx context.Context) error { return f.Run(ctx, newIdleListener()) })
		// The workers register elsewhere: the test lists them.
		elsewhere, measured := servetest.NewRegistry(), worker.NewMetrics(metrics)
		for i, context := range []int{512, 1024} {
			card := servetest.ModelCard("m")
			card.VocabSize, card.ContextLength, card.Tokenizer = pipe.Tokenizer.VocabSize(), context, engine.TokenizerRef{Kind: "builtin"}
			w, err := worker.New(worker.Config{ID: kv.WorkerID(i + 1), Epoch: 1, Component: []string{"a", "b"}[i]}, servetest.New(servetest.Config{Card: card, Step: step}),
				worker.Planes{RPC: calls, Bus: events, Registry: elsewhere}, measured, log)
			if err != nil {
				t.Fatal(err)
			}
			run(w.Run)
		}
		synctest.Wait()
		workers := elsewhere.Instances()
		if len(workers) != 2 {
			t.Fatalf("%d workers have registered", len(workers))
		}
		for i := range workers {
			workers[i].Component = "backend"
		}
		ask := func(method, path, body string) *httptest.ResponseRecorder {
			rec := httptest.NewRecorder()
			f.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
			return rec
		}
		for round := range 40 {
			parts.Go(func() {
				registry.Set(workers[round%2])
				registry.Set(workers[1-round%2])
			})
			for i := 1; !strings.Contains(ask(http.MethodGet, "/v1/models", "").Body.String(), `"id":"m"`); i++ {
				if runtime.Gosched(); i%100 == 0 {
					<-time.After(time.Nanosecond) // let time pass
				}
			}
			began := time.Now()
			if a := ask(http.MethodPost, "/v1/completions", `{"model":"m","prompt":"hi","max_tokens":2}`); a.Code != http.StatusOK || time.Since(began) > 2*step {
				t.Errorf("round %d: %d after %v: %s", round, a.Code, time.Since(began), a.Body)
			}
			synctest.Wait()
			if h := ask(http.MethodGet, "/health", "").Body.String(); strings.Count(h, `"state":"unfit"`) != 1 || strings.Count(h, `"state":"ready"`) != 1 {
				t.Errorf("round %d: health is %s", round, h)
			}
			if a, n := r.Availability("m"), f.WorkerCount("m"); a.Ready != 1 || n != 1 {
				t.Errorf("round %d: %d workers are ready for the router, %d for the frontend", round, a.Ready, n)
			}
			for _, in := range workers {
				registry.Delete(in)
			}
			synctest.Wait()
		}
		if n := registry.watches.Load(); n != 1 {
			t.Errorf("the registry is watched %d times for workers, want once", n)
		}
	})
}
