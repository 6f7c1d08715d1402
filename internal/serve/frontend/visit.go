package frontend

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"penstock/core/fault"
	"penstock/internal/edge/api"
	"penstock/internal/edge/keys"
	"penstock/internal/obs"
)

// visit is what an HTTP request is remembered by: in the access log, in its trace
// and on the account of its key. It belongs to the request's goroutine.
type visit struct {
	started  time.Time
	client   *keys.Client // who asks; nil while keys are not in force
	model    string
	stream   bool
	tokens   api.TokenCounts
	attempts []api.Attempt
	first    time.Time // when output began; zero if it did not
	err      error     // that the request ended with
}

// visitKey finds the visit in a request's context.
type visitKey struct{}

// visitOf returns the visit that ctx is of; nil if nothing remembers visits.
func visitOf(ctx context.Context) *visit {
	v, _ := ctx.Value(visitKey{}).(*visit)
	return v
}

// observed remembers each request while it is served, and tells the access log and
// the trace about it when it is over. Nothing is done where nobody wants to know.
func (f *Frontend) observed(inner http.Handler) http.Handler {
	if f.deps.AccessLog == nil && f.deps.Keys == nil && f.deps.Tracer == nil {
		return inner
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &visit{started: time.Now()}
		ctx := context.WithValue(r.Context(), visitKey{}, v)
		ctx, span := f.deps.Tracer.Serve(ctx, "HTTP")
		r = r.WithContext(ctx)
		out := &tally{ResponseWriter: w}
		// Deferred, since a handler may end by a panic that cuts the connection.
		defer func() {
			v.traced(span, r, out)
			if f.deps.AccessLog != nil {
				v.log(f.deps.AccessLog, r, out)
			}
		}()
		inner.ServeHTTP(out, r)
	})
}

// continued gives a request the trace that its client says it is part of. It costs
// nothing where the client says nothing.
func continued(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ctx := obs.Incoming(r.Context(), r.Header); ctx != r.Context() {
			r = r.WithContext(ctx)
		}
		inner.ServeHTTP(w, r)
	})
}

// tally is a response that counts what goes out.
type tally struct {
	http.ResponseWriter
	status int // 0 before there is one
	bytes  int64
}

// Unwrap lets http.ResponseController reach the connection.
func (t *tally) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (t *tally) WriteHeader(status int) {
	if t.status == 0 && status >= http.StatusOK {
		t.status = status
	}
	t.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (t *tally) Write(b []byte) (int, error) {
	if t.status == 0 {
		t.status = http.StatusOK
	}
	n, err := t.ResponseWriter.Write(b)
	t.bytes += int64(n)
	return n, err
}

// connection returns the response of the server itself. Some of net/http looks for
// what only that one has.
func connection(w http.ResponseWriter) http.ResponseWriter {
	for {
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return w
		}
		w = u.Unwrap()
	}
}

// note tells the visit what the call was about.
func (c *call) note(err error) {
	v := c.visit
	if v == nil {
		return
	}
	v.model, v.stream, v.err = c.model, c.answer.stream, err
	v.attempts, v.first = c.answer.ext.Attempts, c.answer.first
}

// keyName is the name of the key that the visit came with; "" without one.
func (v *visit) keyName() string {
	if v.client == nil {
		return ""
	}
	return v.client.Key().Name
}

// outcome is "ok" or the code of the error that the request ended with. It tells what
// the status cannot once an answer has begun.
func (v *visit) outcome() string {
	if v.err == nil {
		return "ok"
	}
	return fault.Of(v.err).String()
}

// log writes the line of the access log. It has no headers, no query and nothing of
// the bodies.
func (v *visit) log(log *slog.Logger, r *http.Request, out *tally) {
	ctx := context.WithoutCancel(r.Context())
	level := v.level(r, out)
	if !log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 20)
	attrs = append(attrs,
		slog.String("method", short(r.Method)), slog.String("path", short(r.URL.Path)), slog.Int("status", out.status),
		slog.String("outcome", v.outcome()), slog.String("request", out.Header().Get("X-Request-Id")),
		slog.String("remote", r.RemoteAddr), slog.String("proto", r.Proto))
	if name := v.keyName(); name != "" {
		attrs = append(attrs, slog.String("key", name))
	}
	if v.model != "" {
		attrs = append(attrs, slog.String("model", v.model), slog.Bool("stream", v.stream),
			slog.Int("prompt_tokens", v.tokens.Prompt), slog.Int("output_tokens", v.tokens.Completion))
		if v.tokens.Cached != api.CachedUnknown {
			attrs = append(attrs, slog.Int("cached_tokens", v.tokens.Cached))
		}
		attrs = append(attrs, slog.Int("attempts", len(v.attempts)), slog.Any("workers", v.workers()))
		if !v.first.IsZero() {
			attrs = append(attrs, slog.Float64("ttft_ms", millis(v.first.Sub(v.started))))
		}
	}
	attrs = append(attrs, slog.Int64("bytes", out.bytes), slog.Float64("duration_ms", millis(time.Since(v.started))))
	log.LogAttrs(ctx, level, "served", attrs...)
}

// level is that of the request's line: what machines ask every few seconds, and are
// answered, is for those who look for it.
func (v *visit) level(r *http.Request, out *tally) slog.Level {
	switch r.URL.Path {
	case "/health", "/ready", "/live", "/metrics":
		if out.status == http.StatusOK {
			return slog.LevelDebug
		}
	}
	return slog.LevelInfo
}

// workers are those that were tried, in the order of the attempts.
func (v *visit) workers() []uint64 {
	ids := make([]uint64, len(v.attempts))
	for i, a := range v.attempts {
		ids[i] = uint64(a.Worker.ID)
	}
	return ids
}

// millis is a duration in milliseconds, to the microsecond.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
