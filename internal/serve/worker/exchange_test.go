package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/internal/engine"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

// fakeExchange is both sides of an exchange.
type fakeExchange struct {
	of       *servetest.Engine
	received int
	mu       sync.Mutex
	calls    []string
	jobs     sync.WaitGroup
	hold     chan struct{} // ends jobs, and requests if they wait
	waits    bool
	drained  chan struct{}
}

func (f *fakeExchange) note(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, what)
}

func (f *fakeExchange) Serve(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) (int, error) {
	f.note("serve")
	if f.waits { // for a prefill worker
		<-f.hold
	}
	return f.received, f.of.Generate(ctx, req, sink)
}

func (f *fakeExchange) ServePull(_ context.Context, body []byte, send func([]byte) error) error {
	f.note("pull " + string(body))
	return send([]byte("prompt"))
}

func (f *fakeExchange) ServeProgress(body []byte) error {
	f.note("progress " + string(body))
	return nil
}

func (f *fakeExchange) ServePrefill(_ context.Context, body []byte) error {
	f.note("prefill " + string(body))
	f.jobs.Add(1)
	defer f.jobs.Done()
	<-f.hold
	return nil
}

func (f *fakeExchange) WaitingLoad() (jobs, tokens int) { return 2, 700 }

func (f *fakeExchange) Drain()                    { close(f.drained) }
func (f *fakeExchange) AwaitIdle(context.Context) { f.jobs.Wait() }

// metadataOf is what a worker of the tests states.
func metadataOf(numerics string) disagg.Metadata {
	return disagg.Metadata{
		Epoch: 3, Transports: []disagg.TransportAddress{{Name: "mem", Scope: "a", Address: "a"}}, BlockSize: 16, TokenBytes: 4,
		Layout: "order", Type: "f32", Numerics: numerics,
	}
}

// startExchange starts a worker of a role which exchanges blocks by f.
func (r *rig) startExchange(role engine.Role, f *fakeExchange, made *worker.Exchange) {
	r.t.Helper()
	f.of, f.hold, f.drained = r.engine, make(chan struct{}), make(chan struct{})
	made.Metadata = metadataOf(r.engine.Card().Numerics)
	made.Run = func(ctx context.Context) error { <-ctx.Done(); return nil }
	r.cfg.Role = role
	r.cfg.OpenExchange = func(_ context.Context, addr string, o worker.ExchangeObserver) (*worker.Exchange, error) {
		if addr == "" || len(r.registry.Instances()) > 0 {
			r.t.Errorf("opened for the address %q, with %d registrations", addr, len(r.registry.Instances()))
		}
		o.CountHandoff(true, "it_is_long", 100)
		o.CountHandoff(false, "no_memory", 0)
		o.CountFailedPrefill("silent")
		o.CountFailedPrefill("silent")
		o.ObserveStage("import", 3*time.Second)
		o.CountPrefilled(10, 50)
		o.SetPrefillers(2, 3, 4)
		return made, nil
	}
	r.start(r.engine)
}

func (r *rig) callText(method, body string) (answer string, err error) {
	err = r.rpc.Call(r.t.Context(), r.addr(), method, []byte(body), func(frame []byte) error { answer += string(frame); return nil })
	return answer, err
}

// TestDecodeExchange: requests of a decode worker go through its decoder, and the methods by which prefill workers call
// it are answered. What it exchanges is on its card when it registers.
func TestDecodeExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		f := &fakeExchange{received: 32}
		r.startExchange(engine.RoleDecode, f, &worker.Exchange{Decoder: f})
		defer r.stop()
		if x := r.card().Exchange; x == nil || x.Epoch != 3 {
			t.Errorf("the card has the exchange %+v", x)
		}
		if tokens, err := r.generate(t.Context(), r.addr(), request(40)); err != nil || len(tokens) != 5 {
			t.Errorf("%v %v", tokens, err)
		}
		if answer, err := r.callText(engine.MethodPull, "a"); answer != "prompt" || err != nil {
			t.Errorf("pull: %q %v", answer, err)
		}
		if _, err := r.callText(engine.MethodProgress, "b"); err != nil {
			t.Errorf("progress: %v", err)
		}
		if _, err := r.callText(engine.MethodPrefill, "c"); fault.CodeOf(err) != fault.Unimplemented {
			t.Errorf("prefill: %v", err)
		}
		if got := strings.Join(f.calls, ", "); got != "serve, pull a, progress b" {
			t.Error(got)
		}
		for series, want := range map[string]string{
			`worker_computed_prompt_tokens_total{worker="7"}`:      "18",
			`prefill_remote_total{reason="it_is_long",worker="7"}`: "1",
			`prefill_local_total{reason="no_memory",worker="7"}`:   "1",
			`prefill_failures_total{reason="silent",worker="7"}`:   "2",
			`prefill_bytes_total{side="received",worker="7"}`:      "100",
			`prefill_bytes_total{side="sent",worker="7"}`:          "50",
			`prefill_workers{worker="7"}`:                          "2",
			`prefill_queue_depth{worker="7"}`:                      "3",
			`prefill_dead_jobs{worker="7"}`:                        "4",

			`prefill_stage_seconds_sum{stage="import",worker="7"}`:   "3",
			`prefill_stage_seconds_count{stage="import",worker="7"}`: "1",
		} {
			if got := r.metric(series); got != want {
				t.Errorf("%s is %q, want %s", series, got, want)
			}
		}
	})
}

// TestDecodeDrain: a decode worker which drains answers prefill workers until its requests have ended.
func TestDecodeDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		f := &fakeExchange{waits: true}
		r.startExchange(engine.RoleDecode, f, &worker.Exchange{Decoder: f})
		addr, ended := r.addr(), make(chan error, 1)
		go func() {
			_, err := r.generate(t.Context(), addr, request(40))
			ended <- err
		}()
		synctest.Wait()
		r.cancel()
		time.Sleep(time.Second) // virtual time (synctest): it drains
		if n := len(r.registry.Instances()); n != 0 {
			t.Error("it is registered while it drains")
		}
		for _, method := range []string{engine.MethodPull, engine.MethodProgress} {
			if err := r.rpc.Call(t.Context(), addr, method, []byte("a"), func([]byte) error { return nil }); err != nil {
				t.Errorf("%s while it drains: %v", method, err)
			}
		}
		if _, err := r.generate(t.Context(), addr, request(4)); fault.CodeOf(err) != fault.Draining {
			t.Errorf("a new request: %v", err)
		}
		close(f.hold)
		if err := errors.Join(<-ended, <-r.ended); err != nil {
			t.Error(err)
		}
	})
}

// TestPrefillExchange: a prefill worker answers prefill and no request. When it drains it leaves discovery, takes no
// more jobs, and finishes those it has.
func TestPrefillExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		f, used := &fakeExchange{}, true
		r.startExchange(engine.RolePrefill, f, &worker.Exchange{Prefiller: f, IsUsed: func() bool { return used }})
		if w := r.w.Health().Warnings; len(w) != 0 {
			t.Errorf("warnings %+v", w)
		}
		used = false
		if w := r.w.Health().Warnings; len(w) != 1 || w[0].Code != engine.WarnRoleUnused || !strings.Contains(w[0].Detail, "no decode worker") {
			t.Errorf("warnings without decode workers %+v", w)
		}
		if _, err := r.generate(t.Context(), r.addr(), request(4)); fault.CodeOf(err) != fault.Unimplemented {
			t.Errorf("generate: %v", err)
		}
		if l := r.ping().Load; l.Waiting != 2 || l.PrefillTokens != 700 {
			t.Errorf("beside two jobs which wait the load is %+v", l)
		}
		addr, ended := r.addr(), make(chan error, 1)
		go func() {
			ended <- r.rpc.Call(t.Context(), addr, engine.MethodPrefill, []byte("a"), func([]byte) error { return nil })
		}()
		synctest.Wait()
		r.cancel()
		time.Sleep(time.Second) // virtual time (synctest): it drains
		select {
		case <-f.drained:
		default:
			t.Error("it takes jobs while it drains")
		}
		if n := len(r.registry.Instances()); n != 0 {
			t.Error("it is registered while it drains")
		}
		select {
		case err := <-r.ended:
			t.Errorf("it ended while a job ran: %v", err)
			return
		default:
		}
		close(f.hold)
		if err := errors.Join(<-ended, <-r.ended); err != nil {
			t.Error(err)
		}
	})
}

// TestNoExchange: a worker which cannot exchange blocks serves without.
func TestNoExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		r.cfg.Role = engine.RoleDecode
		r.cfg.OpenExchange = func(context.Context, string, worker.ExchangeObserver) (*worker.Exchange, error) {
			return nil, errors.New("there is no network")
		}
		r.start(r.engine)
		defer r.stop()
		if tokens, err := r.generate(t.Context(), r.addr(), request(4)); err != nil || len(tokens) != 5 || r.card().Exchange != nil {
			t.Errorf("%v %v, exchange %+v", tokens, err, r.card().Exchange)
		}
		if _, err := r.callText(engine.MethodPull, "a"); fault.CodeOf(err) != fault.Unimplemented {
			t.Errorf("pull: %v", err)
		}
		if !strings.Contains(r.log.String(), "there is no network") {
			t.Errorf("the log: %s", r.log.String())
		}
	})
}

// TestExchangeKnowsEngine: what exchanges the blocks of a worker knows whether its engine answers.
func TestExchangeKnowsEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, servetest.Config{})
		var of worker.ExchangeObserver
		r.cfg.Role = engine.RoleDecode
		r.cfg.OpenExchange = func(_ context.Context, _ string, o worker.ExchangeObserver) (*worker.Exchange, error) {
			of = o
			return nil, errors.New("no blocks are exchanged")
		}
		e := &reached{Engine: r.engine}
		r.start(e)
		defer r.stop()
		for _, live := range []engine.Liveness{engine.Up, engine.Suspect, engine.Down, engine.Up} {
			e.be(live)
			if got := of.IsEngineBroken(); got != (live != engine.Up) {
				t.Errorf("liveness %d: broken %t", live, got)
			}
		}
	})
}
