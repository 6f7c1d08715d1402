package routerproxy

import (
	"context"

	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/engine"
)

// Generate implements engine.Engine.
func (e *proxyEngine) Generate(ctx context.Context, req *engine.Request, sink func(*engine.Delta) error) error {
	if err := req.Validate(); err != nil {
		return err
	}
	return e.serveRequest(ctx, callerRequest{req.ID, req.Attempt, req.Model, req.Hints}, func(ctx context.Context, ask route.Request, first uint32) error {
		g := &generationTask{request: req, sink: sink, uncountedBy: make([]uint32, req.Choices)}
		g.Request, g.Route = *req, ask
		g.Request.Model = ask.Model
		g.Route.Tokens, g.Route.Media, g.Route.Salt = req.Prompt, req.Media, req.Salt
		g.Workers, g.Sink = e.latestWorkers, g
		defer e.attachMedia(ctx, &g.Request)()
		return e.proxy.dispatcher.Generate(ctx, &g.Generation, first)
	})
}

// generationTask is one attempt of a caller. One goroutine uses it.
type generationTask struct {
	dispatch.Generation
	request  *engine.Request // the caller's
	sink     func(*engine.Delta) error
	accepted bool // the caller has been told
	// uncountedBy is, of each choice, the attempt which sent its first tokens without the number of cached
	// tokens; 0 if it sent the number, or if there are no tokens.
	uncountedBy []uint32
}

// HandleAttempt implements dispatch.GenerationSink: the caller sees one attempt.
func (g *generationTask) HandleAttempt(event dispatch.AttemptEvent) error {
	if event != dispatch.AttemptAccepted || g.accepted {
		return nil
	}
	g.accepted = true
	return g.sendDelta(&engine.Delta{Accepted: true})
}

// HandleOutput implements dispatch.GenerationSink.
func (g *generationTask) HandleOutput(d *engine.Delta) (done bool, err error) {
	g.setCached(d)
	done = d.Finish != engine.NotFinished
	if len(d.Tokens) == 0 && !done {
		return false, nil
	}
	return done, g.sendDelta(d)
}

// setCached leaves in d the number of cached tokens which the caller must receive: with the first tokens, or
// with the end of the choice if it was unknown then. An attempt that continues the choice reports nothing
// about earlier tokens.
func (g *generationTask) setCached(d *engine.Delta) {
	given := 0 // tokens that the caller had
	if len(g.request.Generated) > 0 {
		given = len(g.request.Generated[d.Choice])
	}
	by := &g.uncountedBy[d.Choice]
	switch {
	case d.Pos == given:
		if len(d.Tokens) > 0 && d.Cached == engine.CachedUnknown {
			*by = d.Attempt
		}
	case *by == 0 || d.Finish == engine.NotFinished:
		d.Cached = 0 // the caller receives it with the first tokens
	case *by != d.Attempt:
		d.Cached = engine.CachedUnknown
	}
}

// sendDelta sends a delta to the caller, under the caller's attempt number.
func (g *generationTask) sendDelta(d *engine.Delta) error {
	d.Attempt = g.request.Attempt
	return g.sink(d)
}
