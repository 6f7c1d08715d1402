package worker

import (
	"context"
	"log/slog"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/stall"
	"penstock/internal/engine"
)

const (
	// checkInterval is how often the engine and the streams are checked.
	canaryLook = time.Second
	// laterCalls is how long a call may run which arrived while the engine was considered broken: it
	// may show that the engine works.
	laterCalls = 20 * time.Second
)

// engineMonitor monitors the engine and its streams according to [stall.Machine]. It asks the engine
// for one token (the canary) when nothing else shows that it works. A worker whose engine does not work
// reports itself not ready, so that routers avoid it, and ends its calls, so that other workers
// continue them, until the engine has produced output again. A single stalled stream is ended alone.
//
// The canary is in no metric of calls and, while no call runs, in no load report. Its prompt is shorter
// than a block, so that no part of it is cached or published.
type monitor struct {
	s       *server
	m       *stall.Machine
	request engine.Request

	// Used only by run.
	asked <-chan error // of a canary that has not returned yet; otherwise nil
	cause error        // why the engine is considered broken
	since kv.Mono      // since when; 0 while it works
}

func newMonitor(s *server) *monitor {
	cfg := &s.w.cfg
	idle := cfg.CanaryInterval
	if s.w.card.Tokenizer.Kind == engine.TokenizerOfEngine {
		idle = -1 // it cannot be asked in tokens
	}
	return &monitor{
		s: s, cause: errMute, m: stall.New(stall.Config{Limit: cfg.StallTimeout, Idle: idle, Patience: cfg.StallAfter}),
		request: engine.Request{
			ID: "canary", Attempt: 1, Model: s.w.card.Name, Prompt: []kv.Token{0},
			Choices: 1, Stop: engine.Stop{MaxTokens: 1, IgnoreEOS: true}, Logprobs: -1,
		},
	}
}

// run checks until ctx ends. It waits first for the engine's start, during which silence is normal.
func (g *monitor) run(ctx context.Context) error {
	if g.s.w.cfg.StallTimeout < 0 || !g.s.w.upAndRunning(ctx) {
		return nil
	}
	g.s.beat()
	every := canaryLook
	if i := g.s.w.cfg.CanaryInterval; i > 0 {
		every = min(every, i)
	}
	look := time.NewTicker(every)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
		g.look(ctx)
	}
}

// check reads the current signs and acts on them.
func (g *monitor) look(ctx context.Context) {
	s, now := g.s, g.s.now()
	ask := g.m.Look(now, g.signs(now))
	s.calls.learn(g.m)
	if ask {
		g.judge(now, g.ask(ctx))
	}
	if ctx.Err() != nil {
		return // the worker stops
	}
	if g.m.Broken() {
		g.broken(ctx)
		return
	}
	g.since, g.cause = 0, errMute
	if s.sick.Load() {
		s.works()
	}
	g.endStalled(ctx)
}

// readSigns returns what is known of the engine now.
func (g *monitor) signs(now kv.Mono) stall.Signs {
	s := g.s
	out := stall.Signs{Token: s.lastBeat()}
	for _, p := range s.calls.inProgress() {
		out.Calls++
		if p.last.Load() == 0 {
			out.Prompt = max(out.Prompt, p.prompt)
		}
		if of, ok := p.stream(); ok {
			out.Overdue = out.Overdue || g.m.Overdue(now, of)
		}
	}
	src, ok := s.w.eng.(engine.SignSource)
	if !ok {
		return out
	}
	of := src.Signs()
	out.Down, out.Remote, out.Heard = of.Live == engine.Down, of.Remote, s.at(of.Heard)
	if !of.Asked.IsZero() {
		out.Asked = max(s.at(of.Asked), 1)
	}
	out.Work, out.Tells, out.Partial = of.Work, of.Tells, of.Partial
	out.Running, out.Waiting, out.Preempted = of.Running, of.Waiting, of.Preempted
	return out
}

// askToken asks the engine for one token, and returns nil once it has arrived. While the previous
// question has not returned it asks nothing.
func (g *monitor) ask(ctx context.Context) error {
	if g.asked != nil {
		select {
		case <-g.asked: // too late
		default:
			return errSilent
		}
	}
	ctx, cancel := context.WithTimeout(ctx, g.m.Timeout(g.s.now()))
	defer cancel()
	done := make(chan error, 1)
	g.asked = done
	g.s.hide()
	g.s.running.Go(func() {
		defer g.s.show()
		done <- g.generate(ctx)
	})
	err := errSilent
	select {
	case e := <-done:
		g.asked = nil
		if ctx.Err() == nil {
			err = e
		}
	case <-ctx.Done():
	}
	g.s.w.metrics.canaries.WithLabelValues(outcome(err)).Inc()
	return err
}

// generateToken runs the canary request on the engine.
func (g *monitor) generate(ctx context.Context) error {
	w := g.s.w
	of := subject{id: g.request.ID, attempt: g.request.Attempt, prompt: len(g.request.Prompt)}
	return w.guard(ctx, of, func() error {
		return w.eng.Generate(ctx, &g.request, func(d *engine.Delta) error {
			if len(d.Tokens) > 0 {
				g.s.beat()
			}
			return nil
		})
	})
}

var errSilent error = fault.New(fault.Deadline, "the engine was asked for a token and produced none in time")

var errMute error = fault.New(fault.Unavailable, "nothing is heard of the engine")

// judgeAnswer updates the machine with the result of a canary sent at asked.
func (g *monitor) judge(asked kv.Mono, err error) {
	if err == nil {
		g.m.Took(g.s.now().Sub(asked))
	}
	switch code := fault.Of(err); {
	case err == nil || g.s.lastBeat() > asked: // for the canary, or for a concurrent call
		g.m.Answered(asked)
	case err == errSilent, code == fault.Overloaded, code == fault.Limited: // a full engine works
		now := g.s.now()
		g.m.Unanswered(now, asked, g.signs(now))
	default:
		g.m.Failed()
	}
	g.cause = err
}

// handleBroken makes the worker not ready, and ends its calls.
func (g *monitor) broken(ctx context.Context) {
	s := g.s
	if s.sick.CompareAndSwap(false, true) {
		s.w.metrics.ready.Set(0)
		s.w.log.Error("the engine does not answer: not ready until it does", "error", g.cause)
		s.announce(ctx)
	}
	now, ended := s.now(), 0
	if g.since == 0 {
		g.since = now
	}
	for _, p := range s.calls.inProgress() {
		if p.began >= g.since && now.Sub(p.began) < laterCalls {
			continue
		}
		if p.stop(fault.New(fault.Unavailable, "the engine of worker %d does not answer: another goes on with the call", s.w.cfg.ID)) {
			ended++
		}
	}
	if ended > 0 {
		s.w.throttle.Log(ctx, slog.LevelWarn, "calls of an engine that does not answer are ended, others go on with them", "calls", ended)
	}
}

// endStalledStreams ends the streams that have stalled.
func (g *monitor) endStalled(ctx context.Context) {
	s, now := g.s, g.s.now()
	for _, p := range s.calls.inProgress() {
		of, ok := p.stream()
		if !ok || !g.m.Stalled(now, of) {
			continue
		}
		waited := now.Sub(of.Since)
		if !p.stop(fault.New(fault.Unavailable, "the engine of worker %d sent nothing of the answer for %v", s.w.cfg.ID, waited.Round(time.Second))) {
			continue
		}
		s.w.metrics.stalled.Inc()
		s.w.throttle.Log(ctx, slog.LevelWarn, "a stream has stalled and is ended, another worker goes on with it",
			"request", p.id, "attempt", p.attempt, "waited", waited.Round(time.Millisecond), "begun", of.Begun)
	}
}

// recordEngineOutput records that the engine has produced something, and returns the time.
func (s *server) beat() kv.Mono {
	now := s.now()
	s.lastToken.Store(int64(now))
	if s.sick.Load() {
		s.works()
	}
	return now
}

// markWorking marks an engine that did not work as working.
func (s *server) works() {
	if s.sick.CompareAndSwap(true, false) {
		s.w.metrics.ready.Set(1)
		s.w.log.Info("the engine answers again: ready")
		s.poke()
	}
}

// now is the time since the server's start; never 0.
func (s *server) now() kv.Mono { return s.at(time.Now()) }

// timeOf converts a time to the server's clock; at least 1, which is before everything.
func (s *server) at(t time.Time) kv.Mono { return kv.Mono(max(t.Sub(s.born), 1)) }

// lastEngineOutput is when the engine last produced something, or when the run started.
func (s *server) lastBeat() kv.Mono { return kv.Mono(s.lastToken.Load()) }

// hideCanary keeps the canary out of the reports until showLoad: while no call runs, the reported load
// is the one before.
func (s *server) hide() {
	if src, ok := s.w.eng.(engine.LoadSource); ok {
		before := src.Load()
		s.before.Store(&before)
	}
}

func (s *server) show() { s.before.Store(nil) }
