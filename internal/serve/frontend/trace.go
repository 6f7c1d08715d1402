package frontend

import (
	"net/http"

	"penstock/internal/edge/api"
	"penstock/internal/obs"
)

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
