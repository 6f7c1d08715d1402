package worker

import (
	"context"

	"penstock/internal/engine"
)

// serveInspect answers a question about the workers behind a router. It does not count for a drain or
// for MaxCalls: the router bounds its concurrent answers itself.
func serveInspect(ctx context.Context, router engine.Inspector, body []byte, send func([]byte) error) error {
	q, err := engine.DecodeInspection(body)
	if err != nil {
		return err
	}
	answer, err := router.Inspect(ctx, q)
	if err != nil {
		return err
	}
	return engine.SendInspectionFrames(answer, send)
}
