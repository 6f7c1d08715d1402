package natsd

import (
	"net"
	"sync"
	"time"
)

// dialTimeout bounds one attempt to open a connection, including the handshake with the server.
const dialTimeout = 2 * time.Second

// closingDialer opens the sockets of one [nats.Conn], which uses one at a time. It closes the
// previous socket before it opens the next one: when a server accepts a connection and closes it
// before its first line, nats.go drops the socket without closing it, and it stays in CLOSE_WAIT
// until the garbage collector finds it.
type closingDialer struct {
	timeout time.Duration
	mu      struct {
		sync.Mutex
		last net.Conn
	}
}

// Dial implements nats.CustomDialer.
func (d *closingDialer) Dial(network, address string) (net.Conn, error) {
	d.mu.Lock()
	if d.mu.last != nil {
		_ = d.mu.last.Close() // already closed, unless nats.go dropped it
		d.mu.last = nil
	}
	d.mu.Unlock()
	conn, err := (&net.Dialer{Timeout: d.timeout}).Dial(network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.mu.last = conn
	d.mu.Unlock()
	return conn, nil
}
