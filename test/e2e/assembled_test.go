package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/edge/prep"
	pipeline "penstock/internal/edge/prep/chat"
	"penstock/internal/edge/prep/token"
	"penstock/internal/engine"
	"penstock/internal/engine/tiny"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/serve/frontend"
	"penstock/internal/serve/router"
	"penstock/internal/serve/worker"
)

// fleet is a server put together here, of all the real parts over planes in memory,
// so that its workers can be lost one by one, at any token.
type fleet struct {
	*server
	cuts    *cutter
	engines []*tiny.Engine
	leave   []func() error // has worker i+1 leave, and waits
	// join has a worker run: a new one, or the next life of one that left.
	join func(id int, epoch uint64, eng *tiny.Engine)
	// known is how many workers can get requests.
	known func() int
	// occupied is how many requests the test itself keeps running.
	occupied int
}

// addr is where worker id serves.
func addr(id int) string { return fmt.Sprint("worker-", id) }

// fleetConfig is what the tests change of a fleet.
type fleetConfig struct {
	workers  int
	engines  int // at least one for each worker, more for workers that join later
	engine   tiny.Config
	frontend frontend.Config
	worker   worker.Config
	media    frontend.MediaSource
	// pretend says that what the test breaks are calls and not workers: the router is
	// not told, or it would leave out workers that are well, and wait for workers that
	// pretend to leave.
	pretend bool
}

// untold is a router that does not learn which calls failed.
type untold struct{ frontend.Router }

func (untold) ReportFailure(kv.Worker, error) {}

// startFleet runs a fleet until the test ends.
func startFleet(t *testing.T, cfg fleetConfig) *fleet {
	t.Helper()
	pipe := must(pipeline.Open(pipeline.Ref{Kind: "builtin"}))(t)
	vocabulary := must(token.Builtin())(t)
	ec := cfg.engine
	ec.Layers = 1 // these tests compare many answers, of whichever model
	ec.Tokenizer = engine.TokenizerRef{Kind: "builtin", Digest: pipe.Digest}
	ec.Vocabulary = tiny.Vocabulary{Size: vocabulary.VocabSize(), Mask: vocabulary.MaskedIDs(), Names: vocabulary}
	if eos, ok := vocabulary.EOS(); ok {
		ec.Vocabulary.EOS = []kv.Token{eos}
	}
	ec.Text = func(dst []byte, id kv.Token) ([]byte, bool) {
		if pipe.Tokenizer.IsSpecial(id) {
			return dst, false
		}
		return pipe.Tokenizer.AppendBytes(dst, id)
	}
	f := &fleet{
		server: &server{t: t, log: &logBuffer{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}},
		cuts:   newCutter(rpc.NewMemPlane()),
	}
	f.engines = must(tiny.NewReplicas(t.Context(), ec, max(cfg.engines, cfg.workers)))(t)
	log := slog.New(slog.NewTextHandler(f.log, nil))
	metrics := obs.NewMetrics()
	events, registry := bus.NewMemBus(), disco.NewMemRegistry()

	r := must(router.New(router.Config{Route: route.Config{Mode: route.KV, Seed: 1}}, router.Planes{Bus: events, Registry: registry, RPC: f.cuts}, nil, metrics, log))(t)
	var routes frontend.Router = r
	if cfg.pretend {
		routes = untold{r}
	}
	front := must(frontend.New(cfg.frontend, frontend.Deps{
		Router: routes, Plane: f.cuts, Catalog: r.Catalog(), Metrics: metrics, Log: log, Media: cfg.media,
		OpenTokenizer: func(engine.TokenizerRef) (*prep.Pipeline, error) { return pipe, nil },
		Mount:         map[string]http.Handler{"/v1/router/": r.Handler()},
		OnDrain:       r.EndWatches,
	}))(t)

	var parts sync.WaitGroup
	run := func(part func(context.Context) error) (stop func() error) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		parts.Go(func() { ended <- part(ctx) })
		return sync.OnceValue(func() error { cancel(); return <-ended })
	}
	stopRouter := run(r.Run)
	shared := worker.NewMetrics(metrics)
	f.leave = make([]func() error, cfg.workers)
	f.join = func(id int, epoch uint64, eng *tiny.Engine) {
		wc := cfg.worker
		wc.ID, wc.Epoch, wc.Addr = kv.WorkerID(id), epoch, addr(id)
		w := must(worker.New(wc, eng, worker.Planes{RPC: f.cuts, Bus: events, Registry: registry}, shared, log))(t)
		f.leave[id-1] = run(w.Run)
	}
	for i := range cfg.workers {
		f.join(i+1, 1, f.engines[i])
	}
	ln := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	f.url = "http://" + ln.Addr().String()
	stopFrontend := run(func(ctx context.Context) error { return front.Run(ctx, ln) })
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		for _, stop := range slices.Concat([]func() error{stopFrontend}, f.leave, []func() error{stopRouter}) {
			if err := stop(); err != nil {
				t.Errorf("stop: %v\n%s", err, f.log)
			}
		}
		parts.Wait()
	})
	name := f.engines[0].Card().Name
	f.known = func() int { return front.WorkerCount(name) }
	f.eventually("all workers are known", func() bool { return f.known() == cfg.workers })
	return f
}

// occupy keeps a request running until the test ends.
func (f *fleet) occupy(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	t.Cleanup(func() { cancel(); <-left })
	go func() {
		defer close(left)
		_, _ = f.stream(ctx, "/v1/completions", sampled(0, 1900)) // it ends with the test
	}()
	f.occupied++
	f.eventually("it runs", func() bool { return f.engines[0].Load().Running == 1 })
}

// inflight is how many requests the frontend has.
func (f *fleet) inflight() int {
	f.t.Helper()
	_, body := f.do(http.MethodGet, "/metrics", nil)
	_, after, _ := strings.Cut(string(body), "\npenstock_frontend_inflight ")
	line, _, _ := strings.Cut(after, "\n")
	return must(strconv.Atoi(line))(f.t)
}

// must returns v, or ends the test.
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// cutter is a request plane on which generations end where the test says, in number
// of tokens that reached the caller.
type cutter struct {
	rpc.Plane
	mu struct {
		sync.Mutex
		cuts map[string][]cut // by request
		dead map[string]bool  // addresses
		gone chan struct{}    // closed when one more is dead
	}
}

// cut is where one attempt ends.
type cut struct {
	tokens int // that reach the caller; beforeAccepted is not even accepted
	code   fault.Code
}

const beforeAccepted = -1

func newCutter(inner rpc.Plane) *cutter {
	c := &cutter{Plane: inner}
	c.mu.cuts, c.mu.dead = map[string][]cut{}, map[string]bool{}
	c.mu.gone = make(chan struct{})
	return c
}

// plan has the attempts of a request end at the cuts, one after another.
func (c *cutter) plan(request string, cuts ...cut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.cuts[request] = cuts
}

// left returns how many cuts of a request have not been made.
func (c *cutter) left(request string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.cuts[request])
}

// take returns the next cut of a request.
func (c *cutter) take(request string) (cut, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.mu.cuts[request]
	if len(all) == 0 {
		return cut{}, false
	}
	return all[0], true
}

func (c *cutter) made(request string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.cuts[request] = c.mu.cuts[request][1:]
}

// kill breaks all calls to addr, now and from now on.
func (c *cutter) kill(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.dead[addr] = true
	close(c.mu.gone)
	c.mu.gone = make(chan struct{})
}

func (c *cutter) alive(addr string) (alive bool, gone <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.mu.dead[addr], c.mu.gone
}

var errDead = fault.New(fault.Unavailable, "the connection broke")

// Call implements rpc.Plane.
func (c *cutter) Call(ctx context.Context, addr, method string, body []byte, recv func([]byte) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	alive, gone := c.alive(addr)
	if !alive {
		return errDead
	}
	var watch sync.WaitGroup
	defer watch.Wait()
	over := make(chan struct{})
	defer close(over)
	watch.Go(func() {
		for alive {
			select {
			case <-gone:
			case <-over:
				return
			}
			alive, gone = c.alive(addr)
		}
		end(errDead)
	})
	err := c.cut(ctx, addr, method, body, recv)
	if context.Cause(ctx) == errDead {
		return errDead
	}
	return err
}

// cut makes a call that ends where its request's next cut is.
func (c *cutter) cut(ctx context.Context, addr, method string, body []byte, recv func([]byte) error) error {
	var req engine.Request
	if method != engine.MethodGenerate || engine.DecodeRequest(body, &req) != nil {
		return c.Plane.Call(ctx, addr, method, body, recv)
	}
	at, ok := c.take(req.ID)
	if !ok {
		return c.Plane.Call(ctx, addr, method, body, recv)
	}
	broken := fault.New(at.code, "cut at %d tokens", at.tokens)
	left := at.tokens
	err := c.Plane.Call(ctx, addr, method, body, func(frame []byte) error {
		if left == beforeAccepted {
			return broken
		}
		var d engine.Delta
		if err := engine.DecodeDelta(frame, &d); err != nil {
			return err
		}
		if n := len(d.Tokens); n > left {
			d.Tokens, d.Finish = d.Tokens[:left], engine.NotFinished
			if len(d.Logprobs) > 0 {
				d.Logprobs = d.Logprobs[:left]
			}
			frame = engine.AppendDelta(nil, &d)
			left = 0
			if len(d.Tokens) == 0 {
				return broken
			}
		} else {
			left -= n
		}
		if err := recv(frame); err != nil {
			return err
		}
		if left == 0 {
			return broken
		}
		return nil
	})
	if err == broken {
		c.made(req.ID)
	}
	return err
}
