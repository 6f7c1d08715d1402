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

// Tracer starts the spans of a trace: one for each stage of a request. A nil Tracer starts none, at
// no cost.
//
// Spans carry numbers, ids and names, never a prompt, a token or a key, so that traces may be shown
// to people without access to user content.
type Tracer struct{ tracer trace.Tracer }

// NewTracer returns a tracer whose spans go to p.
func NewTracer(p trace.TracerProvider) *Tracer { return &Tracer{p.Tracer("penstock")} }

// Span is a stage of a request. The zero Span is that of a disabled tracer. It is not safe for
// concurrent use.
type Span struct{ span trace.Span }

// Start starts a span under that of ctx, and returns a context with it, which calls over the
// request plane propagate.
func (t *Tracer) Start(ctx context.Context, name string) (context.Context, Span) {
	return t.startKind(ctx, name, trace.SpanKindInternal)
}

// StartClient starts the span of a call to another process.
func (t *Tracer) StartClient(ctx context.Context, name string) (context.Context, Span) {
	return t.startKind(ctx, name, trace.SpanKindClient)
}

// StartServer starts the span of a call from another process.
func (t *Tracer) StartServer(ctx context.Context, name string) (context.Context, Span) {
	return t.startKind(ctx, name, trace.SpanKindServer)
}

func (t *Tracer) startKind(ctx context.Context, name string, kind trace.SpanKind) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kind))
	return ctx, Span{span}
}

// ExtractTrace returns ctx with the trace of a request's W3C headers, so that spans started here,
// or only further downstream, continue it.
func ExtractTrace(ctx context.Context, h http.Header) context.Context {
	if h.Get("Traceparent") == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(h))
}

// IsRecording reports whether the span is exported, and so whether computing expensive attributes
// is worthwhile.
func (s Span) IsRecording() bool { return s.span != nil && s.span.IsRecording() }

// SetName changes the span's name.
func (s Span) SetName(name string) {
	if s.span != nil {
		s.span.SetName(name)
	}
}

// SetInt sets an integer attribute.
func (s Span) SetInt(key string, v int64) {
	if s.IsRecording() {
		s.span.SetAttributes(attribute.Int64(key, v))
	}
}

// SetFloat sets a floating-point attribute.
func (s Span) SetFloat(key string, v float64) {
	if s.IsRecording() {
		s.span.SetAttributes(attribute.Float64(key, v))
	}
}

// SetText sets an attribute which is an id or a name.
func (s Span) SetText(key, v string) {
	if s.IsRecording() {
		s.span.SetAttributes(attribute.String(key, v))
	}
}

// End ends the span with the outcome of the stage. Only the code of an error is recorded. A server
// error marks the span as failed; errors of the client and cancellations do not.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil && s.span.IsRecording() {
		code := fault.CodeOf(err)
		s.span.SetAttributes(attribute.String("error.type", code.String()))
		if code.Class().Status >= http.StatusInternalServerError {
			s.span.SetStatus(codes.Error, code.String())
		}
	}
	s.span.End()
}
