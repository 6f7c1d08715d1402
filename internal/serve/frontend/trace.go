package frontend

import (
	"net/http"

	"penstock/internal/edge/api"
	"penstock/internal/obs"
)

// endSpan ends the span of an HTTP request. Its name has the path's pattern, not the path, because the
// number of paths is unbounded.
func (v *visit) traced(span obs.Span, r *http.Request, out *tally) {
	if span.Recording() {
		span.Name(short(r.Method) + " " + r.Pattern)
		span.Text("http.request.method", short(r.Method))
		span.Text("http.route", r.Pattern)
		span.Int("http.response.status_code", int64(out.status))
		span.Text("penstock.request_id", out.Header().Get("X-Request-Id"))
		if v.model != "" {
			span.Text("penstock.model", v.model)
			span.Int("penstock.prompt_tokens", int64(v.tokens.Prompt))
			span.Int("penstock.output_tokens", int64(v.tokens.Completion))
			if v.tokens.Cached != api.CachedUnknown {
				span.Int("penstock.cached_tokens", int64(v.tokens.Cached))
			}
			span.Int("penstock.attempts", int64(len(v.attempts)))
		}
		if name := v.keyName(); name != "" {
			span.Text("penstock.key", name)
		}
	}
	span.End(v.err)
}
