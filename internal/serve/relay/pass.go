package relay

import (
	"context"
	"errors"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/attempt"
	"penstock/internal/engine"
)

// Passes implements engine.Passer: the paths that any worker takes.
func (e *relayed) Passes() []string { return e.card.Passes }

// Pass implements engine.Passer.
func (e *relayed) Pass(ctx context.Context, req *engine.PassRequest, sink func(*engine.PassPiece) error) error {
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
	t := &passing{e: e, id: e.r.ids.claim(req.ID), attempt: req.Attempt, sink: sink, request: *req}
	defer e.r.ids.release(t.id)
	t.request.Model = e.named(req.Model)
	if err := attempt.Heed(req.Hints, &t.wishes); err != nil {
		return err
	}
	t.request.Hints = nil
	err = e.attempts(ctx, t.id, t, number)
	if errors.Is(err, errBroken) {
		code := fault.Of(t.broken)
		if code == fault.Draining { // this proxy does not drain
			code = fault.Unavailable
		}
		return &fault.Error{Code: code, Message: "the worker behind the router did not finish an answer that only it can go on with", Err: t.broken}
	}
	return err
}

// errBroken ends the attempts of a request whose answer failed after its first data.
var errBroken = errors.New("relay: the answer broke, and cannot move")

// passthroughTask is a passthrough request, dispatched to workers. Until a worker sends data, another
// can be tried. One goroutine uses it.
type passing struct {
	e       *relayed
	id      string // at the router
	attempt uint32 // of the caller, on every piece
	sink    func(*engine.PassPiece) error
	sinkErr error

	request engine.PassRequest // of the current attempt
	wishes  route.Request      // the client's routing hints

	// State of the current attempt.
	order     engine.PassOrder
	prefilled bool
	grown     int // tokens not yet reported to the router
	blockSize int
	piece     engine.PassPiece

	told   *engine.PassPiece // the answer's header as sent to the caller; nil before
	out    bool              // data is sent
	done   bool              // the answer is complete
	broken error             // failure after data was sent
}

// TokensDelivered implements dispatch.Task. It returns 0, because the answer cannot move.
func (t *passing) Tokens() int { return 0 }

// MoveKind implements dispatch.Task.
func (t *passing) Kind() string { return attempt.NewRequest }

// ChooseWorker asks the router for a worker that takes such requests.
func (t *passing) Choose(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := t.e.r.model(t.e.card.Name)
	req := t.wishes
	req.ID, req.Attempt, req.Model = t.id, number, t.request.Model
	req.Tokens, req.Media, req.Salt = t.request.Prompt, t.request.Media, t.request.Salt
	unable := m.those(func(c *engine.Card) bool { return !slices.Contains(c.Passes, t.request.Path) })
	return attempt.Route(ctx, t.e.r.decides, &req, nil, append(unable, failed...))
}

// RunAttempt implements dispatch.Task. If an answer fails after the caller has a part of it, the caller
// has to handle that: no other worker can repair it.
func (t *passing) Try(ctx context.Context, number uint32, d route.Decision) error {
	defer attempt.Hold(t.e.r.deps.Router, t.id, number)()
	t.order, t.prefilled, t.grown, t.blockSize = engine.PassOrder{}, false, 0, d.BlockSize
	t.request.Attempt = number
	err := attempt.Call(ctx, t.e.r.deps.Plane, t.e.r.cfg.StallTimeout, d, engine.MethodPass, engine.AppendPassRequest(nil, &t.request), t.take)
	switch {
	case t.sinkErr != nil:
		return t.sinkErr
	case t.done:
		return nil // the answer is complete, regardless of the call's error
	case !t.out || ctx.Err() != nil:
		return err
	}
	if migrate.Movable(fault.Of(err)) {
		t.e.r.deps.Router.Failed(d.Worker, err)
	}
	t.broken = err
	return errBroken
}

// handleFrame handles one frame of the current attempt.
func (t *passing) take(frame []byte) error {
	p := &t.piece
	if err := engine.DecodePassPiece(frame, p); err != nil {
		return engine.Broken("a frame that cannot be read", err)
	}
	if p.Attempt != t.request.Attempt {
		return nil // a late answer
	}
	if err := t.order.Take(p); err != nil {
		return err
	}
	if p.Accepted {
		return t.begin()
	}
	t.observe()
	t.out, t.done = true, p.Last
	return t.pass(p)
}

// startAnswer sends the answer's header to the caller. The header of another worker, after one that
// failed, must be the same.
func (t *passing) begin() error {
	p := &t.piece
	switch {
	case t.told == nil:
		t.told = &engine.PassPiece{Status: p.Status, Type: p.Type}
		return t.pass(p)
	case t.told.Status != p.Status || t.told.Type != p.Type:
		return engine.Broken("another kind of answer than the worker before", nil)
	}
	return nil
}

// recordPiece reports the tokens of a piece to the router.
func (t *passing) observe() {
	router, p := t.e.r.deps.Router, &t.piece
	switch {
	case p.Last && (!t.prefilled || p.Cached != engine.CachedUnknown):
		router.Prefilled(t.id, t.request.Attempt, p.Cached)
	case !t.prefilled && p.Tokens > 0:
		t.prefilled = true
		router.Prefilled(t.id, t.request.Attempt, engine.CachedUnknown)
	}
	if t.grown += p.Tokens; t.grown > 0 && t.grown >= t.blockSize && !p.Last {
		router.Grown(t.id, t.request.Attempt, t.grown)
		t.grown = 0
	}
}

// sendPiece sends a piece to the caller, under the caller's attempt number.
func (t *passing) pass(p *engine.PassPiece) error {
	p.Attempt = t.attempt
	if err := t.sink(p); err != nil {
		t.sinkErr = err
		return errSink
	}
	return nil
}
