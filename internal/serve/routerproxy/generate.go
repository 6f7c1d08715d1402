package routerproxy

import (
	"context"
	"errors"
	"slices"

	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/engine"
)

// Generate implements engine.Engine.
func (e *proxyEngine) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if err := req.Validate(); err != nil {
		return err
	}
	number, err := firstAttempt(req.Attempt)
	if err != nil {
		return err
	}
	ctx, leave, err := e.enterRequest(ctx)
	if err != nil {
		return err
	}
	defer leave()
	g := &generationTask{e: e, id: e.proxy.ids.claimID(req.ID), attempt: req.Attempt, sink: sink, request: *req}
	defer e.proxy.ids.releaseID(g.id)
	g.request.Model = e.modelName(req.Model)
	if err := dispatch.ApplyHints(req.Hints, &g.hints); err != nil {
		return err
	}
	g.request.Hints = nil
	g.choices = make([]choiceProgress, req.Choices)
	for i := range g.choices {
		c := &g.choices[i]
		if len(req.Generated) > 0 {
			c.tokens = slices.Clone(req.Generated[i])
			c.givenTokens = len(c.tokens)
		}
		c.done = len(req.Done) > 0 && req.Done[i]
	}
	defer g.attachMedia(ctx)()
	return e.runAttempts(ctx, g.id, g, number)
}

// errSink marks the caller's failure to take a delta.
var errSink = errors.New("routerproxy: the caller took no more")

// generationTask is one attempt of a caller, dispatched to workers. One goroutine uses it.
type generationTask struct {
	e       *proxyEngine
	id      string // at the router
	attempt uint32 // of the caller, on every delta
	sink    func(*engine.Delta) error
	sinkErr error

	request  engine.Request // of the current attempt
	hints    route.Request  // the client's routing hints
	choices  []choiceProgress
	accepted bool // the caller has been told

	// State of the current attempt.
	cached           engine.CachedReport
	unreportedTokens int // tokens not yet reported to the router
	attemptTokens    int // tokens of the attempt, of all choices
	blockSize        int
	delta            engine.Delta
	numerics         string // of its worker
	// firstNumerics is the numerics of the first token's worker; "" before.
	firstNumerics string
}

// choiceProgress is the progress of one choice.
type choiceProgress struct {
	tokens      []kv.Token // all tokens sent, including earlier ones of the caller
	givenTokens int        // how many of them were not generated here
	done        bool
	// uncountedBy is the attempt which sent its first tokens without the number of cached tokens; 0 if it sent
	// the number, or if there are no tokens.
	uncountedBy uint32
}

// TokensDelivered implements dispatch.Task.
func (g *generationTask) TokensDelivered() int {
	n := 0
	for i := range g.choices {
		n += len(g.choices[i].tokens) - g.choices[i].givenTokens
	}
	return n
}

// MoveKind implements dispatch.Task.
func (g *generationTask) MoveKind() string { return dispatch.MoveKind(g.TokensDelivered()) }

// ChooseWorker asks the router for a worker. Once tokens are sent it prefers a worker of the same
// numerics, because only that one continues bit for bit; another one is better than none.
func (g *generationTask) ChooseWorker(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := g.e.proxy.currentModel(g.e.card.Name)
	req := g.hints
	req.ID, req.Attempt, req.Model = g.id, number, g.request.Model
	req.Tokens, req.Media, req.Salt = g.request.Prompt, g.request.Media, g.request.Salt
	excluded := slices.Clone(failed)
	if g.request.OutputSchema != nil {
		excluded = append(excluded, m.WithoutGuides()...)
	}
	if len(g.request.Features) > 0 {
		excluded = append(excluded, m.WithoutFeatures()...)
	}
	var strange []kv.WorkerID
	if g.firstNumerics != "" {
		strange = m.WithOtherNumerics(g.firstNumerics)
	}
	return dispatch.RouteAvoiding(ctx, g.e.proxy.router, &req, strange, excluded)
}

// RunAttempt makes one attempt. It returns nil when every choice is done.
func (g *generationTask) RunAttempt(ctx context.Context, number uint32, d route.Decision) error {
	held := dispatch.HoldReservation(g.e.proxy.deps.Router, g.id, number)
	defer held.Free()
	g.cached, g.unreportedTokens, g.attemptTokens, g.blockSize = engine.CachedReport{}, 0, 0, d.BlockSize
	g.numerics = g.e.proxy.currentModel(g.e.card.Name).NumericsOf(d.Worker.ID)
	g.request.Attempt = number
	g.resumeAttempt()

	body := engine.AppendRequest(nil, &g.request)
	err := dispatch.CallWorker(ctx, g.e.proxy.deps.Plane, g.e.proxy.cfg.StallTimeout, d, engine.MethodGenerate, body, g.handleFrame)
	switch {
	case g.sinkErr != nil:
		return g.sinkErr
	case g.isComplete():
		held.FinishAnswer(g.attemptTokens / len(g.choices))
		return nil // the answer is complete, regardless of the call's error
	}
	return err
}

// resumeAttempt puts the tokens already sent into the attempt's request.
func (g *generationTask) resumeAttempt() {
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

func (g *generationTask) isComplete() bool {
	return g.accepted && !slices.ContainsFunc(g.choices, func(c choiceProgress) bool { return !c.done })
}

// handleFrame handles one frame of the current attempt.
func (g *generationTask) handleFrame(frame []byte) error {
	d := &g.delta
	if err := engine.DecodeDelta(frame, d); err != nil {
		return engine.ContractError("a frame that cannot be read", err)
	}
	if d.Attempt != g.request.Attempt {
		return nil // a late answer
	}
	if !g.accepted {
		g.accepted = true
		if err := g.sendDelta(&engine.Delta{Accepted: true}); err != nil {
			return err
		}
	}
	if d.Accepted {
		return nil
	}
	if d.Choice < 0 || d.Choice >= len(g.choices) || g.choices[d.Choice].done {
		return engine.ContractError("tokens of a choice that there is not, or no longer", nil)
	}
	if cached, news := g.cached.ObserveDelta(d); news {
		g.e.proxy.deps.Router.RecordFirstToken(g.id, g.request.Attempt, cached)
	}
	return g.handleOutput(d)
}

// handleOutput passes on what the caller has not received yet.
func (g *generationTask) handleOutput(d *engine.Delta) error {
	c := &g.choices[d.Choice]
	if err := d.TrimDelivered(len(c.tokens), g.request.Logprobs); err != nil {
		return err
	}
	g.attemptTokens += len(d.Tokens)
	if g.unreportedTokens += len(d.Tokens); g.unreportedTokens > 0 && g.unreportedTokens >= g.blockSize {
		g.e.proxy.deps.Router.RecordOutput(g.id, g.request.Attempt, g.unreportedTokens)
		g.unreportedTokens = 0
	}
	c.setCached(d)
	if len(d.Tokens) == 0 && d.Finish == engine.NotFinished {
		return nil
	}
	if len(d.Tokens) > 0 && g.firstNumerics == "" {
		g.firstNumerics = g.numerics
	}
	c.tokens = append(c.tokens, d.Tokens...)
	c.done = d.Finish != engine.NotFinished
	return g.sendDelta(d)
}

// setCached leaves in d the number of cached tokens which the caller must receive: with the first
// tokens, or with the end of the choice if it was unknown then. An attempt that continues the choice
// reports nothing about earlier tokens.
func (c *choiceProgress) setCached(d *engine.Delta) {
	switch {
	case len(c.tokens) == c.givenTokens:
		if len(d.Tokens) > 0 && d.Cached == engine.CachedUnknown {
			c.uncountedBy = d.Attempt
		}
	case c.uncountedBy == 0 || d.Finish == engine.NotFinished:
		d.Cached = 0 // the caller receives it with the first tokens
	case c.uncountedBy != d.Attempt:
		d.Cached = engine.CachedUnknown
	}
}

// sendDelta sends a delta to the caller, under the caller's attempt number.
func (g *generationTask) sendDelta(d *engine.Delta) error {
	d.Attempt = g.attempt
	if err := g.sink(d); err != nil {
		g.sinkErr = err
		return errSink
	}
	return nil
}
