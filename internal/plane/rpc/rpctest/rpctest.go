// Package rpctest is the conformance suite of request planes. It relies only on the contract: no
// fake time, no knowledge of the transport.
package rpctest

import (
	"context"
	"testing"

	"penstock/internal/plane/rpc"
)

// Run tests the plane that open returns. Each part opens its own plane; open registers its cleanup
// with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) rpc.Plane) {
	parts := []struct {
		name string
		test func(*testing.T, rpc.Plane)
	}{
		{"order", testOrder},
		{"empty frames", testEmptyFrames},
		{"no frames", testNoFrames},
		{"large body", testLargeBody},
		{"limits", testLimits},
		{"frame is copied", testFrameIsCopied},
		{"body is copied", testBodyIsCopied},
		{"backpressure", testBackpressure},
		{"caller cancels", testCallerCancels},
		{"caller's deadline", testCallerDeadline},
		{"deadline travels", testDeadlineTravels},
		{"trace", testTrace},
		{"canceled before", testCanceledBefore},
		{"recv fails", testRecvFails},
		{"send after the end", testSendAfterEnd},
		{"fault round trip", testFaultRoundTrip},
		{"plain error", testPlainError},
		{"frames before an error", testFramesBeforeError},
		{"panic", testPanic},
		{"unknown address", testUnknownAddress},
		{"address in use", testAddressInUse},
		{"two servers", testTwoServers},
		{"drain", testDrain},
		{"serve again", testServeAgain},
		{"many calls", testManyCalls},
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { p.test(t, open(t)) })
	}
}

// testServer is one Serve in progress.
type testServer struct {
	addr string
	stop context.CancelFunc
	done chan struct{} // closed when Serve has returned
	err  error         // what it returned
}

// startServer starts serving h at an address that the plane chooses, and returns when calls can
// arrive. It stops the server and waits for it at the end of the test.
func startServer(t *testing.T, p rpc.Plane, h rpc.Handler) *testServer {
	t.Helper()
	return startServerAt(t, p, "", h)
}

func startServerAt(t *testing.T, p rpc.Plane, addr string, h rpc.Handler) *testServer {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &testServer{stop: cancel, done: make(chan struct{})}
	ready := make(chan string, 1)
	go func() {
		defer close(s.done)
		s.err = p.Serve(ctx, addr, h, func(addr string) { ready <- addr })
	}()
	t.Cleanup(func() {
		s.stop()
		<-s.done
	})
	select {
	case s.addr = <-ready:
	case <-s.done:
		t.Fatalf("Serve returned before it was ready: %v", s.err)
	}
	return s
}

// frameRecorder is a recv which keeps copies of the frames.
type frameRecorder struct{ got []string }

func (f *frameRecorder) record(b []byte) error {
	f.got = append(f.got, string(b))
	return nil
}

func discardFrame([]byte) error { return nil }
