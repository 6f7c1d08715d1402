package worker

import (
	"cmp"
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
	checkInterval = time.Second
	// laterCalls is how long a call may run which arrived while the engine was considered broken: it
	// may show that the engine works.
	laterCalls = 20 * time.Second
)

// engineMonitor monitors the engine and its streams according to [stall.Detector]. It asks the engine
// for one token (the canary) when nothing else shows that it works. A worker whose engine does not work
// reports itself not ready, so that routers avoid it, and ends its calls, so that other workers
// continue them, until the engine has produced output again. A single stalled stream is ended alone.
//
// The canary is in no metric of calls and, while no call runs, in no load report. Its prompt is shorter
// than a block, so that no part of it is cached or published.
type engineMonitor struct {
	server   *callServer
	detector *stall.Detector
	request  engine.Request

	// Used only by run.
	canaryDone  <-chan error // of a canary that has not returned yet; otherwise nil
	cause       error        // why the engine is considered broken
	brokenSince kv.Mono      // since when; 0 while it works
}

func newEngineMonitor(s *callServer) *engineMonitor {
	cfg := &s.w.cfg
	idle := *cfg.CanaryInterval
	if idle == 0 || s.w.card.Tokenizer.Kind == engine.TokenizerOfEngine { // the latter cannot be asked in tokens
		idle = -1 // no probes
	}
	return &engineMonitor{
		server: s, cause: errMute, detector: stall.New(stall.Config{Limit: cfg.StallTimeout, Idle: idle, Patience: cfg.StallAfter}),
		request: engine.Request{
			ID: "canary", Attempt: 1, Model: s.w.card.Name, Prompt: []kv.Token{0},
			Choices: 1, Stop: engine.Stop{MaxTokens: 1, IgnoreEOS: true}, Logprobs: -1,
		},
	}
}

// run checks until ctx ends. It waits first for the engine's start, during which silence is normal.
func (g *engineMonitor) run(ctx context.Context) error {
	if g.server.w.cfg.StallTimeout < 0 || !g.server.w.awaitStarted(ctx) {
		return nil
	}
	g.server.recordEngineOutput()
	every := checkInterval
	if i := *g.server.w.cfg.CanaryInterval; i > 0 {
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
		g.check(ctx)
	}
}

// check reads the current signs and acts on them.
func (g *engineMonitor) check(ctx context.Context) {
	s, now := g.server, g.server.now()
	ask := g.detector.Observe(now, g.readSigns(now))
	s.calls.reportTimes(g.detector)
	if ask {
		g.judgeAnswer(now, g.askToken(ctx))
	}
	if ctx.Err() != nil {
		return // the worker stops
	}
	if g.detector.IsBroken() {
		g.handleBroken(ctx)
		return
	}
	g.brokenSince, g.cause = 0, errMute
	if s.engineBroken.Load() {
		s.markWorking()
	}
	g.endStalledStreams(ctx)
}

// readSigns returns what is known of the engine now.
func (g *engineMonitor) readSigns(now kv.Mono) stall.Signs {
	s := g.server
	out := stall.Signs{LastToken: s.lastEngineOutput()}
	for _, p := range s.calls.inProgress() {
		out.Calls++
		if p.lastTaken.Load() == 0 {
			out.Prompt = max(out.Prompt, p.prompt)
		}
		if of, ok := p.stallStream(); ok {
			out.Overdue = out.Overdue || g.detector.IsOverdue(now, of)
		}
	}
	src, ok := s.w.eng.(engine.HealthSource)
	if !ok {
		return out
	}
	of := src.HealthReport()
	out.Down, out.Remote, out.LastHeard = of.Live == engine.Down, of.Remote, s.timeOf(of.LastHeard)
	if !of.ProbedSince.IsZero() {
		out.AskedSince = max(s.timeOf(of.ProbedSince), 1)
	}
	out.Work, out.HasQueue, out.Partial = of.Progress, of.HasCounts, of.CountsPartial
	out.Running, out.Waiting, out.Preempted = of.Running, of.Waiting, of.Preempted
	return out
}

// askToken asks the engine for one token, and returns nil once it has arrived. While the previous
// question has not returned it asks nothing.
func (g *engineMonitor) askToken(ctx context.Context) error {
	if g.canaryDone != nil {
		select {
		case <-g.canaryDone: // too late
		default:
			return errSilent
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	g.canaryDone = done
	g.server.hideCanary()
	g.server.running.Go(func() {
		defer g.server.showLoad()
		done <- g.generateToken(ctx)
	})
	err := errSilent
	if e, answered := g.awaitToken(ctx, done); answered {
		g.canaryDone, err = nil, e
	}
	g.server.w.metrics.canaries.WithLabelValues(outcomeOf(err)).Inc()
	return err
}

// awaitToken waits for the end of a canary, while the detector's limit for it has not passed. A call which arrives meanwhile
// makes that limit shorter.
func (g *engineMonitor) awaitToken(ctx context.Context, done <-chan error) (err error, ended bool) {
	asked := g.server.now()
	limit := time.NewTimer(g.detector.ProbeTimeout(asked))
	defer limit.Stop()
	look := time.NewTicker(checkInterval)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			return err, ctx.Err() == nil
		case <-look.C:
			now := g.server.now()
			g.detector.Observe(now, g.readSigns(now))
			limit.Reset(asked.Add(g.detector.ProbeTimeout(now)).Sub(now))
		case <-limit.C:
			return nil, false
		case <-ctx.Done():
			return nil, false
		}
	}
}

// generateToken runs the canary request on the engine.
func (g *engineMonitor) generateToken(ctx context.Context) error {
	w := g.server.w
	of := callInfo{id: g.request.ID, attempt: g.request.Attempt, prompt: len(g.request.Prompt)}
	return w.guardEngine(ctx, of, func() error {
		return w.eng.Generate(ctx, &g.request, func(d *engine.Delta) error {
			if len(d.Tokens) > 0 {
				g.server.recordEngineOutput()
			}
			return nil
		})
	})
}

var errSilent error = fault.New(fault.Deadline, "the engine was asked for a token and produced none in time")

var errMute error = fault.New(fault.Unavailable, "nothing is heard of the engine")

// judgeAnswer updates the machine with the result of a canary sent at asked.
func (g *engineMonitor) judgeAnswer(asked kv.Mono, err error) {
	if err == nil {
		g.detector.RecordProbe(g.server.now().Sub(asked))
	}
	switch code := fault.CodeOf(err); {
	case err == nil || g.server.lastEngineOutput() > asked: // for the canary, or for a concurrent call
		g.detector.RecordAnswer(asked)
	case err == errSilent, code == fault.Overloaded, code == fault.Limited: // a full engine works
		now := g.server.now()
		g.detector.RecordUnanswered(now, asked, g.readSigns(now))
	default:
		g.detector.RecordError()
	}
	g.cause = err
}

// handleBroken makes the worker not ready, and ends its calls.
func (g *engineMonitor) handleBroken(ctx context.Context) {
	s := g.server
	if s.engineBroken.CompareAndSwap(false, true) {
		s.w.metrics.ready.Set(0)
		s.w.log.Error("the engine does not answer: not ready until it does", "error", g.cause)
		s.publishLoadNow(ctx)
	}
	now, ended := s.now(), 0
	g.brokenSince = cmp.Or(g.brokenSince, now)
	for _, p := range s.calls.inProgress() {
		if p.startedAt >= g.brokenSince && now.Sub(p.startedAt) < laterCalls {
			continue
		}
		if p.endCall(fault.New(fault.Unavailable, "the engine of worker %d does not answer: another goes on with the call", s.w.cfg.ID)) {
			ended++
		}
	}
	if ended > 0 {
		s.w.throttle.Log(ctx, slog.LevelWarn, "calls of an engine that does not answer are ended, others go on with them", "calls", ended)
	}
}

// endStalledStreams ends the streams that have stalled.
func (g *engineMonitor) endStalledStreams(ctx context.Context) {
	s, now := g.server, g.server.now()
	for _, p := range s.calls.inProgress() {
		of, ok := p.stallStream()
		if !ok || !g.detector.IsStalled(now, of) {
			continue
		}
		waited := now.Sub(of.Since)
		if !p.endCall(fault.New(fault.Unavailable, "the engine of worker %d sent nothing of the answer for %v", s.w.cfg.ID, waited.Round(time.Second))) {
			continue
		}
		s.w.metrics.stalled.Inc()
		s.w.throttle.Log(ctx, slog.LevelWarn, "a stream has stalled and is ended, another worker goes on with it",
			"request", p.id, "attempt", p.attempt, "waited", waited.Round(time.Millisecond), "begun", of.Started)
	}
}

// recordEngineOutput records that the engine has produced something, and returns the time.
func (s *callServer) recordEngineOutput() kv.Mono {
	now := s.now()
	s.lastToken.Store(int64(now))
	if s.engineBroken.Load() {
		s.markWorking()
	}
	return now
}

// markWorking marks an engine that did not work as working.
func (s *callServer) markWorking() {
	if s.engineBroken.CompareAndSwap(true, false) {
		s.w.metrics.ready.Set(1)
		s.w.log.Info("the engine answers again: ready")
		s.wakeLoadPublisher()
	}
}

// now is the time since the server's start; never 0.
func (s *callServer) now() kv.Mono { return s.timeOf(time.Now()) }

// timeOf converts a time to the server's clock; at least 1, which is before everything.
func (s *callServer) timeOf(t time.Time) kv.Mono { return kv.Mono(max(t.Sub(s.startedAt), 1)) }

// lastEngineOutput is when the engine last produced something, or when the run started.
func (s *callServer) lastEngineOutput() kv.Mono { return kv.Mono(s.lastToken.Load()) }

// hideCanary keeps the canary out of the reports until showLoad: while no call runs, the reported load
// is the one before.
func (s *callServer) hideCanary() {
	if src, ok := s.w.eng.(engine.LoadSource); ok {
		before := src.Load()
		s.loadBefore.Store(&before)
	}
}

func (s *callServer) showLoad() { s.loadBefore.Store(nil) }
