package rpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"penstock/core/fault"
)

// Call implements Plane.
func (p *HTTPPlane) Call(ctx context.Context, addr, method string, body []byte, recv func(frame []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkLimits(method, body); err != nil {
		return err
	}
	u, err := callURL(addr, method)
	switch {
	case err != nil:
		return err
	case p.cfg.ClientTLS != nil && u.Scheme == "http":
		// Otherwise an attacker with write access to discovery would get prompts, and the token,
		// without a certificate.
		return fault.New(fault.Unavailable, "call %s: this process calls over TLS, and %s is without; give the server the rpc TLS settings too", method, addr)
	}
	src := &bodySource{}
	src.mu.b = body
	defer src.closeReaders()
	rctx, cancel := context.WithCancel(context.WithValue(ctx, callStartKey{}, time.Now()))
	defer p.closeIdleIfClosed()
	defer cancel() // resets the stream unless it has ended
	defer context.AfterFunc(p.closed, cancel)()

	req := &http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host, Header: make(http.Header),
		ContentLength: int64(len(body)), GetBody: src.newReader,
	}
	if len(body) > 0 {
		req.Body, _ = src.newReader()
	}
	if p.cfg.Token != "" {
		req.Header.Set("Authorization", bearerHeader(p.cfg.Token))
	}
	writeEnvelope(req.Header, newCallMetadata(ctx))
	resp, err := p.transport.RoundTrip(req.WithContext(rctx))
	if err != nil {
		if err := contextErr(ctx); err != nil {
			return err
		}
		return fault.New(fault.Unavailable, "call %s: cannot reach %s: %v", method, addr, err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") != httpContentType {
		return p.unexpectedAnswer(resp, addr, method)
	}
	return receiveHTTP(ctx, resp.Body, addr, method, recv)
}

// closeIdleIfClosed closes the connections without calls once the plane is closed.
func (p *HTTPPlane) closeIdleIfClosed() {
	if p.closed.Err() != nil {
		p.transport.CloseIdleConnections()
	}
}

// unexpectedAnswer returns the error for a response which does not come from this plane.
func (p *HTTPPlane) unexpectedAnswer(resp *http.Response, addr, method string) error {
	if resp.StatusCode == http.StatusUnauthorized {
		return fault.New(fault.Unavailable, "call %s: the server at %s refuses this process's rpc token; give both the same", method, addr)
	}
	return fault.New(fault.Unavailable, "call %s: what answers at %s with status %d is no server of this plane; check the address", method, addr, resp.StatusCode)
}

// receiveHTTP passes the frames of an answer to recv until the answer ends.
func receiveHTTP(ctx context.Context, body io.Reader, addr, method string, recv func([]byte) error) error {
	in := bufio.NewReader(body)
	r := recordReader{r: in}
	for {
		frame, ended, end, err := r.nextFrame()
		switch {
		case err != nil:
			if err := contextErr(ctx); err != nil {
				return err
			}
			return fault.New(fault.Unavailable, "call %s: the connection to %s broke: %v", method, addr, err)
		case ctx.Err() != nil:
			return ctx.Err()
		case !ended:
			if err := recv(frame); err != nil {
				return err
			}
			continue
		}
		// The end of the stream arrives with the last record. A stream which was read to its end
		// need not be reset.
		_, _ = in.Peek(1)
		if err := contextErr(ctx); err != nil {
			return err // the handler's error only echoes it
		}
		return end
	}
}

// bodySource is the body of one call. The transport may read it slightly longer than the call
// lasts, but then the slice belongs to its owner again.
type bodySource struct {
	mu struct {
		sync.Mutex
		b []byte
	}
}

// newReader returns a reader of the whole body.
func (s *bodySource) newReader() (io.ReadCloser, error) { return &bodySourceReader{src: s}, nil }

// closeReaders makes all further reads of the body fail.
func (s *bodySource) closeReaders() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.b = nil
}

type bodySourceReader struct {
	src *bodySource
	at  int
}

// Read implements io.Reader.
func (r *bodySourceReader) Read(p []byte) (int, error) {
	r.src.mu.Lock()
	defer r.src.mu.Unlock()
	switch b := r.src.mu.b; {
	case b == nil:
		return 0, fmt.Errorf("read body: the call is over")
	case r.at == len(b):
		return 0, io.EOF
	default:
		n := copy(p, b[r.at:])
		r.at += n
		return n, nil
	}
}

// Close implements io.Closer.
func (r *bodySourceReader) Close() error { return nil }

// httpDialer dials the connections of a plane. Calls that wait for a connection to one server are
// served one after another. Calls which were already waiting when an attempt failed share its
// error; otherwise each would wait for its own attempt, and the last one for all of them.
type httpDialer struct {
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	timeout time.Duration // bounds one attempt
	mu      struct {
		sync.Mutex
		failed map[string]dialFailure // by address
	}
}

type dialFailure struct {
	at  time.Time
	err error
}

// maxFailed bounds the number of addresses whose last failure is remembered.
const maxFailed = 256

// callStartKey is the context key of a call's start time.
type callStartKey struct{}

func newHTTPDialer(timeout time.Duration) *httpDialer {
	d := &httpDialer{dial: new(net.Dialer).DialContext, timeout: timeout}
	d.mu.failed = make(map[string]dialFailure)
	return d
}

// dialContext is for [http.Transport].
func (d *httpDialer) dialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	start, _ := ctx.Value(callStartKey{}).(time.Time)
	if err := d.failureSince(addr, start); err != nil {
		return nil, err
	}
	ctx, release := withAwakeTimeout(ctx, d.timeout)
	defer release()
	c, err := d.dial(ctx, network, addr)
	if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		err = fmt.Errorf("no connection within %v", d.timeout)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		delete(d.mu.failed, addr)
		return c, nil
	}
	if len(d.mu.failed) >= maxFailed {
		clear(d.mu.failed)
	}
	d.mu.failed[addr] = dialFailure{time.Now(), err}
	return nil, err
}

func (d *httpDialer) failureSince(addr string, start time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f, ok := d.mu.failed[addr]; ok && f.at.After(start) {
		return f.err
	}
	return nil
}
