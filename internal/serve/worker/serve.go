package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// server answers calls during one run.
type server struct {
	w         *Worker
	publisher *publisher
	draining  atomic.Bool
	inFlight  atomic.Int64
	// aborted is closed when calls must end now.
	aborted chan struct{}
	abort   func()
	// calls are the goroutines that serve them. A handler may return before its
	// goroutine: see generate.
	calls sync.WaitGroup
}

func newServer(w *Worker) *server {
	s := &server{w: w, publisher: newPublisher(w), aborted: make(chan struct{})}
	s.abort = sync.OnceFunc(func() { close(s.aborted) })
	return s
}

func (s *server) handle(ctx context.Context, method string, body []byte, send func([]byte) error) error {
	switch method {
	case engine.MethodGenerate:
		return s.generate(ctx, body, send)
	case engine.MethodPing:
		return s.ping(send)
	}
	return fault.New(fault.Unimplemented, "this worker serves %s and %s, not %.100q", engine.MethodGenerate, engine.MethodPing, method)
}

func (s *server) ping(send func([]byte) error) error {
	b, err := json.Marshal(engine.Pong{LoadReport: s.report(), InFlight: int(s.inFlight.Load())})
	if err != nil {
		return fmt.Errorf("encode pong: %w", err)
	}
	return send(b)
}

// report is the worker's load now. An engine that reports none is judged by the
// calls in progress.
func (s *server) report() engine.LoadReport {
	r := engine.LoadReport{WorkerID: s.w.cfg.ID, Epoch: s.w.cfg.Epoch, State: engine.StateReady}
	if s.w.card.KVEvents {
		r.KVNext = s.publisher.next.Load()
	}
	if s.draining.Load() {
		r.State = engine.StateDraining
	}
	if src, ok := s.w.eng.(engine.LoadSource); ok {
		r.Load = src.Load()
	} else {
		r.Load = engine.Load{Running: int(s.inFlight.Load()), TotalBlocks: s.w.card.Blocks}
	}
	return r
}

// generate serves one request. The engine works in a goroutine of its own, so
// that at the end of a drain the handler can return, and end the call, even
// while a frame waits for a caller that has stopped reading.
func (s *server) generate(ctx context.Context, body []byte, send func([]byte) error) error {
	w := s.w
	req, err := s.accept(body)
	if err != nil {
		w.metrics.refused(err)
		return err
	}
	defer s.inFlight.Add(-1)
	w.metrics.inFlight.Inc()
	defer w.metrics.inFlight.Dec()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &call{w: w, req: req, send: send, started: time.Now()}
	done := make(chan error, 1)
	s.calls.Go(func() { done <- c.run(ctx) })
	select {
	case err = <-done:
	case <-s.aborted:
		// What the engine reached is not awaited: the call ends here.
		err = fault.New(fault.Unavailable, "worker %d is shutting down", w.cfg.ID)
	}
	c.finished(ctx, err)
	return err
}

// accept decodes a request and checks that it can be served here. On success it
// has counted the call as in flight.
func (s *server) accept(body []byte) (*engine.Request, error) {
	w := s.w
	if s.inFlight.Add(1) > int64(w.cfg.MaxCalls) {
		s.inFlight.Add(-1)
		err := fault.New(fault.Overloaded, "worker %d already serves %d calls", w.cfg.ID, w.cfg.MaxCalls)
		err.RetryAfter = time.Second
		return nil, err
	}
	req := new(engine.Request)
	err := engine.DecodeRequest(body, req)
	if err == nil {
		err = req.Validate()
	}
	if err == nil && !w.card.Names(req.Model) {
		err = fault.New(fault.NotFound, "worker %d serves %.100q, not %.100q", w.cfg.ID, w.card.Name, req.Model)
	}
	if err != nil {
		s.inFlight.Add(-1)
		return nil, err
	}
	return req, nil
}

// call is one request in progress. Counters are atomic because an aborted
// call's are read while its goroutine may still be at work.
type call struct {
	w       *Worker
	req     *engine.Request
	send    func([]byte) error
	started time.Time
	frame   []byte
	output  atomic.Int64
	cached  atomic.Int64
}

// run drives the engine. A panic is the request's failure, not the process's.
func (c *call) run(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.w.log.Error("engine panicked", "request", c.req.ID, "attempt", c.req.Attempt, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fault.New(fault.Internal, "worker %d failed on this request", c.w.cfg.ID)
		}
	}()
	err = c.w.eng.Generate(ctx, c.req, c.deliver)
	var f *fault.Error
	switch {
	case err == nil || errors.As(err, &f):
		return err
	case ctx.Err() != nil:
		return fault.New(fault.Canceled, "the caller went away")
	}
	c.w.log.Error("engine failed", "request", c.req.ID, "attempt", c.req.Attempt, "error", err)
	return fault.New(fault.Internal, "worker %d failed on this request", c.w.cfg.ID)
}

// deliver sends one delta to the caller.
func (c *call) deliver(d *engine.Delta) error {
	c.frame = engine.AppendDelta(c.frame[:0], d)
	c.output.Add(int64(len(d.Tokens)))
	if d.Cached > 0 {
		// Choices share one prompt; the first to report speaks for the request.
		c.cached.CompareAndSwap(0, int64(d.Cached))
	}
	return c.send(c.frame)
}

func (c *call) finished(ctx context.Context, err error) {
	took := time.Since(c.started)
	output, cached := c.output.Load(), c.cached.Load()
	c.w.metrics.finished(len(c.req.Prompt), cached, output, took, err)
	c.w.log.LogAttrs(ctx, slog.LevelDebug, "call",
		slog.String("request", c.req.ID), slog.Uint64("attempt", uint64(c.req.Attempt)),
		slog.Int("prompt_tokens", len(c.req.Prompt)), slog.Int64("cached_tokens", cached),
		slog.Int64("output_tokens", output), slog.Duration("took", took), slog.String("outcome", outcome(err)))
}

// outcome is how metrics and logs name the end of a call.
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return fault.Of(err).String()
}
