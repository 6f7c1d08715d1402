package remote

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

// readBuffer is the size of a connection's read buffer in bytes.
const readBuffer = 16 << 10

// maxInterim bounds the interim (1xx) responses before a final one.
const maxInterim = 5

var (
	errLongHeader   = errors.New("the header of the answer is too long")
	errSwitched     = errors.New("the answer is of another protocol")
	errHeaderBroken = errors.New("the answer broke off in its header")
)

// engineConn is one connection with an engine. It has no goroutine: its user, one call at a time, writes the
// request and reads the response in its own goroutine.
type engineConn struct {
	net            net.Conn
	src            headerLimiter
	r              *bufio.Reader // of src
	raw            syscall.RawConn
	probe          func(fd uintptr) bool // see isQuiet
	nothingPending bool                  // result of probe
	head           []byte                // scratch of a request
	idleSince      time.Time             // since when it is unused
	abort          func()                // closes it; may be called by anyone
}

// newConn wraps a connection. under is the underlying connection: the same one, or the one below TLS.
func newConn(c, under net.Conn) *engineConn {
	k := &engineConn{net: c, src: headerLimiter{net: c}, abort: func() { _ = c.Close() }}
	k.r = bufio.NewReaderSize(&k.src, readBuffer)
	if s, ok := under.(syscall.Conn); ok {
		k.raw, _ = s.SyscallConn()
	}
	k.probe = func(fd uintptr) bool {
		k.nothingPending = nothingToRead(fd)
		return true // in any case: it must not wait
	}
	return k
}

// isQuiet reports whether the engine has neither closed the connection nor sent anything since the last
// response: unsolicited bytes must not be taken for a response.
func (k *engineConn) isQuiet() bool {
	if k.r.Buffered() > 0 {
		return false
	}
	if k.raw != nil {
		if k.nothingPending = false; k.raw.Read(k.probe) != nil || !k.nothingPending {
			return false
		}
	}
	if _, secure := k.net.(*tls.Conn); !secure {
		return true
	}
	// Bytes that have left the socket may be buffered in TLS. A read with a deadline in the past does not
	// wait.
	if k.net.SetReadDeadline(time.Unix(1, 0)) != nil {
		return false
	}
	_, err := k.r.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// headerLimiter is the reader under an engineConn's buffer. It bounds the header of a response.
type headerLimiter struct {
	net       net.Conn
	remaining int  // bytes that may still be read; below 0 any number
	received  bool // bytes came since the request
}

// Read implements io.Reader.
func (s *headerLimiter) Read(p []byte) (int, error) {
	if s.remaining == 0 {
		return 0, errLongHeader
	}
	if s.remaining > 0 && len(p) > s.remaining {
		p = p[:s.remaining]
	}
	n, err := s.net.Read(p)
	if n > 0 {
		s.received = true
		if s.remaining > 0 {
			s.remaining -= n
		}
	}
	return n, err
}

// roundTrip sends a request, whose head is in k.head, and reads the header of the response, both before the
// deadline until; zero is no bound. If the body is still being sent then, sent receives the result once.
func (k *engineConn) roundTrip(body []byte, large *BodyBuffer, until time.Time) (resp *http.Response, sent <-chan error, err error) {
	k.src.remaining, k.src.received = maxHeader, false
	if err := k.net.SetDeadline(until); err != nil {
		return nil, nil, err
	}
	if large != nil {
		body = large.B
	}
	failed := error(nil)
	if len(body) > smallBody {
		sent = k.sendInBackground(body, large)
	} else {
		k.head = append(k.head, body...)
		_, failed = k.net.Write(k.head)
	}
	resp, err = k.readHeader()
	switch {
	case err == nil:
		k.src.remaining = -1
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errNoHeader
	case k.src.received:
		err = fmt.Errorf("%w: %v", errHeaderBroken, err) // the engine has begun to answer: do not retry here
	case failed != nil:
		err = failed // the reason for the missing response
	}
	return resp, sent, err
}

// sendInBackground writes the head and the body of a request in a goroutine, and retains a pooled body
// meanwhile: an engine may answer before it has read the whole request, and then read no more.
func (k *engineConn) sendInBackground(body []byte, kept *BodyBuffer) <-chan error {
	sent := make(chan error, 1)
	if kept != nil {
		kept.retain()
	}
	go func() { // ends when the connection is closed; awaitSent waits for it
		both := net.Buffers{k.head, body}
		_, err := both.WriteTo(k.net)
		if kept != nil {
			kept.Release()
		}
		sent <- err
	}()
	return sent
}

// awaitSent returns when no part of a request is being sent, and reports whether all of it was sent. If it is
// still being sent, awaitSent aborts the connection.
func (k *engineConn) awaitSent(sent <-chan error) (whole bool) {
	if sent == nil {
		return true
	}
	select {
	case err := <-sent:
		return err == nil
	default:
		k.abort()
		<-sent
		return false
	}
}

// readHeader reads the header of a response.
func (k *engineConn) readHeader() (*http.Response, error) {
	for range maxInterim {
		if _, err := k.r.Peek(1); err != nil { // an EOF here is no truncated response
			return nil, err
		}
		resp, err := http.ReadResponse(k.r, nil)
		switch {
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, errSwitched
		case resp.StatusCode >= http.StatusOK:
			return resp, nil
		}
	}
	return nil, io.ErrNoProgress
}
