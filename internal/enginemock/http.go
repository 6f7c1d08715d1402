package enginemock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
	"penstock/internal/engine"
)

// newHandler returns the complete HTTP handler of a server.
func (s *Server) newHandler() http.Handler {
	mux := http.NewServeMux()
	switch s.cfg.Dialect {
	case SGLang:
		s.routeSGLang(mux)
	case TRTLLM:
		s.routeTRTLLM(mux)
	case LlamaCPP:
		s.routeLlamaCpp(mux)
	default:
		s.routeVLLM(mux)
	}
	mux.HandleFunc("GET /admin/faults", s.getFaults)
	mux.HandleFunc("POST /admin/faults", s.postFaults)
	mux.HandleFunc("GET /admin/state", s.getState)
	mux.HandleFunc("POST /admin/restart", s.postRestart)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.resetIdle(r)
		for k, v := range s.cfg.Headers {
			w.Header().Set(k, v)
		}
		if s.refuseLoading(w, r) || !s.checkKey(w, r) {
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, s.cfg.MaxBody)
		if _, pattern := mux.Handler(r); pattern == "" {
			s.serveUnknown(mux, w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// serveUnknown answers for an unknown path, or an unknown method of a known path.
func (s *Server) serveUnknown(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	status, detail := http.StatusNotFound, "Not Found"
	for _, m := range []string{http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = m
		if _, pattern := mux.Handler(other); pattern != "" && s.cfg.Dialect != LlamaCPP {
			status, detail = http.StatusMethodNotAllowed, "Method Not Allowed"
		}
	}
	if s.cfg.Dialect == LlamaCPP {
		writeJSON(w, status, object{"error": object{"code": status, "message": "File Not Found", "type": "not_found_error"}})
		return
	}
	writeJSON(w, status, object{"detail": detail})
}

// refuseLoading answers 503 while the server starts, or a fault says so.
func (s *Server) refuseLoading(w http.ResponseWriter, r *http.Request) bool {
	if strings.HasPrefix(r.URL.Path, "/admin/") {
		return false
	}
	if starting := time.Since(s.startedAt) < s.cfg.Startup; !starting || s.release != nil && !isHealthPath(r) {
		if _, hit := s.faults.takeDue(FaultLoading); !hit {
			return false
		}
	}
	if s.cfg.Dialect == LlamaCPP {
		writeJSON(w, http.StatusServiceUnavailable, object{"error": object{"code": 503, "message": "Loading model", "type": "unavailable_error"}})
		return true
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	return true
}

// isHealthPath reports whether a request is for a path which SGLang answers with 503 while it starts: it
// serves all others.
func isHealthPath(r *http.Request) bool {
	switch r.URL.Path {
	case "/health", "/health_generate", "/ready":
		return true
	}
	return false
}

// checkKey refuses requests without the API key, if there is one.
func (s *Server) checkKey(w http.ResponseWriter, r *http.Request) bool {
	path := r.URL.Path
	if s.cfg.APIKey == "" || strings.HasPrefix(path, "/admin/") || path == "/health" || path == "/metrics" {
		return true
	}
	if s.cfg.Dialect.isVLLM() && !strings.HasPrefix(path, "/v1") && !strings.HasPrefix(path, "/inference/") {
		return true // vLLM guards only these
	}
	if r.Header.Get("Authorization") == "Bearer "+s.cfg.APIKey {
		return true
	}
	switch s.cfg.Dialect {
	case LlamaCPP:
		s.refuseRequest(w, http.StatusUnauthorized, "Invalid API Key")
	default:
		writeJSON(w, http.StatusUnauthorized, object{"error": "Unauthorized"})
	}
	return false
}

// object is a JSON object.
type object = map[string]any

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // a client that disconnected is not an error of the server
}

// marshalJSON encodes v as servers in Python and C++ do.
func marshalJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return []byte(`{"error":{"message":"the answer cannot be written"}}`) // cannot happen: all values are plain
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// errorBody is an error in the dialect's format.
func (s *Server) errorBody(status int, message string) any {
	kind := errorType(s.cfg.Dialect, status)
	switch s.cfg.Dialect {
	case SGLang, TRTLLM:
		return object{"object": "error", "message": message, "type": kind, "param": nil, "code": status}
	case LlamaCPP:
		return object{"error": object{"code": status, "message": message, "type": kind}}
	}
	return object{"error": object{"message": message, "type": kind, "param": nil, "code": status}}
}

// errorType is the dialect's name for a status.
func errorType(d Dialect, status int) string {
	if d == LlamaCPP {
		switch status {
		case 400:
			return "invalid_request_error"
		case 401:
			return "authentication_error"
		case 404:
			return "not_found_error"
		case 501:
			return "not_supported_error"
		case 503:
			return "unavailable_error"
		}
		return "server_error"
	}
	switch status {
	case 400:
		return "BadRequestError"
	case 401:
		return "AuthenticationError"
	case 404:
		return "NotFoundError"
	case 422:
		return "UnprocessableEntityError"
	case 429:
		return "RateLimitError"
	case 503:
		return "ServiceUnavailableError"
	}
	return "InternalServerError"
}

func (s *Server) refuseRequest(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, s.errorBody(status, message))
}

// writeError answers with an error of the engine.
func (s *Server) writeError(w http.ResponseWriter, err error) {
	status, message := statusOf(err)
	if status == 0 {
		panic(http.ErrAbortHandler)
	}
	s.refuseRequest(w, status, message)
}

// statusOf is the status and message of an error; 0 if the client has disconnected.
func statusOf(err error) (status int, message string) {
	var f *fault.Error
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge, "Request body is too large."
	case errors.As(err, &f):
		if f.Code == fault.Conflict {
			return http.StatusBadRequest, f.Message
		}
		return f.Code.Class().Status, f.Message
	case errors.Is(err, context.Canceled):
		return 0, ""
	}
	return http.StatusInternalServerError, "Internal server error"
}

// readBody decodes the JSON body of a request into v, or answers with the error.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, v any) bool {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		s.writeError(w, err)
		return false
	}
	if err := json.Unmarshal(data, v); err != nil {
		s.refuseRequest(w, http.StatusBadRequest, "1 validation error: "+describeJSONError(err))
		return false
	}
	return true
}

// describeJSONError describes a JSON error without the content of the JSON.
func describeJSONError(err error) string {
	var kind *json.UnmarshalTypeError
	var f *fault.Error
	switch {
	case errors.As(err, &kind):
		return "field '" + kind.Field + "': " + "Input should be of another type than " + kind.Value
	case errors.As(err, &f):
		return f.Message
	}
	return "JSON decode error"
}

// answerFaults are the faults of one answer.
type answerFaults struct {
	server                               *Server
	stall, streamError, disconnect, drip *Fault
	sent                                 int
}

// errStreamFault is an error in the middle of an answer.
var errStreamFault = fault.New(fault.Internal, "EngineCore encountered an issue. See stack trace (above) for the root cause.")

// startAnswer applies the faults which come before an answer. It reports false if it answered.
func (s *Server) startAnswer(w http.ResponseWriter, r *http.Request) (*answerFaults, bool) {
	if status, err := strconv.Atoi(r.Header.Get("X-Return-Error")); err == nil && status >= 400 && status < 600 {
		s.refuseRequest(w, status, "asked for by the request")
		return nil, false
	}
	if _, hit := s.faults.takeDue(FaultLimit); hit {
		w.Header().Set("Retry-After", "1")
		s.refuseRequest(w, http.StatusTooManyRequests, "Too many requests")
		return nil, false
	}
	if x, hit := s.faults.takeDue(FaultError); hit {
		if x.Status == 0 {
			x.Status = http.StatusInternalServerError
		}
		s.refuseRequest(w, x.Status, "injected error")
		return nil, false
	}
	f := &answerFaults{server: s}
	for _, k := range []struct {
		kind FaultKind
		at   **Fault
	}{{FaultStall, &f.stall}, {FaultStreamError, &f.streamError}, {FaultDisconnect, &f.disconnect}, {FaultDrip, &f.drip}} {
		if x, hit := s.faults.takeDue(k.kind); hit {
			*k.at = &x
		}
	}
	return f, true
}

// release ends the answer: faults which it did not reach are for later answers.
func (f *answerFaults) release() {
	for _, x := range []*Fault{f.stall, f.streamError, f.disconnect} {
		if x != nil {
			f.server.faults.giveBack(*x)
		}
	}
}

// beforePart applies the faults which are due before p is sent; flush sends what was queued before. limit is
// how many tokens the request allows.
func (f *answerFaults) beforePart(ctx context.Context, p *outputPart, limit int, flush func()) error {
	due := func(x *Fault) bool { return x != nil && f.sent >= x.After && limit >= x.MinTokens }
	if due(f.disconnect) {
		f.disconnect = nil
		flush()
		panic(http.ErrAbortHandler)
	}
	if due(f.streamError) {
		f.streamError = nil
		return errStreamFault
	}
	if due(f.stall) {
		flush()
		d := time.Duration(f.stall.For)
		f.stall = nil
		if err := waitFor(ctx, d); err != nil {
			return err
		}
	}
	if due(f.drip) {
		flush()
		d := time.Duration(f.drip.For)
		if d == 0 {
			d = 100 * time.Millisecond
		}
		if err := waitFor(ctx, d); err != nil {
			return err
		}
	}
	f.sent += len(p.tokens)
	return nil
}

// waitFor waits for d; 0 is until ctx ends.
func waitFor(ctx context.Context, d time.Duration) error {
	if d == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sseStream writes server-sent events.
type sseStream struct {
	buf []byte
	mu  struct {
		sync.Mutex
		w     http.ResponseWriter
		rc    *http.ResponseController
		wrote bool // since the last tick of startPings
	}
}

func newSSEStream(w http.ResponseWriter) *sseStream {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	st := &sseStream{}
	st.mu.w, st.mu.rc = w, http.NewResponseController(w)
	st.flush()
	return st
}

// writeEvent queues one event.
func (st *sseStream) writeEvent(v any) { st.writeLine(marshalJSON(v)) }

func (st *sseStream) writeLine(data []byte) {
	st.buf = append(st.buf, "data: "...)
	st.buf = append(st.buf, data...)
	st.buf = append(st.buf, "\n\n"...)
}

// flush sends what is queued. The request's context reports a client that disconnected.
func (st *sseStream) flush() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.buf) > 0 {
		_, _ = st.mu.w.Write(st.buf)
		st.buf = st.buf[:0]
		st.mu.wrote = true
	}
	_ = st.mu.rc.Flush()
}

// startPings writes a comment whenever nothing was sent for a while, until the returned function is called.
func (st *sseStream) startPings(every time.Duration) (stop func()) {
	if every <= 0 {
		return func() {}
	}
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				st.writePing()
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-done
	}
}

func (st *sseStream) writePing() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.mu.wrote {
		_, _ = st.mu.w.Write([]byte(":\n\n"))
		_ = st.mu.rc.Flush()
	}
	st.mu.wrote = false
}

// forEachPart passes the parts of an answer to visit, applies the faults that are due, and flushes after each
// batch of parts.
func (s *Server) forEachPart(ctx context.Context, a *outputStream, f *answerFaults, flush func(), visit func(*outputPart) error) error {
	for {
		parts, err := a.nextParts(ctx)
		if err != nil || len(parts) == 0 {
			return err
		}
		for i := range parts {
			p := &parts[i]
			if err := f.beforePart(ctx, p, a.requests[p.prompt].req.Stop.MaxTokens, flush); err != nil {
				return err
			}
			if err := visit(p); err != nil {
				return err
			}
		}
		flush()
	}
}

// addCached adds up known numbers of cached tokens; CachedUnknown if none is known.
func addCached(sum, cached int) int {
	switch {
	case cached == engine.CachedUnknown:
		return sum
	case sum == engine.CachedUnknown:
		return cached
	}
	return sum + cached
}

// serveDetokenize serves the text of tokens, in the dialect's field.
func (s *Server) serveDetokenize(field string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			Tokens []kv.Token `json:"tokens"`
		}
		if !s.readBody(w, r, &q) {
			return
		}
		text, err := s.decodeTokens(q.Tokens)
		if err != nil {
			s.writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, object{field: text})
	}
}
