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
type requestRecord struct {
	started  time.Time
	client   *keys.KeyClient // nil while keys are not in force
	model    string
	stream   bool
	tokens   api.TokenCounts
	attempts []api.Attempt
	first    time.Time // when output began; zero if it did not
	err      error     // final error of the request
}

// requestRecordKey is the context key of a requestRecord.
type requestRecordKey struct{}

// recordOf returns the record of the request of ctx; nil if requests are not recorded.
func recordOf(ctx context.Context) *requestRecord {
	v, _ := ctx.Value(requestRecordKey{}).(*requestRecord)
	return v
}

// withRecord records each request while it is served, and then writes it to the access log and the
// trace. It does nothing if none of the log, keys and traces is on.
func (f *Frontend) withRecord(inner http.Handler) http.Handler {
	if f.deps.AccessLog == nil && f.deps.Keys == nil && f.deps.Tracer == nil {
		return inner
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &requestRecord{started: time.Now()}
		ctx := context.WithValue(r.Context(), requestRecordKey{}, v)
		ctx, span := f.deps.Tracer.StartServer(ctx, "HTTP")
		r = r.WithContext(ctx)
		out := &countingWriter{ResponseWriter: w}
		// Deferred, because a handler may panic to cut the connection.
		defer func() {
			v.endSpan(span, r, out)
			if f.deps.AccessLog != nil {
				v.writeLog(f.deps.AccessLog, r, out)
			}
		}()
		inner.ServeHTTP(out, r)
	})
}

// withTrace continues the trace of the client. It costs nothing for a request without one.
func withTrace(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ctx := obs.ExtractTrace(r.Context(), r.Header); ctx != r.Context() {
			r = r.WithContext(ctx)
		}
		inner.ServeHTTP(w, r)
	})
}

// countingWriter is a response that counts the bytes written.
type countingWriter struct {
	http.ResponseWriter
	status int // 0 before it is known
	bytes  int64
}

// Unwrap lets http.ResponseController reach the connection.
func (t *countingWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (t *countingWriter) WriteHeader(status int) {
	if t.status == 0 && status >= http.StatusOK {
		t.status = status
	}
	t.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (t *countingWriter) Write(b []byte) (int, error) {
	if t.status == 0 {
		t.status = http.StatusOK
	}
	n, err := t.ResponseWriter.Write(b)
	t.bytes += int64(n)
	return n, err
}

// serverWriter returns the response of the server itself. Parts of net/http look for methods that only
// it has.
func serverWriter(w http.ResponseWriter) http.ResponseWriter {
	for {
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return w
		}
		w = u.Unwrap()
	}
}

// fillRecord copies the call's results into its record.
func (c *apiCall) fillRecord(err error) {
	v := c.record
	if v == nil {
		return
	}
	v.model, v.stream, v.err = c.model, c.answer.stream, err
	v.attempts, v.first = c.answer.ext.Attempts, c.answer.firstOutput
}

// keyName is the name of the request's key; "" without one.
func (v *requestRecord) keyName() string {
	if v.client == nil {
		return ""
	}
	return v.client.Key().Name
}

// outcome is "ok" or the code of the request's error. It tells what the status cannot once an answer
// has started.
func (v *requestRecord) outcome() string {
	if v.err == nil {
		return "ok"
	}
	return fault.CodeOf(v.err).String()
}

// writeLog writes the line of the access log. It contains no headers, no query and nothing of the
// bodies.
func (v *requestRecord) writeLog(log *slog.Logger, r *http.Request, out *countingWriter) {
	ctx := context.WithoutCancel(r.Context())
	level := v.logLevel(r, out)
	if !log.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 20)
	attrs = append(attrs,
		slog.String("method", shorten(r.Method)), slog.String("path", shorten(r.URL.Path)), slog.Int("status", out.status),
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
		attrs = append(attrs, slog.Int("attempts", len(v.attempts)), slog.Any("workers", v.workerIDs()))
		if !v.first.IsZero() {
			attrs = append(attrs, slog.Float64("ttft_ms", toMillis(v.first.Sub(v.started))))
		}
	}
	attrs = append(attrs, slog.Int64("bytes", out.bytes), slog.Float64("duration_ms", toMillis(time.Since(v.started))))
	log.LogAttrs(ctx, level, "served", attrs...)
}

// logLevel is the level of the request's line: successful requests of probes and scrapers are debug
// lines.
func (v *requestRecord) logLevel(r *http.Request, out *countingWriter) slog.Level {
	switch r.URL.Path {
	case "/health", "/ready", "/live", "/metrics":
		if out.status == http.StatusOK {
			return slog.LevelDebug
		}
	}
	return slog.LevelInfo
}

// workerIDs returns the tried workers, in the order of the attempts.
func (v *requestRecord) workerIDs() []uint64 {
	ids := make([]uint64, len(v.attempts))
	for i, a := range v.attempts {
		ids[i] = uint64(a.Worker.ID)
	}
	return ids
}

// toMillis is a duration in milliseconds, with microsecond precision.
func toMillis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// endSpan ends the span of an HTTP request. Its name has the path's pattern, not the path, because the
// number of paths is unbounded.
func (v *requestRecord) endSpan(span obs.Span, r *http.Request, out *countingWriter) {
	if span.IsRecording() {
		span.SetName(shorten(r.Method) + " " + r.Pattern)
		span.SetText("http.request.method", shorten(r.Method))
		span.SetText("http.route", r.Pattern)
		span.SetInt("http.response.status_code", int64(out.status))
		span.SetText("penstock.request_id", out.Header().Get("X-Request-Id"))
		if v.model != "" {
			span.SetText("penstock.model", v.model)
			span.SetInt("penstock.prompt_tokens", int64(v.tokens.Prompt))
			span.SetInt("penstock.output_tokens", int64(v.tokens.Completion))
			if v.tokens.Cached != api.CachedUnknown {
				span.SetInt("penstock.cached_tokens", int64(v.tokens.Cached))
			}
			span.SetInt("penstock.attempts", int64(len(v.attempts)))
		}
		if name := v.keyName(); name != "" {
			span.SetText("penstock.key", name)
		}
	}
	span.End(v.err)
}
