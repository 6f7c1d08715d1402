package dispatch

import (
	"context"
	"errors"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/migrate"
	"penstock/core/route"
	"penstock/internal/engine"
)

// Passthrough is a request that goes to an engine as its client wrote it. Its answer cannot move to another
// worker once the client has a part of it. One goroutine uses it.
type Passthrough struct {
	RoutedTask
	Request engine.PassthroughRequest // of the current attempt
	Sink    PassthroughSink

	sent     bool // the client has a part of the answer
	complete bool
	brokenBy error // what ended an answer that cannot move

	// State of the current attempt.
	order     engine.PassthroughOrder
	prefilled bool
	chunk     engine.PassthroughChunk
}

// PassthroughSink takes what the attempts of a passthrough request deliver. An error ends the request and is
// its error.
type PassthroughSink interface {
	// StartAttempt is called before the current attempt's worker.
	StartAttempt()
	// HandleChunk takes a piece of the answer, the first of an attempt with its status. sent says that the
	// client has a part of the answer, so that no other worker can be tried.
	HandleChunk(p *engine.PassthroughChunk) (sent bool, err error)
}

// errBroken ends the attempts of a request whose answer failed after the client had a part of it.
var errBroken = errors.New("dispatch: the answer broke, and cannot move")

// PassThrough makes attempts, numbered from first, until the answer is complete.
func (r *Dispatcher) PassThrough(ctx context.Context, t *Passthrough, first uint32) error {
	err := r.runRouted(ctx, t, &t.RoutedTask, first)
	switch {
	case !errors.Is(err, errBroken):
		return err
	case fault.CodeOf(t.brokenBy) == fault.EngineError:
		return t.brokenBy
	}
	return interruptedError(t.brokenBy, "the engine"+r.Place+" did not finish its answer, which only it can go on with: send the request again")
}

// Output returns whether the answer is complete, and how many tokens it has, as far as known.
func (t *Passthrough) Output() (tokens int, complete bool) { return t.outputTokens, t.complete }

// ChooseWorker asks the router for a worker whose engine takes such requests.
func (t *Passthrough) ChooseWorker(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	return t.routeTask(ctx, number, failed, nil, func(c *engine.Card) bool { return !slices.Contains(c.PassthroughPaths, t.Request.Path) })
}

// RunAttempt implements Task.
func (t *Passthrough) RunAttempt(ctx context.Context, number uint32, d route.Decision) error {
	held := t.startAttempt(number, d)
	defer held.Free()
	t.order, t.prefilled = engine.PassthroughOrder{}, false
	t.Request.Attempt, t.Request.Hints = number, t.hintsForRouter()
	t.Sink.StartAttempt()
	err := t.callRouted(ctx, engine.MethodPassthrough, engine.AppendPassthroughRequest(nil, &t.Request), t.handleFrame)
	switch {
	case t.sinkErr != nil:
		return errSink
	case t.complete:
		held.FinishAnswer(t.outputTokens)
		return nil // the answer is complete, regardless of the call's error
	case !t.sent || ctx.Err() != nil:
		return err
	}
	if migrate.CanMigrate(fault.CodeOf(err)) {
		t.dispatcher.Router.ReportFailure(d.Worker, err)
	}
	t.brokenBy = err
	return errBroken
}

// handleFrame handles one frame of the current attempt.
func (t *Passthrough) handleFrame(frame []byte) error {
	p := &t.chunk
	if err := engine.DecodePassthroughChunk(frame, p); err != nil {
		return engine.ContractError("a frame that cannot be read", err)
	}
	if p.Attempt != t.Request.Attempt {
		return nil // a late answer
	}
	if err := t.order.AcceptChunk(p); err != nil {
		return err
	}
	t.recordTokens(p)
	sent, err := t.Sink.HandleChunk(p)
	t.sent, t.complete, t.sinkErr = t.sent || sent, p.Last, err
	return err
}

// recordTokens reports the tokens of a piece to the router.
func (t *Passthrough) recordTokens(p *engine.PassthroughChunk) {
	router, attempt := t.dispatcher.Router, t.Request.Attempt
	switch {
	case p.Last && (!t.prefilled || p.Cached != engine.CachedUnknown):
		router.MarkPrefilled(t.Route.ID, attempt, p.Cached)
	case !t.prefilled && p.Tokens > 0:
		t.prefilled = true
		router.RecordFirstToken(t.Route.ID, attempt, engine.CachedUnknown)
	}
	switch {
	case !p.Last:
		t.recordOutput(attempt, p.Tokens)
	case p.OutputTokens != engine.CachedUnknown:
		t.outputTokens = p.OutputTokens
	default:
		t.outputTokens += p.Tokens
	}
}
