package rpc

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/endpoint"
)

// Path, header and content type of calls and answers over HTTP.
const (
	httpPath          = "/v1/rpc/"
	httpTimeoutHeader = "Penstock-Timeout-Ms" // milliseconds until the caller's deadline
	httpContentType   = "application/vnd.penstock.rpc"
)

// httpServer is one Serve in progress.
type httpServer struct {
	cfg     *HTTPConfig
	handler Handler
	bodies  byteBudget
	// calls counts handlers and answers that are being written. It is incremented from zero only
	// under mu and while the server is not draining, so Wait never races with such an increment.
	calls sync.WaitGroup
	mu    struct {
		sync.Mutex
		draining bool
		calls    int
	}
}

func newHTTPServer(cfg *HTTPConfig, h Handler) *httpServer {
	return &httpServer{cfg: cfg, handler: h, bodies: byteBudget{limit: cfg.MaxBodies}}
}

// bearerHeader returns the Authorization header for token.
func bearerHeader(token string) string {
	if token == "" {
		return ""
	}
	return "Bearer " + token
}

// startDraining makes the server refuse new calls.
func (s *httpServer) startDraining() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.draining = true
}

// countCallStart counts one more call in progress, or returns the reason to refuse it.
func (s *httpServer) countCallStart(method string) error {
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

func (s *httpServer) countCallEnd() {
	s.mu.Lock()
	s.mu.calls--
	s.mu.Unlock()
	s.calls.Done()
}

// ServeHTTP serves one call or refuses it.
func (s *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	escaped, ours := strings.CutPrefix(r.URL.EscapedPath(), httpPath)
	method, err := url.PathUnescape(escaped)
	switch {
	case !endpoint.TokensMatch(r.Header.Get("Authorization"), bearerHeader(s.cfg.Token)):
		http.Error(w, "the token is missing or wrong", http.StatusUnauthorized)
		return
	case !ours || err != nil:
		http.Error(w, "calls go to "+httpPath+"METHOD", http.StatusNotFound)
		return
	case r.Method != http.MethodPost:
		http.Error(w, "calls are made with POST", http.StatusMethodNotAllowed)
		return
	}
	if err := s.countCallStart(method); err != nil {
		writeRefusal(w, err)
		return
	}
	body, err := s.readBody(w, r, method)
	if err != nil {
		s.countCallEnd()
		writeRefusal(w, err)
		return
	}
	s.serveCall(w, r, method, body)
}

// writeRefusal answers a call which reaches no handler.
func writeRefusal(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", httpContentType)
	w.WriteHeader(fault.CodeOf(err).Class().Status)
	_, _ = w.Write(appendEndRecord(nil, err))
}

// readBody returns the body. The caller must release its size in s.bodies if err is nil.
func (s *httpServer) readBody(w http.ResponseWriter, r *http.Request, method string) ([]byte, error) {
	n := r.ContentLength
	switch {
	case n < 0:
		return nil, fault.New(fault.Invalid, "call %s: send the body's length", method)
	case n > MaxBody:
		return nil, errBodyTooLarge(method, int(n))
	case len(method) > MaxMethod:
		return nil, checkLimits(method, nil)
	case !s.bodies.tryReserve(n):
		return nil, errBodiesFull(method, n)
	}
	c := http.NewResponseController(w)
	err := c.SetReadDeadline(time.Now().Add(bodyTimeout))
	var body []byte
	if err == nil {
		in := recordReader{r: r.Body}
		body, err = in.readBytes(int(n))
	}
	if err == nil {
		err = c.SetReadDeadline(time.Time{})
	}
	if err != nil {
		s.bodies.release(n)
		return nil, fault.New(fault.Unavailable, "call %s: the body broke off: %v", method, err)
	}
	return body, nil
}

// serveCall runs the handler and writes its frames. It also returns when the caller disconnects,
// which interrupts a write in progress and cancels the handler.
func (s *httpServer) serveCall(w http.ResponseWriter, r *http.Request, method string, body []byte) {
	// The handler gets the caller's deadline and trace but no values of the request's context.
	hctx, cancel := readEnvelope(r.Header).handlerContext(context.Background())
	defer cancel()

	s.calls.Add(1)
	defer s.calls.Done()
	c := newMemCall(cancel)
	go func() {
		defer s.countCallEnd()
		defer s.bodies.release(int64(len(body)))
		c.runHandler(hctx, s.handler, method, body)
		s.logCause(method, c.handlerError())
	}()
	w.Header().Set("Content-Type", httpContentType)
	out := httpAnswerWriter{w: w, c: http.NewResponseController(w), call: c}
	out.buf = appendGreaseRecord(out.buf)
	err := c.receiveFrames(r.Context(), out.writeFrame)
	if r.Context().Err() != nil || out.broken {
		return // the caller has disconnected
	}
	_, _ = w.Write(appendEndRecord(out.buf, err))
	_ = out.c.Flush() // callers do not wait for the end of the stream when the server drains
}

// logCause logs the part of a handler's error which the caller does not get.
func (s *httpServer) logCause(method string, err error) {
	if cause := errors.Unwrap(err); cause != nil {
		s.cfg.Log.Error("a call failed", "method", method, "err", cause)
	}
}

// httpAnswerWriter writes the frames of one call and flushes when no more frames are queued.
type httpAnswerWriter struct {
	w      http.ResponseWriter
	c      *http.ResponseController
	call   *memCall
	buf    []byte // the header of the next record, and any records before it
	broken bool
}

func (a *httpAnswerWriter) writeFrame(f []byte) error {
	a.buf = appendRecordHead(a.buf, recordFrame, len(f))
	_, err := a.w.Write(a.buf)
	a.buf = a.buf[:0]
	if err == nil {
		_, err = a.w.Write(f)
	}
	if err == nil && !a.call.hasUnreceived() {
		err = a.c.Flush()
	}
	a.broken = err != nil
	return err
}

// writeEnvelope and readEnvelope write and read a callMetadata as headers.
func writeEnvelope(h http.Header, e callMetadata) {
	if e.budget > 0 {
		h.Set(httpTimeoutHeader, strconv.FormatInt(e.budgetMillis(), 10))
	}
	if e.parent != "" {
		h.Set(traceParent, e.parent)
	}
	if e.state != "" {
		h.Set(traceState, e.state)
	}
}

func readEnvelope(h http.Header) callMetadata {
	var e callMetadata
	if ms, err := strconv.ParseUint(h.Get(httpTimeoutHeader), 10, 32); err == nil {
		e.budget = time.Duration(ms) * time.Millisecond
	}
	if p, s := h.Get(traceParent), h.Get(traceState); len(p) <= maxTrace && len(s) <= maxTrace {
		e.parent, e.state = p, s
	}
	return e
}
