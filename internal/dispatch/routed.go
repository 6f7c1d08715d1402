package dispatch

import (
	"context"
	"slices"

	"penstock/core/disagg"
	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/catalog"
	"penstock/internal/engine"
)

// Router decides which worker serves a prompt and tracks its load. Implementations are safe for
// concurrent use.
type Router interface {
	// Route chooses a worker and reserves the request's load there under the request's ID and Attempt.
	// The error is a *fault.Error; nothing is reserved then. Route keeps nothing of req.
	Route(ctx context.Context, req *route.Request) (route.Decision, error)
	// RecordFirstToken says that the attempt's first token has arrived, and that its worker had cached
	// tokens of the prompt in its cache. If cached is engine.CachedUnknown, it is called again if the
	// worker reports it later.
	RecordFirstToken(id string, attempt uint32, cached int)
	// MarkPrefilled is RecordFirstToken for an answer which arrives whole, at its end.
	MarkPrefilled(id string, attempt uint32, cached int)
	// RecordOutput says that the attempt has generated more tokens. It is called about once for each
	// block of them.
	RecordOutput(id string, attempt uint32, tokens int)
	Reservations
	// ReportFailure says that a call to a worker failed with err, which is the worker's failure or its
	// refusal and not the request's: [fault.Class] says Retryable.
	ReportFailure(w kv.Worker, err error)
}

// SplitRouter is a Router which knows what is set about where prompts are computed, and keeps what is reported about it.
type SplitRouter interface {
	Router
	// SplitSettings returns what is set for a request: by itself, for its model at run time, by the configuration.
	SplitSettings(req *route.Request) disagg.SplitSettings
	// RecordSplit keeps s, the report of the worker of an attempt.
	RecordSplit(id string, attempt uint32, s *engine.SplitReport)
}

// RoutedTask is what the tasks whose workers the router chooses have in common.
type RoutedTask struct {
	// Route is what the router is asked. A task with a pinned worker does not move.
	Route route.Request
	// Workers returns the model's latest workers.
	Workers func() *catalog.Model
	// Decision chose the current attempt's worker.
	Decision route.Decision

	dispatcher       *Dispatcher
	sinkErr          error // of what takes the answer
	outputTokens     int   // of the current attempt, of all choices
	unreportedTokens int   // of them: not yet reported to the router
}

// TokensDelivered implements Task: nothing is delivered before the end.
func (t *RoutedTask) TokensDelivered() int { return 0 }

// MoveKind implements Task.
func (t *RoutedTask) MoveKind() string { return MoveNewRequest }

// hintsForRouter returns the request's hints for a router process, which alone reads them; nil if the chosen worker is
// known to be an engine's.
func (t *RoutedTask) hintsForRouter() []byte {
	if !t.dispatcher.HasRouters {
		return nil
	}
	m := t.Workers()
	at := slices.IndexFunc(m.Workers, func(w *catalog.Worker) bool { return w.ID == t.Decision.Worker.ID })
	if at >= 0 && !m.Workers[at].Card.Router {
		return nil
	}
	return EncodeHints(&t.Route)
}

// routeTask asks the router for a worker which is not in failed, whose card does not satisfy lacks, and
// which preferably is not in avoid. A model that the router does not know, or no longer, counts as a model without
// workers, because the caller knows that it exists.
func (t *RoutedTask) routeTask(ctx context.Context, number uint32, failed, avoid []kv.WorkerID, lacks func(*engine.Card) bool) (route.Decision, error) {
	m := t.Workers()
	req := t.Route
	req.Attempt = number
	var unable []kv.WorkerID
	if lacks != nil {
		unable = m.WorkersWhere(lacks)
	}
	req.Exclude = slices.Concat(m.Unfit, unable, failed)
	if len(avoid) > 0 {
		preferred := req
		preferred.Exclude = slices.Concat(avoid, req.Exclude)
		d, err := t.dispatcher.routeTraced(ctx, &preferred)
		if err == nil || ctx.Err() != nil {
			return d, err
		}
	}
	d, err := t.dispatcher.routeTraced(ctx, &req)
	if fault.CodeOf(err) == fault.NotFound && req.Pin.ID == 0 {
		err = fault.New(fault.Unavailable, "the model '%s' has no worker now: try again later", req.Model)
	}
	return d, err
}

// startAttempt starts an attempt on the worker that was chosen and reserved for it.
func (t *RoutedTask) startAttempt(number uint32, d route.Decision) *HeldReservation {
	t.Decision, t.outputTokens, t.unreportedTokens = d, 0, 0
	return HoldReservation(t.dispatcher.Router, t.Route.ID, number)
}

// callRouted calls the current attempt's worker.
func (t *RoutedTask) callRouted(ctx context.Context, method string, body []byte, recv func(frame []byte) error) error {
	return CallWorker(ctx, t.dispatcher.Plane, t.dispatcher.StallTimeout, t.Decision, method, body, recv)
}

// recordOutput counts n tokens of an attempt, and tells the router when they fill a block.
func (t *RoutedTask) recordOutput(attempt uint32, n int) {
	t.outputTokens += n
	if t.unreportedTokens += n; n > 0 && t.Decision.BlockSize > 0 && t.unreportedTokens >= t.Decision.BlockSize {
		t.dispatcher.Router.RecordOutput(t.Route.ID, attempt, t.unreportedTokens)
		t.unreportedTokens = 0
	}
}
