package rpc

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// envelope is what travels with a call beside its method and body: how much time
// the caller has left, and the trace that the call is part of.
type envelope struct {
	// budget is the time to the caller's deadline; 0 is no deadline. It travels as
	// a length, not as a moment: clocks differ.
	budget time.Duration
	// parent and state are the headers traceparent and tracestate of W3C Trace
	// Context; "" without a trace.
	parent, state string
}

// maxTrace bounds parent and state, in bytes; what is longer does not travel.
const maxTrace = 512

const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)

// envelop returns what a call under ctx carries. ctx has not ended.
func envelop(ctx context.Context) envelope {
	var e envelope
	if at, ok := ctx.Deadline(); ok {
		e.budget = max(time.Until(at), 1)
	}
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return e
	}
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, headers)
	if p, s := headers[traceParent], headers[traceState]; len(p) <= maxTrace && len(s) <= maxTrace {
		e.parent, e.state = p, s
	}
	return e
}

// open returns the context of a handler: it ends with parent or when the caller's
// time is up, and knows the caller's trace.
func (e envelope) open(parent context.Context) (context.Context, context.CancelFunc) {
	if e.parent != "" {
		parent = propagation.TraceContext{}.Extract(parent, propagation.MapCarrier{traceParent: e.parent, traceState: e.state})
	}
	if e.budget <= 0 {
		return context.WithCancel(parent)
	}
	return context.WithTimeout(parent, e.budget)
}

// millis returns the budget in whole milliseconds, at most what four bytes hold. It
// counts upwards: none is no deadline.
func (e envelope) millis() int64 {
	return min(int64((e.budget+time.Millisecond-1)/time.Millisecond), 1<<32-1)
}

// over returns ctx's error if it has ended. When its deadline has passed it waits
// for that end, which is a moment away: the handler's clock, which runs beside it,
// may have been the faster, and what the handler says then is an echo.
func over(ctx context.Context) error {
	if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) {
		<-ctx.Done()
	}
	return ctx.Err()
}
