package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/kvfeed"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// rig is a running worker on planes in memory.
type rig struct {
	fetch    func(context.Context, string, int) ([]byte, error)
	t        *testing.T
	cfg      worker.Config
	engine   *servetest.Engine
	rpc      *rpc.MemPlane
	bus      *bustest.FaultyBus
	registry *servetest.Registry
	metrics  *obs.Metrics
	log      syncBuffer
	watched  *history // of the registry, if not nil
	lender   worker.RowLender
	w        *worker.Worker

	cancel context.CancelFunc
	ended  chan error
}

// syncBuffer is a log shared by goroutines.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// newRig returns a rig inside a bubble; it is not started.
func newRig(t *testing.T, ecfg servetest.Config) *rig {
	ecfg.Card = servetest.ModelCard("m")
	if ecfg.Step == 0 {
		ecfg.Step = 10 * time.Millisecond
	}
	return &rig{
		t: t, cfg: worker.Config{ID: 7, Epoch: 3, Host: "h", PID: 12}, engine: servetest.New(ecfg),
		rpc: rpc.NewMemPlane(), bus: bustest.WithFaults(bus.NewMemBus(), 1, bustest.BusFaults{}), registry: servetest.NewRegistry(), metrics: obs.NewMetrics(),
	}
}

func (r *rig) start(eng engine.Engine) {
	r.t.Helper()
	r.startOn(eng, r.registry)
}

func (r *rig) startOn(eng engine.Engine, registry disco.Registry) {
	r.t.Helper()
	planes := worker.Planes{RPC: r.rpc, Bus: r.bus, Registry: registry, Fetch: r.fetch, Lender: r.lender}
	if r.watched != nil {
		planes.Registry, planes.Bus = watched{registry, r.watched}, notedBus{r.bus, r.watched}
	}
	w, err := worker.New(r.cfg, eng, planes, worker.NewMetrics(r.metrics), r.logger())
	if err != nil {
		r.t.Fatal(err)
	}
	r.w = w
	ctx, cancel := context.WithCancel(r.t.Context())
	r.cancel, r.ended = cancel, make(chan error, 1)
	go func() { r.ended <- w.Run(ctx) }()
	synctest.Wait()
}

func (r *rig) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// stop stops the worker and checks that it ended without error.
func (r *rig) stop() {
	r.t.Helper()
	r.cancel()
	if err := <-r.ended; err != nil {
		r.t.Errorf("Run: %v", err)
	}
}

func (r *rig) addr() string {
	r.t.Helper()
	ins := r.registry.Instances()
	if len(ins) != 1 {
		r.t.Fatalf("%d instances are registered, want 1", len(ins))
	}
	return ins[0].Addr
}

func request(tokens int) *engine.Request {
	req := &engine.Request{ID: "r", Attempt: 1, Model: "m", Choices: 1, Stop: engine.Stop{MaxTokens: 5}, Logprobs: -1}
	for i := range tokens {
		req.Prompt = append(req.Prompt, kv.Token(i+1))
	}
	return req
}

// generate calls the worker and returns the tokens of choice 0.
func (r *rig) generate(ctx context.Context, addr string, req *engine.Request) ([]kv.Token, error) {
	var tokens []kv.Token
	var d engine.Delta
	err := r.rpc.Call(ctx, addr, engine.MethodGenerate, engine.AppendRequest(nil, req), func(frame []byte) error {
		if err := engine.DecodeDelta(frame, &d); err != nil {
			return err
		}
		tokens = append(tokens, d.Tokens...)
		return nil
	})
	return tokens, err
}

// records returns the records published so far.
func (r *rig) records() []kvfeed.Record {
	r.t.Helper()
	var out []kvfeed.Record
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	err := r.bus.Subscribe(ctx, bus.KVEventsTopic("penstock", "backend"), 0, func(m bus.Message) error {
		var rec kvfeed.Record
		if err := kvfeed.DecodeRecord(&rec, m.Data); err != nil {
			return err
		}
		if m.Key != "7/0" || rec.Worker != (kv.Worker{ID: 7}) || rec.Epoch != 3 || rec.BlockSize != 4 {
			return errors.New("a record has a wrong header")
		}
		out = append(out, rec)
		return nil
	}, cancel)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// checkFeed checks that records number their events without a gap from 1, begin with Cleared, and lead
// to the engine's contents.
func (r *rig) checkFeed(records []kvfeed.Record) {
	r.t.Helper()
	next := uint64(1)
	held := map[kv.SeqHash]bool{}
	for _, rec := range records {
		if rec.First != next {
			r.t.Errorf("a record begins with event %d, want %d", rec.First, next)
		}
		if rec.First == 1 && rec.Events[0].Kind != kv.Cleared {
			r.t.Errorf("the first event is %v", rec.Events[0].Kind)
		}
		next = rec.First + uint64(len(rec.Events))
		for _, ev := range rec.Events {
			if ev.Kind == kv.Cleared {
				clear(held)
			}
			seq := ev.Parent
			for i, b := range ev.Blocks {
				seq = kv.ExtendSeq(seq, ev.Start+uint32(i), b)
				held[seq] = true
			}
			for _, s := range ev.Seqs {
				delete(held, s)
			}
		}
	}
	var got []kv.SeqHash
	for s := range held {
		got = append(got, s)
	}
	slices.Sort(got)
	if want := r.engine.HeldPrefixes(); !slices.Equal(got, want) {
		r.t.Errorf("the feed leads to %d blocks, the engine holds %d", len(got), len(want))
	}
}

func TestServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(r.engine)
		defer r.stop()

		in := r.registry.Instances()[0]
		card, err := engine.DecodeCard(in.Meta)
		if err != nil || card.Name != "m" || !card.KVEvents {
			t.Errorf("card %+v, %v", card, err)
		}
		if in.Kind != disco.KindWorker || in.ID != 7 || in.Epoch != 3 || in.Namespace != "penstock" || in.Component != "backend" ||
			in.Endpoint != "generate" || in.Host != "h" || in.PID != 12 || in.Addr == "" {
			t.Errorf("instance %+v", in)
		}

		req := request(9)
		tokens, err := r.generate(t.Context(), in.Addr, req)
		want := []kv.Token{10, 11, 12, 13, 14}
		if err != nil || !slices.Equal(tokens, want) {
			t.Errorf("tokens %v, %v, want %v", tokens, err, want)
		}
		synctest.Wait()
		r.checkFeed(r.records())
		if n := len(r.engine.HeldPrefixes()); n != 2 {
			t.Errorf("%d blocks are cached, want 2", n)
		}
	})
}

func TestRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		crash := func(req *engine.Request) error {
			switch req.ID {
			case "crash":
				panic("engine bug")
			case "plain":
				return errors.New("secret detail")
			case "typed":
				return fault.InvalidParam("max_tokens", "too many")
			}
			return nil
		}
		r := newRig(t, servetest.Config{Fail: crash})
		r.start(r.engine)
		defer r.stop()
		addr := r.addr()

		for name, c := range map[string]struct {
			edit func(*engine.Request)
			want fault.Code
		}{
			"other model":   {func(q *engine.Request) { q.Model = "other" }, fault.NotFound},
			"no prompt":     {func(q *engine.Request) { q.Prompt = nil }, fault.Invalid},
			"engine panics": {func(q *engine.Request) { q.ID = "crash" }, fault.Internal},
			"plain error":   {func(q *engine.Request) { q.ID = "plain" }, fault.Internal},
			"typed error":   {func(q *engine.Request) { q.ID = "typed" }, fault.Invalid},
		} {
			req := request(4)
			c.edit(req)
			_, err := r.generate(t.Context(), addr, req)
			if err == nil || fault.CodeOf(err) != c.want {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: the caller was told %q", name, err)
			}
		}
		for method, want := range map[string]fault.Code{engine.MethodGenerate: fault.Invalid, "unheard_of": fault.Unimplemented} {
			err := r.rpc.Call(t.Context(), addr, method, nil, func([]byte) error { return nil })
			if err == nil || fault.CodeOf(err) != want {
				t.Errorf("%s with an empty body: %v, want %v", method, err, want)
			}
		}
		err := r.rpc.Call(t.Context(), addr, engine.MethodPing, nil, func(f []byte) error {
			if !strings.Contains(string(f), `"in_flight":0`) {
				t.Errorf("refused calls count as served: %s", f)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if !strings.Contains(r.log.String(), "engine bug") {
			t.Error("the panic was not logged")
		}
	})
}

func TestBoundsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.cfg.MaxCalls = 2
		r.start(r.engine)
		defer r.stop()
		addr := r.addr()

		var calls sync.WaitGroup
		for range 2 {
			calls.Go(func() {
				if _, err := r.generate(t.Context(), addr, request(4)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		_, err := r.generate(t.Context(), addr, request(4))
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != fault.Overloaded || f.RetryAfter == 0 {
			t.Errorf("the third call: %v", err)
		}
		calls.Wait()
		synctest.Wait()
		if _, err := r.generate(t.Context(), addr, request(4)); err != nil {
			t.Errorf("a call after the others: %v", err)
		}
	})
}

func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: time.Hour})
		r.start(r.engine)
		defer r.stop()

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := r.generate(ctx, r.addr(), request(4)); !errors.Is(err, context.Canceled) {
				t.Errorf("the call ended with %v", err)
			}
		}()
		synctest.Wait()
		if n := r.engine.Load().Running; n != 1 {
			t.Fatalf("%d requests run, want 1", n)
		}
		cancel()
		<-done
		synctest.Wait()
		if n := r.engine.Load().Running; n != 0 {
			t.Errorf("%d requests run after the caller left", n)
		}
	})
}

// TestDrain: a call that is running when the worker stops is finished, while the worker is out of
// discovery and takes no new calls.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: time.Second})
		r.start(r.engine)
		addr := r.addr()

		done := make(chan struct{})
		go func() {
			defer close(done)
			tokens, err := r.generate(t.Context(), addr, request(4))
			if err != nil || len(tokens) != 5 {
				t.Errorf("the running call got %d tokens, %v", len(tokens), err)
			}
		}()
		synctest.Wait()
		r.cancel()
		synctest.Wait()
		if n := len(r.registry.Instances()); n != 0 {
			t.Error("a draining worker is still in discovery")
		}
		if _, err := r.generate(t.Context(), addr, request(4)); fault.CodeOf(err) != fault.Draining {
			t.Errorf("a new call: %v, want draining", err)
		}
		<-done
		r.stop()
		if _, err := r.generate(t.Context(), addr, request(4)); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("a call after the end: %v, want unavailable", err)
		}
	})
}

// TestDrainTimeout: an unfinished call ends as Draining, even if its caller has stopped reading.
func TestDrainTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: time.Millisecond})
		r.cfg.DrainTimeout = 2 * time.Second
		r.start(r.engine)
		addr := r.addr()

		release := make(chan struct{})
		stalled := make(chan error, 1)
		go func() {
			req := request(4)
			req.Stop.MaxTokens = 100_000 // more than any credit
			stalled <- r.rpc.Call(t.Context(), addr, engine.MethodGenerate, engine.AppendRequest(nil, req), func([]byte) error {
				<-release
				return nil
			})
		}()
		synctest.Wait()
		begin := time.Now()
		r.stop()
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("the drain took %v, want the timeout", took)
		}
		close(release)
		if err := <-stalled; fault.CodeOf(err) != fault.Draining {
			t.Errorf("the unfinished call: %v, want draining", err)
		}
	})
}

// TestResync: a request for this worker restarts the description, one for another does not, and several
// at once share one.
func TestResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(r.engine)
		defer r.stop()
		if _, err := r.generate(t.Context(), r.addr(), request(8)); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second)

		ask := func(key string) {
			if err := r.bus.Publish(t.Context(), bus.KVResyncTopic("penstock"), key, nil); err != nil {
				t.Fatal(err)
			}
		}
		clears := func() (n int) {
			for _, rec := range r.records() {
				for _, ev := range rec.Events {
					if ev.Kind == kv.Cleared {
						n++
					}
				}
			}
			return n
		}
		ask("8/0")
		synctest.Wait()
		if n := clears(); n != 1 {
			t.Fatalf("%d descriptions after a request to another worker, want 1", n)
		}
		ask("7/0")
		synctest.Wait()
		if n := clears(); n != 2 {
			t.Errorf("%d descriptions after a request, want 2", n)
		}
		for range 5 {
			ask("7/0")
			synctest.Wait()
		}
		<-time.After(10 * time.Second)
		if n := clears(); n != 3 {
			t.Errorf("%d descriptions after a burst of requests, want 3", n)
		}
		r.checkFeed(r.records())
	})
}

// TestRepeat: a request for events that the worker still has makes it publish their records again,
// unchanged. One for events that do not exist yet is answered with an empty record. One for older
// events, or of another epoch, is answered with a description.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(r.engine)
		defer r.stop()
		for i := range 20 {
			if _, err := r.generate(t.Context(), r.addr(), request(8+i)); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(10 * time.Second)
		asked := func(q kvfeed.ResyncRequest) []kvfeed.Record {
			before := len(r.records())
			q.Worker.ID = 7
			body := kvfeed.AppendRequest(nil, q)
			for range 3 { // several routers
				if err := r.bus.Publish(t.Context(), bus.KVResyncTopic("penstock"), "7/0", body); err != nil {
					t.Fatal(err)
				}
			}
			<-time.After(5 * time.Second)
			return r.records()[before:]
		}
		all := r.records()
		r.checkFeed(all)
		epoch, last := all[0].Epoch, all[len(all)-1]
		next := last.First + uint64(len(last.Events))
		for _, from := range []uint64{1, 2, last.First, next} {
			at := slices.IndexFunc(all, func(rec kvfeed.Record) bool { return rec.First+uint64(len(rec.Events)) > from })
			want := []kvfeed.Record{{Worker: last.Worker, Epoch: epoch, First: next, BlockSize: last.BlockSize}}
			if at >= 0 {
				want = all[at:]
			}
			got := asked(kvfeed.ResyncRequest{Epoch: epoch, From: from})
			if len(got) == 2*len(want) { // the first one was answered at once
				got = got[len(want):]
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(kvfeed.Record{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("from %d: -want +got\n%s", from, diff)
			}
		}
		for _, q := range []kvfeed.ResyncRequest{{}, {Epoch: epoch + 1, From: 2}, {Epoch: epoch, From: next + 1000}} {
			if got := asked(q); len(got) == 0 || got[0].Events[0].Kind != kv.Cleared || got[0].First < next {
				t.Errorf("%+v was answered by %+v", q, got)
			}
		}
	})
}

// TestBusAway: while the bus fails the engine continues; afterwards the feed is complete again,
// although more happened than any queue holds.
func TestBusAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(r.engine)
		defer r.stop()
		r.bus.Set(bustest.BusFaults{Fail: 1})
		for i := range 3 * servetest.WatchQueue {
			req := request(8)
			req.Prompt[0] = kv.Token(1000 + i)
			if _, err := r.generate(t.Context(), r.addr(), req); err != nil {
				t.Fatal(err)
			}
		}
		r.bus.Set(bustest.BusFaults{Fail: 0.3})
		<-time.After(time.Minute)

		// Half of the failed attempts were stored: duplicates are dropped by number, as a receiver
		// would.
		var once []kvfeed.Record
		next := uint64(1)
		for _, rec := range r.records() {
			if rec.First == next {
				next += uint64(len(rec.Events))
				once = append(once, rec)
			}
		}
		r.checkFeed(once)
		if !strings.Contains(r.log.String(), "cannot publish cache events") {
			t.Error("the failures were not logged")
		}
	})
}

// TestLoad: reports are published when the load changes, and at intervals.
func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: 100 * time.Millisecond})
		var mu sync.Mutex
		var reports []engine.LoadReport
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- r.bus.Subscribe(ctx, bus.LoadTopic("penstock"), 0, func(m bus.Message) error {
				rep, err := engine.DecodeLoadReport(m.Data)
				if err != nil || m.Key != "7/0" || rep.WorkerID != 7 || rep.Epoch != 3 {
					t.Errorf("report %s: %q, %v", m.Key, m.Data, err)
				}
				mu.Lock()
				defer mu.Unlock()
				reports = append(reports, rep)
				return nil
			}, nil)
		}()
		synctest.Wait()
		take := func() []engine.LoadReport {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			out := reports
			reports = nil
			return out
		}
		r.start(r.engine)
		if got := take(); len(got) != 1 || got[0].State != engine.StateReady || got[0].Load.TotalBlocks != 1<<16 {
			t.Errorf("at the start: %+v", got)
		}
		<-time.After(time.Second) // the feed's first record has been published since
		take()
		<-time.After(21 * time.Second)
		if got := take(); len(got) != 4 {
			t.Errorf("%d reports in 21 idle seconds, want one every 5", len(got))
		}
		if _, err := r.generate(t.Context(), r.addr(), request(8)); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		got := take()
		if len(got) < 2 || got[0].Load.Running != 1 || got[len(got)-1].Load.Running != 0 {
			t.Errorf("around a call: %+v", got)
		}
		if last := got[len(got)-1]; last.KVNext != 4 || last.Load.CachedBlocks != 2 {
			t.Errorf("after Cleared and two blocks: %+v", last)
		}

		frames := 0
		err := r.rpc.Call(t.Context(), r.addr(), engine.MethodPing, nil, func(f []byte) error {
			frames++
			if !strings.Contains(string(f), `"state":"ready"`) || !strings.Contains(string(f), `"in_flight":0`) {
				t.Errorf("pong %s", f)
			}
			return nil
		})
		if err != nil || frames != 1 {
			t.Errorf("ping: %d frames, %v", frames, err)
		}
		r.stop()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestLoadReportsAttemptedEvents: an event whose acknowledgement was lost may have arrived, so the
// worker's reports say that it was published, but not that the bus has it.
func TestLoadReportsAttemptedEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(r.engine)
		defer r.stop()
		<-time.After(time.Second)
		r.bus.Set(bustest.BusFaults{Fail: 1})
		if _, err := r.generate(t.Context(), r.addr(), request(8)); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		ping := func() (p engine.Pong) {
			t.Helper()
			err := r.rpc.Call(t.Context(), r.addr(), engine.MethodPing, nil, func(f []byte) error { return json.Unmarshal(f, &p) })
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		if got := ping(); got.KVNext != 2 || got.KVAttempted != 4 {
			t.Errorf("while acknowledgements are lost: kv_next %d and kv_attempted %d, want 2 and 4", got.KVNext, got.KVAttempted)
		}
		r.bus.Set(bustest.BusFaults{})
		<-time.After(time.Minute)
		if got := ping(); got.KVNext != 4 || got.KVAttempted != 0 {
			t.Errorf("afterwards: kv_next %d and kv_attempted %d, want 4 and none", got.KVNext, got.KVAttempted)
		}
	})
}

// TestRegisters: registration waits for an unreachable store, and fails if the id is taken.
func TestRegisters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		away := fault.New(fault.Unavailable, "the store is away")
		r.registry.FailRegister(away, away, away)
		r.start(r.engine)
		if len(r.registry.Instances()) != 0 {
			t.Fatal("registered in a store that is away")
		}
		<-time.After(time.Minute)
		r.addr()
		r.stop()
	})
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.registry.FailRegister(fault.New(fault.Conflict, "another holder"))
		r.start(r.engine)
		defer r.cancel()
		if err := <-r.ended; fault.CodeOf(err) != fault.Conflict {
			t.Errorf("Run: %v, want conflict", err)
		}
	})
}

// TestEndsWhileStoreIsAway: no pending wait delays the stop.
func TestEndsWhileStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		for range 100 {
			r.registry.FailRegister(fault.New(fault.Unavailable, "the store is away"))
		}
		r.bus.Set(bustest.BusFaults{Fail: 1})
		r.start(r.engine)
		begin := time.Now()
		r.stop()
		if took := time.Since(begin); took != 0 {
			t.Errorf("the end took %v", took)
		}
	})
}

// brokenEngine fails after a while.
type brokenEngine struct{ *servetest.Engine }

func (e brokenEngine) Run(ctx context.Context) error {
	select {
	case <-time.After(time.Second):
		return errors.New("out of memory")
	case <-ctx.Done():
		return nil
	}
}

func TestEngineFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{Step: time.Hour})
		r.start(brokenEngine{r.engine})
		defer r.cancel()
		call := make(chan error, 1)
		go func() {
			_, err := r.generate(t.Context(), r.addr(), request(4))
			call <- err
		}()
		if err := <-r.ended; err == nil || !strings.Contains(err.Error(), "worker 7: engine: out of memory") {
			t.Errorf("Run: %v", err)
		}
		if err := <-call; fault.CodeOf(err) != fault.Unavailable || err == nil {
			t.Errorf("the running call: %v, want unavailable", err)
		}
		if n := len(r.registry.Instances()); n != 0 {
			t.Error("a dead worker is still in discovery")
		}
	})
}

func TestLogsNoPrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.start(r.engine)
		req := request(8)
		req.Prompt[3] = 987654
		if _, err := r.generate(t.Context(), r.addr(), req); err != nil {
			t.Fatal(err)
		}
		r.stop()
		if log := r.log.String(); strings.Contains(log, "987654") || !strings.Contains(log, "prompt_tokens=8") || !strings.Contains(log, "attempt=1") {
			t.Errorf("the log is\n%s", log)
		}
		families, err := r.metrics.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if strings.HasPrefix(f.GetName(), "penstock_worker_") {
				t.Errorf("%s has series of a worker that has ended", f.GetName())
			}
		}
	})
}

func TestNewRefuses(t *testing.T) {
	r := newRig(t, servetest.Config{})
	planes := worker.Planes{RPC: r.rpc, Bus: r.bus, Registry: r.registry}
	metrics, log := worker.NewMetrics(r.metrics), slog.New(slog.DiscardHandler)
	_, err := worker.New(worker.Config{MaxCalls: -1, LoadInterval: -1}, r.engine, planes, metrics, log)
	for _, want := range []string{"id", "epoch", "max calls", "intervals"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not reported in: %v", want, err)
		}
	}
	card := servetest.ModelCard("m")
	card.Ranks = 2
	if _, err := worker.New(r.cfg, servetest.New(servetest.Config{Card: card}), planes, metrics, log); err == nil {
		t.Error("an engine of two ranks was accepted")
	}
	card = servetest.ModelCard("")
	if _, err := worker.New(r.cfg, servetest.New(servetest.Config{Card: card}), planes, metrics, log); err == nil {
		t.Error("an invalid card was accepted")
	}
}
