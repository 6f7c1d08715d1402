package remote

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"penstock/core/fault"
	"penstock/core/stall"
	"penstock/internal/engine"
	"penstock/internal/strictjson"
)

// The timeouts of HTTP with an engine.
const (
	// idleTimeout is less than the 5 s after which servers of the uvicorn family close an idle connection, so
	// that a request seldom meets a connection that is being closed.
	idleTimeout  = 4 * time.Second
	dialTimeout  = 3 * time.Second
	tlsTimeout   = 5 * time.Second
	headerWait   = 30 * time.Second
	drainTimeout = time.Second
	// maxSilence is how long a response may stand still, whether or not its stream is watched.
	maxSilence = stall.MaxLimit
)

// smallBody is the largest body in bytes that is copied after its head into one write: copying it costs less
// than two writes, and so few bytes fit into the system's socket buffers even if the engine does not read.
const smallBody = 16 << 10

// maxHeader bounds the header of a response.
const maxHeader = 64 << 10

// maxConnections bounds the connections with one engine, and so the requests in progress.
const maxConnections = 4096

// Client speaks HTTP/1.1 with one engine over its own connections. The goroutine that makes a call writes the
// request and reads the response: net/http's transport has two more goroutines for each connection, and the
// handover between them costs more than the rest of a call. net/http parses the responses. Client is safe for
// concurrent use.
type Client struct {
	root       *url.URL
	host       string // value of the Host header
	key        string
	pool       *connPool
	maxSilence time.Duration
	// drainTimeout bounds the wait for the end of a response whose relevant part was read.
	drainTimeout time.Duration
	createdAt    time.Time
	lastHeardAt  atomic.Int64 // time of the last received bytes, in nanoseconds since createdAt
}

// noteHeard records that the engine sent something.
func (c *Client) noteHeard() { c.lastHeardAt.Store(int64(time.Since(c.createdAt))) }

// lastHeard returns when the engine last sent something, or when the client was created.
func (c *Client) lastHeard() time.Time { return c.createdAt.Add(time.Duration(c.lastHeardAt.Load())) }

// NewClient returns a client of the engine that spec names. The caller must close it.
func NewClient(spec *Spec) *Client {
	host := hostHeader(spec.URL)
	return &Client{root: spec.URL, host: host, key: spec.APIKey, maxSilence: maxSilence, drainTimeout: drainTimeout, pool: newPool(spec.URL, host), createdAt: time.Now()}
}

// hostHeader returns the Host header for u: in ASCII and without a zone, as net/http writes it.
func hostHeader(u *url.URL) string {
	var b bytes.Buffer
	if err := (&http.Request{Method: http.MethodGet, URL: u}).Write(&b); err != nil {
		return u.Host
	}
	req, err := http.ReadRequest(bufio.NewReader(&b))
	if err != nil {
		return u.Host
	}
	return req.Host
}

// Close closes the idle connections. Connections in use are closed after their calls.
func (c *Client) Close() { c.pool.close() }

// Call is one request to an engine.
type Call struct {
	Method string // "" is POST
	Path   string
	Query  string // without the question mark
	// ID becomes X-Request-Id; "" sends none.
	ID string
	// Headers are further headers, as pairs of name and value.
	Headers []string
	// Body is JSON; nil is none. Large is the same in a pooled buffer, in place of Body.
	Body  []byte
	Large *BodyBuffer
	// Wait bounds the wait for the first byte of the response; 0 means 30 s, below 0 only the context bounds
	// it.
	Wait time.Duration
}

var (
	errNoHeader = errors.New("no answer in time")
	errSilent   = errors.New("the answer stands still")
)

// Do sends a call and returns the response after its header, with any status. If the engine closed a
// connection before the first byte of a response, the call is sent once more on a fresh one. The error is
// ctx's, or a *fault.Error of code Unavailable.
func (c *Client) Do(ctx context.Context, call *Call) (*Response, error) {
	for fresh := false; ; fresh = true {
		a, err := c.doOnce(ctx, call)
		switch {
		case err == nil:
			return a, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case fresh || !isClosedEarly(err):
			return nil, unreachableError(c.root.Host, err)
		}
		c.pool.closeIdle() // the other idle connections are probably closed too
	}
}

// doOnce sends a call once.
func (c *Client) doOnce(ctx context.Context, call *Call) (*Response, error) {
	wait := call.Wait
	wait = cmp.Or(wait, headerWait)
	until := time.Time{}
	if wait > 0 {
		until = time.Now().Add(wait)
	}
	k, err := c.pool.acquireConn(ctx, until)
	if err != nil {
		return nil, err
	}
	a := &Response{client: c, host: c.root.Host, conn: k, pool: c.pool, maxSilence: c.maxSilence, deadline: until}
	a.stopAbort = context.AfterFunc(ctx, k.abort)
	k.head = c.appendHead(k.head[:0], call)
	resp, sent, err := k.roundTrip(call.Body, call.Large, until)
	a.sent = sent
	if err != nil {
		a.Close()
		return nil, err
	}
	c.noteHeard()
	a.Status, a.Type, a.RetryAfter = resp.StatusCode, resp.Header.Get("Content-Type"), parseRetryAfter(resp.Header, time.Now())
	a.body, a.closing = resp.Body, resp.Close
	return a, nil
}

// appendHead appends the head of a request.
func (c *Client) appendHead(b []byte, call *Call) []byte {
	method := call.Method
	method = cmp.Or(method, http.MethodPost)
	at := url.URL{Path: strings.TrimSuffix(c.root.Path, "/") + call.Path, RawQuery: call.Query}
	b = append(append(b, method...), ' ')
	b = append(append(b, at.RequestURI()...), " HTTP/1.1\r\n"...)
	b = appendHeader(b, "Host", c.host)
	b = appendHeader(b, "User-Agent", "penstock")
	body := call.Body
	if call.Large != nil {
		body = call.Large.B
	}
	if body != nil {
		b = appendHeader(b, "Content-Type", "application/json")
	}
	if body != nil || method == http.MethodPost {
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), int64(len(body)), 10), "\r\n"...)
	}
	if c.key != "" {
		b = appendHeader(b, "Authorization", "Bearer "+c.key)
	}
	if call.ID != "" {
		b = appendHeader(b, "X-Request-Id", sanitizeHeader(call.ID))
	}
	for i := 0; i+1 < len(call.Headers); i += 2 {
		b = appendHeader(b, call.Headers[i], call.Headers[i+1])
	}
	return append(b, "\r\n"...)
}

// appendHeader appends a header line, with line breaks in the value replaced by spaces.
func appendHeader(b []byte, name, value string) []byte {
	b = append(append(append(b, name...), ": "...), value...)
	for i := len(b) - len(value); i < len(b); i++ {
		if b[i] == '\r' || b[i] == '\n' {
			b[i] = ' '
		}
	}
	return append(b, "\r\n"...)
}

// sanitizeHeader replaces the characters of s that a header cannot carry and bounds its length.
func sanitizeHeader(s string) string {
	s = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, s)
	return s[:min(len(s), 128)]
}

// isClosedEarly reports whether err says that the engine closed or refused the connection before it answered.
func isClosedEarly(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED)
}

// BodyBuffer is a pooled buffer for the body of a call: bodies with long prompts have hundreds of kilobytes.
type BodyBuffer struct {
	B    []byte
	refs atomic.Int32 // its maker and its sender
}

var bodyPool = sync.Pool{New: func() any { return &BodyBuffer{B: make([]byte, 0, 16<<10)} }}

// maxKeptBody bounds the pooled buffers, in bytes.
const maxKeptBody = 4 << 20

// NewBody returns an empty buffer. Its maker releases it.
func NewBody() *BodyBuffer {
	b := bodyPool.Get().(*BodyBuffer)
	b.B = b.B[:0]
	b.refs.Store(1)
	return b
}

// Release returns the buffer to the pool after its last user's Release.
func (b *BodyBuffer) Release() {
	if b.refs.Add(-1) == 0 && cap(b.B) <= maxKeptBody {
		bodyPool.Put(b)
	}
}

// retain keeps the buffer until one more Release.
func (b *BodyBuffer) retain() { b.refs.Add(1) }

// FetchPrompt calls ask to fetch the tokens of a prompt from the engine, unless it is down, and checks them
// against the card's vocabulary.
func (b *Base) FetchPrompt(ctx context.Context, attempt uint32, ask func(context.Context, *engine.Preprocessed) error) (*engine.Preprocessed, error) {
	inside, done, err := b.StartCall(ctx)
	if err != nil {
		return nil, err
	}
	p := &engine.Preprocessed{Attempt: attempt}
	if err := done(ask(inside, p)); err != nil {
		return nil, err
	}
	if err := p.Validate(b.cfg.Card.VocabSize); err != nil {
		return nil, err
	}
	return p, nil
}

// ParseTokenize reads the "tokens" of a response of /tokenize into p.
func ParseTokenize(body []byte, p *engine.Preprocessed) error {
	c := strictjson.NewCursor(body)
	for c.Open('{'); c.More('}'); {
		if string(c.Key()) == "tokens" {
			p.Tokens = c.ReadTokens(p.Tokens[:0])
		} else {
			c.Skip()
		}
	}
	if c.End() != nil {
		return &fault.Error{Code: fault.Unavailable, Message: "the engine answers a question for a prompt with what is none", Err: c.Err()}
	}
	return nil
}
