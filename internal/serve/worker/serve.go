package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/kvfeed/embfeed"
	"penstock/internal/engine"
	"penstock/internal/plane/bus"
)

// callServer answers calls during one run.
type callServer struct {
	w             *Worker
	kvFeed        *feedPublisher[kv.Event]
	embeddingFeed *feedPublisher[embfeed.Event]
	limiter       *callLimiter
	exchange      atomic.Pointer[Exchange] // of KV blocks; nil until it is open, and without
	startedAt     time.Time
	// lastToken is when the engine last produced something, in nanoseconds since born. sick says that
	// it does not answer its canary.
	lastToken    atomic.Int64
	engineBroken atomic.Bool
	// loadBefore is the load that is reported while the canary runs; nil otherwise.
	loadBefore atomic.Pointer[engine.Load]
	// loadWake wakes the goroutine which publishes the load. told takes channels on which callers wait
	// for the next publication.
	loadWake    chan struct{}
	loadWaiters chan chan<- struct{}
	// aborted is closed when all calls must end now, with the error why.
	aborted  chan struct{}
	abortErr error
	// calls are the calls in progress, and running their goroutines. A handler may return before its
	// goroutine: see runCall.
	calls   *callTracker
	running sync.WaitGroup
}

func newCallServer(w *Worker) (*callServer, error) {
	blocks, err := newFeedPublisher(w, &kvCacheFeed{blockSize: uint32(w.card.BlockSize)}, w.newBusSink(bus.KVEventsTopic))
	if err != nil {
		return nil, err
	}
	embeddings, err := newFeedPublisher(w, &embeddingFeed{}, w.newBusSink(bus.EmbeddingEventsTopic))
	if err != nil {
		return nil, err
	}
	return &callServer{
		w: w, kvFeed: blocks, embeddingFeed: embeddings, limiter: &callLimiter{limit: w.cfg.MaxCalls, empty: make(chan struct{})}, startedAt: time.Now(),
		loadWake: make(chan struct{}, 1), loadWaiters: make(chan chan<- struct{}), aborted: make(chan struct{}), calls: newCallTracker(),
	}, nil
}

// newBusSink returns the sink which publishes on a topic of the worker's component.
func (w *Worker) newBusSink(topic func(namespace, component string) bus.Topic) *busSink {
	return &busSink{w.planes.Bus, topic(w.cfg.Namespace, w.cfg.Component), engine.WorkerKey(kv.Worker{ID: w.cfg.ID})}
}

// abortCalls ends all calls with err. It is called once.
func (s *callServer) abortCalls(err error) {
	s.abortErr = err
	close(s.aborted)
}

func (s *callServer) handleCall(ctx context.Context, method string, body []byte, send func([]byte) error) error {
	if err := s.refuseByRole(method); err != nil {
		return err
	}
	switch method {
	case engine.MethodGenerate:
		return s.serveGenerate(ctx, body, send)
	case engine.MethodEmbed:
		return s.serveEmbed(ctx, body, send)
	case engine.MethodPreprocess:
		return s.servePreprocess(ctx, body, send)
	case engine.MethodPassthrough:
		return s.servePass(ctx, body, send)
	case engine.MethodEncode:
		return s.serveEncode(ctx, body, send)
	case engine.MethodFetch:
		if s.w.planes.Lender != nil {
			return s.w.planes.Lender.ServeFetch(ctx, body, send)
		}
	case engine.MethodPing:
		return s.servePing(send)
	case engine.MethodDescribe:
		return s.serveDescribe(send)
	case engine.MethodInspect:
		if router, ok := s.w.eng.(engine.Inspector); ok {
			return serveInspect(ctx, router, body, send)
		}
	}
	if ok, err := s.serveExchange(ctx, method, body, send); ok {
		return err
	}
	return errNoMethod(method)
}

// refuseByRole returns the error for requests to a worker whose role takes none. Such a worker answers only
// what is asked about itself.
func (s *callServer) refuseByRole(method string) error {
	role := s.w.card.Role
	switch method {
	case engine.MethodPing, engine.MethodDescribe, engine.MethodInspect:
		return nil
	}
	switch {
	case role.TakesRequests(), role == engine.RoleEncode && (method == engine.MethodEncode || method == engine.MethodFetch),
		role == engine.RolePrefill && method == engine.MethodPrefill && s.exchange.Load() != nil:
		return nil
	case role == engine.RolePrefill && s.w.card.KVConnector != "" && method == engine.MethodGenerate:
		return nil // of prefill legs alone, see acceptRequest
	}
	err := fault.New(fault.Unimplemented, "worker %d has the role %s and serves no requests; not %.100q", s.w.cfg.ID, role, method)
	s.w.metrics.countRefused(err)
	return err
}

func (s *callServer) servePing(send func([]byte) error) error {
	b, err := json.Marshal(s.health())
	if err != nil {
		return fmt.Errorf("encode pong: %w", err)
	}
	return send(b)
}

// health is the worker's answer to a ping.
func (s *callServer) health() engine.Pong {
	calls, _ := s.limiter.callCount()
	return engine.Pong{LoadReport: s.loadReport(), InFlight: calls}
}

// loadReport is the worker's load now. The load of an engine that reports none is its calls in
// progress.
func (s *callServer) loadReport() engine.LoadReport {
	r := engine.LoadReport{WorkerID: s.w.cfg.ID, Epoch: s.w.cfg.Epoch, State: engine.StateReady}
	if s.w.card.KVEvents {
		r.KVNext, r.KVAttempted = s.kvFeed.position()
	}
	if s.w.card.EmbeddingEvents {
		r.EmbeddingNext, r.EmbeddingAttempted = s.embeddingFeed.position()
	}
	calls, leaving := s.limiter.callCount()
	switch {
	case leaving:
		r.State = engine.StateDraining
	case s.IsEngineBroken():
		r.State = engine.StateNotReady
	}
	before := s.loadBefore.Load()
	src, ok := s.w.eng.(engine.LoadSource)
	switch {
	case !ok:
		r.Load = engine.Load{Running: calls, TotalBlocks: s.w.card.Blocks}
	case before != nil && calls == 0:
		r.Load = *before
	default:
		r.Load = src.Load()
	}
	if x := s.exchange.Load(); x != nil && x.Prefiller != nil {
		jobs, tokens := x.Prefiller.WaitingLoad()
		r.Load.Waiting += jobs
		r.Load.PrefillTokens += tokens
	}
	if src, ok := s.w.eng.(engine.AdapterSource); ok {
		r.Adapters = src.LoadedAdapters()
	}
	if src, ok := s.w.eng.(engine.WarningSource); ok {
		r.Warnings = src.Warnings()
	}
	if unused, ok := s.warnUnused(); ok {
		r.Warnings = append(r.Warnings, unused)
	}
	if r.State == engine.StateReady && slices.ContainsFunc(r.Warnings, func(w engine.Warning) bool { return w.Code == engine.WarnUnreachable }) {
		r.State = engine.StateNotReady
	}
	r.FitToLimit()
	return r
}

// serveGenerate serves one request.
func (s *callServer) serveGenerate(ctx context.Context, body []byte, send func([]byte) error) error {
	w := s.w
	req, err := s.acceptRequest(body)
	if err != nil {
		w.metrics.countRefused(err)
		return err
	}
	defer s.finishCall()
	c := &generateCall{s: s, w: w, subject: callInfo{req.ID, req.Attempt, len(req.Prompt)}, req: req, send: send, started: time.Now()}
	c.progress = s.newProgress(c.subject, true)
	c.progress.prompt += longestChoice(req.Generated)
	c.progress.hasMedia = len(req.Objects) > 0
	c.progress.encoding.Store(c.progress.hasMedia)
	err = s.runCall(ctx, c.progress, c.run)
	c.recordFinished(ctx, err)
	return err
}

// runCall runs the engine's part of a call. The engine works in its own goroutine, so that at the end
// of a drain the handler can return, and end the call, even while a frame waits for a caller that has
// stopped reading.
func (s *callServer) runCall(ctx context.Context, p *callProgress, run func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.calls.addCall(p)
	defer s.calls.removeCall(p)
	done := make(chan error, 1)
	s.running.Go(func() {
		growStack()
		done <- run(ctx)
	})
	select {
	case err := <-done:
		return err
	case err := <-p.end:
		return err
	case <-s.aborted:
		// The engine's output is not awaited: the call ends here.
		return s.abortErr
	}
}

// newProgress returns the progress of a new call.
func (s *callServer) newProgress(of callInfo, streams bool) *callProgress {
	return &callProgress{id: of.id, attempt: of.attempt, prompt: of.prompt, isStream: streams, startedAt: s.now(), end: make(chan error, 1)}
}

// longestChoice is the number of tokens of the longest choice.
func longestChoice(generated [][]kv.Token) (n int) {
	for _, g := range generated {
		n = max(n, len(g))
	}
	return n
}

// IsEngineBroken implements ExchangeObserver.
func (s *callServer) IsEngineBroken() bool { return s.engineBroken.Load() || s.isEngineUnreachable() }

// isEngineUnreachable reports whether the engine itself knows that it is unreachable, or is in doubt.
func (s *callServer) isEngineUnreachable() bool {
	src, ok := s.w.eng.(engine.HealthSource)
	return ok && src.HealthReport().Live != engine.Up
}

// growStack grows a goroutine's stack once to the size that the call of an engine needs. Growing it step
// by step would copy it each time, with all frames on it.
//
//go:noinline
func growStack() {
	var room [8 << 10]byte
	touchStack(&room)
}

//go:noinline
func touchStack(*[8 << 10]byte) {}

// acceptRequest decodes a request and checks that it can be served here. On success it has counted the
// call as in flight, until finishCall.
func (s *callServer) acceptRequest(body []byte) (*engine.Request, error) {
	req := new(engine.Request)
	return req, s.admitCall(func() (model string, err error) {
		if err := engine.DecodeRequest(body, req); err != nil {
			return "", err
		}
		if s.w.card.Role == engine.RolePrefill && req.Leg != engine.LegPrefill {
			return "", fault.New(fault.Unimplemented, "worker %d has the role %s and serves prefill legs only", s.w.cfg.ID, s.w.card.Role)
		}
		return req.Model, req.Validate()
	})
}

// admitCall counts a call as in flight if there is room for it, the worker is not draining, and the
// call can be decoded and is for the model served here.
func (s *callServer) admitCall(read func() (model string, err error)) error {
	w := s.w
	if err := s.limiter.acquire(); err != nil {
		return err
	}
	model, err := read()
	if err == nil && !w.card.HasName(model) && !w.liveCard.hasServed(model) {
		err = fault.New(fault.NotFound, "worker %d serves %.100q, not %.100q", w.cfg.ID, w.card.Name, model)
	}
	if err != nil {
		s.limiter.release()
		return err
	}
	w.metrics.inFlight.Inc()
	return nil
}

func (s *callServer) finishCall() {
	s.w.metrics.inFlight.Dec()
	s.limiter.release()
}

// callInfo identifies a call in logs and metrics.
type callInfo struct {
	id      string
	attempt uint32
	prompt  int // tokens
}

// guardEngine calls the engine and converts its error for the caller. A panic fails the request, not
// the process.
func (w *Worker) guardEngine(ctx context.Context, s callInfo, serve func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("engine panicked", "request", s.id, "attempt", s.attempt, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fault.New(fault.Internal, "worker %d failed on this request", w.cfg.ID)
		}
	}()
	err = serve()
	var f *fault.Error
	switch {
	case err == nil || errors.As(err, &f):
		return err
	case ctx.Err() != nil:
		return fault.New(fault.Canceled, "the caller went away")
	}
	w.log.Error("engine failed", "request", s.id, "attempt", s.attempt, "error", err)
	return fault.New(fault.Internal, "worker %d failed on this request", w.cfg.ID)
}

// recordCall counts and logs a finished call.
func (w *Worker) recordCall(ctx context.Context, s callInfo, cached, output int64, took time.Duration, err error) {
	w.metrics.observeCall(s.prompt, cached, output, took, err)
	w.log.LogAttrs(ctx, slog.LevelDebug, "call",
		slog.String("request", s.id), slog.Uint64("attempt", uint64(s.attempt)),
		slog.Int("prompt_tokens", s.prompt), slog.Int64("cached_tokens", cached),
		slog.Int64("output_tokens", output), slog.Duration("took", took), slog.String("outcome", outcomeOf(err)))
}

// generateCall is one generation in progress. Counters are atomic because an aborted call is
// inspected while its goroutine may still run.
type generateCall struct {
	s        *callServer
	w        *Worker
	subject  callInfo
	req      *engine.Request
	progress *callProgress
	send     func([]byte) error
	started  time.Time
	frame    []byte
	accepted bool       // the engine took the request
	beats    *callBeats // nil if it has no media
	report   engine.CachedReport
	output   atomic.Int64
	cached   atomic.Int64 // as far as it is known
	computed atomic.Int64 // tokens before its output, as the engine says; 0: it does not
	received atomic.Int64 // tokens whose blocks came from other workers
}

// run calls the engine.
func (c *generateCall) run(ctx context.Context) error {
	if err := c.fetchFeatures(ctx); err != nil {
		return err
	}
	stopBeats := c.startBeats(ctx)
	err := c.w.guardEngine(ctx, c.subject, func() error { return c.generate(ctx) })
	stopBeats()
	return c.sendFailures(err)
}

// fetchFeatures fetches the request's features from the process which lends them. If they do not come, the engine
// is to take the media in another way.
func (c *generateCall) fetchFeatures(ctx context.Context) (err error) {
	at := c.req.FeaturesAt
	if at.IsZero() || c.w.card.Router { // its workers fetch them
		return nil
	}
	if c.w.planes.Fetch == nil {
		return engine.RefuseFeatures(nil)
	}
	if c.req.Features, err = c.w.planes.Fetch(ctx, at.Place, at.Size); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return engine.RefuseFeatures(err)
	}
	c.req.FeaturesAt = engine.Lent{}
	return nil
}

// sendDelta sends one delta to the caller.
func (c *generateCall) sendDelta(d *engine.Delta) error {
	if !c.accepted {
		c.accepted = true
		c.beats.stopBeats()
		c.progress.recordEncoded(c.s.now())
	}
	c.frame = engine.AppendDelta(c.frame[:0], d)
	if cached, news := c.report.ObserveDelta(d); news && cached != engine.CachedUnknown {
		c.cached.Store(int64(cached))
		c.progress.cachedPlusOne.Store(int64(cached) + 1)
	}
	if len(d.Tokens) == 0 {
		return c.send(c.frame)
	}
	c.output.Add(int64(len(d.Tokens)))
	c.computed.Add(int64(d.Computed))
	c.progress.recordOutput(c.s.recordEngineOutput())
	err := c.send(c.frame)
	c.progress.recordTaken(c.s.now())
	return err
}

func (c *generateCall) recordFinished(ctx context.Context, err error) {
	c.w.metrics.computed.Add(float64(c.computedTokens()))
	c.w.recordCall(ctx, c.subject, c.cached.Load(), c.output.Load(), time.Since(c.started), err)
}

// outcomeOf is the name of a call's outcome in metrics and logs.
func outcomeOf(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.CodeOf(err).String()
}

// callLimiter counts and bounds the running calls. After closeAdmission it admits no more calls, and
// the running ones can be awaited.
type callLimiter struct {
	limit int
	// empty is closed when the limiter is closed and no call is running.
	empty chan struct{}
	mu    struct {
		sync.Mutex
		inside int
		shut   bool
	}
}

// acquire admits one call, until release. It fails with Draining after closeAdmission and with
// Overloaded at the limit.
func (d *callLimiter) acquire() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.mu.shut:
		return fault.New(fault.Draining, "the worker is leaving and takes no new calls: call another")
	case d.mu.inside == d.limit:
		err := fault.New(fault.Overloaded, "the worker already serves %d calls: try again later", d.limit)
		err.RetryAfter = time.Second
		return err
	}
	d.mu.inside++
	return nil
}

func (d *callLimiter) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.inside--
	if d.mu.shut && d.mu.inside == 0 {
		close(d.empty)
	}
}

// closeAdmission admits no further calls and returns how many are running. It may be called again.
func (d *callLimiter) closeAdmission() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.mu.shut {
		d.mu.shut = true
		if d.mu.inside == 0 {
			close(d.empty)
		}
	}
	return d.mu.inside
}

// callCount returns how many calls are running, and whether the limiter is closed.
func (d *callLimiter) callCount() (calls int, shut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.inside, d.mu.shut
}
