package enginemock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/core/kv"
)

// newHandler returns the complete HTTP handler of a server.
func (s *Server) newHandler() http.Handler {
	mux := http.NewServeMux()
	s.dialect.addRoutes(s, mux)
	mux.HandleFunc("GET /admin/faults", s.getFaults)
	mux.HandleFunc("POST /admin/faults", s.postFaults)
	mux.HandleFunc("GET /admin/state", s.getState)
	mux.HandleFunc("POST /admin/restart", s.postRestart)
	mux.HandleFunc("POST /admin/transfer", s.postTransfer)
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
	if s.dialect.ownErrors {
		s.refuseRequest(w, http.StatusNotFound, "File Not Found")
		return
	}
	status, detail := http.StatusNotFound, "Not Found"
	for _, m := range []string{http.MethodGet, http.MethodPost} {
		other := r.Clone(r.Context())
		other.Method = m
		if _, pattern := mux.Handler(other); pattern != "" {
			status, detail = http.StatusMethodNotAllowed, "Method Not Allowed"
		}
	}
	writeJSON(w, status, object{"detail": detail})
}

// refuseLoading answers 503 while the server starts, or a fault says so.
func (s *Server) refuseLoading(w http.ResponseWriter, r *http.Request) bool {
	if strings.HasPrefix(r.URL.Path, "/admin/") {
		return false
	}
	if starting := time.Since(s.startedAt) < s.cfg.Startup; !starting || s.dialect.startup != nil && !slices.Contains(s.dialect.startup, r.URL.Path) {
		if _, hit := s.faults.takeDue(FaultLoading); !hit {
			return false
		}
	}
	if s.dialect.ownErrors {
		s.refuseRequest(w, http.StatusServiceUnavailable, "Loading model")
		return true
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	return true
}

// checkKey refuses requests without the API key, if there is one.
func (s *Server) checkKey(w http.ResponseWriter, r *http.Request) bool {
	path := r.URL.Path
	if s.cfg.APIKey == "" || strings.HasPrefix(path, "/admin/") || path == "/health" || path == "/metrics" {
		return true
	}
	if s.dialect.keyed != nil && !slices.ContainsFunc(s.dialect.keyed, func(prefix string) bool { return strings.HasPrefix(path, prefix) }) {
		return true
	}
	if r.Header.Get("Authorization") == "Bearer "+s.cfg.APIKey {
		return true
	}
	if s.dialect.ownErrors {
		s.refuseRequest(w, http.StatusUnauthorized, "Invalid API Key")
	} else {
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
	return s.dialect.errorBody(s.dialect.errorType(status), status, message)
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

// plainText is an answer of serveJSON which is a text.
type plainText string

// serveJSON serves requests with a JSON body: it answers with the object, the text or the error which answer
// returns, and for nil with nothing but the status.
func serveJSON[Q any](s *Server, answer func(ctx context.Context, q *Q) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q Q
		if !s.readBody(w, r, &q) {
			return
		}
		v, err := answer(r.Context(), &q)
		switch text, isText := v.(plainText); {
		case err != nil:
			s.writeError(w, err)
		case isText:
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = io.WriteString(w, string(text))
		case v == nil:
			w.WriteHeader(http.StatusOK)
		default:
			writeJSON(w, http.StatusOK, v)
		}
	}
}

// serveDetokenize serves the text of tokens, in the dialect's field.
func (s *Server) serveDetokenize(field string) http.HandlerFunc {
	type request struct {
		Tokens []kv.Token `json:"tokens"`
	}
	return serveJSON(s, func(_ context.Context, q *request) (any, error) {
		text, err := s.decodeTokens(q.Tokens)
		return object{field: text}, err
	})
}

// getFaults serves the fault switches.
func (s *Server) getFaults(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.faults)
}

// postFaults replaces the fault switches with {"faults":[…]}.
func (s *Server) postFaults(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Faults []Fault `json:"faults"`
	}
	data, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(data, &body)
	}
	if err == nil {
		err = s.faults.Set(body.Faults...)
	}
	if err != nil {
		writeJSON(w, http.StatusBadRequest, object{"error": err.Error()})
		return
	}
	s.getFaults(w, r)
}

// postRestart restarts the server.
func (s *Server) postRestart(w http.ResponseWriter, _ *http.Request) {
	// The restart also closes this request's connection, so the response is flushed first.
	writeJSON(w, http.StatusOK, object{"restarting": true})
	_ = http.NewResponseController(w).Flush()
	select {
	case s.tasks <- task{s.restartEngines, make(chan error, 1)}:
	default: // enough restarts are pending
	}
}

// getState serves the server's internal state, for tests and people.
func (s *Server) getState(w http.ResponseWriter, _ *http.Request) {
	type state struct {
		Seq         uint64 `json:"seq"` // of the next batch of events
		Subscribers int    `json:"subscribers"`
		Dropped     uint64 `json:"dropped"` // batches that a slow subscriber lost
		Cached      int    `json:"cached"`  // blocks published as cached
		Known       int    `json:"known"`   // blocks whose tokens are known
		Busy        int    `json:"busy"`    // requests
		Lives       uint64 `json:"lives"`   // engines started so far
	}
	ranks := make([]state, len(s.ranks))
	for i, r := range s.ranks {
		st := &ranks[i]
		r.mu.Lock()
		st.Busy, st.Lives = r.mu.busy, r.mu.lives
		r.mu.Unlock()
		if l := r.currentInstance(); l != nil {
			st.Known = l.ledger.countBlocks()
		}
		f := r.feed
		f.mu.Lock()
		st.Seq, st.Cached = f.mu.seq, len(f.mu.cached)
		if f.pub != nil {
			st.Subscribers, st.Dropped = f.pub.Subscribers(), f.pub.Dropped()
		}
		f.mu.Unlock()
	}
	s.mu.Lock()
	of := s.mu.encoded.stats
	encodings := object{"encoded": of.Encoded, "loaded": of.Loaded, "missing": of.Missing, "unknown": of.Unknown}
	s.mu.Unlock()
	moved := s.TransferStats()
	transfers := object{"sent": moved.Sent, "received": moved.Received, "missed": moved.Missed, "reused": moved.Reused}
	writeJSON(w, http.StatusOK, object{"dialect": s.cfg.Dialect, "ranks": ranks, "leases": moved.Leases, "transfers": transfers, "processed": s.Processed(), "encodings": encodings})
}
