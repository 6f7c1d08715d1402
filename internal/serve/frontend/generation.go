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
	"penstock/internal/attempt"
	"penstock/internal/edge/api"
	"penstock/internal/engine"
)

// generationTask is one prompt of a request, dispatched to workers. One goroutine uses it.
type generation struct {
	f       *Frontend
	model   *model // at the request's arrival; each attempt looks up the current one
	index   int    // of the prompt
	started time.Time
	emit    func(*event) error

	request engine.Request // of the current attempt
	route   route.Request
	rules   textRules
	// guideParam is the client's field that the guide was made from.
	guideParam string
	echo       string
	role       bool // choices begin with a role chunk
	choices    []choice
	left       int // choices not done

	counts    api.TokenCounts
	cachedBy  uint32 // the attempt whose cached tokens count: the first with tokens; 0 before
	numerics  string // of the worker of the first token
	lastToken []time.Time

	// State of the current attempt.
	decision route.Decision
	computes string // the worker's numerics
	accepted bool
	cached   engine.CachedReport
	grown    int // tokens not yet reported to the router
	delta    engine.Delta
	chunks   []api.Chunk
	event    event // the one being emitted

	firstToken prometheus.Observer
	interToken prometheus.Observer
}

// generationEvent is what a generation reports to its answer. It is valid only during the call.
type event struct {
	kind     eventKind
	prompt   int
	attempt  uint32
	decision route.Decision
	numerics string // of the decision's worker
	inexact  bool   // they differ from the numerics of the earlier tokens
	tokens   int    // of the prompt
	cached   int    // the cached part of them, as reported
	chunks   []api.Chunk
}

type eventKind uint8

const (
	routed   eventKind = iota // an attempt goes to decision's worker
	accepted                  // the worker accepted it
	reported                  // the worker reported its cached tokens
	output                    // chunks continue the answer
)

// run makes attempts until the generation is complete, ctx ends, or an attempt fails in a way that no
// other worker can repair.
func (g *generation) run(ctx context.Context) error {
	return g.unguided(g.f.attempts(ctx, g, g.route.Pin.ID != 0))
}

// TokensDelivered implements dispatch.Task.
func (g *generation) Tokens() int { return g.counts.Completion }

// MoveKind implements dispatch.Task.
func (g *generation) Kind() string { return attempt.Kind(g.Tokens()) }

// ChooseWorker asks the router for a worker that has not failed this prompt. Once tokens are sent it
// prefers a worker of the same numerics, because only that one continues bit for bit. If it takes
// another one, the answer says so.
func (g *generation) Choose(ctx context.Context, number uint32, failed []kv.WorkerID) (route.Decision, error) {
	m := g.f.catalog.current(g.model)
	req := g.route
	req.Attempt = number
	excluded := slices.Concat(m.unfit, failed)
	if g.request.Guide != nil {
		excluded = append(excluded, m.unguided()...)
	}
	if len(g.request.Features) > 0 {
		excluded = append(excluded, m.featureless()...)
	}
	var strange []kv.WorkerID
	if g.Tokens() > 0 {
		strange = m.otherNumerics(g.numerics)
	}
	return attempt.Route(ctx, g.f.decides, &req, strange, excluded)
}

// contextError returns why a request's context ended: the cause that the frontend gave, or that the
// client disconnected.
func ended(ctx context.Context) error {
	var f *fault.Error
	if errors.As(context.Cause(ctx), &f) {
		return f
	}
	return &fault.Error{Code: fault.Canceled, Message: "the client closed the connection", Err: context.Cause(ctx)}
}
