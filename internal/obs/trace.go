package obs

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"penstock/core/fault"
)

// Tracer starts the spans of a trace: one for each stage that a request passes
// through. Nil starts none, and costs nothing.
//
// A span has numbers, ids and names: never a prompt, a token or a key, so that a
// trace may be shown to those who must not see what users write.
type Tracer struct{ tracer trace.Tracer }

// NewTracer returns a tracer whose spans go to p.
func NewTracer(p trace.TracerProvider) *Tracer { return &Tracer{p.Tracer("penstock")} }

// Span is a stage of a request; the zero Span is that of a tracer that is off. It is
// used by one goroutine at a time.
type Span struct{ span trace.Span }

// Start starts a span under that of ctx, and returns a context that has it: calls
// over the request plane carry it to others.
func (t *Tracer) Start(ctx context.Context, name string) (context.Context, Span) {
	return t.start(ctx, name, trace.SpanKindInternal)
}

// Client starts the span of a call to another process.
func (t *Tracer) Client(ctx context.Context, name string) (context.Context, Span) {
	return t.start(ctx, name, trace.SpanKindClient)
}

// Serve starts the span of a call that another process made.
func (t *Tracer) Serve(ctx context.Context, name string) (context.Context, Span) {
	return t.start(ctx, name, trace.SpanKindServer)
}

func (t *Tracer) start(ctx context.Context, name string, kind trace.SpanKind) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kind))
	return ctx, Span{span}
}

// Incoming returns ctx with the trace that a request's W3C headers say it is part
// of, so that what is traced here, or only further on, continues it.
func Incoming(ctx context.Context, h http.Header) context.Context {
	if h.Get("Traceparent") == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(h))
}

// Recording reports whether anybody will see the span: whether it is worth the work
// of saying more than numbers.
func (s Span) Recording() bool { return s.span != nil && s.span.IsRecording() }

// Name changes the span's name.
func (s Span) Name(name string) {
	if s.span != nil {
		s.span.SetName(name)
	}
}

// Int says a number.
func (s Span) Int(key string, v int64) {
	if s.Recording() {
		s.span.SetAttributes(attribute.Int64(key, v))
	}
}

// Float says a number that may not be whole.
func (s Span) Float(key string, v float64) {
	if s.Recording() {
		s.span.SetAttributes(attribute.Float64(key, v))
	}
}

// Text says an id or a name.
func (s Span) Text(key, v string) {
	if s.Recording() {
		s.span.SetAttributes(attribute.String(key, v))
	}
}

// End ends the span with what became of the stage. An error is told by its code
// alone; one that is not the client's own, or the client's going, marks the span as
// failed.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil && s.span.IsRecording() {
		code := fault.Of(err)
		s.span.SetAttributes(attribute.String("error.type", code.String()))
		if code.Class().Status >= http.StatusInternalServerError {
			s.span.SetStatus(codes.Error, code.String())
		}
	}
	s.span.End()
}
