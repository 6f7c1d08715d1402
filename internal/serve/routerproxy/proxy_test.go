package routerproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/fixturetest"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/servetest"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

// book is a scripted router that records reservations.
type book struct {
	pick func(*route.Request) (route.Decision, error)
	mu   sync.Mutex
	held map[string]bool
	log  []string
	// cached holds the reported cached tokens, by attempt.
	cached   []string
	warnings map[kv.WorkerID][]engine.Warning
	silent   bool // no worker can take a request
}

func (b *book) Availability(string) route.Availability {
	if b.silent {
		return route.Availability{Workers: 1, Reason: "none of 1 workers can take a request (1 not answering)"}
	}
	return route.Availability{Workers: 1, Ready: 1}
}

func (b *book) Warnings() map[kv.WorkerID][]engine.Warning { return b.warnings }

func (b *book) Route(_ context.Context, req *route.Request) (route.Decision, error) {
	d, err := b.pick(req)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		key := fmt.Sprint(req.ID, "/", req.Attempt)
		if b.held[key] {
			return d, fault.New(fault.Conflict, "%s is reserved", key)
		}
		b.held[key] = true
		b.log = append(b.log, key)
	}
	return d, err
}

func (b *book) RecordFirstToken(id string, attempt uint32, cached int) {
	b.MarkPrefilled(id, attempt, cached)
}

func (b *book) MarkPrefilled(_ string, attempt uint32, cached int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cached = append(b.cached, fmt.Sprint(attempt, ":", cached))
}

func (b *book) RecordOutput(string, uint32, int) {}

func (b *book) RenewReservation(string, uint32) {}

func (b *book) FreeReservation(id string, attempt uint32, _ int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.held, fmt.Sprint(id, "/", attempt))
}

func (b *book) ReportFailure(kv.Worker, error) {}

// calls is a plane whose calls a test answers.
type calls struct {
	rpc.Plane
	answer func(ctx context.Context, addr string, req *engine.Request, send func(*engine.Delta) error) error
}

func (c calls) Call(ctx context.Context, addr, _ string, body []byte, recv func([]byte) error) error {
	req := new(engine.Request)
	if err := engine.DecodeRequest(body, req); err != nil {
		return err
	}
	return c.answer(ctx, addr, req, func(d *engine.Delta) error {
		d.Attempt = req.Attempt
		return recv(engine.AppendDelta(nil, d))
	})
}

// rig is a proxy between a scripted router and scripted workers.
type rig struct {
	*Proxy
	book     *book
	registry *servetest.Registry
	catalog  *catalog.Catalog
	engine   engine.Engine
	mu       sync.Mutex
	served   []string // cards passed to Serve
}

func newRig(t *testing.T, cfg Config, b *book, answer func(context.Context, string, *engine.Request, func(*engine.Delta) error) error) *rig {
	t.Helper()
	b.held = map[string]bool{}
	r := &rig{book: b, registry: servetest.NewRegistry()}
	r.catalog = newCatalog(r.registry)
	note := func(what string, e engine.Engine) {
		r.mu.Lock()
		defer r.mu.Unlock()
		card := e.Card()
		r.served = append(r.served, fmt.Sprintf("%s %s %d", what, card.Name, card.ContextLength))
	}
	var err error
	r.Proxy, err = New(cfg, Deps{
		Router: b, Plane: calls{answer: answer}, Catalog: r.catalog,
		Serve: func(ctx context.Context, e engine.Engine) error {
			note("begin", e)
			<-ctx.Done()
			note("end", e)
			return nil
		},
		Metrics: obs.NewMetrics(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.engine = r.NewEngine(servetest.ModelCard("m"), nil)
	return r
}

// newCatalog returns the catalog of a router's workers.
func newCatalog(registry disco.Registry) *catalog.Catalog {
	return catalog.New(catalog.Selection{Namespace: "penstock", Component: "backend"}, registry, slog.New(slog.DiscardHandler))
}

// runWith runs a proxy and its catalog until ctx ends.
func runWith(ctx context.Context, c *catalog.Catalog, r *Proxy) error {
	var followed sync.WaitGroup
	defer followed.Wait()
	followed.Go(func() { c.Run(ctx, func(*catalog.Snapshot) {}) })
	return r.Run(ctx)
}

// Run runs the proxy and its catalog.
func (r *rig) Run(ctx context.Context) error { return runWith(ctx, r.catalog, r.Proxy) }

// list makes the catalog list workers of these cards, numbered from 1, from now on.
func (r *rig) list(t *testing.T, cards ...engine.Card) {
	t.Helper()
	for i, card := range cards {
		meta, err := engine.EncodeCard(card)
		if err != nil {
			t.Fatal(err)
		}
		r.registry.Set(disco.Instance{Kind: disco.KindWorker, ID: kv.WorkerID(i + 1), Epoch: 1, Namespace: "penstock", Component: "backend", Meta: meta})
	}
	ctx, stop := context.WithCancel(t.Context())
	var followed sync.WaitGroup
	followed.Go(func() { r.catalog.Run(ctx, func(*catalog.Snapshot) {}) })
	<-r.catalog.Loaded()
	stop()
	followed.Wait()
}

// generate runs the engine for one request.
func (r *rig) generate(req *engine.Request) (tokens []kv.Token, err error) {
	err = r.run(func(ctx context.Context) error {
		return r.engine.Generate(ctx, req, func(d *engine.Delta) error {
			if d.Attempt != req.Attempt {
				return fmt.Errorf("attempt %d for %d", d.Attempt, req.Attempt)
			}
			tokens = append(tokens, d.Tokens...)
			return nil
		})
	})
	return tokens, err
}

// run runs the engine while f uses it.
func (r *rig) run(f func(context.Context) error) error {
	run, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- r.engine.Run(run) }()
	err := f(context.Background())
	stop()
	return errors.Join(err, <-ran)
}

func request(attempt uint32) *engine.Request {
	return &engine.Request{ID: "r", Attempt: attempt, Choices: 1, Logprobs: -1, Prompt: []kv.Token{1}, Stop: engine.Stop{MaxTokens: 4}}
}

// decision returns a decision for a worker.
func decision(id kv.WorkerID) route.Decision {
	return route.Decision{Worker: kv.Worker{ID: id}, Addr: fmt.Sprint("w", id)}
}

// others picks the first of n workers that is not excluded.
func others(n kv.WorkerID) func(*route.Request) (route.Decision, error) {
	return func(req *route.Request) (route.Decision, error) {
		for id := kv.WorkerID(1); id <= n; id++ {
			if !slices.Contains(req.Exclude, id) {
				return decision(id), nil
			}
		}
		return route.Decision{}, fault.New(fault.Unavailable, "no worker is left")
	}
}

// finish sends the rest of four tokens, from position pos.
func finish(req *engine.Request, send func(*engine.Delta) error) error {
	pos := 0
	if len(req.Generated) > 0 {
		pos = len(req.Generated[0])
	}
	d := engine.Delta{Pos: pos, Finish: engine.FinishLength}
	for ; pos < 4; pos++ {
		d.Tokens = append(d.Tokens, kv.Token(10+pos))
	}
	return errors.Join(send(&engine.Delta{Accepted: true}), send(&d))
}

var whole = []kv.Token{10, 11, 12, 13}

// TestMoves: when a worker fails after any number of tokens another one continues, under its own
// attempt, and nothing stays reserved.
func TestMoves(t *testing.T) {
	for cut := range 5 {
		var seen []uint32
		r := newRig(t, Config{}, &book{pick: others(2)}, func(_ context.Context, addr string, req *engine.Request, send func(*engine.Delta) error) error {
			seen = append(seen, req.Attempt)
			if addr == "w2" {
				return finish(req, send)
			}
			err := send(&engine.Delta{Accepted: true})
			for pos := range cut {
				err = errors.Join(err, send(&engine.Delta{Pos: pos, Tokens: whole[pos : pos+1]}))
			}
			return errors.Join(err, fault.New(fault.Unavailable, "the connection broke"))
		})
		got, err := r.generate(request(3))
		if err != nil || !slices.Equal(got, whole) || !slices.Equal(seen, []uint32{513, 514}) || len(r.book.held) != 0 {
			t.Errorf("cut at %d: tokens %v, attempts %v, reserved %v, error %v", cut, got, seen, r.book.held, err)
		}
	}
}

// TestLimits: failures count, draining does not; an error which no other worker can repair ends the
// request at once; a draining worker does not make the proxy look draining.
func TestLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		err   *fault.Error
		tries int
		code  fault.Code
	}{
		"failures":   {fault.New(fault.Unavailable, "x"), 3, fault.Unavailable},
		"full":       {fault.New(fault.Overloaded, "x"), 3, fault.Overloaded},
		"departures": {fault.New(fault.Draining, "x"), maxAttempts, fault.Unavailable},
		"defects":    {fault.New(fault.Internal, "x"), 1, fault.Internal},
		"bad":        {fault.New(fault.Invalid, "x"), 1, fault.Invalid},
		// Final for the caller too, which would ask another router for the same.
		"the request's": {fault.New(fault.EngineError, "x"), 2, fault.Internal},
	} {
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			r := newRig(t, Config{MigrationLimit: new(2)}, &book{pick: others(1 << 20)}, func(context.Context, string, *engine.Request, func(*engine.Delta) error) error {
				tries++
				return tc.err
			})
			_, err := r.generate(request(1))
			if tries != tc.tries || fault.CodeOf(err) != tc.code || len(r.book.held) != 0 || tc.err.Code == fault.EngineError && err.Error() != "x" {
				t.Errorf("%s: %d tries, %v (%v), reserved %v", name, tries, err, fault.CodeOf(err), r.book.held)
			}
		})
	}
}

// TestWaits: a request that lost its worker waits for another, within its bound; one that had none
// waits briefly; one that is refused for load does not wait.
func TestWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		first bool          // whether a worker is there for the first attempt
		after time.Duration // when one is added; 0 is never
		code  fault.Code    // of the router while none is there
		want  time.Duration // the longest duration allowed; half of it is the shortest
		ok    bool
	}{
		"another comes":          {true, 5 * time.Second, fault.Unavailable, 7 * time.Second, true},
		"none comes":             {true, 0, fault.Unavailable, 10 * time.Second, false},
		"others are busy":        {true, 5 * time.Second, fault.Overloaded, 7 * time.Second, true},
		"a first one comes":      {false, 500 * time.Millisecond, fault.Unavailable, time.Second, true},
		"no first one":           {false, 0, fault.Unavailable, 2 * time.Second, false},
		"refused from the start": {false, 5 * time.Second, fault.Overloaded, 0, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, tried := time.Now(), 0
			pick := func(*route.Request) (route.Decision, error) {
				if tried++; tc.first && tried == 1 || tc.after > 0 && time.Since(began) >= tc.after {
					return decision(1), nil
				}
				return route.Decision{}, fault.New(tc.code, "no worker")
			}
			r := newRig(t, Config{}, &book{pick: pick}, func(_ context.Context, _ string, req *engine.Request, send func(*engine.Delta) error) error {
				if tc.first && time.Since(began) == 0 {
					return fault.New(fault.Unavailable, "the connection broke")
				}
				return finish(req, send)
			})
			got, err := r.generate(request(1))
			took := time.Since(began)
			if (err == nil) != tc.ok || tc.ok && !slices.Equal(got, whole) || took > tc.want || took < tc.want/2 {
				t.Errorf("%s: %v, %v after %v, want about %v", name, got, err, took, tc.want)
			}
		})
	}
}

// TestOneNameTwice: two requests with one id, from two frontends, stay separate.
func TestOneNameTwice(t *testing.T) {
	inside, leave := make(chan struct{}, 2), make(chan struct{})
	r := newRig(t, Config{}, &book{pick: others(1)}, func(_ context.Context, _ string, req *engine.Request, send func(*engine.Delta) error) error {
		inside <- struct{}{}
		<-leave
		return finish(req, send)
	})
	run, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- r.engine.Run(run) }()
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			ended <- r.engine.Generate(t.Context(), request(1), func(*engine.Delta) error { return nil })
		}()
	}
	for range 2 {
		select {
		case <-inside:
		case err := <-ended:
			t.Fatal(err)
		}
	}
	close(leave)
	if err := errors.Join(<-ended, <-ended); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if slices.Sort(r.book.log); !slices.Equal(r.book.log, []string{"r/1", "r~1/1"}) || len(r.book.held) != 0 || r.ids.Len() != 0 {
		t.Errorf("reserved were %v, and still are %v, %d names", r.book.log, r.book.held, r.ids.Len())
	}
}

// TestModels: a model is served while it has workers, with the card it had; other components are
// ignored.
func TestModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, &book{pick: others(1)}, nil)
		instance := func(id kv.WorkerID, model, component string, context int) disco.Instance {
			card := servetest.ModelCard(model)
			card.ContextLength = context
			meta, err := engine.EncodeCard(card)
			if err != nil {
				t.Fatal(err)
			}
			return disco.Instance{Kind: disco.KindWorker, ID: id, Epoch: 1, Namespace: "penstock", Component: component, Addr: "w", Meta: meta}
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- r.Run(ctx) }()
		for i, step := range []struct {
			do   func()
			want []string
		}{
			{func() { r.registry.Set(instance(5, "m", "backend", 100)) }, []string{"begin m 100"}},
			{func() { r.registry.Set(instance(2, "m", "backend", 200)) }, nil}, // a new worker changes nothing
			{func() { r.registry.Set(instance(3, "n", "router", 100)) }, nil},  // not ours
			{func() { r.registry.Set(instance(4, "n", "backend", 300)) }, []string{"begin n 300"}},
			{func() { r.registry.Delete(instance(5, "m", "backend", 100)) }, []string{"begin m 200", "end m 100"}},
			{func() { r.registry.Delete(instance(2, "m", "backend", 200)) }, []string{"end m 200"}},
			{func() { r.registry.Set(instance(5, "m", "backend", 100)) }, []string{"begin m 100"}},
			{stop, []string{"end m 100", "end n 300"}},
		} {
			r.served = nil
			step.do()
			synctest.Wait()
			r.mu.Lock()
			if slices.Sort(r.served); !slices.Equal(r.served, step.want) {
				t.Errorf("step %d: %v, want %v", i, r.served, step.want)
			}
			r.mu.Unlock()
		}
		if err := <-ran; err != nil || r.ModelCount() != 0 {
			t.Errorf("%v, %d models", err, r.ModelCount())
		}
	})
}
