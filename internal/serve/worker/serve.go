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
	"penstock/internal/engine"
)

// callServer answers calls during one run.
type server struct {
	w         *Worker
	publisher *publisher
	door      *door
	born      time.Time
	// lastToken is when the engine last produced something, in nanoseconds since born. sick says that
	// it does not answer its canary.
	lastToken atomic.Int64
	sick      atomic.Bool
	// loadBefore is the load that is reported while the canary runs; nil otherwise.
	before atomic.Pointer[engine.Load]
	// loadWake wakes the goroutine which publishes the load. told takes channels on which callers wait
	// for the next publication.
	changed chan struct{}
	told    chan chan<- struct{}
	// aborted is closed when all calls must end now, with the error why.
	aborted chan struct{}
	why     error
	// calls are the calls in progress, and running their goroutines. A handler may return before its
	// goroutine: see runCall.
	calls   *calls
	running sync.WaitGroup
}

func newServer(w *Worker) (*server, error) {
	p, err := newPublisher(w)
	if err != nil {
		return nil, err
	}
	return &server{
		w: w, publisher: p, door: newDoor(w.cfg.MaxCalls), born: time.Now(),
		changed: make(chan struct{}, 1), told: make(chan chan<- struct{}), aborted: make(chan struct{}), calls: newCalls(),
	}, nil
}

// abortCalls ends all calls with err. It is called once.
func (s *server) abort(err error) {
	s.why = err
	close(s.aborted)
}

func (s *server) handle(ctx context.Context, method string, body []byte, send func([]byte) error) error {
	switch method {
	case engine.MethodGenerate:
		return s.generate(ctx, body, send)
	case engine.MethodEmbed:
		return s.embed(ctx, body, send)
	case engine.MethodPreprocess:
		return s.preprocess(ctx, body, send)
	case engine.MethodPass:
		return s.pass(ctx, body, send)
	case engine.MethodPing:
		return s.ping(send)
	case engine.MethodDescribe:
		return s.describe(send)
	case engine.MethodInspect:
		if router, ok := s.w.eng.(engine.Inspector); ok {
			return inspect(ctx, router, body, send)
		}
	}
	return fault.New(fault.Unimplemented, "this worker serves %s, %s, %s, %s, %s and %s, not %.100q",
		engine.MethodGenerate, engine.MethodEmbed, engine.MethodPreprocess, engine.MethodPass, engine.MethodPing, engine.MethodDescribe, method)
}

func (s *server) ping(send func([]byte) error) error {
	b, err := json.Marshal(s.health())
	if err != nil {
		return fmt.Errorf("encode pong: %w", err)
	}
	return send(b)
}

// health is the worker's answer to a ping.
func (s *server) health() engine.Pong {
	calls, _ := s.door.inside()
	return engine.Pong{LoadReport: s.report(), InFlight: calls}
}

// loadReport is the worker's load now. The load of an engine that reports none is its calls in
// progress.
func (s *server) report() engine.LoadReport {
	r := engine.LoadReport{WorkerID: s.w.cfg.ID, Epoch: s.w.cfg.Epoch, State: engine.StateReady}
	if s.w.card.KVEvents {
		r.KVNext = s.publisher.next.Load()
		if attempted := s.publisher.attempted.Load(); attempted > r.KVNext {
			r.KVAttempted = attempted
		}
	}
	calls, leaving := s.door.inside()
	switch {
	case leaving:
		r.State = engine.StateDraining
	case s.sick.Load(), s.unreached():
		r.State = engine.StateNotReady
	}
	before := s.before.Load()
	src, ok := s.w.eng.(engine.LoadSource)
	switch {
	case !ok:
		r.Load = engine.Load{Running: calls, TotalBlocks: s.w.card.Blocks}
	case before != nil && calls == 0:
		r.Load = *before
	default:
		r.Load = src.Load()
	}
	if src, ok := s.w.eng.(engine.AdapterSource); ok {
		r.Adapters = src.Adapters()
	}
	if src, ok := s.w.eng.(engine.WarningSource); ok {
		r.Warnings = src.Warnings()
	}
	if r.State == engine.StateReady && slices.ContainsFunc(r.Warnings, func(w engine.Warning) bool { return w.Code == engine.WarnUnreachable }) {
		r.State = engine.StateNotReady
	}
	r.Fit()
	return r
}

// serveGenerate serves one request.
func (s *server) generate(ctx context.Context, body []byte, send func([]byte) error) error {
	w := s.w
	req, err := s.accept(body)
	if err != nil {
		w.metrics.refused(err)
		return err
	}
	defer s.leave()
	c := &call{s: s, w: w, subject: subject{req.ID, req.Attempt, len(req.Prompt)}, req: req, send: send, started: time.Now()}
	c.progress = s.progress(c.subject, true)
	c.progress.prompt += longest(req.Generated)
	err = s.carry(ctx, c.progress, c.run)
	c.finished(ctx, err)
	return err
}

// runCall runs the engine's part of a call. The engine works in its own goroutine, so that at the end
// of a drain the handler can return, and end the call, even while a frame waits for a caller that has
// stopped reading.
func (s *server) carry(ctx context.Context, p *progress, run func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.calls.add(p)
	defer s.calls.remove(p)
	done := make(chan error, 1)
	s.running.Go(func() {
		deepen()
		done <- run(ctx)
	})
	select {
	case err := <-done:
		return err
	case err := <-p.end:
		return err
	case <-s.aborted:
		// The engine's output is not awaited: the call ends here.
		return s.why
	}
}

// newProgress returns the progress of a new call.
func (s *server) progress(of subject, streams bool) *progress {
	return &progress{id: of.id, attempt: of.attempt, prompt: of.prompt, streams: streams, began: s.now(), end: make(chan error, 1)}
}

// longestChoice is the number of tokens of the longest choice.
func longest(generated [][]kv.Token) (n int) {
	for _, g := range generated {
		n = max(n, len(g))
	}
	return n
}

// isEngineUnreachable reports whether the engine itself knows that it is unreachable, or is in doubt.
func (s *server) unreached() bool {
	src, ok := s.w.eng.(engine.SignSource)
	return ok && src.Signs().Live != engine.Up
}

// growStack grows a goroutine's stack once to the size that the call of an engine needs. Growing it step
// by step would copy it each time, with all frames on it.
//
//go:noinline
func deepen() {
	var room [8 << 10]byte
	touch(&room)
}

//go:noinline
func touch(*[8 << 10]byte) {}

// acceptRequest decodes a request and checks that it can be served here. On success it has counted the
// call as in flight, until finishCall.
func (s *server) accept(body []byte) (*engine.Request, error) {
	req := new(engine.Request)
	return req, s.enter(func() (model string, err error) {
		if err := engine.DecodeRequest(body, req); err != nil {
			return "", err
		}
		return req.Model, req.Validate()
	})
}

// admitCall counts a call as in flight if there is room for it, the worker is not draining, and the
// call can be decoded and is for the model served here.
func (s *server) enter(read func() (model string, err error)) error {
	w := s.w
	if err := s.door.enter(); err != nil {
		return err
	}
	model, err := read()
	if err == nil && !w.card.Names(model) && !w.listed.has(model) {
		err = fault.New(fault.NotFound, "worker %d serves %.100q, not %.100q", w.cfg.ID, w.card.Name, model)
	}
	if err != nil {
		s.door.leave()
		return err
	}
	w.metrics.inFlight.Inc()
	return nil
}

func (s *server) leave() {
	s.w.metrics.inFlight.Dec()
	s.door.leave()
}

// callInfo identifies a call in logs and metrics.
type subject struct {
	id      string
	attempt uint32
	prompt  int // tokens
}

// guardEngine calls the engine and converts its error for the caller. A panic fails the request, not
// the process.
func (w *Worker) guard(ctx context.Context, s subject, serve func() error) (err error) {
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
func (w *Worker) ended(ctx context.Context, s subject, cached, output int64, took time.Duration, err error) {
	w.metrics.finished(s.prompt, cached, output, took, err)
	w.log.LogAttrs(ctx, slog.LevelDebug, "call",
		slog.String("request", s.id), slog.Uint64("attempt", uint64(s.attempt)),
		slog.Int("prompt_tokens", s.prompt), slog.Int64("cached_tokens", cached),
		slog.Int64("output_tokens", output), slog.Duration("took", took), slog.String("outcome", outcome(err)))
}

// generateCall is one generation in progress. Counters are atomic because an aborted call is
// inspected while its goroutine may still run.
type call struct {
	s        *server
	w        *Worker
	subject  subject
	req      *engine.Request
	progress *progress
	send     func([]byte) error
	started  time.Time
	frame    []byte
	report   engine.CachedReport
	output   atomic.Int64
	cached   atomic.Int64 // as far as it is known
}

// run calls the engine.
func (c *call) run(ctx context.Context) error {
	return c.w.guard(ctx, c.subject, func() error { return c.w.eng.Generate(ctx, c.req, c.deliver) })
}

// sendDelta sends one delta to the caller.
func (c *call) deliver(d *engine.Delta) error {
	c.frame = engine.AppendDelta(c.frame[:0], d)
	if cached, news := c.report.Take(d); news && cached != engine.CachedUnknown {
		c.cached.Store(int64(cached))
		c.progress.hits.Store(int64(cached) + 1)
	}
	if len(d.Tokens) == 0 {
		return c.send(c.frame)
	}
	c.output.Add(int64(len(d.Tokens)))
	c.progress.came(c.s.beat())
	err := c.send(c.frame)
	c.progress.taken(c.s.now())
	return err
}

func (c *call) finished(ctx context.Context, err error) {
	c.w.ended(ctx, c.subject, c.cached.Load(), c.output.Load(), time.Since(c.started), err)
}

// outcomeOf is the name of a call's outcome in metrics and logs.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.Of(err).String()
}
