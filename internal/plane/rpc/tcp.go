package rpc

import (
	"context"
	"net"
	"strings"
	"sync"

	"penstock/core/fault"
)

// tcpScheme is the prefix of TCPPlane addresses.
const tcpScheme = "tcp://"

// tcpWindow is the byte credit of an answer: how many bytes the handler may be ahead of the caller.
// A frame that starts within it may end beyond it.
const tcpWindow = 256 << 10

// tcpBuffer is the size of a connection's read buffer.
const tcpBuffer = 64 << 10

// maxCallAttempts bounds how often a call is sent. A call which may have reached a handler is never
// sent again.
const maxCallAttempts = 3

// TCPPlane is the request plane over TCP, at addresses "tcp://host:port". All calls of a process to
// one address share one connection. The caller's side dials it when it first needs it; answers come
// back on it, and servers never dial clients. docs/format/rpc.md documents the bytes.
type TCPPlane struct {
	cfg TCPConfig
	// listen and dial are the network; tests replace them.
	listen func(addr string) (net.Listener, error)
	dial   func(ctx context.Context, addr string) (net.Conn, error)
	// noChecksums makes this end behave like builds before checksums: it neither requests nor knows
	// them. Tests and benchmarks set it.
	noChecksums bool

	buffers sync.Pool // *[]byte of tcpBuffer bytes
	links   sync.WaitGroup
	mu      struct {
		sync.Mutex
		peers  map[string]*tcpPeer // for new calls, by address
		all    map[*tcpPeer]bool   // all of these, and peers with calls in progress
		closed bool
	}
}

var _ Plane = (*TCPPlane)(nil)

// NewTCPPlane returns a plane without connections.
func NewTCPPlane(cfg TCPConfig) (*TCPPlane, error) {
	cfg.EnsureDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := &TCPPlane{cfg: cfg}
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

// Call implements Plane. It dials if there is no connection to addr. It tries again on another
// connection if the existing one ends before anything of the call was sent, or if the server says
// that it will not start the call: in both cases the call is known to have had no effect. Every
// other failure of the connection is Unavailable.
func (t *TCPPlane) Call(ctx context.Context, addr, method string, body []byte, recv func(frame []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := checkLimits(method, body)
	switch {
	case err != nil:
		return err
	case !strings.HasPrefix(addr, tcpScheme):
		return fault.New(fault.Unavailable, "call %s: %q is not an address of the form tcp://host:port", method, addr)
	}
	for range maxCallAttempts {
		var link *clientLink
		if link, err = t.acquireLink(ctx, addr); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return &fault.Error{Code: fault.Unavailable, Message: "call " + method + ": " + err.Error(), Err: err}
		}
		var again bool
		if err, again = link.makeCall(ctx, method, body, recv); !again {
			return err
		}
	}
	return err
}

// Close closes the connections on which calls are made. Their calls, and later ones, end with
// Unavailable. Close does not affect Serve, which its context ends.
func (t *TCPPlane) Close() error {
	t.mu.Lock()
	t.mu.closed = true
	for p := range t.mu.all {
		p.cancel()
	}
	t.mu.Unlock()
	t.links.Wait()
	return nil
}

// Unchecked reports whether damaged bytes on the connection to addr would go unnoticed: it has
// neither TLS nor checksums, because the server's build has none. Without a connection it returns
// false.
func (t *TCPPlane) Unchecked(addr string) bool {
	t.mu.Lock()
	p := t.mu.peers[addr]
	t.mu.Unlock()
	if p == nil {
		return false
	}
	select {
	case <-p.ready:
		return p.dialErr == nil && p.link.unchecked
	default:
		return false
	}
}

// takeBuffer returns a pooled read buffer; release returns it to the pool.
func (t *TCPPlane) takeBuffer() (buf []byte, give func()) {
	b := t.buffers.Get().(*[]byte)
	return *b, func() { t.buffers.Put(b) }
}

func trimTCPScheme(addr string) string { return strings.TrimPrefix(addr, tcpScheme) }
