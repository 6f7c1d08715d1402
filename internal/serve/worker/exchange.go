package worker

import (
	"context"
	"log/slog"
	"time"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/internal/engine"
)

// BlockDecoder serves the requests of a decode worker, whose prompts other workers may compute.
type BlockDecoder interface {
	// Serve serves a request as engine.Engine.Generate does. received is how many of its first tokens other workers
	// computed, or had in their caches.
	Serve(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) (received int, err error)
	// ServePull and ServeProgress answer the methods pull and progress.
	ServePull(ctx context.Context, body []byte, send func([]byte) error) error
	ServeProgress(body []byte) error
}

// BlockPrefiller computes prompts for decode workers.
type BlockPrefiller interface {
	// ServePrefill answers the method prefill.
	ServePrefill(ctx context.Context, body []byte) error
	// WaitingLoad returns how many jobs wait which came by calls, and the tokens of their prompts. It must not wait.
	WaitingLoad() (jobs, tokens int)
	// Drain makes it take no more jobs. AwaitIdle waits until it has none, or ctx ends.
	Drain()
	AwaitIdle(ctx context.Context)
}

// Exchange is how a worker exchanges KV blocks with others: it has a Decoder or a Prefiller.
type Exchange struct {
	// Metadata is stated on the worker's card.
	Metadata  disagg.Metadata
	Decoder   BlockDecoder
	Prefiller BlockPrefiller
	// Run does its work until ctx ends, and then returns nil.
	Run func(ctx context.Context) error
	// IsUsed, if not nil, reports whether there is a worker with which blocks can be exchanged.
	IsUsed func() bool
}

// ExchangeObserver counts for the metrics of a worker, and knows the state of its engine. It is safe for concurrent use.
type ExchangeObserver interface {
	// CountHandoff counts a request of a decode worker: its prompt was computed elsewhere, and so many bytes of blocks
	// came, or it was computed here, for a reason which is a label.
	CountHandoff(remote bool, reason string, bytes int64)
	// ObserveStage observes how long a stage took, which is a label, between a prefill elsewhere and the first token.
	ObserveStage(stage string, took time.Duration)
	// CountFailedPrefill counts an attempt of a decode worker to have a prompt computed elsewhere which was given up, for a
	// reason which is a label.
	CountFailedPrefill(reason string)
	// CountPrefilled counts a prompt which was computed for a decode worker: the tokens which were not cached, and the
	// bytes of blocks which were sent.
	CountPrefilled(computed int, bytes int64)
	// SetPrefillers sets how many prefill workers a decode worker knows, how many jobs wait for them, and how many are
	// dead letters of their queue.
	SetPrefillers(workers, jobs, dead int)
	// IsEngineBroken reports whether the worker is not ready since its engine does not answer.
	IsEngineBroken() bool
}

// exchangeObserver is the ExchangeObserver of a worker.
type exchangeObserver struct {
	*workerMetrics
	*callServer
}

var _ ExchangeObserver = exchangeObserver{}

// openExchange opens the worker's exchange of blocks, once its address is known, and puts it on the card. If it cannot,
// the worker serves without.
func (w *Worker) openExchange(ctx context.Context, addr string) *Exchange {
	if w.cfg.OpenExchange == nil {
		return nil
	}
	x, err := w.cfg.OpenExchange(ctx, addr, exchangeObserver{&w.metrics, w.server})
	if err == nil && x != nil {
		w.updatingCard.Lock()
		defer w.updatingCard.Unlock()
		w.stated.Store(&x.Metadata)
		adapters, miscounted := w.liveCard.lists()
		if err = w.setLists(adapters, miscounted); err != nil {
			w.stated.Store(nil)
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			w.log.Log(ctx, slog.LevelWarn, "no KV blocks are exchanged with other workers: each computes its prompts itself", "error", err)
		}
		return nil
	}
	if x != nil {
		w.server.exchange.Store(x)
	}
	return x
}

// serveExchange answers the methods by which workers exchange blocks; ok is false if method is none which this worker
// serves. They are no calls which a drain waits for: they belong to requests and jobs, for which it does.
func (s *callServer) serveExchange(ctx context.Context, method string, body []byte, send func([]byte) error) (ok bool, err error) {
	x := s.exchange.Load()
	switch {
	case x == nil:
	case method == engine.MethodPrefill && x.Prefiller != nil:
		return true, x.Prefiller.ServePrefill(ctx, body)
	case method == engine.MethodPull && x.Decoder != nil:
		return true, x.Decoder.ServePull(ctx, body, send)
	case method == engine.MethodProgress && x.Decoder != nil:
		return true, x.Decoder.ServeProgress(body)
	}
	return false, nil
}

// generate has the engine serve the request, or the decoder, which may have its prompt computed elsewhere.
func (c *generateCall) generate(ctx context.Context) error {
	x := c.s.exchange.Load()
	if x == nil || x.Decoder == nil || c.req.Leg != engine.LegWhole {
		return c.w.eng.Generate(ctx, c.req, c.sendDelta)
	}
	received, err := x.Decoder.Serve(ctx, c.req, c.sendDelta)
	c.received.Store(int64(received))
	return err
}

// computedTokens returns how many tokens of the prompt, and of an answer which another worker has begun, this worker's
// engine computed, as far as is known.
func (c *generateCall) computedTokens() int64 {
	if n := c.computed.Load(); n > 0 {
		return n
	}
	if c.output.Load() == 0 {
		return 0
	}
	known := max(c.cached.Load(), c.received.Load())
	return max(int64(len(c.req.Prompt)+longestChoice(c.req.Generated))-known, 0)
}

// warnUnused returns the warning about a role which serves nothing; ok is false if it serves.
func (s *callServer) warnUnused() (warning engine.Warning, ok bool) {
	card := s.w.card
	card.Exchange = s.w.stated.Load()
	if warning, ok = card.UnusedRoleWarning(); ok {
		return warning, true
	}
	x := s.exchange.Load()
	if card.Role == engine.RolePrefill && x != nil && x.IsUsed != nil && !x.IsUsed() {
		return engine.NoDecodeWarning(), true
	}
	return engine.Warning{}, false
}

// drainExchange makes the worker take no more jobs. It returns a channel which is closed when no call and no job is
// left.
func (s *callServer) drainExchange(life context.Context) <-chan struct{} {
	x := s.exchange.Load()
	if x == nil || x.Prefiller == nil {
		return s.limiter.empty
	}
	x.Prefiller.Drain()
	idle := make(chan struct{})
	s.running.Go(func() {
		select {
		case <-s.limiter.empty:
			x.Prefiller.AwaitIdle(life)
			close(idle)
		case <-life.Done():
		}
	})
	return idle
}

// errNoMethod is the error for a method which the worker does not serve.
func errNoMethod(method string) error {
	return fault.New(fault.Unimplemented, "this worker serves %s, %s, %s, %s, %s and %s, not %.100q",
		engine.MethodGenerate, engine.MethodEmbed, engine.MethodPreprocess, engine.MethodPassthrough, engine.MethodPing, engine.MethodDescribe, method)
}
