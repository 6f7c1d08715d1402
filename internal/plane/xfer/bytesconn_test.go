package xfer

import (
	"io"
	"net"
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
