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
	// canaryLook is how often the engine and the streams are looked at.
	canaryLook = time.Second
	// laterCalls is how long a call may go on that came when the engine was believed not to work: it may show that it does.
	laterCalls = 20 * time.Second
)

// monitor watches the engine and its streams, as [stall.Machine] says. It asks the engine itself for one token when
// nothing else shows that it works. A worker whose engine does not work says that it is not ready, so that routers leave it
// out, and ends its calls, so that others go on with them, until the engine has produced something again. A stream
// that has stalled is ended alone.
//
// The question is in no metric of calls and, while no call runs, in no report of load. Its prompt is shorter than a
// block, so that nothing of it is cached or published.
type monitor struct {
	s       *server
	m       *stall.Machine
	request engine.Request

	// Of run alone.
	asked <-chan error // of a question whose end has not been seen; else nil
	cause error        // why the engine is believed not to work
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

// run looks until ctx ends. An engine that starts is silent with good reason.
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

// look takes the signs of now and does what follows.
func (g *monitor) look(ctx context.Context) {
	s, now := g.s, g.s.now()
	ask := g.m.Look(now, g.signs(now))
	s.calls.learn(g.m)
	if ask {
		g.judge(now, g.ask(ctx))
	}
	if ctx.Err() != nil {
		return // the worker ends
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

// signs is what is known of the engine now.
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

// ask asks the engine for one token, and returns nil once it has come. An engine
// that has still not returned from the last time is asked nothing more.
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

// generate has the engine serve the request.
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

// judge draws the conclusion from the answer to a question asked at some time.
func (g *monitor) judge(asked kv.Mono, err error) {
	if err == nil {
		g.m.Took(g.s.now().Sub(asked))
	}
	switch code := fault.Of(err); {
	case err == nil || g.s.lastBeat() > asked: // for the canary, or for a call beside it
		g.m.Answered(asked)
	case err == errSilent, code == fault.Overloaded, code == fault.Limited: // one that is full works
		now := g.s.now()
		g.m.Unanswered(now, asked, g.signs(now))
	default:
		g.m.Failed()
	}
	g.cause = err
}

// broken makes the worker not ready, and ends its calls.
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

// endStalled ends the streams that have stalled.
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

// beat notes that the engine has produced something, and returns when.
func (s *server) beat() kv.Mono {
	now := s.now()
	s.lastToken.Store(int64(now))
	if s.sick.Load() {
		s.works()
	}
	return now
}

// works notes that the engine does, after it did not.
func (s *server) works() {
	if s.sick.CompareAndSwap(true, false) {
		s.w.metrics.ready.Set(1)
		s.w.log.Info("the engine answers again: ready")
		s.poke()
	}
}

// now is the time since the server was born, which is not 0.
func (s *server) now() kv.Mono { return s.at(time.Now()) }

// at is a time in the server's; at least 1, which is before everything.
func (s *server) at(t time.Time) kv.Mono { return kv.Mono(max(t.Sub(s.born), 1)) }

// lastBeat is when the engine last produced something, or when the run began.
func (s *server) lastBeat() kv.Mono { return kv.Mono(s.lastToken.Load()) }

// hide keeps the canary out of the reports until show: while no call runs, the
// load is what it was before.
func (s *server) hide() {
	if src, ok := s.w.eng.(engine.LoadSource); ok {
		before := src.Load()
		s.before.Store(&before)
	}
}

func (s *server) show() { s.before.Store(nil) }
