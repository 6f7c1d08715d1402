package node

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"penstock/internal/obs"
)

// limitedListener is a listener with a limit on open connections. It closes a connection above the limit as
// soon as it is accepted: the client learns so at once, instead of waiting in a queue behind connections that
// may last.
type limitedListener struct {
	net.Listener
	limit    int64
	throttle *obs.Throttle
	open     atomic.Int64
}

// Accept implements net.Listener.
func (c *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c.open.Add(1) <= c.limit {
			return &countedConn{Conn: conn, release: sync.OnceFunc(func() { c.open.Add(-1) })}, nil
		}
		c.open.Add(-1)
		c.throttle.Log(context.Background(), slog.LevelWarn, "connection refused, there are as many as --max-connections", "max_connections", c.limit)
		_ = conn.Close() // nothing was sent on it
	}
}

// countedConn is a connection that counts as open until it is closed.
type countedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
