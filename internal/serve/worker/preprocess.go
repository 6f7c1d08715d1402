package worker

import (
	"context"
	"time"

	"penstock/core/fault"
	"penstock/internal/engine"
)

// preprocess serves one request for the prompt of a text or a conversation. What
// the engine hands over is checked here, so that a frontend need not blame the
// wire for it.
func (s *server) preprocess(ctx context.Context, body []byte, send func([]byte) error) error {
	w := s.w
	eng, ok := w.eng.(engine.Preprocessor)
	if !ok {
		err := fault.New(fault.Unimplemented, "the engine of worker %d makes no prompts for others", w.cfg.ID)
		w.metrics.refused(err)
		return err
	}
	req := new(engine.PreprocessRequest)
	err := s.enter(func() (model string, err error) {
		if err := engine.DecodePreprocessRequest(body, req); err != nil {
			return "", err
		}
		return req.Model, req.Validate()
	})
	if err != nil {
		w.metrics.refused(err)
		return err
	}
	defer s.leave()
	// No token is computed, so none is counted.
	started, of := time.Now(), subject{id: req.ID, attempt: req.Attempt}
	err = s.carry(ctx, func(ctx context.Context) error {
		return w.guard(ctx, of, func() error {
			p, err := eng.Preprocess(ctx, req)
			if err != nil {
				return err
			}
			if err := p.Validate(w.card.VocabSize); err != nil {
				return err
			}
			p.Attempt = req.Attempt
			return send(engine.AppendPreprocessed(nil, p))
		})
	})
	w.ended(ctx, of, 0, 0, time.Since(started), err)
	return err
}
