package node

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"penstock/internal/obs"
)

// crowd is a listener with a bound of connections at once. One more is closed as it
// comes: its client learns so at once, which it would not in a queue behind
// connections that may last.
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
		_ = conn.Close() // it is no loss
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
