package rpc

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock/core/fault"
)

// What calls and answers over HTTP are made of beside their bodies.
const (
	httpPath    = "/v1/rpc/"
	httpTimeout = "Penstock-Timeout-Ms" // the time that the caller has left
	httpType    = "application/vnd.penstock.rpc"
)

// httpServer is one Serve in progress.
type httpServer struct {
	cfg     *HTTPConfig
	handler Handler
	bodies  budget
	// calls counts handlers, and answers that are being written. It is added to from
	// zero under mu and only while the server is not draining, so that Wait never
	// races with that.
	calls sync.WaitGroup
	mu    struct {
		sync.Mutex
		draining bool
		calls    int
	}
}

func newHTTPServer(cfg *HTTPConfig, h Handler) *httpServer {
	return &httpServer{cfg: cfg, handler: h, bodies: budget{limit: cfg.MaxBodies}}
}

// bearer returns the Authorization header of those who have the token.
func bearer(token string) string {
	if token == "" {
		return ""
	}
	return "Bearer " + token
}

// drain refuses the calls that come from now on.
func (s *httpServer) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.draining = true
}

// enter counts one more call in progress, or says why there is none.
func (s *httpServer) enter(method string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.mu.draining:
		return fault.New(fault.Unavailable, "call %s: the server is leaving", method)
	case s.mu.calls >= s.cfg.MaxCalls:
		return fault.New(fault.Overloaded, "call %s: the server has %d calls in progress, which is all it takes; try again", method, s.mu.calls)
	}
	s.mu.calls++
	s.calls.Add(1)
	return nil
}

func (s *httpServer) leave() {
	s.mu.Lock()
	s.mu.calls--
	s.mu.Unlock()
	s.calls.Done()
}

// ServeHTTP serves one call, or says why not.
func (s *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	escaped, ours := strings.CutPrefix(r.URL.EscapedPath(), httpPath)
	method, err := url.PathUnescape(escaped)
	switch {
	case !sameToken(r.Header.Get("Authorization"), bearer(s.cfg.Token)):
		http.Error(w, "the token is missing or wrong", http.StatusUnauthorized)
		return
	case !ours || err != nil:
		http.Error(w, "calls go to "+httpPath+"METHOD", http.StatusNotFound)
		return
	case r.Method != http.MethodPost:
		http.Error(w, "calls are made with POST", http.StatusMethodNotAllowed)
		return
	}
	if err := s.enter(method); err != nil {
		refuse(w, err)
		return
	}
	body, err := s.readBody(w, r, method)
	if err != nil {
		s.leave()
		refuse(w, err)
		return
	}
	s.serve(w, r, method, body)
}

// refuse answers a call that reaches no handler.
func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", httpType)
	w.WriteHeader(fault.Of(err).Class().Status)
	_, _ = w.Write(appendEnd(nil, err))
}

// readBody returns the body, for which room is then taken.
func (s *httpServer) readBody(w http.ResponseWriter, r *http.Request, method string) ([]byte, error) {
	n := r.ContentLength
	switch {
	case n < 0:
		return nil, fault.New(fault.Invalid, "call %s: send the body's length", method)
	case n > MaxBody:
		return nil, errBodyTooLarge(method, int(n))
	case len(method) > MaxMethod:
		return nil, fits(method, nil)
	case !s.bodies.take(n):
		return nil, errBodiesFull(method, n)
	}
	c := http.NewResponseController(w)
	err := c.SetReadDeadline(time.Now().Add(bodyTime))
	var body []byte
	if err == nil {
		in := recordReader{r: bufio.NewReader(r.Body)}
		body, err = in.read(int(n))
	}
	if err == nil {
		err = c.SetReadDeadline(time.Time{})
	}
	if err != nil {
		s.bodies.give(n)
		return nil, fault.New(fault.Unavailable, "call %s: the body broke off: %v", method, err)
	}
	return body, nil
}

// serve runs the handler and writes what it sends. It returns when the caller goes
// away too, which ends a write in progress, and cancels the handler then.
func (s *httpServer) serve(w http.ResponseWriter, r *http.Request, method string, body []byte) {
	// The handler sees the caller's end and trace but none of the request's values.
	hctx, cancel := readEnvelope(r.Header).open(context.Background())
	defer cancel()

	s.calls.Add(1)
	defer s.calls.Done()
	c := newMemCall(cancel)
	go func() {
		defer s.leave()
		defer s.bodies.give(int64(len(body)))
		c.serve(hctx, s.handler, method, body)
		s.logCause(method, c.outcome())
	}()
	w.Header().Set("Content-Type", httpType)
	out := httpAnswer{w: w, c: http.NewResponseController(w), call: c}
	out.buf = appendGrease(out.buf)
	err := c.receive(r.Context(), out.frame)
	if r.Context().Err() != nil || out.broken {
		return // nobody is there any more
	}
	_, _ = w.Write(appendEnd(out.buf, err))
	_ = out.c.Flush() // nobody waits for the stream's own end when the server leaves
}

// logCause logs what a caller is not told.
func (s *httpServer) logCause(method string, err error) {
	if cause := errors.Unwrap(err); cause != nil {
		s.cfg.Log.Error("a call failed", "method", method, "err", cause)
	}
}

// httpAnswer writes the frames of one call. What is queued goes out together.
type httpAnswer struct {
	w      http.ResponseWriter
	c      *http.ResponseController
	call   *memCall
	buf    []byte // the head of the next record, and what stands before it
	broken bool
}

func (a *httpAnswer) frame(f []byte) error {
	a.buf = appendRecordHead(a.buf, recordFrame, len(f))
	_, err := a.w.Write(a.buf)
	a.buf = a.buf[:0]
	if err == nil {
		_, err = a.w.Write(f)
	}
	if err == nil && !a.call.more() {
		err = a.c.Flush()
	}
	a.broken = err != nil
	return err
}

// writeEnvelope and readEnvelope carry an envelope in headers.
func writeEnvelope(h http.Header, e envelope) {
	if e.budget > 0 {
		h.Set(httpTimeout, strconv.FormatInt(e.millis(), 10))
	}
	if e.parent != "" {
		h.Set(traceParent, e.parent)
	}
	if e.state != "" {
		h.Set(traceState, e.state)
	}
}

func readEnvelope(h http.Header) envelope {
	var e envelope
	if ms, err := strconv.ParseUint(h.Get(httpTimeout), 10, 32); err == nil {
		e.budget = time.Duration(ms) * time.Millisecond
	}
	if p, s := h.Get(traceParent), h.Get(traceState); len(p) <= maxTrace && len(s) <= maxTrace {
		e.parent, e.state = p, s
	}
	return e
}
