package rpctest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/rpc"
)

// sendEndlessly returns a handler which sends until the call is over and reports the error of its
// context.
func sendEndlessly(over chan<- error) rpc.Handler {
	return func(ctx context.Context, _ string, _ []byte, send func([]byte) error) error {
		for {
			if err := send([]byte("more")); err != nil {
				<-ctx.Done() // send fails for no other reason here
				over <- ctx.Err()
				return err
			}
		}
	}
}

func testCallerCancels(t *testing.T, p rpc.Plane) {
	over := make(chan error, 1)
	s := startServer(t, p, sendEndlessly(over))
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := p.Call(ctx, s.addr, "m", nil, func([]byte) error {
		if n++; n == 3 {
			cancel()
		}
		if n > 3 {
			t.Error("a frame was delivered after ctx had ended")
		}
		return nil
	})
	if err != context.Canceled {
		t.Errorf("Call returned %v, want context.Canceled", err)
	}
	if err := <-over; err != context.Canceled {
		t.Errorf("the handler's context ended with %v, want context.Canceled", err)
	}
}

// testCallerDeadline lets the deadline pass while the handler sends nothing. On a machine without
// spare CPU the deadline may pass before the call reaches the handler.
func testCallerDeadline(t *testing.T, p rpc.Plane) {
	var begun atomic.Bool
	over := make(chan struct{})
	s := startServer(t, p, func(ctx context.Context, _ string, _ []byte, _ func([]byte) error) error {
		begun.Store(true)
		<-ctx.Done()
		close(over)
		return ctx.Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Call(ctx, s.addr, "m", nil, discardFrame); err != context.DeadlineExceeded {
		t.Errorf("Call returned %v, want context.DeadlineExceeded", err)
	}
	if begun.Load() {
		<-over
	}
}

func testCanceledBefore(t *testing.T, p rpc.Plane) {
	s := startServer(t, p, func(context.Context, string, []byte, func([]byte) error) error { return nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Call(ctx, s.addr, "m", nil, discardFrame); err != context.Canceled {
		t.Errorf("Call returned %v, want context.Canceled", err)
	}
}

func testRecvFails(t *testing.T, p rpc.Plane) {
	over := make(chan error, 1)
	s := startServer(t, p, sendEndlessly(over))
	enough := errors.New("enough")
	n := 0
	err := p.Call(t.Context(), s.addr, "m", nil, func([]byte) error {
		n++
		return enough
	})
	if err != enough || n != 1 {
		t.Errorf("Call returned %v after %d frames, want recv's own error after one", err, n)
	}
	if err := <-over; err != context.Canceled {
		t.Errorf("the handler's context ended with %v, want context.Canceled", err)
	}
}

// testSendAfterEnd uses send after the handler has returned.
func testSendAfterEnd(t *testing.T, p rpc.Plane) {
	kept := make(chan func([]byte) error, 1)
	s := startServer(t, p, func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
		kept <- send
		return nil
	})
	var f frameRecorder
	if err := p.Call(t.Context(), s.addr, "m", nil, f.record); err != nil {
		t.Fatal(err)
	}
	send := <-kept
	for range 2 * rpc.Credit {
		if err := send([]byte("late")); err == nil {
			t.Fatal("a send after the handler returned succeeded")
		}
	}
	if len(f.got) != 0 {
		t.Errorf("%d late frames were delivered", len(f.got))
	}
}

func testFaultRoundTrip(t *testing.T, p rpc.Plane) {
	var reply error
	s := startServer(t, p, func(context.Context, string, []byte, func([]byte) error) error { return reply })
	for code := fault.Internal; code <= fault.PoolLost; code++ {
		want := &fault.Error{Code: code, Message: "näme: " + code.String(), Param: "messages[0].content", RetryAfter: 1500 * time.Millisecond}
		reply = errors.Join(errors.New("wrapped"), want)
		err := p.Call(t.Context(), s.addr, "m", nil, discardFrame)
		var got *fault.Error
		if !errors.As(err, &got) {
			t.Fatalf("%v came back as %T: %v", code, err, err)
		}
		if got.Code != want.Code || got.Message != want.Message || got.Param != want.Param || got.RetryAfter != want.RetryAfter {
			t.Errorf("%+v came back as %+v", want, got)
		}
	}
}

func testPlainError(t *testing.T, p rpc.Plane) {
	secret := errors.New("secret path /etc")
	s := startServer(t, p, func(context.Context, string, []byte, func([]byte) error) error { return secret })
	err := p.Call(t.Context(), s.addr, "m", nil, discardFrame)
	var got *fault.Error
	if !errors.As(err, &got) || got.Code != fault.Internal {
		t.Fatalf("error %v, want Internal", err)
	}
	if errors.Is(err, secret) || got.Message == secret.Error() {
		t.Errorf("the handler's private error reached the client: %v", err)
	}
}

func testFramesBeforeError(t *testing.T, p rpc.Plane) {
	s := startServer(t, p, func(_ context.Context, _ string, _ []byte, send func([]byte) error) error {
		for range rpc.Credit {
			if err := send([]byte("f")); err != nil {
				return err
			}
		}
		return fault.New(fault.Overloaded, "enough")
	})
	var f frameRecorder
	err := p.Call(t.Context(), s.addr, "m", nil, f.record)
	if fault.CodeOf(err) != fault.Overloaded || len(f.got) != rpc.Credit {
		t.Errorf("error %v after %d frames, want Overloaded after %d", err, len(f.got), rpc.Credit)
	}
}

func testPanic(t *testing.T, p rpc.Plane) {
	s := startServer(t, p, func(_ context.Context, method string, _ []byte, send func([]byte) error) error {
		if method == "crash" {
			panic("defect")
		}
		return send([]byte("alive"))
	})
	err := p.Call(t.Context(), s.addr, "crash", nil, discardFrame)
	if err == nil || fault.CodeOf(err) != fault.Internal {
		t.Errorf("error %v, want Internal", err)
	}
	var f frameRecorder
	if err := p.Call(t.Context(), s.addr, "m", nil, f.record); err != nil || len(f.got) != 1 {
		t.Errorf("after a crash: error %v and frames %q", err, f.got)
	}
}
