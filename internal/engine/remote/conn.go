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

// readBuffer is how much is read of a connection at once, in bytes.
const readBuffer = 16 << 10

// maxInterim bounds the answers that only say that another one follows.
const maxInterim = 5

var (
	errLongHeader = errors.New("the header of the answer is too long")
	errSwitched   = errors.New("the answer is of another protocol")
	errHalf       = errors.New("the answer broke off in its header")
)

// conn is one connection with an engine. It has no goroutine: whoever has it, one call at a time,
// writes the request and reads the answer in its own.
type conn struct {
	net   net.Conn
	src   source
	r     *bufio.Reader // of src
	raw   syscall.RawConn
	probe func(fd uintptr) bool // see quiet
	still bool                  // what probe found
	head  []byte                // scratch of a request
	idle  time.Time             // since when nobody has it
	abort func()                // closes it, whoever has it
}

// newConn wraps a connection. under is what it stands on: the same one, or that of the TLS.
func newConn(c, under net.Conn) *conn {
	k := &conn{net: c, src: source{net: c}, abort: func() { _ = c.Close() }}
	k.r = bufio.NewReaderSize(&k.src, readBuffer)
	if s, ok := under.(syscall.Conn); ok {
		k.raw, _ = s.SyscallConn()
	}
	k.probe = func(fd uintptr) bool {
		k.still = nothingToRead(fd)
		return true // in any case: it does not wait
	}
	return k
}

// quiet reports whether the engine has neither closed the connection nor said anything since the
// last answer: what it says to nobody must not be taken for an answer.
func (k *conn) quiet() bool {
	if k.r.Buffered() > 0 {
		return false
	}
	if k.raw != nil {
		if k.still = false; k.raw.Read(k.probe) != nil || !k.still {
			return false
		}
	}
	if _, secure := k.net.(*tls.Conn); !secure {
		return true
	}
	// What has left the socket may wait in the TLS. To read by a moment that has passed waits for nothing.
	if k.net.SetReadDeadline(time.Unix(1, 0)) != nil {
		return false
	}
	_, err := k.r.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// source is where a conn's buffer reads from. It bounds the header of an answer.
type source struct {
	net  net.Conn
	left int  // bytes that may yet be read; below 0 any number
	some bool // any came since the request
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, errLongHeader
	}
	if s.left > 0 && len(p) > s.left {
		p = p[:s.left]
	}
	n, err := s.net.Read(p)
	if n > 0 {
		s.some = true
		if s.left > 0 {
			s.left -= n
		}
	}
	return n, err
}

// exchange sends a request, whose head is in k.head, and reads the header of the answer, both by the moment
// until; zero is no bound. If the body is still on its way then, sent tells when it is not, once.
func (k *conn) exchange(body []byte, large *Body, until time.Time) (resp *http.Response, sent <-chan error, err error) {
	k.src.left, k.src.some = maxHeader, false
	if err := k.net.SetDeadline(until); err != nil {
		return nil, nil, err
	}
	if large != nil {
		body = large.B
	}
	failed := error(nil)
	if len(body) > smallBody {
		sent = k.lend(body, large)
	} else {
		k.head = append(k.head, body...)
		_, failed = k.net.Write(k.head)
	}
	resp, err = k.receive()
	switch {
	case err == nil:
		k.src.left = -1
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errNoHeader
	case k.src.some:
		err = fmt.Errorf("%w: %v", errHalf, err) // the engine has begun: to ask again is not for us
	case failed != nil:
		err = failed // which is why there is no answer
	}
	return resp, sent, err
}

// lend writes the head and the body of a request beside its caller, and keeps it, if it is one that is kept,
// as long: an engine may answer before it has read all of it, and then read no more.
func (k *conn) lend(body []byte, kept *Body) <-chan error {
	sent := make(chan error, 1)
	if kept != nil {
		kept.hold()
	}
	go func() { // ends when the connection is closed; settle waits for it
		both := net.Buffers{k.head, body}
		_, err := both.WriteTo(k.net)
		if kept != nil {
			kept.Release()
		}
		sent <- err
	}()
	return sent
}

// settle returns when nothing of a request is on its way, and reports whether all of it was sent. One that is
// not by now is given up, and the connection with it.
func (k *conn) settle(sent <-chan error) (whole bool) {
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

// receive reads the header of an answer.
func (k *conn) receive() (*http.Response, error) {
	for range maxInterim {
		if _, err := k.r.Peek(1); err != nil { // an end here is no answer cut short
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
