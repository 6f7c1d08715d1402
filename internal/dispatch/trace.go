package dispatch

import (
	"context"

	"penstock/core/route"
)

// routeTraced asks the router, in a trace span.
func (r *Dispatcher) routeTraced(ctx context.Context, req *route.Request) (route.Decision, error) {
	ctx, span := r.Tracer.Start(ctx, "route")
	d, err := r.Router.Route(ctx, req)
	span.SetText("penstock.model", req.Model)
	span.SetInt("penstock.attempt", int64(req.Attempt))
	span.SetInt("penstock.prompt_tokens", int64(len(req.Tokens)))
	span.SetInt("penstock.excluded", int64(len(req.Exclude)))
	if err == nil {
		span.SetText("penstock.mode", string(d.Mode))
		span.SetInt("penstock.worker_id", int64(d.Worker.ID))
		span.SetInt("penstock.overlap_blocks", int64(d.OverlapBlocks))
		span.SetFloat("penstock.cost", d.Cost)
	}
	span.End(err)
	return d, err
}

// runTraced makes an attempt of the task in a trace span: the client's side of the call to the worker.
func (s *attemptSeries) runTraced(ctx context.Context, d route.Decision) error {
	ctx, span := s.Tracer.StartClient(ctx, "attempt")
	span.SetInt("penstock.attempt", int64(s.number))
	span.SetInt("penstock.worker_id", int64(d.Worker.ID))
	span.SetInt("penstock.dp_rank", int64(d.Worker.Rank))
	span.SetText("penstock.kind", s.task.MoveKind())
	err := s.task.RunAttempt(ctx, s.number, d)
	span.End(err)
	return err
}
