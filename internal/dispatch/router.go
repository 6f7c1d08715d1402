package dispatch

import (
	"context"
	"iter"
	"slices"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
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

// RouteAvoiding asks for a worker for req which is not in exclude, and preferably not in avoid. It sets
// req.Exclude. A model that the router does not know, or no longer, counts as a model without workers,
// because the caller knows that it exists.
func RouteAvoiding(ctx context.Context, router Router, req *route.Request, avoid, exclude []kv.WorkerID) (route.Decision, error) {
	if len(avoid) > 0 {
		req.Exclude = slices.Concat(avoid, exclude)
		d, err := router.Route(ctx, req)
		if err == nil || ctx.Err() != nil {
			return d, err
		}
	}
	req.Exclude = exclude
	d, err := router.Route(ctx, req)
	if fault.CodeOf(err) == fault.NotFound && req.Pin.ID == 0 {
		err = fault.New(fault.Unavailable, "the model '%s' has no worker now: try again later", req.Model)
	}
	return d, err
}

// ModelWorkers is the set of a model's registered workers at one time. It is immutable.
type ModelWorkers interface {
	// FitWorkers yields the workers that requests may go to.
	FitWorkers() iter.Seq[ModelWorker]
	// UnfitWorkers returns the workers that serve the model's name with a different card.
	UnfitWorkers() []kv.WorkerID
}

// ModelWorker is one worker of a model.
type ModelWorker struct {
	ID   kv.WorkerID
	Addr string
	Card *engine.Card // not to be changed
}

// workersWhere appends the ids of the fit workers whose card satisfies match.
func workersWhere(ids []kv.WorkerID, m ModelWorkers, match func(*engine.Card) bool) []kv.WorkerID {
	for w := range m.FitWorkers() {
		if match(w.Card) {
			ids = append(ids, w.ID)
		}
	}
	return ids
}

// numericsOf returns the numerics of a worker; "" if unknown.
func numericsOf(m ModelWorkers, id kv.WorkerID) string {
	for w := range m.FitWorkers() {
		if w.ID == id {
			return w.Card.Numerics
		}
	}
	return ""
}
