package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/core/route/queue"
	"penstock/internal/edge/prep"
	open "penstock/internal/edge/prep/chat"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/rpc/rpctest"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/router"
	"penstock/internal/serve/servetest"
	"penstock/internal/serve/worker"
)

// The fleet of the overload tests: two workers that run four requests each at a time,
// and a request that takes 200 ms alone. So 40 requests a second are what it can do.
const (
	overloadWorkers = 2
	overloadBatch   = 4
	overloadQueue   = 12 // calls that a worker takes beyond its batch
	overloadTokens  = 20
	overloadStep    = 10 * time.Millisecond
	overloadAlone   = overloadTokens * overloadStep
)

// TestOverload: a burst of ten times the normal load, five times what the fleet can
// do, is answered: by tokens as fast as ever, or by 503 with Retry-After. Nothing
// hangs, what is served does not fall, waiting is bounded by the queues, and when
// the burst is over so is its effect. It holds whichever bound is the first to be
// met. Time is virtual.
func TestOverload(t *testing.T) {
	pipe, err := open.Open(open.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name     string
		frontend frontend.Config
		router   router.Config
		says     string // the refusals
	}{
		{name: "the queues of the workers", says: "no worker could finish the request"},
		{name: "the requests of the frontend", frontend: frontend.Config{MaxInflight: 24}, says: "too many requests in progress"},
		{name: "active blocks", router: busyAbove(route.BusyThresholds{DecodeBlocks: 0.08}), says: "all 2 workers are busy"},
		{name: "prompt tokens to prefill", router: busyAbove(route.BusyThresholds{PrefillTokens: 60}), says: "all 2 workers are busy"},
		{name: "the queue of the router", router: queueing(8), says: "requests wait for a worker already"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newOverloaded(t, pipe, rpc.NewMemPlane(), tt.frontend, tt.router)
				defer f.stop()
				f.overload(tt.says)
			})
		})
	}
}

func busyAbove(b route.BusyThresholds) router.Config {
	return router.Config{Route: route.Config{Mode: route.KV, Busy: b}}
}

// queueing has up to so many requests wait in the router once a worker has prompts that
// are worth overloadPrompts.
func queueing(most int) router.Config {
	return router.Config{Route: route.Config{Mode: route.KV, QueueThreshold: new(1.0)}, Queue: queue.Config{MaxEntries: most}}
}

// overloadPrompts are the tokens of a few prompts.
const overloadPrompts = 60

// overloaded is a fleet in a bubble.
type overloaded struct {
	t        *testing.T
	pipe     *prep.Pipeline
	frontend *frontend.Frontend
	router   *router.Router
	engines  []*servetest.Engine
	metrics  *obs.Metrics
	end      context.CancelFunc
	parts    sync.WaitGroup
	sent     int
}

func newOverloaded(t *testing.T, pipe *prep.Pipeline, calls rpc.Plane, cfg frontend.Config, rcfg router.Config) *overloaded {
	f := &overloaded{t: t, pipe: pipe}
	var ctx context.Context
	ctx, f.end = context.WithCancel(t.Context())
	events, registry := bus.NewMemBus(), servetest.NewRegistry()
	metrics, log := obs.NewMetrics(), slog.New(slog.DiscardHandler)
	f.metrics = metrics
	run := func(what string, part func(context.Context) error) {
		f.parts.Go(func() {
			if err := part(ctx); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}

	r, err := router.New(rcfg, router.Planes{Bus: events, Registry: registry, RPC: calls}, nil, metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	f.router = r
	run("router", r.Run)
	measured := worker.NewMetrics(metrics)
	for i := range overloadWorkers {
		card := servetest.ModelCard("m")
		card.Blocks, card.VocabSize, card.Tokenizer = 400, pipe.Tokenizer.VocabSize(), engine.TokenizerRef{Kind: "builtin"}
		card.ContextLength, card.MaxBatchedTokens = 1024, overloadPrompts
		e := servetest.New(servetest.Config{Card: card, Step: overloadStep, Batch: overloadBatch})
		w, err := worker.New(worker.Config{ID: kv.WorkerID(i + 1), Epoch: 1, MaxCalls: overloadBatch + overloadQueue}, e,
			worker.Planes{RPC: calls, Bus: events, Registry: registry}, measured, log)
		if err != nil {
			t.Fatal(err)
		}
		f.engines = append(f.engines, e)
		run("worker", w.Run)
	}
	f.frontend, err = frontend.New(cfg, frontend.Deps{
		Router: r, Plane: calls, Catalog: r.Catalog(), Metrics: metrics, Log: log,
		OpenTokenizer: func(engine.TokenizerRef) (*prep.Pipeline, error) { return pipe, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	run("frontend", func(ctx context.Context) error { return f.frontend.Run(ctx, newIdleListener()) })
	synctest.Wait()
	return f
}

func (f *overloaded) stop() {
	f.end()
	f.parts.Wait()
}

// idleListener is a listener to which no client connects: requests go to the handler.
type idleListener struct {
	closed chan struct{}
	once   sync.Once
}

func newIdleListener() *idleListener { return &idleListener{closed: make(chan struct{})} }

func (n *idleListener) Accept() (net.Conn, error) {
	<-n.closed
	return nil, net.ErrClosed
}

func (n *idleListener) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

func (n *idleListener) Addr() net.Addr { return &net.UnixAddr{Name: "idle", Net: "none"} }

// tally is what became of requests.
type tally struct {
	mu               sync.Mutex
	served, refused  int
	slowest, refusal time.Duration // of those served, of those refused
	said             map[string]int
}

// send sends a request and enters what became of it.
func (f *overloaded) send(to *tally, number int) {
	began := time.Now()
	rec := f.post(f.t.Context(), number)
	took := time.Since(began)
	to.mu.Lock()
	defer to.mu.Unlock()
	switch {
	case rec.Code == http.StatusOK:
		to.served++
		to.slowest = max(to.slowest, took)
	case rec.Code == http.StatusServiceUnavailable && rec.Header().Get("Retry-After") != "":
		to.refused++
		to.refusal = max(to.refusal, took)
		to.said[rec.Body.String()]++
	default:
		f.t.Errorf("request %d: status %d, headers %v: %s", number, rec.Code, rec.Header(), rec.Body)
	}
}

// post sends one request whose client goes when ctx ends.
func (f *overloaded) post(ctx context.Context, number int) *httptest.ResponseRecorder {
	body := fmt.Sprintf(`{"model":"m","prompt":"request %d asks for something of its own","max_tokens":%d,"seed":1}`, number, overloadTokens)
	rec := httptest.NewRecorder()
	f.frontend.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(body)))
	return rec
}

// load sends n requests, one every interval, and returns when all are answered.
func (f *overloaded) load(n int, every time.Duration) *tally {
	to := &tally{said: map[string]int{}}
	var sent sync.WaitGroup
	for range n {
		f.sent++
		number := f.sent
		sent.Go(func() { f.send(to, number) })
		<-time.After(every)
	}
	sent.Wait()
	return to
}

// overload is normal load, a burst, and normal load again.
func (f *overloaded) overload(says string) {
	t := f.t
	const normal = 50 * time.Millisecond // 20 a second
	before := f.load(100, normal)
	if before.refused != 0 || before.slowest != overloadAlone {
		t.Errorf("under normal load %d are refused, and the slowest takes %v", before.refused, before.slowest)
	}

	began := time.Now()
	burst := f.load(1000, normal/10)
	took := time.Since(began)
	t.Logf("burst: %d served, the slowest in %v; %d refused, the slowest in %v; %v until the last answer", burst.served, burst.slowest, burst.refused, burst.refusal, took)
	if burst.refused == 0 {
		t.Error("nothing is refused")
	}
	for body, n := range burst.said {
		if !strings.Contains(body, says) {
			t.Errorf("%d refusals say %s", n, body)
		}
	}
	// A bound may leave workers idle for a moment, or let in more than they would take
	// one by one, but not by much.
	possible := overloadWorkers * overloadBatch * int(5*time.Second/overloadAlone)
	if burst.served < possible*9/10 {
		t.Errorf("%d are served, and %d could be", burst.served, possible)
	}
	const turns = 1 + overloadQueue/overloadBatch // that a request waits for at most, and its own
	if burst.slowest > turns*overloadAlone {
		t.Errorf("the slowest answer takes %v, and the queues are worth %v", burst.slowest, turns*overloadAlone)
	}
	if burst.refusal > time.Second {
		t.Errorf("a refusal takes %v", burst.refusal)
	}
	f.atRest()

	after := f.load(100, normal)
	if after.refused != 0 || after.slowest != overloadAlone {
		t.Errorf("after the burst %d are refused, and the slowest takes %v", after.refused, after.slowest)
	}
	f.atRest()
}

// atRest checks that nothing is left of requests that have been answered.
func (f *overloaded) atRest() {
	synctest.Wait()
	for i, e := range f.engines {
		if l := e.Load(); l.Running != 0 || l.Waiting != 0 {
			f.t.Errorf("worker %d still runs %d and queues %d", i+1, l.Running, l.Waiting)
		}
	}
	rec := httptest.NewRecorder()
	f.router.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(f.t.Context(), http.MethodGet, "/v1/router/workers", nil))
	if n := strings.Count(rec.Body.String(), `"active_requests":0,"active_blocks":0,"prefill_tokens":0`); n != overloadWorkers {
		f.t.Errorf("slots are not free: %s", rec.Body)
	}
}

// TestSlotsAreFreed: whatever becomes of a request (it is served, refused, moved,
// given up in a queue, the router's or a worker's, in prefill, in decode or on its way to another worker), the
// router's slots and the workers' turns are free when it is over. Connections are
// refused and break, and every other client goes at some moment. Time is virtual.
func TestSlotsAreFreed(t *testing.T) {
	pipe, err := open.Open(open.Ref{Kind: "builtin"})
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(8) {
		rcfg := busyAbove(route.BusyThresholds{DecodeBlocks: 0.2})
		if seed%2 == 1 { // they are given up in the router's queue too
			rcfg = queueing(100)
		}
		synctest.Test(t, func(t *testing.T) {
			calls := rpctest.WithFaults(rpc.NewMemPlane(), seed, rpctest.CallFaults{Refuse: 0.05, Cut: 0.4, CutAfter: 30, Delay: 5 * time.Millisecond})
			f := newOverloaded(t, pipe, calls, frontend.Config{}, rcfg)
			defer f.stop()
			rng := rand.New(rand.NewPCG(seed, 1))
			var sent sync.WaitGroup
			var mu sync.Mutex
			statuses := map[int]int{}
			for number := range 600 {
				ctx, cancel := context.WithCancel(t.Context())
				if number%2 == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(rng.Int64N(int64(4*overloadAlone))))
				}
				sent.Go(func() {
					defer cancel()
					status := f.post(ctx, number).Code
					mu.Lock()
					defer mu.Unlock()
					statuses[status]++
				})
				<-time.After(time.Duration(rng.Int64N(int64(30 * time.Millisecond))))
			}
			sent.Wait()
			t.Logf("seed %d: answers by status: %v", seed, statuses)
			if statuses[http.StatusOK] == 0 || statuses[499] == 0 {
				t.Errorf("answers by status: %v", statuses)
			}
			f.atRest()
			rec := httptest.NewRecorder()
			f.metrics.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
			for _, want := range []string{"penstock_router_reservations_expired_total 0", "penstock_frontend_inflight 0"} {
				if !strings.Contains(rec.Body.String(), want+"\n") {
					t.Errorf("%s is missing", want)
				}
			}
		})
	}
}
