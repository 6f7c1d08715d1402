package relay

import (
	"context"
	"errors"
	"slices"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/attempt"
	"penstock/internal/engine"
)

// Generate implements engine.Engine.
func (e *relayed) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if err := req.Validate(); err != nil {
		return err
	}
	number, err := first(req.Attempt)
	if err != nil {
		return err
	}
	ctx, leave, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	g := &generation{e: e, id: e.r.ids.claim(req.ID), attempt: req.Attempt, sink: sink, request: *req}
	defer e.r.ids.release(g.id)
	g.request.Model = e.named(req.Model)
	if err := attempt.Heed(req.Hints, &g.wishes); err != nil {
		return err
	}
	g.request.Hints = nil
	g.choices = make([]choice, req.Choices)
	for i := range g.choices {
		c := &g.choices[i]
		if len(req.Generated) > 0 {
			c.tokens = slices.Clone(req.Generated[i])
			c.sent = len(c.tokens)
		}
		c.done = len(req.Done) > 0 && req.Done[i]
	}
	defer g.attach(ctx)()
	return e.attempts(ctx, g.id, g, number)
}

// errSink marks the caller's failure to take a delta.
var errSink = errors.New("relay: the caller took no more")

// generationTask is one attempt of a caller, dispatched to workers. One goroutine uses it.
type generation struct {
	e       *relayed
	id      string // at the router
	attempt uint32 // of the caller, on every delta
	sink    func(*engine.Delta) error
	sinkErr error

	request  engine.Request // of the current attempt
	wishes   route.Request  // the client's routing hints
	choices  []choice
	accepted bool // the caller has been told

	// State of the current attempt.
	cached    engine.CachedReport
	grown     int // tokens not yet reported to the router
	blockSize int
	delta     engine.Delta
	numerics  string // of its worker
	// firstNumerics is the numerics of the first token's worker; "" before.
	computed string
}

// choiceProgress is the progress of one choice.
type choice struct {
	tokens []kv.Token // all tokens sent, including earlier ones of the caller
	sent   int        // how many of them were not generated here
	done   bool
	// uncountedBy is the attempt which sent its first tokens without the number of cached tokens; 0 if it sent
	// the number, or if there are no tokens.
	late uint32
}

// TokensDelivered implements dispatch.Task.
func (g *generation) Tokens() int {
	n := 0
	for i := range g.choices {
		n += len(g.choices[i].tokens) - g.choices[i].sent
	}
	return n
}

// MoveKind implements dispatch.Task.
func (g *generation) Kind() string { return attempt.Kind(g.Tokens()) }

// ChooseWorker asks the router for a worker. Once tokens are sent it prefers a worker of the same
// numerics, because only that one continues bit for bit; another one is better than none.
func (g *generation) Choose(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := g.e.r.model(g.e.card.Name)
	req := g.wishes
	req.ID, req.Attempt, req.Model = g.id, number, g.request.Model
	req.Tokens, req.Media, req.Salt = g.request.Prompt, g.request.Media, g.request.Salt
	excluded := slices.Clone(failed)
	if g.request.Guide != nil {
		excluded = append(excluded, m.those(func(c *engine.Card) bool { return !c.Guided })...)
	}
	if len(g.request.Features) > 0 {
		excluded = append(excluded, m.those(func(c *engine.Card) bool { return !c.Features })...)
	}
	var strange []kv.WorkerID
	if g.computed != "" {
		strange = m.those(func(c *engine.Card) bool { return c.Numerics != g.computed })
	}
	return attempt.Route(ctx, g.e.r.decides, &req, strange, excluded)
}

// RunAttempt makes one attempt. It returns nil when every choice is done.
func (g *generation) Try(ctx context.Context, number uint32, d route.Decision) error {
	defer attempt.Hold(g.e.r.deps.Router, g.id, number)()
	g.cached, g.grown, g.blockSize = engine.CachedReport{}, 0, d.BlockSize
	g.numerics = g.e.r.model(g.e.card.Name).numerics(d.Worker.ID)
	g.request.Attempt = number
	g.resume()

	body := engine.AppendRequest(nil, &g.request)
	err := attempt.Call(ctx, g.e.r.deps.Plane, g.e.r.cfg.StallTimeout, d, engine.MethodGenerate, body, g.take)
	switch {
	case g.sinkErr != nil:
		return g.sinkErr
	case g.complete():
		return nil // the answer is complete, regardless of the call's error
	}
	return err
}

// resumeAttempt puts the tokens already sent into the attempt's request.
func (g *generation) resume() {
	out := false
	for i := range g.choices {
		out = out || len(g.choices[i].tokens) > 0 || g.choices[i].done
	}
	if !out {
		return
	}
	g.request.Generated, g.request.Done = make([][]kv.Token, len(g.choices)), make([]bool, len(g.choices))
	for i := range g.choices {
		g.request.Generated[i], g.request.Done[i] = g.choices[i].tokens, g.choices[i].done
	}
}

func (g *generation) complete() bool {
	return g.accepted && !slices.ContainsFunc(g.choices, func(c choice) bool { return !c.done })
}

// handleFrame handles one frame of the current attempt.
func (g *generation) take(frame []byte) error {
	d := &g.delta
	if err := engine.DecodeDelta(frame, d); err != nil {
		return engine.Broken("a frame that cannot be read", err)
	}
	if d.Attempt != g.request.Attempt {
		return nil // a late answer
	}
	if !g.accepted {
		g.accepted = true
		if err := g.pass(&engine.Delta{Accepted: true}); err != nil {
			return err
		}
	}
	if d.Accepted {
		return nil
	}
	if d.Choice < 0 || d.Choice >= len(g.choices) || g.choices[d.Choice].done {
		return engine.Broken("tokens of a choice that there is not, or no longer", nil)
	}
	if cached, news := g.cached.Take(d); news {
		g.e.r.deps.Router.Prefilled(g.id, g.request.Attempt, cached)
	}
	return g.output(d)
}

// handleOutput passes on what the caller has not received yet.
func (g *generation) output(d *engine.Delta) error {
	c := &g.choices[d.Choice]
	if err := d.Continue(len(c.tokens), g.request.Logprobs); err != nil {
		return err
	}
	if g.grown += len(d.Tokens); g.grown > 0 && g.grown >= g.blockSize {
		g.e.r.deps.Router.Grown(g.id, g.request.Attempt, g.grown)
		g.grown = 0
	}
	c.tell(d)
	if len(d.Tokens) == 0 && d.Finish == engine.NotFinished {
		return nil
	}
	if len(d.Tokens) > 0 && g.computed == "" {
		g.computed = g.numerics
	}
	c.tokens = append(c.tokens, d.Tokens...)
	c.done = d.Finish != engine.NotFinished
	return g.pass(d)
}

// setCached leaves in d the number of cached tokens which the caller must receive: with the first
// tokens, or with the end of the choice if it was unknown then. An attempt that continues the choice
// reports nothing about earlier tokens.
func (c *choice) tell(d *engine.Delta) {
	switch {
	case len(c.tokens) == c.sent:
		if len(d.Tokens) > 0 && d.Cached == engine.CachedUnknown {
			c.late = d.Attempt
		}
	case c.late == 0 || d.Finish == engine.NotFinished:
		d.Cached = 0 // the caller receives it with the first tokens
	case c.late != d.Attempt:
		d.Cached = engine.CachedUnknown
	}
}

// sendDelta sends a delta to the caller, under the caller's attempt number.
func (g *generation) pass(d *engine.Delta) error {
	d.Attempt = g.attempt
	if err := g.sink(d); err != nil {
		g.sinkErr = err
		return errSink
	}
	return nil
}
