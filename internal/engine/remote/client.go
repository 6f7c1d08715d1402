package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// The times of HTTP with an engine.
const (
	// idleTimeout is less than the 5 s after which servers of the uvicorn family close an
	// idle connection, so that a request seldom meets a connection that is being closed.
	idleTimeout  = 4 * time.Second
	dialTimeout  = 3 * time.Second
	headerWait   = 30 * time.Second
	drainTimeout = time.Second
	// silence is how long an answer may stand still: longer than any prefill takes.
	silence = 5 * time.Minute
)

// smallBody is up to how many bytes a body is copied rather than lent: to copy it costs less than
// a write of its own.
const smallBody = 16 << 10

// maxHeader bounds the header of an answer.
const maxHeader = 64 << 10

// maxConns bounds the connections with one engine, and so the requests in progress.
const maxConns = 4096

// Client speaks HTTP/1.1 with one engine over connections of its own. It is safe for
// concurrent use.
type Client struct {
	root      *url.URL
	key       string
	transport *http.Transport
	silence   time.Duration
}

// NewClient returns a client of the engine that spec names. Close it.
func NewClient(spec *Spec) *Client {
	h1 := new(http.Protocols)
	h1.SetHTTP1(true)
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
	return &Client{
		root: spec.URL, key: spec.APIKey, silence: silence,
		transport: &http.Transport{
			Proxy:               nil, // engines are near: what the environment says of proxies is not about them
			DialContext:         dialer.DialContext,
			TLSHandshakeTimeout: 5 * time.Second,
			DisableCompression:  true,
			MaxIdleConnsPerHost: maxConns,
			MaxConnsPerHost:     maxConns,
			IdleConnTimeout:     idleTimeout,
			Protocols:           h1,
			WriteBufferSize:     32 << 10,

			MaxResponseHeaderBytes: maxHeader,
			ReadBufferSize:         16 << 10,
		},
	}
}

// Close closes the connections that nobody uses. Those in use are closed by their users.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Call is one request to an engine.
type Call struct {
	Method string // "" is POST
	Path   string
	Query  string // without the question mark
	// ID becomes X-Request-Id; "" sends none.
	ID string
	// Headers are further ones, as pairs of name and value.
	Headers []string
	// Body is JSON; nil is none. Large is the same in a buffer that is kept, in place of Body.
	Body  []byte
	Large *Body
	// Wait bounds the wait for the first byte of the answer; 0 is 30 s, below 0 is no bound but
	// the context.
	Wait time.Duration
}

var (
	errNoHeader = errors.New("no answer in time")
	errSilent   = errors.New("the answer stands still")
)

// Do sends a call and returns the answer once its header is there, whatever its status. A call
// that meets a connection which the engine has closed, before the first byte of an answer,
// is sent once more on a fresh one. The error is ctx's, or a *fault.Error of code Unavailable.
func (c *Client) Do(ctx context.Context, call *Call) (*Answer, error) {
	for fresh := false; ; fresh = true {
		a, err := c.try(ctx, call)
		switch {
		case err == nil:
			return a, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case fresh || !closedEarly(err):
			return nil, unreachable(c.root.Host, err)
		}
		c.transport.CloseIdleConnections()
	}
}

// try sends a call once.
func (c *Client) try(ctx context.Context, call *Call) (*Answer, error) {
	bounded, cancel := context.WithCancelCause(ctx)
	req, err := c.request(bounded, call)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	wait := call.Wait
	if wait == 0 {
		wait = headerWait
	}
	var late *time.Timer
	if wait > 0 {
		late = time.AfterFunc(wait, func() { cancel(errNoHeader) })
	}
	resp, err := c.transport.RoundTrip(req)
	if late != nil && !late.Stop() && err == nil {
		_ = resp.Body.Close()
		err = errNoHeader
	}
	if err != nil {
		if cause := context.Cause(bounded); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	return &Answer{
		Status: resp.StatusCode, Type: resp.Header.Get("Content-Type"), RetryAfter: retryAfter(resp.Header, time.Now()),
		host: c.root.Host, body: resp.Body, ctx: bounded, cancel: cancel,
		silence: c.silence, quiet: time.AfterFunc(c.silence, func() { cancel(errSilent) }),
	}, nil
}

func (c *Client) request(ctx context.Context, call *Call) (*http.Request, error) {
	method := call.Method
	if method == "" {
		method = http.MethodPost
	}
	u := *c.root
	u.Path = strings.TrimSuffix(u.Path, "/") + call.Path
	u.RawPath, u.RawQuery = "", call.Query
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("request to the engine: %w", err)
	}
	switch {
	case call.Large != nil && len(call.Large.B) <= smallBody:
		// The transport sends headers and body in one write if it knows the reader, which one that
		// tells when it is done with is not.
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(bytes.Clone(call.Large.B))), int64(len(call.Large.B))
		req.Header.Set("Content-Type", "application/json")
	case call.Large != nil:
		req.Body, req.ContentLength = call.Large.reader(), int64(len(call.Large.B))
		req.Header.Set("Content-Type", "application/json")
	case call.Body != nil:
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(call.Body)), int64(len(call.Body))
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", "penstock")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	if call.ID != "" {
		req.Header.Set("X-Request-Id", headerText(call.ID))
	}
	for i := 0; i+1 < len(call.Headers); i += 2 {
		req.Header.Set(call.Headers[i], call.Headers[i+1])
	}
	return req, nil
}

// headerText returns s without what a header cannot carry, bounded.
func headerText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, s)
	return s[:min(len(s), 128)]
}

// closedEarly reports whether err is that of a connection that the engine closed, or never took,
// before it answered.
func closedEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || // the transport closed it, having read the reset, while the request was being written
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED) ||
		strings.Contains(err.Error(), "server closed idle connection")
}
