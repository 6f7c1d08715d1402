package routerproxy

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/servetest"
)

// world is a proxy over scripted workers. The lowest one that is registered and not excluded is chosen.
type world struct {
	rpc.Plane
	relay    *Proxy
	engine   engine.Engine
	registry *servetest.Registry
	// does returns how a worker fails after the next token of a request; nil continues to the end.
	does  func(id kv.WorkerID) error
	calls []engine.Request
}

const answer = 6 // tokens

func (w *world) Route(_ context.Context, req *route.Request) (route.Decision, error) {
	for _, in := range w.registry.Instances() {
		if !slices.Contains(req.Exclude, in.ID) {
			return route.Decision{Worker: kv.Worker{ID: in.ID}, Addr: in.Addr}, nil
		}
	}
	return route.Decision{}, fault.New(fault.Unavailable, "there is no worker")
}

func (w *world) Availability(string) route.Availability {
	return route.Availability{Workers: 1, Ready: 1}
}

func (w *world) MarkPrefilled(string, uint32, int)    {}
func (w *world) RecordFirstToken(string, uint32, int) {}

func (w *world) RecordOutput(string, uint32, int)    {}
func (w *world) FreeReservation(string, uint32, int) {}
func (w *world) RenewReservation(string, uint32)     {}
func (w *world) ReportFailure(kv.Worker, error)      {}
func (w *world) gone(id kv.WorkerID) {
	w.registry.Delete(disco.Instance{Kind: disco.KindWorker, ID: id})
}

// Call is a worker's answer: token i is i.
func (w *world) Call(_ context.Context, addr, _ string, body []byte, recv func([]byte) error) error {
	var req engine.Request
	if err := engine.DecodeRequest(body, &req); err != nil {
		return err
	}
	w.calls = append(w.calls, req)
	from := 0
	if len(req.Generated) > 0 {
		from = len(req.Generated[0])
	}
	for i := from; i < answer; i++ {
		d := &engine.Delta{Attempt: req.Attempt, Pos: i, Tokens: []kv.Token{kv.Token(i)}}
		if i == answer-1 {
			d.Finish = engine.FinishStop
		}
		if err := recv(engine.AppendDelta(nil, d)); err != nil {
			return err
		}
		if err := w.does(kv.WorkerID(addr[0] - '0')); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) join(id kv.WorkerID) {
	card, err := engine.EncodeCard(servetest.ModelCard("m"))
	if err != nil {
		panic(err)
	}
	w.registry.Set(disco.Instance{
		Kind: disco.KindWorker, ID: id, Epoch: 1, Addr: string(rune('0' + id)), Meta: card,
		Namespace: "penstock", Component: "backend",
	})
}

// inWorld runs test in a bubble with a proxy of the given number of workers.
func inWorld(t *testing.T, cfg Config, workers int, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{registry: servetest.NewRegistry(), does: func(kv.WorkerID) error { return nil }}
		for i := range workers {
			w.join(kv.WorkerID(i + 1))
		}
		workers := newCatalog(w.registry)
		r, err := New(cfg, Deps{
			Router: w, Plane: w, Catalog: workers, Metrics: obs.NewMetrics(), Log: slog.New(slog.DiscardHandler),
			Serve: func(ctx context.Context, _ engine.Engine) error { <-ctx.Done(); return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		w.relay, w.engine = r, r.NewEngine(servetest.ModelCard("m"), nil)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 2)
		go func() { over <- runWith(ctx, workers, r) }()
		go func() { over <- w.engine.Run(ctx) }()
		synctest.Wait()
		test(t, w)
		cancel()
		for range 2 {
			if err := <-over; err != nil {
				t.Error(err)
			}
		}
	})
}

// generate returns what a caller sees of its second attempt.
func (w *world) generate(t *testing.T) ([]kv.Token, error) {
	var got []kv.Token
	err := w.engine.Generate(t.Context(), &engine.Request{
		ID: "r", Attempt: 2, Model: "m", Prompt: []kv.Token{1}, Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: answer},
	}, func(d *engine.Delta) error {
		if d.Attempt != 2 {
			t.Errorf("a delta of attempt %d", d.Attempt)
		}
		got = append(got, d.Tokens...)
		return nil
	})
	return got, err
}

func complete(got []kv.Token) bool { return slices.Equal(got, []kv.Token{0, 1, 2, 3, 4, 5}) }

// TestHearsOfWorkers: a request that lost its worker continues as soon as there is another, with the
// tokens already sent; if none is added it fails in time.
func TestHearsOfWorkers(t *testing.T) {
	for _, comes := range []bool{true, false} {
		inWorld(t, Config{}, 1, func(t *testing.T, w *world) {
			w.does = func(id kv.WorkerID) error {
				if id == 1 {
					w.gone(1)
					return fault.New(fault.Unavailable, "gone")
				}
				return nil
			}
			if comes {
				time.AfterFunc(3*time.Second, func() { w.join(2) })
			}
			began := time.Now()
			got, err := w.generate(t)
			took := time.Since(began)
			if comes && (err != nil || !complete(got) || took != 3*time.Second) {
				t.Errorf("%v after %v: %v", got, took, err)
			}
			if !comes && (fault.CodeOf(err) != fault.Unavailable || took != 8*time.Second) {
				t.Errorf("without another: after %v %v", took, err)
			}
			if comes && (len(w.calls) != 2 || w.calls[0].Attempt != 257 || w.calls[1].Attempt != 258 || len(w.calls[1].Generated[0]) != 1) {
				t.Errorf("calls %+v", w.calls)
			}
		})
	}
}

// TestPlannedMoves: draining workers do not count as failures, others do, and the caller is not told
// that the proxy drains.
func TestPlannedMoves(t *testing.T) {
	for _, code := range []fault.Code{fault.Draining, fault.Unavailable} {
		inWorld(t, Config{MigrationLimit: new(0)}, 4, func(t *testing.T, w *world) {
			w.does = func(id kv.WorkerID) error {
				if id < 4 {
					return fault.New(code, "no more")
				}
				return nil
			}
			got, err := w.generate(t)
			if planned := code == fault.Draining; planned != (err == nil && complete(got)) || !planned && len(w.calls) != 1 {
				t.Errorf("%v: %v %v after %d calls", code, got, err, len(w.calls))
			}
		})
	}
	inWorld(t, Config{}, 1, func(t *testing.T, w *world) {
		w.does = func(kv.WorkerID) error { return fault.New(fault.Draining, "leaving") }
		if _, err := w.generate(t); fault.CodeOf(err) != fault.Unavailable || len(w.calls) != 1 {
			t.Errorf("%v after %d calls", err, len(w.calls))
		}
	})
}

// TestPace: the second attempt without tokens starts at once, the next ones after waits, and failed
// workers are not asked again while there are others.
func TestPace(t *testing.T) {
	inWorld(t, Config{MigrationLimit: new(2)}, 5, func(t *testing.T, w *world) {
		w.does = func(kv.WorkerID) error { return fault.New(fault.Unavailable, "gone") }
		w.relay.dispatcher.Plane = refusing{w}
		began := time.Now()
		_, err := w.generate(t)
		if d := time.Since(began); fault.CodeOf(err) != fault.Unavailable || d < 20*time.Millisecond || d > 30*time.Millisecond || len(w.calls) != 3 {
			t.Errorf("%v after %v and %d calls", err, d, len(w.calls))
		}
	})
}

// refusing refuses every call.
type refusing struct{ *world }

func (r refusing) Call(context.Context, string, string, []byte, func([]byte) error) error {
	r.calls = append(r.calls, engine.Request{})
	return r.does(0)
}
