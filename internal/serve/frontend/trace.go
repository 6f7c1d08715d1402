package frontend

import (
	"context"
	"net/http"

	"penstock/core/route"
	"penstock/internal/attempt"
	"penstock/internal/edge/api"
	"penstock/internal/obs"
)

// traced ends the span of an HTTP request. Its name has the path's pattern and not
// the path, of which there may be any number.
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

// tracedRouter is a router whose decisions are stages of a trace.
type tracedRouter struct {
	Router
	tracer *obs.Tracer
}

// Route implements Router.
func (t tracedRouter) Route(ctx context.Context, req *route.Request) (route.Decision, error) {
	ctx, span := t.tracer.Start(ctx, "route")
	d, err := t.Router.Route(ctx, req)
	span.Text("penstock.model", req.Model)
	span.Int("penstock.attempt", int64(req.Attempt))
	span.Int("penstock.prompt_tokens", int64(len(req.Tokens)))
	span.Int("penstock.excluded", int64(len(req.Exclude)))
	if err == nil {
		span.Text("penstock.mode", string(d.Mode))
		span.Int("penstock.worker_id", int64(d.Worker.ID))
		span.Int("penstock.overlap_blocks", int64(d.OverlapBlocks))
		span.Float("penstock.cost", d.Cost)
	}
	span.End(err)
	return d, err
}

// traced is a task whose attempts are stages of a trace: the client's side of the
// calls to workers.
type traced struct {
	attempt.Task
	tracer *obs.Tracer
}

// Try implements attempt.Task.
func (t traced) Try(ctx context.Context, number uint32, d route.Decision) error {
	ctx, span := t.tracer.Client(ctx, "attempt")
	span.Int("penstock.attempt", int64(number))
	span.Int("penstock.worker_id", int64(d.Worker.ID))
	span.Int("penstock.dp_rank", int64(d.Worker.Rank))
	span.Text("penstock.kind", t.Kind())
	err := t.Task.Try(ctx, number, d)
	span.End(err)
	return err
}
