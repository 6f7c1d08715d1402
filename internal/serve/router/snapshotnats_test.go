package router_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

// natsFleet is a worker, and the planes of routers, over a real server with its own address, which can
// be stopped and started.
type natsFleet struct {
	t       *testing.T
	cfg     natsd.Config
	server  *natsd.Server
	told    signals
	calls   *rpc.MemPlane
	engine  *servetest.Engine
	metrics *obs.Metrics
}

func startNATSFleet(t *testing.T) *natsFleet {
	f := &natsFleet{t: t, cfg: natsd.Config{DataDir: t.TempDir(), Listen: fixturetest.ReserveAddr(t)}, told: make(signals, 1), calls: rpc.NewMemPlane(), metrics: obs.NewMetrics()}
	f.serve()
	t.Cleanup(func() {
		if err := f.server.Close(); err != nil {
			t.Error(err)
		}
	})
	f.engine = servetest.New(servetest.Config{Card: servetest.ModelCard("m")})
	p := f.planes()
	w, err := worker.New(worker.Config{ID: 7, Epoch: 1}, f.engine, worker.Planes{RPC: f.calls, Bus: p.Bus, Registry: p.Registry}, worker.NewMetrics(f.metrics), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.run(w.Run))
	return f
}

func (f *natsFleet) serve() {
	f.t.Helper()
	var err error
	if f.server, err = natsd.Start(f.cfg); err != nil {
		f.t.Fatal(err)
	}
}

// planes are the planes of one process.
func (f *natsFleet) planes() router.Planes {
	f.t.Helper()
	nc := natsdtest.Connect(f.t, f.server)
	events, err := bus.NewNATSBus(nc, bus.NATSBusConfig{})
	if err != nil {
		f.t.Fatal(err)
	}
	archive, err := bus.NewNATSArchive(nc, bus.ArchiveConfig{TTL: time.Second}) // a lock that was held when the server ended
	if err != nil {
		f.t.Fatal(err)
	}
	registry, err := disco.NewNATSRegistry(nc, disco.NATSRegistryConfig{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(registry.Close)
	return router.Planes{Bus: toldPurge{toldBus{events, f.told}}, Registry: toldRegistry{registry, f.told}, Archive: toldArchive{archive, f.told}}
}

// toldArchive signals when a snapshot was stored.
type toldArchive struct {
	bus.Archive
	told signals
}

func (a toldArchive) Put(ctx context.Context, name string, data []byte) error {
	defer a.told.give()
	return a.Archive.Put(ctx, name, data)
}

// toldPurge signals when the stream was purged too.
type toldPurge struct{ toldBus }

func (b toldPurge) Purge(ctx context.Context, t bus.Topic, below uint64) error {
	defer b.told.give()
	return b.Bus.Purge(ctx, t, below)
}

func (f *natsFleet) run(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	}
}

// start starts a replica that writes a snapshot after every message, at every check.
func (f *natsFleet) start() (*cluster, func()) {
	f.t.Helper()
	r, err := router.New(router.Config{Snapshots: router.SnapshotPolicy{Threshold: 1, Look: 100 * time.Millisecond}}, f.planes(), nil, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		f.t.Fatal(err)
	}
	return &cluster{t: f.t, router: r}, f.run(r.Run)
}

// request serves a prompt of 40 tokens that begins with first.
func (f *natsFleet) request(r *router.Router, id string, first int) {
	f.t.Helper()
	req := &route.Request{ID: id, Attempt: 1, Model: "m", Tokens: prompt(first, 41, first)}
	var d route.Decision
	var err error
	f.told.until(f.t, "the worker is found", func() bool {
		d, err = r.Route(f.t.Context(), req)
		return err == nil
	})
	ereq := &engine.Request{ID: id, Attempt: 1, Model: "m", Prompt: req.Tokens, Choices: 1, Stop: engine.Stop{MaxTokens: 3}, Logprobs: -1}
	if err := f.calls.Call(f.t.Context(), d.Addr, engine.MethodGenerate, engine.AppendRequest(nil, ereq), func([]byte) error { return nil }); err != nil {
		f.t.Error(err)
	}
	r.FreeReservation(id, 1, 0)
}

func (f *natsFleet) held() map[kv.WorkerID][]kv.SeqHash {
	return map[kv.WorkerID][]kv.SeqHash{7: f.engine.HeldPrefixes()}
}

// follows waits until a replica has what the engine holds.
func (f *natsFleet) follows(c *cluster) {
	f.t.Helper()
	f.told.until(f.t, "the index follows", func() bool { return maps.EqualFunc(c.dump(), f.held(), slices.Equal) })
}

// newer waits until there is a snapshot newer than the given one, and returns its name.
func (f *natsFleet) newer(than string) (name string) {
	f.t.Helper()
	archive := f.planes().Archive
	f.told.until(f.t, "a snapshot is written", func() bool {
		list, err := archive.List(fixturetest.PatientContext(f.t), "penstock.backend.snapshot.")
		if err != nil || len(list) == 0 {
			return false
		}
		name = list[len(list)-1].Name
		return name > than
	})
	return name
}

// Over a real server that is restarted twice, once under two replicas and once when they are dead: a
// third one that starts then, with a stream without its beginning, has their index. Neither stream nor
// snapshots have tokens.
func TestThirdReplicaOverNATS(t *testing.T) {
	f := startNATSFleet(t)
	first, stopFirst := f.start()
	second, stopSecond := f.start()
	name := ""
	round := func(n int) {
		for i := range 5 {
			f.request(first.router, fmt.Sprint(n, " ", i), 0x5eed_0000+1000*(10*n+i))
		}
		f.follows(first)
		f.follows(second)
		name = f.newer(name)
	}
	round(0)
	round(1)
	restart := func() {
		if err := f.server.Close(); err != nil {
			t.Fatal(err)
		}
		f.serve()
	}
	restart()
	round(2)
	events := f.planes().Bus
	f.told.until(t, "the stream is purged", func() bool {
		span, err := events.DescribeTopic(fixturetest.PatientContext(t), eventTopic)
		return err == nil && span.First > 1
	})
	stopFirst()
	stopSecond()
	restart()

	third, stopThird := f.start()
	f.follows(third)
	stopThird()
	if got := f.held(); len(got[7]) < 150 {
		t.Errorf("the index has %d blocks, want 150", len(got[7]))
	}
	f.scan()
}

// A real server fails repeatedly under two replicas, and returns either with its contents or with an
// empty disk, while the cache changes: the replicas that ran all the time and one that starts
// afterwards have exactly what is cached.
func TestServerLosesItsDisk(t *testing.T) {
	f := startNATSFleet(t)
	first, stopFirst := f.start()
	second, stopSecond := f.start()
	for round := range 4 {
		for i := range 3 {
			f.request(first.router, fmt.Sprint(round, " ", i), 0x5eed_0000+1000*(10*round+i))
		}
		f.follows(first)
		f.follows(second)
		if err := f.server.Close(); err != nil {
			t.Fatal(err)
		}
		f.engine.EvictBlocks(4 + round)
		if round%2 == 1 {
			f.cfg.DataDir = t.TempDir()
		}
		f.serve()
		f.follows(first)
		f.follows(second)
	}
	stopFirst()
	f.engine.EvictBlocks(3)
	third, stopThird := f.start()
	f.follows(third)
	f.follows(second)
	stopThird()
	stopSecond()
}

// scan looks for tokens in all stored data.
func (f *natsFleet) scan() {
	f.t.Helper()
	p := f.planes()
	archive := p.Archive
	list, err := archive.List(fixturetest.PatientContext(f.t), "")
	if err != nil || len(list) == 0 {
		f.t.Fatalf("objects %v, %v", list, err)
	}
	var kept [][]byte
	for _, o := range list {
		data, err := archive.Get(fixturetest.PatientContext(f.t), o.Name)
		if err != nil {
			f.t.Fatal(err)
		}
		kept = append(kept, data)
	}
	ctx, stop := context.WithCancel(f.t.Context())
	err = p.Bus.Subscribe(ctx, eventTopic, 0, func(m bus.Message) error {
		kept = append(kept, slices.Clone(m.Data))
		return nil
	}, stop)
	if err != nil {
		f.t.Fatal(err)
	}
	for i, data := range kept {
		for _, pattern := range [][]byte{{0xed, 0x5e}, {0x5e, 0xed}} { // the upper half of every token
			for at := 0; ; at++ {
				n := bytes.Index(data[at:], pattern)
				if n < 0 {
					break
				}
				at += n
				if known(data, at) {
					f.t.Errorf("item %d has a token at byte %d", i, at)
				}
			}
		}
	}
}

// known reports whether the bytes around at are one of the prompts' tokens.
func known(data []byte, at int) bool {
	for first := 0; first < 30; first++ {
		for i := range 41 {
			v := 0x5eed_0000 + 1000*first + i
			le := []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)}
			be := []byte{le[3], le[2], le[1], le[0]}
			if at >= 2 && bytes.HasPrefix(data[at-2:], le) || bytes.HasPrefix(data[at:], be) {
				return true
			}
		}
	}
	return false
}
