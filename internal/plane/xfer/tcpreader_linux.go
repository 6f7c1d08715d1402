package xfer

import (
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// tcpReader reads from a TCP connection in bursts: one system call reads the rest of a chunk and the frame
// which follows. Before it sleeps it polls.
type tcpReader struct {
	raw  syscall.RawConn
	poll *poller
	// The arguments and results of attempt. The functions are kept, so that no call allocates.
	vectors       [][]byte
	n             int
	err           error
	read, tryOnce func(fd uintptr) bool
	hasRead       func() bool
}

var _ burstReader = (*tcpReader)(nil)

// newTCPReader returns what reads from conn.
func newTCPReader(conn net.Conn, poll *poller) io.Reader {
	c, ok := conn.(*net.TCPConn)
	if !ok {
		return conn
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return conn
	}
	r := &tcpReader{raw: raw, poll: poll, vectors: make([][]byte, 0, 2)}
	r.read = func(fd uintptr) bool { return r.attempt(fd) }
	r.tryOnce = func(fd uintptr) bool { r.attempt(fd); return true }
	r.hasRead = func() bool {
		if err := r.raw.Read(r.tryOnce); err != nil {
			r.n, r.err = 0, err
		}
		return r.err != errWouldWait
	}
	return r
}

// attempt reads, and reports whether there was something to read or an error.
func (r *tcpReader) attempt(fd uintptr) bool {
	for {
		n, err := unix.Readv(int(fd), r.vectors)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			r.n, r.err = 0, errWouldWait
			return false
		case err != nil:
			r.n, r.err = 0, err
		case n == 0:
			r.n, r.err = 0, io.EOF
		default:
			r.n, r.err = n, nil
		}
		return true
	}
}

func (r *tcpReader) setVectors(p, q []byte) {
	r.vectors = append(r.vectors[:0], p)
	if len(q) > 0 {
		r.vectors = append(r.vectors, q)
	}
}

// tryRead implements burstReader.
func (r *tcpReader) tryRead(p, q []byte) (int, error) {
	r.setVectors(p, q)
	r.hasRead()
	return r.n, r.err
}

// pollRead implements burstReader.
func (r *tcpReader) pollRead(p []byte) (int, error) {
	r.setVectors(p, nil)
	r.poll.await(r.hasRead)
	return r.n, r.err
}

// Read implements io.Reader.
func (r *tcpReader) Read(p []byte) (int, error) {
	r.setVectors(p, nil)
	if err := r.raw.Read(r.read); err != nil {
		return 0, err
	}
	return r.n, r.err
}
