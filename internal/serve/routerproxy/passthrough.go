package routerproxy

import (
	"context"

	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/engine"
)

// PassthroughPaths implements engine.PassthroughEngine: the paths that any worker takes.
func (e *proxyEngine) PassthroughPaths() []string { return e.card.PassthroughPaths }

// PassThrough implements engine.PassthroughEngine.
func (e *proxyEngine) PassThrough(ctx context.Context, req *engine.PassthroughRequest, sink func(*engine.PassthroughChunk) error) error {
	if err := req.Validate(); err != nil {
		return err
	}
	return e.serveRequest(ctx, callerRequest{req.ID, req.Attempt, req.Model, req.Hints}, func(ctx context.Context, ask route.Request, first uint32) error {
		t := &passthroughTask{attempt: req.Attempt, sink: sink}
		t.Request, t.Route = *req, ask
		t.Request.Model = ask.Model
		t.Route.Tokens, t.Route.Media, t.Route.Salt = req.Prompt, req.Media, req.Salt
		t.Workers, t.Sink = e.latestWorkers, t
		return e.proxy.dispatcher.PassThrough(ctx, &t.Passthrough, first)
	})
}

// passthroughTask is one attempt of a caller. One goroutine uses it.
type passthroughTask struct {
	dispatch.Passthrough
	attempt uint32 // of the caller, on every chunk
	sink    func(*engine.PassthroughChunk) error
	header  *engine.PassthroughChunk // as sent to the caller; nil before
}

// StartAttempt implements dispatch.PassthroughSink.
func (t *passthroughTask) StartAttempt() {}

// HandleChunk implements dispatch.PassthroughSink. The header of another worker, after one that failed, must
// be the one which the caller has.
func (t *passthroughTask) HandleChunk(p *engine.PassthroughChunk) (sent bool, err error) {
	switch {
	case !p.Accepted:
	case t.header == nil:
		t.header = &engine.PassthroughChunk{Status: p.Status, Type: p.Type}
	case t.header.Status != p.Status || t.header.Type != p.Type:
		return false, engine.ContractError("another kind of answer than the worker before", nil)
	default:
		return false, nil
	}
	p.Attempt = t.attempt
	return !p.Accepted, t.sink(p)
}
