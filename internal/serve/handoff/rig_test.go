package handoff

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/media"
	"penstock/core/rates"
	"penstock/internal/engine"
	"penstock/internal/engine/batch"
	"penstock/internal/engine/enginetest"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/bus/bustest"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
)

func TestMain(m *testing.M) { fixturetest.RunTests(m) }

const vocabulary = 96

// tokenCache is a computer whose KV cache has the tokens themselves. The next token is a hash of what the cache has: a
// wrong block gives a wrong answer.
type tokenCache struct {
	layout engine.KVLayout
	panics string // the id of a request with which StartRequest panics
	mu     struct {
		sync.Mutex
		slots    []kv.Token
		computed int    // tokens
		before   func() // called before a batch, if not nil
		writing  func() // called before tokens which have come are written, if not nil
	}
}

type tokenState struct {
	seed  uint64
	drawn bool
}

func (s *tokenState) IsFinished() bool { return false }

func mix(a, b uint64) uint64 {
	z := a*0x9e3779b97f4a7c15 + b + 1
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// tokenBytes are the bytes of a token in a block: the token at their begin and at their end.
const tokenBytes = 512

func newTokenCache(blockSize, tokens int) *tokenCache {
	c := &tokenCache{layout: engine.KVLayout{BlockSize: blockSize, BlockBytes: tokenBytes * blockSize, Type: media.Float32, Order: "tokens", Numerics: "hash"}}
	c.mu.slots = make([]kv.Token, tokens/blockSize*blockSize)
	return c
}

func (c *tokenCache) StartRequest(_ context.Context, req *engine.Request, _ []kv.Token) ([]batch.State, error) {
	if req.ID == c.panics {
		panic("a bug of the engine")
	}
	states := make([]batch.State, req.Choices)
	for i := range states {
		s := &tokenState{drawn: req.Sampling.Temperature > 0}
		if s.drawn {
			s.seed = mix(req.Sampling.Seed, uint64(i))
		}
		states[i] = s
	}
	return states, nil
}

func (c *tokenCache) slot(blocks []int32, p int) *kv.Token {
	size := c.layout.BlockSize
	return &c.mu.slots[int(blocks[p/size])*size+p%size]
}

func (c *tokenCache) ComputeBatch(_ context.Context, b *batch.Batch) error {
	c.mu.Lock()
	before := c.mu.before
	c.mu.Unlock()
	if before != nil {
		before()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, w := range b.Plan.Work {
		for k, token := range w.Tokens {
			*c.slot(w.Blocks, w.Start+k) = token + 1
		}
		c.mu.computed += len(w.Tokens)
		if w.Sample {
			hash := b.States[i].(*tokenState).seed
			for p := range w.Start + len(w.Tokens) {
				hash = mix(hash, uint64(*c.slot(w.Blocks, p)))
			}
			b.Drawn[i].Logprob = engine.Logprob{Token: kv.Token(hash % vocabulary), Logprob: -1}
		}
	}
	return nil
}

func (c *tokenCache) BlockLayout() engine.KVLayout { return c.layout }

func (c *tokenCache) ReadBlocks(ctx context.Context, dst []byte, blocks []int32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range len(blocks) * c.layout.BlockSize {
		token := uint32(*c.slot(blocks, p))
		binary.LittleEndian.PutUint32(dst[tokenBytes*p:], token)
		binary.LittleEndian.PutUint32(dst[tokenBytes*(p+1)-4:], token)
	}
	return ctx.Err()
}

func (c *tokenCache) WriteTokens(blocks []int32, start, end int, d *engine.BlockData) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.writing != nil {
		c.mu.writing()
	}
	for p := start; p < end; p++ {
		bytes := d.Bytes[tokenBytes*(p-d.First*d.Layout.BlockSize):][:tokenBytes]
		token := binary.LittleEndian.Uint32(bytes)
		if binary.LittleEndian.Uint32(bytes[tokenBytes-4:]) != token {
			return fmt.Errorf("position %d is torn", p)
		}
		*c.slot(blocks, p) = kv.Token(token)
	}
	return nil
}

// takeComputed returns how many tokens were computed since the last call.
func (c *tokenCache) takeComputed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.mu.computed
	c.mu.computed = 0
	return n
}

// beforeBatch has do called before each batch; nil ends that.
func (c *tokenCache) beforeBatch(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.before = do
}

func newEngine(t testing.TB, c *tokenCache) *batch.Engine {
	t.Helper()
	e, err := batch.New(batch.Config{
		Card: engine.Card{
			Name: "m", Engine: "hash", Numerics: "hash", Ranks: 1, Blocks: len(c.mu.slots) / c.layout.BlockSize, BlockSize: c.layout.BlockSize,
			ContextLength: 4096, VocabSize: vocabulary,
		},
		MaxSeqs: 16, TokenBudget: 256, MaxWaiting: 256,
	}, c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// newRequest returns a request for n tokens after a prompt which depends on seed in every token.
func newRequest(seed, prompt, n int) *engine.Request {
	req := &engine.Request{
		ID: fmt.Sprintf("request-%d", seed), Attempt: 1, Model: "m", Choices: 1, Logprobs: -1, Stop: engine.Stop{MaxTokens: n, IgnoreEOS: true},
	}
	for i := range prompt {
		req.Prompt = append(req.Prompt, kv.Token(mix(uint64(seed), uint64(i))%vocabulary))
	}
	return req
}

// faultyCalls is a request plane of one process, which can be cut off.
type faultyCalls struct {
	rpc.Plane
	mu struct {
		sync.Mutex
		cut    bool
		cutOff chan struct{}     // closed when the process is cut off
		block  map[string]bool   // methods whose calls wait
		before map[string]func() // called before a call of a method
		served map[string]int    // calls made, by method
	}
}

func newFaultyCalls(p rpc.Plane) *faultyCalls {
	f := &faultyCalls{Plane: p}
	f.mu.cutOff, f.mu.block, f.mu.before = make(chan struct{}), map[string]bool{}, map[string]func(){}
	return f
}

// cutOff ends all calls of the process, as its end does: no process is told anything.
func (f *faultyCalls) cutOff() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mu.cut {
		f.mu.cut = true
		close(f.mu.cutOff)
	}
}

// blockCalls makes calls of a method wait for the end of their contexts.
func (f *faultyCalls) blockCalls(method string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.block[method] = true
}

// unblockCalls ends blockCalls, for further calls.
func (f *faultyCalls) unblockCalls(method string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.mu.block, method)
}

// beforeCall calls do before each call of a method.
func (f *faultyCalls) beforeCall(method string, do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.before[method] = do
}

func (f *faultyCalls) Call(ctx context.Context, addr, method string, body []byte, recv func([]byte) error) error {
	f.mu.Lock()
	cut, block, before := f.mu.cutOff, f.mu.block[method], f.mu.before[method]
	f.mu.Unlock()
	if before != nil {
		before()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lost := fault.New(fault.Unavailable, "call %s: the process is cut off", method)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		select {
		case <-cut:
			cancel()
		case <-ctx.Done():
		}
	})
	select {
	case <-cut:
		return lost
	default:
	}
	if block {
		<-ctx.Done()
		return ctx.Err()
	}
	err := f.Plane.Call(ctx, addr, method, body, recv)
	select {
	case <-cut:
		return lost
	default:
		return err
	}
}

// faultyBulk is a transfer plane of one process, which can be stopped in a transfer.
type faultyBulk struct {
	xfer.Plane
	killed  <-chan struct{}
	opening func() error        // called before a transfer is opened, if not nil: its error is the outcome
	during  func()              // in the middle of a piece, if not nil
	deaf    bool                // nothing but the owner ends a transfer
	after   func(error)         // gets the end of a write, if not nil
	commit  func()              // before a note is sent, if not nil
	note    func([]byte) []byte // what is sent instead of a note, if not nil
}

func (f *faultyBulk) isKilled() bool {
	select {
	case <-f.killed:
		return true
	default:
		return false
	}
}

func errKilled() error { return fault.New(fault.Unavailable, "the process is killed") }

func (f *faultyBulk) Open(ctx context.Context, d xfer.Descriptor) (xfer.TransferWriter, error) {
	if f.isKilled() {
		return nil, errKilled()
	}
	if f.opening != nil {
		if err := f.opening(); err != nil {
			return nil, err
		}
	}
	if f.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	w, err := f.Plane.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	return &faultyWriter{w, f}, nil
}

type faultyWriter struct {
	xfer.TransferWriter
	f *faultyBulk
}

func (w *faultyWriter) Write(p []byte) error {
	if w.f.during == nil {
		return w.TransferWriter.Write(p)
	}
	half := len(p) / 2
	if err := w.TransferWriter.Write(p[:half]); err != nil {
		return err
	}
	if w.f.during(); w.f.isKilled() {
		return errKilled()
	}
	err := w.TransferWriter.Write(p[half:])
	if w.f.after != nil {
		w.f.after(err)
	}
	return err
}

func (w *faultyWriter) Commit(note []byte) error {
	if w.f.commit != nil {
		if w.f.commit(); w.f.isKilled() {
			return errKilled()
		}
	}
	if w.f.note != nil {
		note = w.f.note(note)
	}
	return w.TransferWriter.Commit(note)
}

// prefillNode is a prefill worker.
type prefillNode struct {
	*PrefillWorker
	cache  *tokenCache // nil for other engines
	eng    exchangeEngine
	calls  *faultyCalls
	bulk   *faultyBulk
	queue  *bustest.FaultyQueue // nil for calls
	addr   string
	self   disagg.Incarnation
	killed chan struct{} // closed when the process is killed
	stop   func()        // ends it and waits
}

// kill ends the process: no other is told anything, and it does nothing more that others can see.
func (n *prefillNode) kill() {
	select {
	case <-n.killed:
		return
	default:
	}
	n.calls.cutOff()
	if n.queue != nil {
		n.queue.Set(bustest.QueueFaults{Cut: true})
	}
	close(n.killed)
}

// standBy makes a worker pull nothing from the queue until the function it returns is called.
func (n *prefillNode) standBy() (resume func()) {
	if n.queue == nil {
		return func() {}
	}
	n.queue.Set(bustest.QueueFaults{Cut: true})
	return func() { n.queue.Set(bustest.QueueFaults{}) }
}

// holdBack is standBy, for the goroutine of a test. It returns when a pull which waited, and
// could still get a job, has ended.
func (n *prefillNode) holdBack() (resume func()) {
	resume = n.standBy()
	synctest.Wait()
	return resume
}

// rig is a decode worker and prefill workers in one process.
type rig struct {
	t        *testing.T
	ctx      context.Context
	open     func(blockSize int) exchangeEngine
	calls    *rpc.MemPlane
	bulk     xfer.Plane  // of prefill workers, under their faults
	cache    *tokenCache // nil for other engines
	eng      exchangeEngine
	decoder  *DecodeWorker
	prefills []*prefillNode
	loads    [4]int // tokens which the prefill workers report
	outcomes chan *HandoffOutcome
	running  sync.WaitGroup
}

// exchangeEngine is an engine of either role.
type exchangeEngine interface {
	engine.BlockProvider
	engine.BlockReceiver
	engine.LoadSource
}

// rigConfig says what a rig has.
type rigConfig struct {
	open     func(blockSize int) exchangeEngine // nil is an engine with a tokenCache
	blocks   []int                              // of the decode worker and of each prefill worker, in tokens
	owner    xfer.Plane                         // of the decode worker; nil is a MemPlane which all share
	writer   xfer.Plane                         // of prefill workers, if owner is not nil
	queue    bus.Queue                          // nil for calls
	noCalls  bool                               // what the queue does not take is not called either
	change   func(*DecodeWorkerConfig)
	prefill  func(*PrefillWorkerConfig)
	layout   func(*engine.KVLayout) // of prefill workers, after they have stated it
	capacity int                    // of the decode worker's cache in tokens; 0 is 16384
}

// testTimes are the limits of the machines in tests.
var (
	testHandoff = disagg.HandoffConfig{MaxAttempts: 3, LocalWait: 2 * time.Second, QueueWait: 5 * time.Second, AddressedWait: time.Second, Silence: 2 * time.Second, Budget: 20 * time.Second}
	testJob     = disagg.JobConfig{ClaimWait: time.Second, Heartbeat: 500 * time.Millisecond, Budget: 20 * time.Second}
)

var decodeSelf = disagg.Incarnation{Worker: kv.Worker{ID: 1}, Epoch: 77}

// exchangeOf is what a worker states in its registration.
func exchangeOf(l engine.KVLayout, epoch uint64) disagg.Metadata {
	m := l.Metadata()
	m.Epoch, m.Transports = epoch, []disagg.TransportAddress{{Name: "mem"}}
	return m
}

// decideRemotely decides for remote prefill whenever it is possible.
func decideRemotely(t testing.TB, workers func() int) func(disagg.SplitSettings, disagg.SplitInputs, *engine.PrefillHint) disagg.Decision {
	l, err := rates.New(rates.Config{PrefillFixed: 10 * time.Millisecond, PrefillToken: 20 * time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	w := l.WorkerOf(kv.Worker{ID: 1})
	return func(asked disagg.SplitSettings, in disagg.SplitInputs, _ *engine.PrefillHint) disagg.Decision {
		in.PrefillWorkers = workers()
		cfg := asked.Apply(disagg.SplitConfig{Policy: disagg.AlwaysRemote})
		return disagg.Decide(&cfg, &in, w, w)
	}
}

// newRig starts the workers. Stop must be called before the test ends.
func newRig(t *testing.T, cfg rigConfig) *rig {
	t.Helper()
	capacity := cfg.capacity
	if capacity == 0 {
		capacity = 16384
	}
	r := &rig{t: t, calls: rpc.NewMemPlane(), open: cfg.open, outcomes: make(chan *HandoffOutcome, 4096)}
	bulk := cfg.owner
	if r.bulk = cfg.writer; bulk == nil {
		bulk = newMemPlane(t, xfer.Config{})
		r.bulk = bulk
	}
	r.eng, r.cache = r.newEngine(cfg.blocks[0], capacity)
	ctx, cancel := context.WithCancel(context.Background())
	r.ctx = ctx
	ready := make(chan struct{})
	r.running.Go(func() { _ = bulk.Run(ctx, func() { close(ready) }) })
	<-ready
	r.running.Go(func() { _ = r.eng.Run(ctx) })
	calls := NewCallPlacer(r.calls, r.peers)
	var jobs JobPlacer = calls
	if cfg.queue != nil {
		placer := &QueuePlacer{Queue: cfg.queue, MaxLifetime: time.Minute, Wait: time.Second, Else: calls}
		if cfg.noCalls {
			placer.Else = nil
		}
		jobs = placer
	}
	dc := DecodeWorkerConfig{
		Self: decodeSelf, Addr: "decode", Handoff: testHandoff, Observe: r.observe,
		Decide: decideRemotely(t, func() int { return len(r.prefills) }),
	}
	if cfg.change != nil {
		cfg.change(&dc)
	}
	var err error
	if r.decoder, err = NewDecodeWorker(dc, r.eng, bulk, jobs); err != nil {
		t.Fatal(err)
	}
	r.serve(ctx, r.calls, "decode", func(ctx context.Context, method string, body []byte, send func([]byte) error) error {
		if method == engine.MethodPull {
			return r.decoder.ServePull(ctx, body, send)
		}
		return r.decoder.ServeProgress(body)
	})
	for i, size := range cfg.blocks[1:] {
		r.prefills = append(r.prefills, r.startPrefill(i, size, cfg))
	}
	t.Cleanup(func() {
		for _, p := range r.prefills {
			p.stop()
		}
		cancel()
		r.running.Wait()
	})
	return r
}

// newMemPlane returns a plane which the workers of a rig share.
func newMemPlane(t *testing.T, cfg xfer.Config) xfer.Plane {
	t.Helper()
	p, err := xfer.NewMemPlane(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newEngine returns an engine, with its cache unless it is one of open.
func (r *rig) newEngine(blockSize, tokens int) (exchangeEngine, *tokenCache) {
	if r.open != nil {
		return r.open(blockSize), nil
	}
	c := newTokenCache(blockSize, tokens)
	return newEngine(r.t, c), c
}

// serve serves calls in the background until ctx ends.
func (r *rig) serve(ctx context.Context, plane rpc.Plane, addr string, h rpc.Handler) {
	ready := make(chan struct{})
	r.running.Go(func() {
		if err := plane.Serve(ctx, addr, h, func(string) { close(ready) }); err != nil {
			r.t.Error(err)
		}
	})
	<-ready
}

func (r *rig) peers() (peers []PrefillPeer) {
	for i, p := range r.prefills {
		peers = append(peers, PrefillPeer{Incarnation: p.self, Addr: p.addr, Tokens: r.loads[i]})
	}
	return peers
}

func (r *rig) startPrefill(i, size int, cfg rigConfig) *prefillNode {
	n := &prefillNode{
		calls: newFaultyCalls(r.calls), bulk: &faultyBulk{Plane: r.bulk}, addr: fmt.Sprintf("prefill-%d", i), killed: make(chan struct{}),
		self: disagg.Incarnation{Worker: kv.Worker{ID: kv.WorkerID(10 + i)}, Epoch: uint64(100 + i)},
	}
	n.eng, n.cache = r.newEngine(size, 16384)
	n.bulk.killed = n.killed
	stated, owner := n.eng.BlockLayout(), exchangeOf(r.eng.BlockLayout(), decodeSelf.Epoch)
	if cfg.layout != nil {
		cfg.layout(&n.cache.layout)
	}
	pc := PrefillWorkerConfig{
		Self: n.self, Exchange: exchangeOf(stated, n.self.Epoch), Job: testJob,
		FindOwner: func(kv.Worker) *disagg.Metadata { return &owner },
	}
	if cfg.prefill != nil {
		cfg.prefill(&pc)
	}
	var err error
	if n.PrefillWorker, err = NewPrefillWorker(pc, n.eng, n.calls, n.bulk); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.serve(ctx, r.calls, n.addr, func(ctx context.Context, _ string, body []byte, _ func([]byte) error) error {
		done := make(chan error, 1)
		kept := slices.Clone(body) // it is valid until the call returns
		r.running.Go(func() { done <- n.ServePrefill(ctx, kept) })
		select {
		case err := <-done:
			return err
		case <-n.killed:
			return fault.New(fault.Unavailable, "the connection is lost")
		}
	})
	var q bus.Queue
	if cfg.queue != nil {
		n.queue = bustest.NewFaultyQueue(cfg.queue, uint64(i), bustest.QueueFaults{})
		q = n.queue
	}
	ended := make(chan struct{})
	r.running.Go(func() { _ = n.eng.Run(ctx) })
	r.running.Go(func() {
		defer close(ended)
		if err := n.Run(ctx, q); err != nil {
			r.t.Error(err)
		}
	})
	n.stop = sync.OnceFunc(func() { cancel(); <-ended })
	return n
}

// answer is what became of a request.
type answer struct {
	choices []enginetest.Choice
	err     error
}

// start serves a request in the background.
func (r *rig) start(ctx context.Context, req *engine.Request) <-chan answer {
	done := make(chan answer, 1)
	r.running.Go(func() {
		rec := enginetest.NewRecorder(req)
		err := r.decoder.Generate(ctx, req, rec.Sink)
		if err == nil {
			err = rec.Complete()
		}
		done <- answer{rec.Choices, err}
	})
	return done
}

// alone is the answer of an engine which is alone.
func (r *rig) alone(req *engine.Request) []enginetest.Choice {
	r.t.Helper()
	e, _ := r.newEngine(16, 8192)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = e.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	return enginetest.MustGenerate(r.t, ctx, e, req)
}

// expect waits for an answer and compares it with that of one engine. It returns how the oldest handoff ended.
func (r *rig) expect(req *engine.Request, done <-chan answer) *HandoffOutcome {
	r.t.Helper()
	r.compare(req, <-done)
	return <-r.outcomes
}

// observe checks an outcome: each attempt was given up once, but for the one which brought the blocks.
func (r *rig) observe(o *HandoffOutcome) {
	arrived := 0
	if isRemote(o) {
		arrived = 1
	}
	if len(o.GivenUp)+arrived != o.Jobs || o.Lost < 0 || o.Lost > o.Took {
		r.t.Errorf("%s: the attempts %v were given up, of %d, and lost %v: %+v", o.RequestID, o.GivenUp, o.Jobs, o.Lost, o)
	}
	r.outcomes <- o
}

// compare compares an answer with that of one engine.
func (r *rig) compare(req *engine.Request, got answer) {
	r.t.Helper()
	r.compareWith(req, r.alone(req), got)
}

// compareWith compares an answer with what another engine gave, except for how much that had cached.
func (r *rig) compareWith(req *engine.Request, want []enginetest.Choice, got answer) {
	r.t.Helper()
	if got.err != nil {
		r.t.Errorf("%s: %v", req.ID, got.err)
		return
	}
	for i := range want {
		want[i].Cached, got.choices[i].Cached = 0, 0
	}
	if diff := cmp.Diff(want, got.choices); diff != "" {
		r.t.Errorf("%s: not the answer of one engine (-want +got):\n%s", req.ID, diff)
	}
}

// expectIdle checks that nothing is left of any handoff, when what tells others so has had its time.
func (r *rig) expectIdle() {
	r.t.Helper()
	time.Sleep(2 * testJob.ClaimWait) // virtual
	synctest.Wait()
	for _, left := range r.listLeft() {
		r.t.Error(left)
	}
}

// listLeft says what is left of handoffs.
func (r *rig) listLeft() (left []string) {
	add := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }
	if s := r.decoder.Stats(); s.Open != 0 || s.LandingBytes != 0 || s.Queued != 0 || r.decoder.QueuedJobs() != 0 {
		add("of the handoffs are left: %+v", s)
	}
	var load disagg.SplitInputs
	if r.decoder.describeLoad(&load); load != (disagg.SplitInputs{}) {
		add("of the requests are left: %+v", load)
	}
	if l := r.eng.Load(); l.Running+l.Waiting+l.UsedBlocks != 0 {
		add("the decode engine has left: %+v", l)
	}
	for _, p := range r.prefills {
		select {
		case <-p.killed:
			continue
		default:
		}
		s := p.Stats()
		if s.Running+s.Waiting+s.WaitingTokens != 0 {
			add("of the jobs are left: %+v", s)
		}
		if l := p.eng.Load(); l.Running+l.Waiting+l.UsedBlocks != 0 {
			add("a prefill engine has left: %+v", l)
		}
	}
	return left
}

// newQueue returns a queue in memory.
func newQueue(t *testing.T) bus.Queue {
	t.Helper()
	q, err := bus.NewMemBus().OpenQueue(bus.QueueConfig{Name: "prefill", Lease: 2 * time.Second, MaxLifetime: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func isRemote(o *HandoffOutcome) bool { return o.State == disagg.Decoding }
