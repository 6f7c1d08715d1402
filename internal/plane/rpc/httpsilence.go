package rpc

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// silenceConn is a connection which closes itself when nothing was read for too long. net/http
// sends pings on it and would close it by the wall clock, so a process without CPU would mistake
// its own pause for a dead peer. silenceConn counts only the time in which this process ran.
type silenceConn struct {
	net.Conn
	reading atomic.Bool // a Read is in progress; only then does silence count
	heard   atomic.Bool // something was read since the last check
	dead    atomic.Bool // closed because of silence
	watch   struct {
		sync.Mutex
		awakeClock
		look  time.Duration // between two checks
		timer *time.Timer   // nil before watchSilence
		quiet int           // consecutive checks that found nothing
		over  bool          // the connection is closed
	}
}

// watchSilence closes the connection when nothing has been read for limit. The peer answers pings
// from now on.
func (c *silenceConn) watchSilence(limit time.Duration) {
	c.watch.Lock()
	defer c.watch.Unlock()
	if c.watch.over || c.watch.timer != nil {
		return
	}
	c.watch.look = max(limit/awakeSlices, 1)
	c.watch.startWait(c.watch.look, c.watch.look)
	c.watch.timer = time.AfterFunc(c.watch.look, c.checkSilence)
}

func (c *silenceConn) checkSilence() {
	yieldProcessor()
	c.watch.Lock()
	defer c.watch.Unlock()
	switch {
	case c.watch.over:
		return
	case c.heard.Swap(false):
		c.watch.quiet = 0
	case c.watch.waitCounts() && c.reading.Load():
		c.watch.quiet++
	}
	if c.watch.quiet < awakeSlices {
		c.watch.startWait(c.watch.look, c.watch.look)
		c.watch.timer.Reset(c.watch.look)
		return
	}
	c.watch.over = true
	c.dead.Store(true)
	go c.Conn.Close() // with TLS, or a full socket buffer, Close may block
}

// Read implements net.Conn.
func (c *silenceConn) Read(b []byte) (int, error) {
	c.reading.Store(true)
	n, err := c.Conn.Read(b)
	c.reading.Store(false)
	if n > 0 && !c.heard.Load() {
		c.heard.Store(true)
	}
	if err != nil && c.dead.Load() {
		err = errSilent
	}
	return n, err
}

// Close implements net.Conn.
func (c *silenceConn) Close() error {
	c.watch.Lock()
	c.watch.over = true
	if c.watch.timer != nil {
		c.watch.timer.Stop()
	}
	c.watch.Unlock()
	return c.Conn.Close()
}

// silenceListener wraps accepted connections in silenceConn.
type silenceListener struct{ net.Listener }

// Accept implements net.Listener.
func (l silenceListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &silenceConn{Conn: c}, nil
}

// watchActive returns a ConnState hook which starts watchSilence at a connection's first request,
// when both ends have negotiated HTTP/2.
func watchActive(limit time.Duration) func(net.Conn, http.ConnState) {
	return func(c net.Conn, state http.ConnState) {
		if state != http.StateActive {
			return
		}
		if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
			c = t.NetConn()
		}
		if c, ok := c.(*silenceConn); ok {
			c.watchSilence(limit)
		}
	}
}
