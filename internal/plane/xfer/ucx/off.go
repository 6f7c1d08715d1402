//go:build !ucx || !cgo

package ucx

import "net"

// Worker is not there in this build.
type Worker struct{}

// Conn is not there in this build.
type Conn struct{ net.Conn }

// Load fails with ErrNotBuilt.
func Load() error { return ErrNotBuilt }

// NewWorker fails with ErrNotBuilt.
func NewWorker() (*Worker, error) { return nil, ErrNotBuilt }

// Address returns nothing.
func (*Worker) Address() []byte { return nil }

// NewConn fails with ErrNotBuilt.
func (*Worker) NewConn(net.Conn) (*Conn, error) { return nil, ErrNotBuilt }

// Close does nothing.
func (*Worker) Close() error { return nil }

// ID returns 0.
func (*Conn) ID() uint64 { return 0 }

// Connect fails with ErrNotBuilt.
func (*Conn) Connect(uint64, []byte) error { return ErrNotBuilt }

// IsQuiet reports false.
func (*Conn) IsQuiet() bool { return false }

// WriteBuffers fails with ErrNotBuilt.
func (*Conn) WriteBuffers(net.Buffers) error { return ErrNotBuilt }
