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

// generation is one prompt of a request on its way through workers. It belongs
// to one goroutine.
type generation struct {
	f       *Frontend
	model   *model // as it was when the request came; each attempt looks again
	index   int    // of the prompt
	started time.Time
	emit    func(*event) error

	request engine.Request // of the attempt in progress
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
	numerics  string // that the first token came from
	lastToken []time.Time

	// Of the attempt in progress.
	decision route.Decision
	computes string // the worker's numerics
	accepted bool
	cached   engine.CachedReport
	grown    int // tokens that the router was not told of
	delta    engine.Delta
	chunks   []api.Chunk
	event    event // the one being emitted

	firstToken prometheus.Observer
	interToken prometheus.Observer
}

// event is what a generation tells the answer that it is part of. It is valid
// during the call only.
type event struct {
	kind     eventKind
	prompt   int
	attempt  uint32
	decision route.Decision
	numerics string // of the decision's worker
	inexact  bool   // they are not those that the tokens before came from
	tokens   int    // of the prompt
	cached   int    // of those, as reported
	chunks   []api.Chunk
}

type eventKind uint8

const (
	routed   eventKind = iota // an attempt goes to decision's worker
	accepted                  // the worker took it
	reported                  // the worker said what it had cached
	output                    // chunks continue the answer
)

// run makes attempts until the generation is complete, ctx ends, or an attempt
// fails that no other worker can make good.
func (g *generation) run(ctx context.Context) error {
	return g.unguided(g.f.attempts(ctx, g, g.route.Pin.ID != 0))
}

// Tokens implements attempt.Task.
func (g *generation) Tokens() int { return g.counts.Completion }

// Kind implements attempt.Task.
func (g *generation) Kind() string { return attempt.Kind(g.Tokens()) }

// Choose asks the router for a worker that has not failed this prompt. Once
// tokens are out, a worker of the same numerics is preferred: only it goes on bit
// for bit. Another is better than none, and the answer says so.
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

// ended returns why a request's context ended: the cause that the frontend gave,
// or that the client went away.
func ended(ctx context.Context) error {
	var f *fault.Error
	if errors.As(context.Cause(ctx), &f) {
		return f
	}
	return &fault.Error{Code: fault.Canceled, Message: "the client closed the connection", Err: context.Cause(ctx)}
}
