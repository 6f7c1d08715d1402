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
type crowd struct {
	net.Listener
	most     int64
	throttle *obs.Throttle
	inside   atomic.Int64
}

// Accept implements net.Listener.
func (c *crowd) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c.inside.Add(1) <= c.most {
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { c.inside.Add(-1) })}, nil
		}
		c.inside.Add(-1)
		c.throttle.Log(context.Background(), slog.LevelWarn, "connection refused, there are as many as --max-connections", "max_connections", c.most)
		_ = conn.Close() // nothing was sent on it
	}
}

// countedConn is a connection that counts as open until it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
