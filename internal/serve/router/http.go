package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"penstock/core/fault"
	"penstock/internal/edge/openai"
	"penstock/internal/engine"
)

// Handler serves the router API: all paths below /v1/router/, and /busy_threshold. It works before and
// during Run; after Run it serves the last state.
func (r *Router) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, e := range []struct {
		method, path string
		serve        func(http.ResponseWriter, *http.Request) error
	}{
		{http.MethodPost, engine.InspectBestWorker, r.serveQuestion(engine.InspectBestWorker)},
		{http.MethodPost, engine.InspectLoads, r.serveQuestion(engine.InspectLoads)},
		{http.MethodPost, engine.InspectExplain, r.serveQuestion(engine.InspectExplain)},
		{http.MethodPost, "generate", r.serveGenerate},
		{http.MethodGet, "decisions", r.serveDecisions},
		{http.MethodGet, "index", r.serveIndex},
		{http.MethodGet, "index/dump", r.serveDump},
		{http.MethodGet, "workers", r.serveWorkers},
		{http.MethodGet, "replicas", r.serveReplicas},
		{http.MethodGet, "events", r.serveEvents},
	} {
		mux.HandleFunc("/v1/router/"+e.path, func(w http.ResponseWriter, req *http.Request) {
			if req.Method != e.method && (e.method != http.MethodGet || req.Method != http.MethodHead) {
				openai.WriteMethodNotAllowed(w, req, e.method)
				return
			}
			serve := e.serve
			if e.method == http.MethodPost {
				serve = r.limitCalls(serve)
			}
			if err := serve(w, req); err != nil {
				r.refuse(w, req, err)
			}
		})
	}
	for path, serve := range map[string]func(http.ResponseWriter, *http.Request) error{
		busyThreshold: r.serveBusyThreshold, disaggSettings: r.serveDisagg,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, req *http.Request) {
			if err := r.limitCalls(serve)(w, req); err != nil {
				r.refuse(w, req, err)
			}
		})
	}
	mux.HandleFunc("/v1/router/", func(w http.ResponseWriter, req *http.Request) {
		openai.WriteError(w, fault.New(fault.NotFound, "the router API has no %.100q", req.URL.Path))
	})
	return mux
}

// limitCalls bounds the concurrent calls of serve by MaxCalls, together with all other limited calls.
func (r *Router) limitCalls(serve func(http.ResponseWriter, *http.Request) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, req *http.Request) error {
		defer r.calls.Add(-1)
		if r.calls.Add(1) > int64(r.cfg.MaxCalls) {
			return r.tooManyCalls()
		}
		return serve(w, req)
	}
}

func (r *Router) tooManyCalls() error {
	return fault.New(fault.Overloaded, "%d calls of the router API are in progress: try again later", r.cfg.MaxCalls)
}

// refuse answers with err. Handlers return an error only before their first byte.
func (r *Router) refuse(w http.ResponseWriter, req *http.Request, err error) {
	if req.Context().Err() != nil {
		err = fault.New(fault.Canceled, "the client went away")
	}
	if fault.CodeOf(err) == fault.Internal {
		r.log.Error("router API call failed", "path", req.URL.Path, "error", err)
	}
	extendWriteDeadline(http.NewResponseController(w)) // the call may have waited long
	openai.WriteError(w, err)
}

// rowsAnswer is the JSON of a table.
type rowsAnswer[T any] struct {
	Rows []T `json:"rows"`
}

func newRowsAnswer[T any](table []T) rowsAnswer[T] { return rowsAnswer[T]{table} }

func writeJSON(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '\n')) // a write error means that the client has disconnected
	return nil
}

func formatHex(v uint64) string { return fmt.Sprintf("%016x", v) }

// readJSON decodes the whole body into v. Fields which v does not have, and anything after the object,
// are client errors.
func (r *Router) readJSON(w http.ResponseWriter, req *http.Request, v any) error {
	return decodeJSON(http.MaxBytesReader(w, req.Body, r.cfg.MaxBodyBytes), v)
}

func decodeJSON(in io.Reader, v any) error {
	d := json.NewDecoder(in)
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil && d.More() {
		return fault.New(fault.Invalid, "the body has something after the JSON object")
	}
	return explainJSON(err)
}

// explainJSON turns a decoder's error into one that a client can act on, without names of this
// program's types or parts of the body.
func explainJSON(err error) error {
	var tooLarge *http.MaxBytesError
	var wrongType *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	var own *fault.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return own
	case errors.As(err, &tooLarge):
		return fault.New(fault.TooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	case errors.As(err, &wrongType):
		field := wrongType.Field
		if field == "" {
			return fault.New(fault.Invalid, "the body must be a JSON object")
		}
		kind, _, _ := strings.Cut(wrongType.Value, " ") // the rest is the value
		return fault.InvalidParam(field, "%s has a value of the wrong type or out of range (a %s)", field, kind)
	case errors.As(err, &syntax):
		return fault.New(fault.Invalid, "the body is not valid JSON (at byte %d)", syntax.Offset)
	}
	var field string
	if _, serr := fmt.Sscanf(err.Error(), "json: unknown field %q", &field); serr == nil {
		return fault.InvalidParam(field, "unknown field %.100q", field)
	}
	return fault.New(fault.Invalid, "the body is not a whole JSON object")
}
