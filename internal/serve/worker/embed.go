package worker

import (
	"context"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// embed serves one request for an embedding.
func (s *server) embed(ctx context.Context, body []byte, send func([]byte) error) error {
	w := s.w
	eng, ok := w.eng.(engine.Embedder)
	if !ok {
		err := fault.New(fault.Unimplemented, "the engine of worker %d makes no embeddings", w.cfg.ID)
		w.metrics.refused(err)
		return err
	}
	req := new(engine.EmbedRequest)
	err := s.enter(func() (model string, err error) {
		if err := engine.DecodeEmbedRequest(body, req); err != nil {
			return "", err
		}
		return req.Model, req.Validate()
	})
	if err != nil {
		w.metrics.refused(err)
		return err
	}
	defer s.leave()
	started, of := time.Now(), subject{req.ID, req.Attempt, len(req.Prompt)}
	err = s.carry(ctx, func(ctx context.Context) error {
		return w.guard(ctx, of, func() error {
			vector, err := eng.Embed(ctx, req)
			if err != nil {
				return err
			}
			s.beat()
			return send(engine.AppendEmbedding(nil, &engine.Embedding{Attempt: req.Attempt, Vector: vector}))
		})
	})
	w.ended(ctx, of, 0, 0, time.Since(started), err)
	return err
}
