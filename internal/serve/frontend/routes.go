package frontend

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/internal/edge/openai"
)

// routes builds the root handler. Each path answers its own methods; other methods and paths get the
// API's error object.
func (f *Frontend) routes() http.Handler {
	mux := http.NewServeMux()
	for _, e := range f.endpointTable() {
		mux.Handle(e.pattern, f.requireKey(e.audience, e.refuse, allowMethods(e.handler, e.allowedMethods()...)))
	}
	for pattern, handler := range f.deps.Mount {
		mux.Handle(pattern, f.requireKey(keyAdmins, openai.WriteError, handler))
	}
	if f.deps.Mount["/"] == nil {
		mux.Handle("/", f.requireKey(keyHolders, openai.WriteError, http.HandlerFunc(unknownPath)))
	}
	return f.withDeadlines(withRequestID(withTrace(f.withRecord(mux))))
}

// withDeadlines bounds how long a client may take to send the body of a request, and to read the
// answer. A handler that is slow or streams moves the write deadline with each write. The server
// removes both deadlines when the request ends.
func (f *Frontend) withDeadlines(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Only a real connection has deadlines.
		control, now := http.NewResponseController(w), time.Now()
		if r.Body != http.NoBody {
			// Removed at the end of the body. Without a body the server reads from the start to detect
			// a disconnect, and that must not time out.
			_ = control.SetReadDeadline(now.Add(f.cfg.BodyTimeout))
		}
		_ = control.SetWriteDeadline(now.Add(f.cfg.WriteTimeout))
		inner.ServeHTTP(w, r)
	})
}

// allowMethods passes only requests of the given methods to h.
func allowMethods(h http.Handler, methods ...string) http.Handler {
	allow := strings.Join(methods, ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(methods, r.Method) {
			h.ServeHTTP(w, r)
			return
		}
		openai.WriteMethodNotAllowed(w, r, allow)
	})
}

func unknownPath(w http.ResponseWriter, r *http.Request) {
	openai.WriteError(w, fault.New(fault.NotFound, "there is nothing at %s %s", shorten(r.Method), shorten(r.URL.Path)))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A write error means that the client has disconnected.
	_, _ = w.Write(body)
}
