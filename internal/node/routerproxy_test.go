package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"penstock/internal/enginemock/enginemocktest"
	"penstock/internal/node/engines"
	"penstock/internal/node/planes"

	"github.com/google/go-cmp/cmp"

	"penstock/core/kv"
	"penstock/internal/backoff"
	"penstock/internal/config"
	"penstock/internal/edge/prep"
	"penstock/internal/engine"
	"penstock/internal/engine/enginetest"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/rpc/rpctest"
	"penstock/internal/serve/router"
	"penstock/internal/serve/routerproxy"
	"penstock/internal/serve/worker"
)

// proxyFleet is workers, a router and a router proxy in one process, as the engine that the proxy makes of
// them. It runs while the engine does.
type proxyFleet struct {
	engine.Engine // the proxy's
	process       *process
	router        *router.Router
	relay         *routerproxy.Proxy
	workers       []*worker.Worker
}

// newProxyFleet makes a fleet of n workers whose calls go through faulty. Its engines have all abilities of
// the workers'.
func newProxyFleet(t testing.TB, n int, faulty func(rpc.Plane) rpc.Plane) engine.Engine {
	t.Helper()
	cfg, err := config.Load("", []string{
		"PENSTOCK_KV_CACHE_BLOCKS=40", "PENSTOCK_MAX_NUM_SEQS=16", "PENSTOCK_WORKERS=" + fmt.Sprint(n), "PENSTOCK_ROUTER_SEED=1",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	model, err := engines.OpenLocal(t.Context(), cfg, engines.MediaSources{})
	if err != nil {
		t.Fatal(err)
	}
	w := &proxyFleet{process: &process{
		cfg: cfg, log: log, metrics: obs.NewMetrics(), model: model,
		planes: &planes.Set{Events: bus.NewMemBus(), Registry: disco.NewMemRegistry(), RPC: rpc.NewMemPlane()},
	}}
	if w.workers, err = w.process.newWorkers(); err != nil {
		t.Fatal(err)
	}
	if w.router, err = w.process.newRouter(nil); err != nil {
		t.Fatal(err)
	}
	w.relay, err = routerproxy.New(routerproxy.Config{MigrationLimit: new(1000)}, routerproxy.Deps{
		Router: w.router, Plane: faulty(w.process.planes.RPC), Catalog: w.router.Catalog(),
		Serve:   func(ctx context.Context, _ engine.Engine) error { <-ctx.Done(); return nil },
		Metrics: w.process.metrics, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	card := w.process.model.Card()
	card.Embeddings, card.Preprocess = true, true
	w.Engine = w.relay.NewEngine(card, nil)
	return struct {
		*proxyFleet
		engine.LoadSource
		engine.Embedder
		engine.Preprocessor
	}{w, w.Engine.(engine.LoadSource), w.Engine.(engine.Embedder), w.Engine.(engine.Preprocessor)}
}

// Run implements engine.Engine: requests are accepted once the workers are known.
func (w *proxyFleet) Run(ctx context.Context) error {
	stages, life := newStages(context.Background())
	stages.startStage(life, "router", w.router.Run)
	stages.startStage(life, "relay", w.relay.Run)
	stages.startStage(life, "worker", workerRunners(w.workers)...)
	model := w.Card().Name
	err := backoff.Poll(ctx, time.Millisecond, func() bool {
		m := w.router.Catalog().Current().Find(model)
		return m != nil && len(m.Workers) == len(w.workers) && w.relay.ModelCount() == 1
	})
	if err == nil || ctx.Err() != nil {
		err = w.Engine.Run(ctx)
	}
	return errors.Join(err, stages.stopAll())
}

func withoutFaults(p rpc.Plane) rpc.Plane { return p }

// TestRelayConforms: workers behind a router proxy pass the engine conformance suite.
func TestRelayConforms(t *testing.T) {
	_, pipe := openServedEngine(t, enginemocktest.SmallSettings(t))
	enginetest.Test(t, enginetest.Options{
		New: func(t testing.TB) engine.Engine { return newProxyFleet(t, 1, withoutFaults) },
		Text: func(token kv.Token) string {
			if pipe.Tokenizer.IsSpecial(token) {
				return ""
			}
			text, _ := pipe.Tokenizer.AppendBytes(nil, token)
			return string(text)
		},
	})
}

// proxiedRequests are requests of every kind whose answers do not depend on the worker.
func proxiedRequests() map[string]*engine.Request {
	of := func(change func(*engine.Request)) *engine.Request {
		r := &engine.Request{ID: "r", Attempt: 3, Model: "penstock-tiny", Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: 24, IgnoreEOS: true}}
		for i := range 50 {
			r.Prompt = append(r.Prompt, kv.Token(300+i*7%500))
		}
		change(r)
		return r
	}
	return map[string]*engine.Request{
		"greedy": of(func(*engine.Request) {}),
		"seeded": of(func(r *engine.Request) {
			r.Choices, r.Sampling = 3, engine.Sampling{Temperature: 1.2, Seed: 5, PresencePenalty: 0.5, RepetitionPenalty: 1.2}
		}),
		"logprobs": of(func(r *engine.Request) {
			r.Choices, r.Logprobs, r.Sampling = 2, 2, engine.Sampling{Temperature: 1, Seed: 6}
		}),
		"guided": of(func(r *engine.Request) {
			r.OutputSchema = &engine.OutputSchema{Schema: []byte(`{"type":"array","items":{"type":"integer","maximum":999},"minItems":3}`)}
			r.Sampling = engine.Sampling{Temperature: 1, Seed: 7}
		}),
		"goes on": of(func(r *engine.Request) {
			r.Choices = 2
			r.Generated, r.Done = [][]kv.Token{{310, 311}, {312}}, []bool{false, true}
		}),
	}
}

// TestRelayMovesRequests: with connections that break constantly, the answer equals one engine's, and keeps
// to the contract; nothing stays reserved.
func TestRelayMovesRequests(t *testing.T) {
	e := newProxyFleet(t, 3, func(p rpc.Plane) rpc.Plane {
		return rpctest.WithFaults(p, 1, rpctest.CallFaults{Refuse: 0.05, Cut: 0.6, CutAfter: 12})
	})
	ctx := enginetest.Start(t, e)
	direct, _ := openServedEngine(t, enginemocktest.SmallSettings(t))
	directCtx := enginetest.Start(t, direct)
	var wg sync.WaitGroup
	for name, req := range proxiedRequests() {
		want, err := enginetest.Generate(directCtx, direct, req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i := range 6 {
			wg.Go(func() {
				got, err := enginetest.Generate(ctx, e, req)
				for c := range got {
					got[c].Cached = want[c].Cached
				}
				if err != nil || !cmp.Equal(want, got) {
					t.Errorf("%s, %d: %v\n%s", name, i, err, cmp.Diff(want, got))
				}
			})
		}
	}
	wg.Wait()
}

// openServedEngine makes the engine of a model as workers serve it.
func openServedEngine(t testing.TB, cfg *config.Loaded) (engine.Engine, *prep.Pipeline) {
	t.Helper()
	m, err := engines.OpenLocal(t.Context(), cfg, engines.MediaSources{})
	if err != nil {
		t.Fatal(err)
	}
	return engines.WithPrompts(m.Engines[0], m.Pipe), m.Pipe
}
