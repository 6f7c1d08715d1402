package router_test

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

// signals receives a signal after each call of a sink.
type signals chan struct{}

func (s signals) give() {
	select {
	case s <- struct{}{}:
	default:
	}
}

type toldBus struct {
	bus.Bus
	told signals
}

func (b toldBus) Subscribe(ctx context.Context, t bus.Topic, from uint64, sink func(bus.Message) error, ready func()) error {
	return b.Bus.Subscribe(ctx, t, from, func(m bus.Message) error {
		defer b.told.give()
		return sink(m)
	}, ready)
}

type toldRegistry struct {
	disco.Registry
	told signals
}

func (r toldRegistry) Watch(ctx context.Context, kind disco.Kind, sink func([]disco.Instance)) error {
	return r.Registry.Watch(ctx, kind, func(ins []disco.Instance) {
		defer r.told.give()
		sink(ins)
	})
}

// until waits until f holds, checking after each signal.
func (s signals) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	late := time.NewTimer(fixturetest.TimeLeft(t))
	defer late.Stop()
	for !f() {
		select {
		case <-s:
		case <-late.C:
			t.Fatalf("%s: it does not happen", what)
		}
	}
}

// TestRemovesKilledRouters: a running router removes a killed router's entry from discovery.
func TestRemovesKilledRouters(t *testing.T) {
	server, err := natsd.Start(natsd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	nc, err := server.Connect("test")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	cfg := disco.NATSRegistryConfig{Bucket: "b", TTL: time.Second}
	killed, err := disco.NewNATSRegistry(nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := killed.Register(fixturetest.PatientContext(t), disco.Instance{Kind: disco.KindRouter, ID: 5, Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	killed.Close() // nothing refreshes its lease any more

	// The removal is watched before it can happen: the server forgets it after a while.
	ctx, stop := context.WithTimeout(t.Context(), fixturetest.TimeLeft(t))
	defer stop()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := js.KeyValue(ctx, cfg.Bucket)
	if err != nil {
		t.Fatal(err)
	}
	changes, err := bucket.Watch(ctx, "instance.router.5")
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()

	registry, err := disco.NewNATSRegistry(nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	planes := router.Planes{Bus: bus.NewMemBus(), Archive: bus.NewMemArchive(), Registry: registry}
	r, err := router.New(router.Config{}, planes, nil, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()

	for {
		select {
		case e := <-changes.Updates():
			if e != nil && e.Operation() != jetstream.KeyValuePut {
				return
			}
		case <-ctx.Done():
			t.Fatal("the record of the killed router is still there")
		}
	}
}

// TestOverNATS runs a worker's lifecycle once over the embedded server.
func TestOverNATS(t *testing.T) {
	server, err := natsd.Start(natsd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	nc, err := server.Connect("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	events, err := bus.NewNATSBus(nc, bus.NATSBusConfig{})
	if err != nil {
		t.Fatal(err)
	}
	registry, err := disco.NewNATSRegistry(nc, disco.NATSRegistryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Close)

	told := make(signals, 1)
	calls, metrics := rpc.NewMemPlane(), obs.NewMetrics()
	r, err := router.New(router.Config{}, router.Planes{Bus: toldBus{events, told}, Registry: toldRegistry{registry, told}}, nil, metrics, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	e := servetest.New(servetest.Config{Card: servetest.ModelCard("m")})
	w, err := worker.New(worker.Config{ID: 7, Epoch: 1}, e, worker.Planes{RPC: calls, Bus: events, Registry: registry}, worker.NewMetrics(metrics), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	start := func(run func(context.Context) error) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- run(ctx) }()
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	defer start(r.Run)()
	stopWorker := start(w.Run)

	req := &route.Request{ID: "a", Attempt: 1, Model: "m", Tokens: prompt(0, 41, 1)}
	var d route.Decision
	told.until(t, "the worker is found", func() bool {
		d, err = r.Route(t.Context(), req)
		return err == nil
	})
	ereq := &engine.Request{ID: "a", Attempt: 1, Model: "m", Prompt: req.Tokens, Choices: 1, Stop: engine.Stop{MaxTokens: 3}, Logprobs: -1}
	if err := calls.Call(t.Context(), d.Addr, engine.MethodGenerate, engine.AppendRequest(nil, ereq), func([]byte) error { return nil }); err != nil {
		t.Error(err)
	}
	r.FreeReservation("a", 1, 0)
	c := &cluster{t: t, router: r}
	told.until(t, "the index follows", func() bool {
		return maps.EqualFunc(c.dump(), map[kv.WorkerID][]kv.SeqHash{7: e.HeldPrefixes()}, slices.Equal)
	})
	if ex, err := r.Explain(t.Context(), req); err != nil || ex.Decision.OverlapBlocks != 10 {
		t.Errorf("the second time: %+v, %v", ex.Decision, err)
	}
	stopWorker()
	told.until(t, "the worker is gone", func() bool {
		_, err = r.Explain(t.Context(), req)
		// It reports that it drains before discovery drops it.
		return fault.CodeOf(err) == fault.Unavailable && err != nil && len(c.dump()) == 0
	})
}
