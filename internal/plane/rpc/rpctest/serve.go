package rpctest

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"penstock/core/fault"
	"penstock/internal/plane/rpc"
)

func replyWith(text string) rpc.Handler {
	return func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
		return send([]byte(text))
	}
}

// testUnknownAddress calls an address in the plane's own format at which no server listens any
// more.
func testUnknownAddress(t *testing.T, p rpc.Plane) {
	s := startServer(t, p, replyWith("x"))
	s.stop()
	<-s.done
	if err := p.Call(t.Context(), s.addr, "m", nil, discardFrame); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("error %v, want Unavailable", err)
	}
}

func testAddressInUse(t *testing.T, p rpc.Plane) {
	s := startServer(t, p, replyWith("first"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := p.Serve(ctx, s.addr, replyWith("second"), func(string) {
		t.Error("two servers at one address")
		cancel()
	})
	if fault.CodeOf(err) != fault.Conflict {
		t.Errorf("error %v, want Conflict", err)
	}
}

func testTwoServers(t *testing.T, p rpc.Plane) {
	a, b := startServer(t, p, replyWith("a")), startServer(t, p, replyWith("b"))
	if a.addr == b.addr {
		t.Fatalf("both servers were given %q", a.addr)
	}
	for s, want := range map[*testServer]string{a: "a", b: "b"} {
		var f frameRecorder
		if err := p.Call(t.Context(), s.addr, "m", nil, f.record); err != nil || len(f.got) != 1 || f.got[0] != want {
			t.Errorf("%s: error %v and frames %q, want %q", s.addr, err, f.got, want)
		}
	}
}

// testDrain stops a server during a call: the call continues to its end, new calls are refused, and
// Serve returns only then.
func testDrain(t *testing.T, p rpc.Plane) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := startServer(t, p, func(ctx context.Context, method string, _ []byte, send func([]byte) error) error {
		if method == "probe" {
			return nil
		}
		if err := send([]byte("before")); err != nil {
			return err
		}
		close(entered)
		<-leave
		if ctx.Err() != nil {
			return fault.New(fault.Internal, "the call was cancelled by the end of Serve's context")
		}
		return send([]byte("after"))
	})
	var f frameRecorder
	called := make(chan error, 1)
	go func() { called <- p.Call(t.Context(), s.addr, "slow", nil, f.record) }()
	<-entered
	s.stop()
	// The end of ctx takes effect in Serve's own goroutine; until then a probe is answered. On one
	// processor, caller and handler would switch to each other forever without Gosched.
	for p.Call(t.Context(), s.addr, "probe", nil, discardFrame) == nil {
		runtime.Gosched()
	}
	if err := p.Call(t.Context(), s.addr, "probe", nil, discardFrame); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("a call to a draining server: error %v, want Unavailable", err)
	}
	select {
	case <-s.done:
		t.Fatalf("Serve returned %v with a call in progress", s.err)
	default:
	}
	close(leave)
	if err := <-called; err != nil || fmt.Sprint(f.got) != "[before after]" {
		t.Errorf("the drained call: error %v and frames %q", err, f.got)
	}
	if <-s.done; s.err != nil {
		t.Errorf("Serve returned %v, want nil", s.err)
	}
}

func testServeAgain(t *testing.T, p rpc.Plane) {
	s := startServer(t, p, replyWith("old"))
	s.stop()
	<-s.done
	startServerAt(t, p, s.addr, replyWith("new"))
	var f frameRecorder
	if err := p.Call(t.Context(), s.addr, "m", nil, f.record); err != nil || fmt.Sprint(f.got) != "[new]" {
		t.Errorf("error %v and frames %q, want the new server's", err, f.got)
	}
}

// testManyCalls keeps 1000 calls in progress at once before any of them may end.
func testManyCalls(t *testing.T, p rpc.Plane) {
	const calls = 1000
	var entered sync.WaitGroup
	entered.Add(calls)
	s := startServer(t, p, func(ctx context.Context, _ string, body []byte, send func([]byte) error) error {
		entered.Done()
		entered.Wait()
		for i := range 5 {
			if err := send(fmt.Appendf(nil, "%s/%d", body, i)); err != nil {
				return err
			}
		}
		return nil
	})
	var callers sync.WaitGroup
	for c := range calls {
		callers.Go(func() {
			name := strconv.Itoa(c)
			var f frameRecorder
			err := p.Call(t.Context(), s.addr, "m", []byte(name), f.record)
			want := fmt.Sprintf("[%[1]s/0 %[1]s/1 %[1]s/2 %[1]s/3 %[1]s/4]", name)
			if err != nil || fmt.Sprint(f.got) != want {
				t.Errorf("call %d: error %v and frames %v", c, err, f.got)
			}
		})
	}
	callers.Wait()
}

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
