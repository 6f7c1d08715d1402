package rpc

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// callMetadata travels with a call in addition to its method and body: the caller's remaining time
// and trace context.
type callMetadata struct {
	// budget is the time left until the caller's deadline; 0 means no deadline. It is a duration,
	// not a point in time, because clocks differ.
	budget time.Duration
	// parent and state are the W3C Trace Context headers traceparent and tracestate; "" without a
	// trace.
	parent, state string
}

// maxTrace bounds parent and state, in bytes. Longer values are not sent.
const maxTrace = 512

const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)

// newCallMetadata returns the metadata of a call under ctx. ctx has not ended.
func newCallMetadata(ctx context.Context) callMetadata {
	var e callMetadata
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

// handlerContext returns the context of a handler. It ends with parent or when the caller's budget
// is used up, and carries the caller's trace.
func (e callMetadata) handlerContext(parent context.Context) (context.Context, context.CancelFunc) {
	if e.parent != "" {
		parent = propagation.TraceContext{}.Extract(parent, propagation.MapCarrier{traceParent: e.parent, traceState: e.state})
	}
	if e.budget <= 0 {
		return context.WithCancel(parent)
	}
	return context.WithTimeout(parent, e.budget)
}

// budgetMillis returns the budget in milliseconds, rounded up because 0 means no deadline, and at
// most what four bytes hold.
func (e callMetadata) budgetMillis() int64 {
	return min(int64((e.budget+time.Millisecond-1)/time.Millisecond), 1<<32-1)
}

// contextErr returns ctx's error if ctx has ended. If ctx's deadline has passed, it first waits for
// ctx to end, which takes a moment at most: the handler's timer runs in parallel and may have fired
// first, so the handler's error may only echo the deadline.
func contextErr(ctx context.Context) error {
	if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) {
		<-ctx.Done()
	}
	return ctx.Err()
}
