package frontend

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/edge/api"
	"penstock/internal/engine"
)

// generationTask is one prompt of a request, dispatched to workers. One goroutine uses it.
type generationTask struct {
	f       *Frontend
	model   *servedModel // at the request's arrival; each attempt looks up the current one
	index   int          // of the prompt
	started time.Time
	emit    func(*generationEvent) error

	request engine.Request // of the current attempt
	route   route.Request
	rules   textRules
	// guideParam is the client's field that the guide was made from.
	guideParam  string
	echo        string
	sendsRole   bool // choices begin with a role chunk
	choices     []answerChoice
	openChoices int // choices not done

	counts        api.TokenCounts
	cachedBy      uint32 // the attempt whose cached tokens count: the first with tokens; 0 before
	firstNumerics string // of the worker of the first token
	lastToken     []time.Time

	// State of the current attempt.
	decision         route.Decision
	workerNumerics   string // the worker's numerics
	accepted         bool
	cached           engine.CachedReport
	unreportedTokens int // tokens not yet reported to the router
	attemptTokens    int // tokens of the attempt, of all choices
	delta            engine.Delta
	chunks           []api.Chunk
	event            generationEvent // the one being emitted

	firstToken prometheus.Observer
	interToken prometheus.Observer
}

// generationEvent is what a generation reports to its answer. It is valid only during the call.
type generationEvent struct {
	kind     generationEventKind
	prompt   int
	attempt  uint32
	decision route.Decision
	numerics string // of the decision's worker
	inexact  bool   // they differ from the numerics of the earlier tokens
	tokens   int    // of the prompt
	cached   int    // the cached part of them, as reported
	chunks   []api.Chunk
}

type generationEventKind uint8

const (
	eventRouted   generationEventKind = iota // an attempt goes to decision's worker
	eventAccepted                            // the worker accepted it
	eventReported                            // the worker reported its cached tokens
	eventOutput                              // chunks continue the answer
)

// run makes attempts until the generation is complete, ctx ends, or an attempt fails in a way that no
// other worker can repair.
func (g *generationTask) run(ctx context.Context) error {
	return g.clientGuideError(g.f.runAttempts(ctx, g, g.route.Pin.ID != 0))
}

// TokensDelivered implements dispatch.Task.
func (g *generationTask) TokensDelivered() int { return g.counts.Completion }

// MoveKind implements dispatch.Task.
func (g *generationTask) MoveKind() string { return dispatch.MoveKind(g.TokensDelivered()) }

// ChooseWorker asks the router for a worker that has not failed this prompt. Once tokens are sent it
// prefers a worker of the same numerics, because only that one continues bit for bit. If it takes
// another one, the answer says so.
func (g *generationTask) ChooseWorker(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := g.f.catalog.currentModel(g.model)
	req := g.route
	req.Attempt = number
	excluded := slices.Concat(m.Unfit, failed)
	if g.request.OutputSchema != nil {
		excluded = append(excluded, m.WithoutGuides()...)
	}
	if len(g.request.Features) > 0 {
		excluded = append(excluded, m.WithoutFeatures()...)
	}
	var strange []kv.WorkerID
	if g.TokensDelivered() > 0 {
		strange = m.WithOtherNumerics(g.firstNumerics)
	}
	return dispatch.RouteAvoiding(ctx, g.f.router, &req, strange, excluded)
}

// contextError returns why a request's context ended: the cause that the frontend gave, or that the
// client disconnected.
func contextError(ctx context.Context) error {
	var f *fault.Error
	if errors.As(context.Cause(ctx), &f) {
		return f
	}
	return &fault.Error{Code: fault.Canceled, Message: "the client closed the connection", Err: context.Cause(ctx)}
}
