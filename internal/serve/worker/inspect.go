package worker

import (
	"context"

	"penstock/internal/engine"
)

// inspect answers a question about what is behind a router. It is none of the calls that a drain
// waits for or that the worker has room for: the router bounds how many it answers at once.
func inspect(ctx context.Context, router engine.Inspector, body []byte, send func([]byte) error) error {
	q, err := engine.DecodeInspection(body)
	if err != nil {
		return err
	}
	answer, err := router.Inspect(ctx, q)
	if err != nil {
		return err
	}
	return engine.SendInspected(answer, send)
}
