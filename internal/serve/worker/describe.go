package worker

import (
	"context"
	"errors"

	"penstock/core/fault"
	"penstock/internal/catalog"
	"penstock/internal/engine"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/rpc"
)

// serveDescribe answers with the worker's description. A draining worker refuses, because the askers
// intend to send requests.
func (s *callServer) serveDescribe(send func([]byte) error) error {
	cfg := &s.w.cfg
	if _, shut := s.limiter.callCount(); shut {
		return fault.New(fault.Draining, "worker %d is leaving", cfg.ID)
	}
	b, err := engine.EncodeDescription(engine.Description{
		ID: cfg.ID, Epoch: cfg.Epoch, Namespace: cfg.Namespace, Component: cfg.Component, Endpoint: cfg.Endpoint,
		Host: cfg.Host, PID: cfg.PID, Name: cfg.Name, Card: s.w.liveCard.encodedCard(),
	})
	if err != nil {
		return err
	}
	return send(b)
}

// DescribeFunc returns the function with which static discovery learns which worker serves at an
// address: one call on plane. It fails as [rpc.Plane] does; an invalid description is Internal.
func DescribeFunc(plane rpc.Plane) func(ctx context.Context, addr string) (disco.Instance, error) {
	return func(ctx context.Context, addr string) (disco.Instance, error) {
		var d engine.Description
		err := plane.Call(ctx, addr, engine.MethodDescribe, nil, func(frame []byte) (err error) {
			d, err = engine.DecodeDescription(frame)
			return err
		})
		var typed *fault.Error
		switch {
		case err == nil && d.ID != 0:
		case err == nil:
			return disco.Instance{}, fault.New(fault.Internal, "ask %s: it did not identify itself", addr)
		case errors.As(err, &typed) || ctx.Err() != nil:
			return disco.Instance{}, err
		default:
			return disco.Instance{}, fault.New(fault.Internal, "ask %s: %w", addr, err)
		}
		// Of a card that cannot be read the catalog says why.
		card, _ := engine.DecodeCard(d.Card)
		return disco.Instance{
			Kind: catalog.KindOf(card.Role), ID: d.ID, Epoch: d.Epoch, Namespace: d.Namespace, Component: d.Component, Endpoint: d.Endpoint,
			Addr: addr, Host: d.Host, PID: d.PID, Name: d.Name, Meta: d.Card,
		}, nil
	}
}

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
