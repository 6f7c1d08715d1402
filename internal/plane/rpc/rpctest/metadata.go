package rpctest

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"penstock/internal/plane/rpc"
)

// testTrace: the handler's span context belongs to the caller's trace, and is invalid without one.
func testTrace(t *testing.T, p rpc.Plane) {
	seen := make(chan trace.SpanContext, 1)
	s := startServer(t, p, func(ctx context.Context, _ string, _ []byte, _ func([]byte) error) error {
		seen <- trace.SpanContextFromContext(ctx)
		return nil
	})
	state, err := trace.ParseTraceState("vendor=a,other=b")
	if err != nil {
		t.Fatal(err)
	}
	want := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{4, 5}, TraceFlags: trace.FlagsSampled, TraceState: state, Remote: true,
	})
	if err := p.Call(trace.ContextWithSpanContext(t.Context(), want), s.addr, "m", nil, discardFrame); err != nil {
		t.Fatal(err)
	}
	if got := <-seen; !got.Equal(want) {
		t.Errorf("the handler's span context is %+v, want %+v", got, want)
	}
	if err := p.Call(t.Context(), s.addr, "m", nil, discardFrame); err != nil {
		t.Fatal(err)
	}
	if got := <-seen; got.IsValid() {
		t.Errorf("a call without a trace is part of %+v", got)
	}
}

// testDeadlineTravels: the handler's context has the caller's deadline.
func testDeadlineTravels(t *testing.T, p rpc.Plane) {
	left := make(chan time.Duration, 1)
	s := startServer(t, p, func(ctx context.Context, _ string, _ []byte, _ func([]byte) error) error {
		at, ok := ctx.Deadline()
		if !ok {
			left <- 0
			return nil
		}
		left <- time.Until(at)
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if err := p.Call(ctx, s.addr, "m", nil, discardFrame); err != nil {
		t.Fatal(err)
	}
	if got := <-left; got <= 0 || got > time.Hour {
		t.Errorf("the handler has %v left, want at most an hour", got)
	}
	if err := p.Call(t.Context(), s.addr, "m", nil, discardFrame); err != nil {
		t.Fatal(err)
	}
	if got := <-left; got != 0 {
		t.Errorf("the handler has %v left although its caller waits for ever", got)
	}
}
