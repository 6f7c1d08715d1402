package frontend

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"penstock/core/fault"
	"penstock/core/route"
	"penstock/internal/dispatch"
	"penstock/internal/edge/api"
)

// generationTask is one prompt of a request: it turns what workers generate into the text of its choices.
// One goroutine uses it.
type generationTask struct {
	dispatch.Generation
	model   *servedModel // at the request's arrival
	index   int          // of the prompt
	started time.Time
	emit    func(*generationEvent) error

	rules textRules
	// guideParam is the client's field that the guide was made from.
	guideParam string
	echo       string
	sendsRole  bool // choices begin with a role chunk
	choices    []answerChoice

	counts    api.TokenCounts
	cachedBy  uint32 // the attempt whose cached tokens count: the first with tokens; 0 before
	lastToken []time.Time
	chunks    []api.Chunk
	event     generationEvent // the one being emitted

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
	eventRouted   = generationEventKind(dispatch.AttemptRouted)   // an attempt goes to decision's worker
	eventAccepted = generationEventKind(dispatch.AttemptAccepted) // the worker accepted it
	eventReported = generationEventKind(dispatch.AttemptReported) // the worker reported its cached tokens
	eventOutput   = eventReported + 1                             // chunks continue the answer
)

// contextError returns why a request's context ended: the cause that the frontend gave, or that the
// client disconnected.
func contextError(ctx context.Context) error {
	var f *fault.Error
	if errors.As(context.Cause(ctx), &f) {
		return f
	}
	return &fault.Error{Code: fault.Canceled, Message: "the client closed the connection", Err: context.Cause(ctx)}
}
