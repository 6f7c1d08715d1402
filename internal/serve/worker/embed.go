package worker

import (
	"context"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// serveEmbed serves one request for an embedding.
func (s *callServer) serveEmbed(ctx context.Context, body []byte, send func([]byte) error) error {
	w := s.w
	eng, ok := w.eng.(engine.Embedder)
	if !ok {
		err := fault.New(fault.Unimplemented, "the engine of worker %d makes no embeddings", w.cfg.ID)
		w.metrics.countRefused(err)
		return err
	}
	req := new(engine.EmbedRequest)
	return s.serveOnce(ctx, func() (string, callInfo, error) {
		if err := engine.DecodeEmbedRequest(body, req); err != nil {
			return "", callInfo{}, err
		}
		return req.Model, callInfo{req.ID, req.Attempt, len(req.Prompt)}, req.Validate()
	}, func(ctx context.Context) error {
		vector, err := eng.Embed(ctx, req)
		if err != nil {
			return err
		}
		s.recordEngineOutput()
		return send(engine.AppendEmbedding(nil, &engine.Embedding{Attempt: req.Attempt, Vector: vector}))
	})
}

// serveOnce serves a call with a single answer. read decodes the request and returns its model and its
// callInfo; answer makes the answer and sends it.
func (s *callServer) serveOnce(ctx context.Context, read func() (model string, of callInfo, err error), answer func(context.Context) error) error {
	w := s.w
	var of callInfo
	err := s.admitCall(func() (model string, err error) {
		model, of, err = read()
		return model, err
	})
	if err != nil {
		w.metrics.countRefused(err)
		return err
	}
	defer s.finishCall()
	started := time.Now()
	err = s.runCall(ctx, s.newProgress(of, false), func(ctx context.Context) error {
		return w.guardEngine(ctx, of, func() error { return answer(ctx) })
	})
	w.recordCall(ctx, of, 0, 0, time.Since(started), err)
	return err
}
