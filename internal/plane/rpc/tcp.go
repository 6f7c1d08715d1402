package rpc

import (
	"context"
	"net"
	"strings"
	"sync"

	"penstock/core/fault"
)

// tcpScheme begins the addresses of TCP.
const tcpScheme = "tcp://"

// tcpWindow is how many bytes of answer a call may be ahead of its caller; a
// frame that begins within it may end beyond.
const tcpWindow = 256 << 10

// tcpBuffer is the size of a connection's read buffer.
const tcpBuffer = 64 << 10

// tcpTries bounds how often a call is sent. One that may have reached a handler
// is never sent again.
const tcpTries = 3

// TCP is the request plane over TCP, at addresses "tcp://host:port". All calls of
// a process to one address share one connection, which the caller's side dials
// when it first needs it; answers come back on it, and nothing is dialled in the
// other direction. docs/format/rpc.md says what the bytes are.
type TCP struct {
	cfg TCPConfig
	// The network; tests have one of their own.
	listen func(addr string) (net.Listener, error)
	dial   func(ctx context.Context, addr string) (net.Conn, error)
	// old has this end neither ask for checksums nor know them, as the builds before them
	// did; tests and benchmarks set it.
	old bool

	buffers sync.Pool // *[]byte of tcpBuffer bytes
	links   sync.WaitGroup
	mu      struct {
		sync.Mutex
		peers  map[string]*tcpPeer // those to make calls with
		all    map[*tcpPeer]bool   // and those with calls in progress
		closed bool
	}
}

var _ Plane = (*TCP)(nil)

// NewTCP returns a plane that has no connection yet.
func NewTCP(cfg TCPConfig) (*TCP, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := &TCP{cfg: cfg}
	t.listen = func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }
	t.dial = func(ctx context.Context, addr string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}
	t.buffers.New = func() any {
		b := make([]byte, tcpBuffer)
		return &b
	}
	t.mu.peers = make(map[string]*tcpPeer)
	t.mu.all = make(map[*tcpPeer]bool)
	return t, nil
}

// Call implements Plane. It dials if there is no connection to addr, and again
// if the one there is ends before anything of the call was sent on it, or tells
// that the call will not be begun: what is known to have had no effect is not the
// caller's concern. Whatever else happens to the connection is Unavailable.
func (t *TCP) Call(ctx context.Context, addr, method string, body []byte, recv func(frame []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := fits(method, body)
	switch {
	case err != nil:
		return err
	case !strings.HasPrefix(addr, tcpScheme):
		return fault.New(fault.Unavailable, "call %s: %q is not an address of the form tcp://host:port", method, addr)
	}
	for range tcpTries {
		var link *clientLink
		if link, err = t.reach(ctx, addr); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return &fault.Error{Code: fault.Unavailable, Message: "call " + method + ": " + err.Error(), Err: err}
		}
		var again bool
		if err, again = link.call(ctx, method, body, recv); !again {
			return err
		}
	}
	return err
}

// Close ends the connections that calls are made on; the calls end with
// Unavailable, as do those that follow. What Serve does is up to its context.
func (t *TCP) Close() error {
	t.mu.Lock()
	t.mu.closed = true
	for p := range t.mu.all {
		p.cancel()
	}
	t.mu.Unlock()
	t.links.Wait()
	return nil
}

// Unchecked reports whether the connection to addr is one on which damaged bytes would not
// be noticed: it has neither TLS nor checksums, since the server is of a build that has
// none. Without a connection it is false.
func (t *TCP) Unchecked(addr string) bool {
	t.mu.Lock()
	p := t.mu.peers[addr]
	t.mu.Unlock()
	if p == nil {
		return false
	}
	select {
	case <-p.ready:
		return p.err == nil && p.link.unchecked
	default:
		return false
	}
}

// buffer returns a buffer to read with; give returns it.
func (t *TCP) buffer() (buf []byte, give func()) {
	b := t.buffers.Get().(*[]byte)
	return *b, func() { t.buffers.Put(b) }
}

func trimScheme(addr string) string { return strings.TrimPrefix(addr, tcpScheme) }
