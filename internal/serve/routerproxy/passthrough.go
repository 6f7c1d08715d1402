package routerproxy

import (
	"context"
	"errors"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/engine"
)

// PassthroughPaths implements engine.Passer: the paths that any worker takes.
func (e *proxyEngine) PassthroughPaths() []string { return e.card.PassthroughPaths }

// PassThrough implements engine.Passer.
func (e *proxyEngine) PassThrough(ctx context.Context, req *engine.PassthroughRequest, sink func(*engine.PassthroughChunk) error) error {
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
	t := &passthroughTask{e: e, id: e.proxy.ids.claimID(req.ID), attempt: req.Attempt, sink: sink, request: *req}
	defer e.proxy.ids.releaseID(t.id)
	t.request.Model = e.modelName(req.Model)
	if err := dispatch.ApplyHints(req.Hints, &t.hints); err != nil {
		return err
	}
	t.request.Hints = nil
	err = e.runAttempts(ctx, t.id, t, number)
	if errors.Is(err, errBroken) {
		code := fault.CodeOf(t.streamErr)
		if code == fault.Draining { // this proxy does not drain
			code = fault.Unavailable
		}
		return &fault.Error{Code: code, Message: "the worker behind the router did not finish an answer that only it can go on with", Err: t.streamErr}
	}
	return err
}

// errBroken ends the attempts of a request whose answer failed after its first data.
var errBroken = errors.New("routerproxy: the answer broke, and cannot move")

// passthroughTask is a passthrough request, dispatched to workers. Until a worker sends data, another
// can be tried. One goroutine uses it.
type passthroughTask struct {
	e       *proxyEngine
	id      string // at the router
	attempt uint32 // of the caller, on every piece
	sink    func(*engine.PassthroughChunk) error
	sinkErr error

	request engine.PassthroughRequest // of the current attempt
	hints   route.Request             // the client's routing hints

	// State of the current attempt.
	order            engine.PassthroughOrder
	prefilled        bool
	unreportedTokens int // tokens not yet reported to the router
	attemptTokens    int // tokens of the attempt, of all choices
	blockSize        int
	piece            engine.PassthroughChunk

	sentHeader *engine.PassthroughChunk // the answer's header as sent to the caller; nil before
	sentData   bool                     // data is sent
	complete   bool                     // the answer is complete
	streamErr  error                    // failure after data was sent
}

// TokensDelivered implements dispatch.Task. It returns 0, because the answer cannot move.
func (t *passthroughTask) TokensDelivered() int { return 0 }

// MoveKind implements dispatch.Task.
func (t *passthroughTask) MoveKind() string { return dispatch.MoveNewRequest }

// ChooseWorker asks the router for a worker that takes such requests.
func (t *passthroughTask) ChooseWorker(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := t.e.proxy.currentModel(t.e.card.Name)
	req := t.hints
	req.ID, req.Attempt, req.Model = t.id, number, t.request.Model
	req.Tokens, req.Media, req.Salt = t.request.Prompt, t.request.Media, t.request.Salt
	unable := m.WithoutPath(t.request.Path)
	return dispatch.RouteAvoiding(ctx, t.e.proxy.router, &req, nil, append(unable, failed...))
}

// RunAttempt implements dispatch.Task. If an answer fails after the caller has a part of it, the caller
// has to handle that: no other worker can repair it.
func (t *passthroughTask) RunAttempt(ctx context.Context, number uint32, d route.Decision) error {
	held := dispatch.HoldReservation(t.e.proxy.deps.Router, t.id, number)
	defer held.Free()
	t.order, t.prefilled, t.unreportedTokens, t.attemptTokens, t.blockSize = engine.PassthroughOrder{}, false, 0, 0, d.BlockSize
	t.request.Attempt = number
	err := dispatch.CallWorker(ctx, t.e.proxy.deps.Plane, t.e.proxy.cfg.StallTimeout, d, engine.MethodPassthrough, engine.AppendPassthroughRequest(nil, &t.request), t.handleFrame)
	switch {
	case t.sinkErr != nil:
		return t.sinkErr
	case t.complete:
		held.FinishAnswer(t.attemptTokens)
		return nil // the answer is complete, regardless of the call's error
	case !t.sentData || ctx.Err() != nil:
		return err
	}
	if migrate.CanMigrate(fault.CodeOf(err)) {
		t.e.proxy.deps.Router.ReportFailure(d.Worker, err)
	}
	t.streamErr = err
	return errBroken
}

// handleFrame handles one frame of the current attempt.
func (t *passthroughTask) handleFrame(frame []byte) error {
	p := &t.piece
	if err := engine.DecodePassthroughChunk(frame, p); err != nil {
		return engine.ContractError("a frame that cannot be read", err)
	}
	if p.Attempt != t.request.Attempt {
		return nil // a late answer
	}
	if err := t.order.AcceptChunk(p); err != nil {
		return err
	}
	if p.Accepted {
		return t.startAnswer()
	}
	t.recordPiece()
	t.sentData, t.complete = true, p.Last
	return t.sendPiece(p)
}

// startAnswer sends the answer's header to the caller. The header of another worker, after one that
// failed, must be the same.
func (t *passthroughTask) startAnswer() error {
	p := &t.piece
	switch {
	case t.sentHeader == nil:
		t.sentHeader = &engine.PassthroughChunk{Status: p.Status, Type: p.Type}
		return t.sendPiece(p)
	case t.sentHeader.Status != p.Status || t.sentHeader.Type != p.Type:
		return engine.ContractError("another kind of answer than the worker before", nil)
	}
	return nil
}

// recordPiece reports the tokens of a piece to the router.
func (t *passthroughTask) recordPiece() {
	router, p := t.e.proxy.deps.Router, &t.piece
	switch {
	case p.Last && (!t.prefilled || p.Cached != engine.CachedUnknown):
		router.MarkPrefilled(t.id, t.request.Attempt, p.Cached)
	case !t.prefilled && p.Tokens > 0:
		t.prefilled = true
		router.RecordFirstToken(t.id, t.request.Attempt, engine.CachedUnknown)
	}
	t.attemptTokens += p.Tokens
	if t.unreportedTokens += p.Tokens; t.unreportedTokens > 0 && t.unreportedTokens >= t.blockSize && !p.Last {
		router.RecordOutput(t.id, t.request.Attempt, t.unreportedTokens)
		t.unreportedTokens = 0
	}
}

// sendPiece sends a piece to the caller, under the caller's attempt number.
func (t *passthroughTask) sendPiece(p *engine.PassthroughChunk) error {
	p.Attempt = t.attempt
	if err := t.sink(p); err != nil {
		t.sinkErr = err
		return errSink
	}
	return nil
}
