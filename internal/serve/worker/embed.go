package worker

import (
	"context"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// serveEmbed serves one request for an embedding.
func (s *server) embed(ctx context.Context, body []byte, send func([]byte) error) error {
	w := s.w
	eng, ok := w.eng.(engine.Embedder)
	if !ok {
		err := fault.New(fault.Unimplemented, "the engine of worker %d makes no embeddings", w.cfg.ID)
		w.metrics.refused(err)
		return err
	}
	req := new(engine.EmbedRequest)
	return s.once(ctx, func() (string, subject, error) {
		if err := engine.DecodeEmbedRequest(body, req); err != nil {
			return "", subject{}, err
		}
		return req.Model, subject{req.ID, req.Attempt, len(req.Prompt)}, req.Validate()
	}, func(ctx context.Context) error {
		vector, err := eng.Embed(ctx, req)
		if err != nil {
			return err
		}
		s.beat()
		return send(engine.AppendEmbedding(nil, &engine.Embedding{Attempt: req.Attempt, Vector: vector}))
	})
}

// serveOnce serves a call with a single answer. read decodes the request and returns its model and its
// callInfo; answer makes the answer and sends it.
func (s *server) once(ctx context.Context, read func() (model string, of subject, err error), answer func(context.Context) error) error {
	w := s.w
	var of subject
	err := s.enter(func() (model string, err error) {
		model, of, err = read()
		return model, err
	})
	if err != nil {
		w.metrics.refused(err)
		return err
	}
	defer s.leave()
	started := time.Now()
	err = s.carry(ctx, s.progress(of, false), func(ctx context.Context) error {
		return w.guard(ctx, of, func() error { return answer(ctx) })
	})
	w.ended(ctx, of, 0, 0, time.Since(started), err)
	return err
}
