package frontend

import (
	"net/http"
	"time"
)

// timed bounds how long a client may hold up each write of h. Answers to
// generation requests set deadlines themselves.
func (f *Frontend) timed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := &timedWriter{ResponseWriter: w, control: http.NewResponseController(w), timeout: f.cfg.WriteTimeout}
		// An answer that fits the server's buffer goes out when h has returned.
		defer t.extend()
		h.ServeHTTP(t, r)
	})
}

// timedWriter gives each write a deadline, which the server lifts when the
// request is over.
type timedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

func (t *timedWriter) Write(b []byte) (int, error) {
	t.extend()
	return t.ResponseWriter.Write(b)
}

// Unwrap lets an http.ResponseController reach the connection.
func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// extend begins a new deadline. Only a real connection has one.
func (t *timedWriter) extend() { _ = t.control.SetWriteDeadline(time.Now().Add(t.timeout)) }
