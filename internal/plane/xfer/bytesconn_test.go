package xfer

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// bytesConn is a connection from which given bytes are read.
type bytesConn struct {
	net.Conn // nil: other methods are not called
	r        io.Reader
	closed   bool
}

func (c *bytesConn) Read(p []byte) (int, error)       { return c.r.Read(p) }
func (c *bytesConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *bytesConn) Close() error                     { c.closed = true; return nil }
func (c *bytesConn) SetDeadline(time.Time) error      { return nil }
func (c *bytesConn) SetReadDeadline(time.Time) error  { return nil }
func (c *bytesConn) SetWriteDeadline(time.Time) error { return nil }

// newBytesLane returns a transfer into memory, and its owner's end of a TCP connection whose writer sends what is in
// sent.
func newBytesLane(t *testing.T, into []byte) (tr *Transfer, l *ownerLane, sent *bytes.Buffer) {
	t.Helper()
	r := newRegistry(1, discardObserver{})
	r.addEndpoint(OwnerAddress{TCP, "test"})
	cfg := Config{}
	cfg.EnsureDefaults()
	tr, err := r.Expect(Incoming{Into: [][]byte{into}})
	if err != nil {
		t.Fatal(err)
	}
	sent = new(bytes.Buffer)
	l = &ownerLane{owner: newOwner(&cfg, r, TCP), conn: &bytesConn{r: sent}}
	l.in.r = l.conn
	return tr, l, sent
}

// runTCP returns a plane which runs until the end of the test, patient where cfg does not say otherwise.
func runTCP(t *testing.T, cfg TCPConfig) *TCPPlane {
	t.Helper()
	cfg.Handshake, cfg.Silence = cmp.Or(cfg.Handshake, time.Hour), cmp.Or(cfg.Silence, time.Hour)
	p, err := NewTCPPlane(cfg)
	if err != nil {
		t.Fatal(err)
	}
	runPlane(t, p)
	return p
}

// runPlane runs a plane until the end of the test, and closes it.
func runPlane(t *testing.T, p interface {
	Plane
	Close() error
},
) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx, func() { close(ready) }); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	<-ready
}
