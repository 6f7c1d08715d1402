package attempt

import (
	"context"

	"penstock/core/route"
	"penstock/internal/obs"
)

// TraceRouter returns router with a trace span for each decision; without a tracer it returns router
// itself.
func Traced(router Router, t *obs.Tracer) Router {
	if t == nil {
		return router
	}
	return tracedRouter{router, t}
}

// tracedRouter is a router with a trace span for each decision.
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

// runTraced makes an attempt of the task in a trace span: the client's side of the call to the worker.
func (s *series) traced(ctx context.Context, d route.Decision) error {
	ctx, span := s.Tracer.Client(ctx, "attempt")
	span.Int("penstock.attempt", int64(s.number))
	span.Int("penstock.worker_id", int64(d.Worker.ID))
	span.Int("penstock.dp_rank", int64(d.Worker.Rank))
	span.Text("penstock.kind", s.task.Kind())
	err := s.task.Try(ctx, s.number, d)
	span.End(err)
	return err
}
