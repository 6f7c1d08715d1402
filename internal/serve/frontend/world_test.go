package frontend

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/edge/prep"
	"penstock/internal/edge/readiness"
	"penstock/internal/engine"
	"penstock/internal/obs"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/rpc/rpctest"
)

// world is a frontend with its environment in one bubble: workers with scripted engines on the
// in-memory request plane, a router that checks reservations, a registry, and an HTTP client over
// pipes.
type world struct {
	t        *testing.T
	f        *Frontend
	plane    *rpc.MemPlane
	faulty   *rpctest.FaultyPlane // the frontend's plane; without faults by default
	router   *ledger
	registry *registry
	metrics  *obs.Metrics
	log      *bytes.Buffer
	lis      *pipeListener
	client   *http.Client
	stop     context.CancelFunc // tells the frontend to end
	ran      chan error         // what Run returned
	workers  sync.WaitGroup
	opens    func(engine.TokenizerRef) (*prep.Pipeline, error)
	mounted  http.HandlerFunc // serves /mounted; replaced by a test before it asks
}

// inWorld runs test in a bubble with a running frontend, and checks at the end that nothing is left.
// Time is virtual: a time.Sleep in these tests takes no time, ends exactly, and waits for nothing else
// to happen.
func inWorld(t *testing.T, cfg Config, test func(t *testing.T, w *world)) {
	inWorldWith(t, cfg, func(*Deps) {}, test)
}

// inWorldWith is inWorld with a frontend whose dependencies the test has changed.
func inWorldWith(t *testing.T, cfg Config, change func(*Deps), test func(t *testing.T, w *world)) {
	inWorldOf(t, cfg, func(_ *world, d *Deps) { change(d) }, test)
}

// inSilentWorld is inWorld with a registry that does not answer.
func inSilentWorld(t *testing.T, test func(t *testing.T, w *world)) {
	inWorldOf(t, Config{}, func(w *world, _ *Deps) { w.registry.silence(true) }, test)
}

func inWorldOf(t *testing.T, cfg Config, change func(*world, *Deps), test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t:        t,
			plane:    rpc.NewMemPlane(),
			registry: newRegistry(),
			metrics:  obs.NewMetrics(),
			log:      &bytes.Buffer{},
			lis:      newPipeListener(),
			ran:      make(chan error, 1),
			opens:    func(engine.TokenizerRef) (*prep.Pipeline, error) { return bytePipeline(), nil },
		}
		w.router = &ledger{w: w}
		w.faulty = rpctest.WithFaults(w.plane, 1, rpctest.CallFaults{})
		log := slog.New(slog.NewTextHandler(&lockedWriter{w: w.log}, nil))
		workers := catalog.New(catalog.Selection{}, w.registry, log)
		deps := Deps{
			Router: w.router, Plane: w.faulty, Catalog: workers, Metrics: w.metrics,
			OpenTokenizer: func(ref engine.TokenizerRef) (*prep.Pipeline, error) { return w.opens(ref) },
			Log:           log,
			Mount: map[string]http.Handler{
				"/mounted": http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { w.mounted(rw, r) }),
			},
		}
		change(w, &deps)
		f, err := New(cfg, deps)
		if err != nil {
			t.Fatal(err)
		}
		w.f = f
		w.client = &http.Client{Transport: &http.Transport{DialContext: w.lis.dial, DisableCompression: true}}
		var ctx context.Context
		ctx, w.stop = context.WithCancel(t.Context())
		serve, noMore := context.WithCancel(t.Context())
		w.registry.serve = serve
		w.workers.Go(func() { workers.Run(serve, func(*catalog.Snapshot) {}) })
		go func() { w.ran <- f.Run(ctx, w.lis) }()
		synctest.Wait()

		test(t, w)

		w.stop()
		w.client.CloseIdleConnections()
		if err := <-w.ran; err != nil {
			t.Errorf("Run returned %v", err)
		}
		noMore()
		w.workers.Wait()
		w.check()
	})
}

// check states what must hold when no request is running.
func (w *world) check() {
	w.t.Helper()
	if err := w.router.check(); err != nil {
		w.t.Error(err)
	}
	if n := w.f.inflight.Load(); n != 0 {
		w.t.Errorf("%d requests are in flight", n)
	}
	if n := w.f.bodies.Used(); n != 0 {
		w.t.Errorf("%d bytes of bodies are accounted for", n)
	}
	if n := w.f.prompts.Used(); n != 0 {
		w.t.Errorf("%d bytes of prompts are accounted for", n)
	}
	if n := w.f.ids.Len(); n != 0 {
		w.t.Errorf("%d request ids are claimed", n)
	}
}

// worker starts a worker with a scripted engine and registers it.
func (w *world) worker(id kv.WorkerID, s *script, change ...func(*engine.Card)) {
	w.t.Helper()
	card := engine.Card{
		Name: "bytes", Aliases: []string{"b"}, Engine: "script", BlockSize: 16, Blocks: 64, Ranks: 1,
		ContextLength: 512, VocabSize: byteVocab, EOS: []kv.Token{byteEOS}, Numerics: "n1",
		Defaults: engine.Sampling{Temperature: 1}, Tokenizer: engine.TokenizerRef{Kind: "builtin"},
	}
	for _, c := range change {
		c(&card)
	}
	ready := make(chan string)
	w.workers.Go(func() {
		if err := w.plane.Serve(w.registry.serve, "", s.handle, func(addr string) { ready <- addr }); err != nil {
			w.t.Errorf("serve: %v", err)
		}
	})
	addr := <-ready
	meta, err := engine.EncodeCard(card)
	if err != nil {
		w.t.Fatal(err)
	}
	w.registry.set(disco.Instance{Kind: disco.KindWorker, ID: id, Epoch: 1, Namespace: "penstock", Component: "backend", Addr: addr, Host: "host", PID: 1, Meta: meta})
	synctest.Wait()
}

// answerOf is a response read to its end.
type answerOf struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body
}

// post sends a JSON body and reads the whole answer.
func (w *world) post(path, body string, headers ...string) answerOf {
	w.t.Helper()
	resp := w.send(w.t.Context(), http.MethodPost, path, strings.NewReader(body), headers...)
	return read(resp)
}

func (w *world) get(path string) answerOf {
	w.t.Helper()
	return read(w.send(w.t.Context(), http.MethodGet, path, nil))
}

// send sends a request; headers are alternating names and values.
func (w *world) send(ctx context.Context, method, path string, body io.Reader, headers ...string) *http.Response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://penstock"+path, body)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp
}

func read(resp *http.Response) answerOf {
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answerOf{resp.StatusCode, resp.Header, string(b), err}
}

// metric returns the value of a metric by its name and labels as printed. A request is counted after
// its answer is sent.
func (w *world) metric(series string) string {
	synctest.Wait()
	rec := &recorder{header: http.Header{}}
	w.metrics.Handler().ServeHTTP(rec, must(http.NewRequest(http.MethodGet, "/metrics", nil)))
	for line := range strings.Lines(rec.body.String()) {
		if v, ok := strings.CutPrefix(line, "penstock_"+series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// recorder is a response that is not a connection.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// ledger is a router: it chooses the worker of lowest id that is not excluded. It checks that
// reservations are made and freed once.
type ledger struct {
	w  *world
	mu struct {
		sync.Mutex
		state    map[string]string // by id and attempt: reserved, prefilled, freed
		cached   map[string]int    // by id and attempt: the last value passed to MarkPrefilled
		requests []route.Request
		defects  []error
		fail     error       // of the next Route
		only     kv.WorkerID // if not 0, only this worker can be chosen
		warnings map[kv.WorkerID][]engine.Warning
		states   map[kv.WorkerID]string // of workers which are not ready
		failed   []kv.WorkerID
		renewed  int // number of renewed reservations
	}
}

// Availability implements Router: workers without a state are ready.
func (l *ledger) Availability(model string) route.Availability {
	l.mu.Lock()
	defer l.mu.Unlock()
	var a route.Availability
	for _, in := range l.w.registry.instances() {
		if card, err := engine.DecodeCard(in.Meta); err != nil || card.Name != model && !card.ServesAdapter(model) {
			continue
		}
		if a.Workers++; l.mu.states[in.ID] == "" {
			a.Ready++
		}
	}
	if a.Ready == 0 {
		a.Reason = fmt.Sprintf("none of %d workers can take a request", a.Workers)
	}
	return a
}

// Instances implements Router.
func (l *ledger) Instances() []readiness.InstanceStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []readiness.InstanceStatus
	for _, in := range l.w.registry.instances() {
		all = append(all, readiness.InstanceStatus{WorkerID: in.ID, State: cmp.Or(l.mu.states[in.ID], engine.StateReady), Warnings: l.mu.warnings[in.ID]})
	}
	return all
}

func ledgerKey(id string, attempt uint32) string { return fmt.Sprintf("%s#%d", id, attempt) }

func (l *ledger) Route(_ context.Context, req *route.Request) (route.Decision, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := *req
	kept.Exclude = slices.Clone(req.Exclude)
	l.mu.requests = append(l.mu.requests, kept)
	if err := l.mu.fail; err != nil {
		return route.Decision{}, err
	}
	d, err := l.pick(req)
	if err != nil {
		return d, err
	}
	if l.mu.state == nil {
		l.mu.state = map[string]string{}
	}
	key := ledgerKey(req.ID, req.Attempt)
	if was := l.mu.state[key]; was != "" && was != "freed" {
		l.defect("%s is reserved twice", key)
	}
	l.mu.state[key] = "reserved"
	return d, nil
}

// pinned makes every request go to one worker.
func (l *ledger) pinned(id kv.WorkerID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.only = id
}

// pick chooses a worker. The caller holds mu, or is the only user.
func (l *ledger) pick(req *route.Request) (route.Decision, error) {
	for _, in := range l.w.registry.instances() {
		if l.mu.only != 0 && l.mu.only != in.ID {
			continue
		}
		if slices.Contains(req.Exclude, in.ID) || req.Pin.ID != 0 && req.Pin.ID != in.ID {
			continue
		}
		if card, err := engine.DecodeCard(in.Meta); err != nil || card.Name != req.Model && !card.ServesAdapter(req.Model) {
			continue
		}
		return route.Decision{Worker: kv.Worker{ID: in.ID, Rank: req.Pin.Rank}, Addr: in.Addr, OverlapBlocks: len(req.Tokens) / 16, BlockSize: 16}, nil
	}
	return route.Decision{}, fault.New(fault.Unavailable, "no worker can take the request")
}

func (l *ledger) Explain(_ context.Context, req *route.Request) (route.Explanation, error) {
	d, err := l.pick(req)
	return route.Explanation{Decision: d}, err
}

func (l *ledger) ReportFailure(w kv.Worker, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.failed = append(l.mu.failed, w.ID)
}

// failed returns the workers whose calls failed.
func (l *ledger) failed() []kv.WorkerID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.mu.failed)
}

func (l *ledger) RecordFirstToken(id string, attempt uint32, cached int) {
	l.MarkPrefilled(id, attempt, cached)
}

func (l *ledger) MarkPrefilled(id string, attempt uint32, cached int) {
	from := []string{"reserved"}
	if said, ok := l.note(id, attempt, cached); ok && said == engine.CachedUnknown && cached != said {
		from = append(from, "prefilled")
	}
	l.move(id, attempt, "prefilled", from...)
}

// note records the reported cached tokens of an attempt's prompt, and returns the previous value.
func (l *ledger) note(id string, attempt uint32, cached int) (before int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := ledgerKey(id, attempt)
	before, ok = l.mu.cached[key]
	if l.mu.cached == nil {
		l.mu.cached = map[string]int{}
	}
	l.mu.cached[key] = cached
	return before, ok
}

// said returns the last reported cached tokens of each attempt.
func (l *ledger) said() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.mu.cached)
}

func (l *ledger) RecordOutput(id string, attempt uint32, tokens int) {
	l.move(id, attempt, "prefilled", "prefilled")
	if tokens < 16 {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.defect("%s has grown by %d tokens only", ledgerKey(id, attempt), tokens)
	}
}

func (l *ledger) RenewReservation(id string, attempt uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.state[ledgerKey(id, attempt)] != "freed" { // otherwise the end was faster
		l.mu.renewed++
	}
}

// renewed returns the number of renewed reservations.
func (l *ledger) renewed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.renewed
}

func (l *ledger) FreeReservation(id string, attempt uint32, _ int) {
	l.move(id, attempt, "freed", "reserved", "prefilled")
}

func (l *ledger) move(id string, attempt uint32, to string, from ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := ledgerKey(id, attempt)
	if was := l.mu.state[key]; !slices.Contains(from, was) {
		l.defect("%s is %s when it was %q", key, to, was)
	}
	l.mu.state[key] = to
}

func (l *ledger) defect(format string, args ...any) {
	l.mu.defects = append(l.mu.defects, fmt.Errorf(format, args...))
}

// check reports misuse, and reservations that were not freed.
func (l *ledger) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	errs := l.mu.defects
	for key, state := range l.mu.state {
		if state != "freed" {
			errs = append(errs, fmt.Errorf("%s is still %s", key, state))
		}
	}
	return errors.Join(errs...)
}

func (l *ledger) routed() []route.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.mu.requests)
}

// registry is a discovery store in one process.
type registry struct {
	serve context.Context // of the workers
	mu    struct {
		sync.Mutex
		set     []disco.Instance
		changed chan struct{}
		broken  error
		silent  bool // it lists nothing, as if it did not answer
	}
}

func newRegistry() *registry {
	r := &registry{}
	r.mu.changed = make(chan struct{})
	return r
}

func (r *registry) Register(context.Context, disco.Instance) (disco.Lease, error) {
	return nil, errors.New("not in this test")
}

func (r *registry) Watch(ctx context.Context, kind disco.Kind, sink func([]disco.Instance)) error {
	for told := false; ; {
		r.mu.Lock()
		set, changed, broken, silent := slices.Clone(r.mu.set), r.mu.changed, r.mu.broken, r.mu.silent
		r.mu.Unlock()
		if broken != nil {
			return broken
		}
		set = slices.DeleteFunc(set, func(in disco.Instance) bool { return in.Kind != kind })
		if !silent && (kind == disco.KindWorker || !told) { // the tests list workers only
			sink(set)
			told = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (r *registry) instances() []disco.Instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mu.set)
}

// set adds or replaces an instance.
func (r *registry) set(in disco.Instance) {
	r.remove(in.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.set = append(r.mu.set, in)
	slices.SortFunc(r.mu.set, func(a, b disco.Instance) int { return int(a.ID) - int(b.ID) })
	r.wake()
}

func (r *registry) remove(id kv.WorkerID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.set = slices.DeleteFunc(r.mu.set, func(in disco.Instance) bool { return in.ID == id })
	r.wake()
}

// silence makes watches list nothing, or again.
func (r *registry) silence(silent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.silent = silent
	r.wake()
}

// fail makes watches end with err, until it is nil.
func (r *registry) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.broken = err
	r.wake()
}

func (r *registry) wake() {
	close(r.mu.changed)
	r.mu.changed = make(chan struct{})
}

// pipeListener makes connections from pipes: a bubble has no sockets.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	dials  atomic.Int32
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		l.dials.Add(1)
		return client, nil
	case <-l.closed:
		return nil, errors.New("refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

const pause = time.Second // of virtual time, longer than anything that should be immediate
