package frontend

import (
	"net/http"
	"slices"
	"strings"

	"penstock/core/fault"
	"penstock/internal/edge/openai"
)

// routes builds the handler of everything. Each path answers its own methods;
// other methods and paths get the API's error object.
func (f *Frontend) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/chat/completions", only(f.generate(openai.Chat), http.MethodPost))
	mux.Handle("/v1/completions", only(f.generate(openai.Completion), http.MethodPost))
	mux.Handle("/v1/models", only(f.timed(http.HandlerFunc(f.listModels)), http.MethodGet, http.MethodHead))
	mux.Handle("/v1/models/{id...}", only(f.timed(http.HandlerFunc(f.oneModel)), http.MethodGet, http.MethodHead))
	mux.Handle("/health", only(f.timed(http.HandlerFunc(f.health)), http.MethodGet, http.MethodHead))
	mux.Handle("/live", only(f.timed(http.HandlerFunc(live)), http.MethodGet, http.MethodHead))
	mux.Handle("/metrics", only(f.timed(f.deps.Metrics.Handler()), http.MethodGet, http.MethodHead))
	for pattern, handler := range f.deps.Mount {
		mux.Handle(pattern, f.timed(handler))
	}
	if f.deps.Mount["/"] == nil {
		mux.Handle("/", f.timed(http.HandlerFunc(unknownPath)))
	}
	return named(mux)
}

// only passes requests of the given methods to h.
func only(h http.Handler, methods ...string) http.Handler {
	allow := strings.Join(methods, ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(methods, r.Method) {
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Allow", allow)
		body := openai.AppendError(nil, fault.New(fault.Invalid, "the method %s is not allowed here: use %s", short(r.Method), allow))
		writeJSON(w, http.StatusMethodNotAllowed, append(body, '\n'))
	})
}

func unknownPath(w http.ResponseWriter, r *http.Request) {
	openai.WriteError(w, fault.New(fault.NotFound, "there is nothing at %s %s", short(r.Method), short(r.URL.Path)))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A client that does not take it is gone.
	_, _ = w.Write(body)
}
