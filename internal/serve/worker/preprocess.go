package worker

import (
	"context"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// servePreprocess serves one request for the prompt of a text or a conversation. It validates the
// engine's answer, so that a frontend need not attribute errors to the transport.
func (s *callServer) servePreprocess(ctx context.Context, body []byte, send func([]byte) error) error {
	w := s.w
	eng, ok := w.eng.(engine.Preprocessor)
	if !ok {
		err := fault.New(fault.Unimplemented, "the engine of worker %d makes no prompts for others", w.cfg.ID)
		w.metrics.countRefused(err)
		return err
	}
	req := new(engine.PreprocessRequest)
	return s.serveOnce(ctx, func() (string, callInfo, error) {
		if err := engine.DecodePreprocessRequest(body, req); err != nil {
			return "", callInfo{}, err
		}
		// No token is computed, so none is counted.
		return req.Model, callInfo{id: req.ID, attempt: req.Attempt}, req.Validate()
	}, func(ctx context.Context) error {
		p, err := eng.Preprocess(ctx, req)
		if err != nil {
			return err
		}
		if err := p.Validate(w.card.VocabSize); err != nil {
			return err
		}
		p.Attempt = req.Attempt
		return p.SendFrames(send)
	})
}
