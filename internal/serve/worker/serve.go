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

// server answers calls during one run.
type server struct {
	w         *Worker
	publisher *publisher
	door      *door
	born      time.Time
	// lastToken is when the engine last produced something, in nanoseconds since
	// born; sick says that it does not answer its canary.
	lastToken atomic.Int64
	sick      atomic.Bool
	// before is the load that is reported while the canary asks; nil otherwise.
	before atomic.Pointer[engine.Load]
	// changed wakes the one who publishes the load; told is for those who wait
	// until it is out.
	changed chan struct{}
	told    chan chan<- struct{}
	// aborted is closed when calls must end now, with why.
	aborted chan struct{}
	why     error
	// calls are those in progress, and running the goroutines that serve them. A handler
	// may return before its goroutine: see carry.
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

// abort ends all calls with err. It is called once.
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

// report is the worker's load now. An engine that reports none is judged by the
// calls in progress.
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

// generate serves one request.
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

// carry runs the engine's part of a call. The engine works in a goroutine of its
// own, so that at the end of a drain the handler can return, and end the call,
// even while a frame waits for a caller that has stopped reading.
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
		// What the engine reached is not awaited: the call ends here.
		return s.why
	}
}

// progress returns that of a call that begins.
func (s *server) progress(of subject, streams bool) *progress {
	return &progress{id: of.id, attempt: of.attempt, prompt: of.prompt, streams: streams, began: s.now(), end: make(chan error, 1)}
}

// longest is how many tokens were generated of the choice that has most.
func longest(generated [][]kv.Token) (n int) {
	for _, g := range generated {
		n = max(n, len(g))
	}
	return n
}

// unreached reports whether the engine itself knows that it cannot be reached, or is in doubt.
func (s *server) unreached() bool {
	src, ok := s.w.eng.(engine.SignSource)
	return ok && src.Signs().Live != engine.Up
}

// deepen grows a goroutine's stack once to what the call of an engine takes. Grown by and by, it would be
// copied each time, with all the calls that are on it by then.
//
//go:noinline
func deepen() {
	var room [8 << 10]byte
	touch(&room)
}

//go:noinline
func touch(*[8 << 10]byte) {}

// accept decodes a request and checks that it can be served here. On success it
// has counted the call as in flight, until leave.
func (s *server) accept(body []byte) (*engine.Request, error) {
	req := new(engine.Request)
	return req, s.enter(func() (model string, err error) {
		if err := engine.DecodeRequest(body, req); err != nil {
			return "", err
		}
		return req.Model, req.Validate()
	})
}

// enter counts a call as in flight if there is room for it, the worker is not
// leaving, and the call can be read and is for the model served here.
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

// subject is what the log and the metrics know a call by.
type subject struct {
	id      string
	attempt uint32
	prompt  int // tokens
}

// guard calls the engine and makes of its error one for the caller. A panic is
// the request's failure, not the process's.
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

// ended keeps the books of a call that is over.
func (w *Worker) ended(ctx context.Context, s subject, cached, output int64, took time.Duration, err error) {
	w.metrics.finished(s.prompt, cached, output, took, err)
	w.log.LogAttrs(ctx, slog.LevelDebug, "call",
		slog.String("request", s.id), slog.Uint64("attempt", uint64(s.attempt)),
		slog.Int("prompt_tokens", s.prompt), slog.Int64("cached_tokens", cached),
		slog.Int64("output_tokens", output), slog.Duration("took", took), slog.String("outcome", outcome(err)))
}

// call is one generation in progress. Counters are atomic because an aborted
// call's are read while its goroutine may still be at work.
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

// run drives the engine.
func (c *call) run(ctx context.Context) error {
	return c.w.guard(ctx, c.subject, func() error { return c.w.eng.Generate(ctx, c.req, c.deliver) })
}

// deliver sends one delta to the caller.
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

// outcome is how metrics and logs name the end of a call.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.Of(err).String()
}
