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

// requestRecord is what the access log, the trace and the key's usage need of an HTTP request. The
// request's goroutine owns it.
type visit struct {
	started  time.Time
	client   *keys.Client // nil while keys are not in force
	model    string
	stream   bool
	tokens   api.TokenCounts
	attempts []api.Attempt
	first    time.Time // when output began; zero if it did not
	err      error     // final error of the request
}

// requestRecordKey is the context key of a requestRecord.
type visitKey struct{}

// recordOf returns the record of the request of ctx; nil if requests are not recorded.
func visitOf(ctx context.Context) *visit {
	v, _ := ctx.Value(visitKey{}).(*visit)
	return v
}

// withRecord records each request while it is served, and then writes it to the access log and the
// trace. It does nothing if none of the log, keys and traces is on.
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
		// Deferred, because a handler may panic to cut the connection.
		defer func() {
			v.traced(span, r, out)
			if f.deps.AccessLog != nil {
				v.log(f.deps.AccessLog, r, out)
			}
		}()
		inner.ServeHTTP(out, r)
	})
}

// withTrace continues the trace of the client. It costs nothing for a request without one.
func continued(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ctx := obs.Incoming(r.Context(), r.Header); ctx != r.Context() {
			r = r.WithContext(ctx)
		}
		inner.ServeHTTP(w, r)
	})
}

// countingWriter is a response that counts the bytes written.
type tally struct {
	http.ResponseWriter
	status int // 0 before it is known
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

// serverWriter returns the response of the server itself. Parts of net/http look for methods that only
// it has.
func connection(w http.ResponseWriter) http.ResponseWriter {
	for {
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return w
		}
		w = u.Unwrap()
	}
}

// fillRecord copies the call's results into its record.
func (c *call) note(err error) {
	v := c.visit
	if v == nil {
		return
	}
	v.model, v.stream, v.err = c.model, c.answer.stream, err
	v.attempts, v.first = c.answer.ext.Attempts, c.answer.first
}

// keyName is the name of the request's key; "" without one.
func (v *visit) keyName() string {
	if v.client == nil {
		return ""
	}
	return v.client.Key().Name
}

// outcome is "ok" or the code of the request's error. It tells what the status cannot once an answer
// has started.
func (v *visit) outcome() string {
	if v.err == nil {
		return "ok"
	}
	return fault.Of(v.err).String()
}

// writeLog writes the line of the access log. It contains no headers, no query and nothing of the
// bodies.
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

// logLevel is the level of the request's line: successful requests of probes and scrapers are debug
// lines.
func (v *visit) level(r *http.Request, out *tally) slog.Level {
	switch r.URL.Path {
	case "/health", "/ready", "/live", "/metrics":
		if out.status == http.StatusOK {
			return slog.LevelDebug
		}
	}
	return slog.LevelInfo
}

// workerIDs returns the tried workers, in the order of the attempts.
func (v *visit) workers() []uint64 {
	ids := make([]uint64, len(v.attempts))
	for i, a := range v.attempts {
		ids[i] = uint64(a.Worker.ID)
	}
	return ids
}

// toMillis is a duration in milliseconds, with microsecond precision.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
