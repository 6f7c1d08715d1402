package rpctest

import (
	"context"
	"testing"

	"penstock/internal/plane/rpc"
)

// testServer is one Serve in progress.
type server struct {
	addr string
	stop context.CancelFunc
	done chan struct{} // closed when Serve has returned
	err  error         // what it returned
}

// startServer starts serving h at an address that the plane chooses, and returns when calls can
// arrive. It stops the server and waits for it at the end of the test.
func serve(t *testing.T, p rpc.Plane, h rpc.Handler) *server {
	t.Helper()
	return serveAt(t, p, "", h)
}

func serveAt(t *testing.T, p rpc.Plane, addr string, h rpc.Handler) *server {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{stop: cancel, done: make(chan struct{})}
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
type frames struct{ got []string }

func (f *frames) recv(b []byte) error {
	f.got = append(f.got, string(b))
	return nil
}

func discard([]byte) error { return nil }
