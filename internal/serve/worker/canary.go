package worker

import (
	"context"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

const (
	// canaryLook is how often it is asked whether the engine has been silent for
	// too long, and how often an engine that is not ready is tried again.
	canaryLook = time.Second
	// canaryTimeout is how long the engine may take for the first token.
	canaryTimeout = 3 * time.Second
)

// canary finds out whether the engine works when no call shows it: it asks the
// engine itself for one token. A worker whose engine does not answer says that it
// is not ready, so that routers leave it out, until the engine has produced
// something again, for a call or for the canary.
//
// It is in no metric of calls and, while no call runs, in no report of load. Its
// prompt is shorter than a block, so that nothing of it is cached or published.
type canary struct {
	s       *server
	request engine.Request

	// Of run alone.
	work    engine.Load  // as it was at the last look while calls ran
	changed time.Time    // when that last changed, or no call ran
	asked   <-chan error // of a question whose end has not been seen; else nil
}

func newCanary(s *server) *canary {
	return &canary{s: s, request: engine.Request{
		ID: "canary", Attempt: 1, Model: s.w.card.Name, Salt: kv.Salt{Namespace: "penstock-canary"},
		Prompt: []kv.Token{0}, Choices: 1, Stop: engine.Stop{MaxTokens: 1, IgnoreEOS: true}, Logprobs: -1,
	}}
}

// run asks when it is time to, until ctx ends. An engine that starts is silent with
// good reason. One that alone has its tokenizer cannot be asked in tokens: it says itself
// that it is unreachable.
func (c *canary) run(ctx context.Context) error {
	cfg := &c.s.w.cfg
	if cfg.CanaryInterval < 0 || c.s.w.card.Tokenizer.Kind == engine.TokenizerOfEngine || !c.s.w.upAndRunning(ctx) {
		return nil
	}
	c.s.beat()
	look := time.NewTicker(min(canaryLook, cfg.CanaryInterval))
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
		if now := time.Now(); c.due(now) {
			c.judge(ctx, now, c.ask(ctx))
		}
	}
}

// due reports whether the engine must show that it works. An idle one must after
// CanaryInterval, a busy one when it has neither produced anything nor made
// progress for StallAfter: a long prefill is no silence.
func (c *canary) due(now time.Time) bool {
	s := c.s
	if s.sick.Load() {
		return true
	}
	silent := now.Sub(s.lastBeat())
	calls, _ := s.door.inside()
	if calls == 0 {
		c.changed = now
		return silent >= s.w.cfg.CanaryInterval
	}
	if src, ok := s.w.eng.(engine.LoadSource); ok {
		if work := src.Load(); work != c.work {
			c.work, c.changed = work, now
		}
	}
	return min(silent, now.Sub(c.changed)) >= s.w.cfg.StallAfter
}

// ask asks the engine for one token, and returns nil once it has come. An engine
// that has still not returned from the last time is asked nothing more.
func (c *canary) ask(ctx context.Context) error {
	if c.asked != nil {
		select {
		case <-c.asked: // too late
		default:
			return errSilent
		}
	}
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	done := make(chan error, 1)
	c.asked = done
	c.s.hide()
	c.s.calls.Go(func() {
		defer c.s.show()
		done <- c.generate(ctx)
	})
	err := errSilent
	select {
	case e := <-done:
		c.asked = nil
		if ctx.Err() == nil {
			err = e
		}
	case <-ctx.Done():
	}
	c.s.w.metrics.canaries.WithLabelValues(outcome(err)).Inc()
	return err
}

// generate has the engine serve the request.
func (c *canary) generate(ctx context.Context) error {
	w := c.s.w
	of := subject{id: c.request.ID, attempt: c.request.Attempt, prompt: len(c.request.Prompt)}
	return w.guard(ctx, of, func() error {
		return w.eng.Generate(ctx, &c.request, func(d *engine.Delta) error {
			if len(d.Tokens) > 0 {
				c.s.beat()
			}
			return nil
		})
	})
}

var errSilent error = fault.New(fault.Deadline, "the engine produced no token within %v", canaryTimeout)

// judge draws the conclusion from the answer to a question asked at some time.
func (c *canary) judge(ctx context.Context, asked time.Time, err error) {
	if ctx.Err() != nil {
		return // the worker ends
	}
	s := c.s
	if err == nil || s.lastBeat().After(asked) {
		return // it has produced something: for the canary, or for a call beside it
	}
	if s.sick.CompareAndSwap(false, true) {
		s.w.metrics.ready.Set(0)
		s.w.log.Error("the engine does not answer: not ready until it does", "error", err)
		s.announce(ctx)
	}
}

// beat notes that the engine has produced something.
func (s *server) beat() {
	s.lastToken.Store(int64(time.Since(s.born)))
	if s.sick.Load() && s.sick.CompareAndSwap(true, false) {
		s.w.metrics.ready.Set(1)
		s.w.log.Info("the engine answers again: ready")
		s.poke()
	}
}

// lastBeat is when the engine last produced something, or when the run began.
func (s *server) lastBeat() time.Time { return s.born.Add(time.Duration(s.lastToken.Load())) }

// hide keeps the canary out of the reports until show: while no call runs, the
// load is what it was before.
func (s *server) hide() {
	if src, ok := s.w.eng.(engine.LoadSource); ok {
		before := src.Load()
		s.before.Store(&before)
	}
}

func (s *server) show() { s.before.Store(nil) }
