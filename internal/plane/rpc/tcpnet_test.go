package rpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// pipeNet is a network with one listener, made of net.Pipe, for synctest bubbles. It can be cut:
// bytes then vanish without an error.
type pipeNet struct {
	backlog chan net.Conn
	closed  chan struct{}
	once    sync.Once
	cut     atomic.Bool
	dialled atomic.Int64
	pumps   sync.WaitGroup
}

func newPipeNet() *pipeNet {
	return &pipeNet{backlog: make(chan net.Conn, 16), closed: make(chan struct{})}
}

func (n *pipeNet) Accept() (net.Conn, error) {
	select {
	case c := <-n.backlog:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *pipeNet) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe:1" }

func (n *pipeNet) Addr() net.Addr { return pipeAddr{} }

// dial returns the client's end of a connection on which each direction is
// carried by a pump.
func (n *pipeNet) dial() (net.Conn, error) {
	select {
	case <-n.closed:
		return nil, errors.New("connection refused")
	default:
	}
	client, a := net.Pipe()
	b, server := net.Pipe()
	n.pumps.Go(func() { n.pump(a, b) })
	n.pumps.Go(func() { n.pump(b, a) })
	n.dialled.Add(1)
	n.backlog <- server
	return client, nil
}

func (n *pipeNet) pump(from, to net.Conn) {
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		k, err := from.Read(buf)
		if err != nil {
			break
		}
		if n.cut.Load() {
			continue
		}
		if _, err := to.Write(buf[:k]); err != nil {
			break
		}
	}
	if !n.cut.Load() { // the end of a connection is lost in a cut too
		to.Close()
	}
}

// planeOn returns a plane over n.
func planeOn(t *testing.T, n *pipeNet, cfg TCPConfig) *TCPPlane {
	t.Helper()
	p, err := NewTCPPlane(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.listen = func(string) (net.Listener, error) { return n, nil }
	p.dial = func(context.Context, string) (net.Conn, error) { return n.dial() }
	return p
}

// planeCounting returns a plane over the loopback interface, and the number of
// connections that it has dialled.
func planeCounting(t *testing.T, cfg TCPConfig) (*TCPPlane, *atomic.Int64) {
	t.Helper()
	p, err := NewTCPPlane(WithPatience(cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	var dialled atomic.Int64
	dial := p.dial
	p.dial = func(ctx context.Context, addr string) (net.Conn, error) {
		dialled.Add(1)
		return dial(ctx, addr)
	}
	return p, &dialled
}

// serving is one Serve in progress.
type serving struct {
	addr string
	stop func() // and wait
}

func startServing(t *testing.T, p *TCPPlane, addr string, h Handler) serving {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- p.Serve(ctx, addr, h, func(at string) { ready <- at }) }()
	var once sync.Once
	s := serving{stop: func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
	}}
	t.Cleanup(s.stop)
	select {
	case s.addr = <-ready:
	case err := <-done:
		done <- nil
		t.Fatalf("Serve returned before it was ready: %v", err)
	}
	return s
}

func discard([]byte) error { return nil }
