package worker

import (
	"context"
	"errors"

	"penstock/core/fault"
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
			return disco.Instance{}, fault.New(fault.Internal, "ask %s: it did not say who it is", addr)
		case errors.As(err, &typed) || ctx.Err() != nil:
			return disco.Instance{}, err
		default:
			return disco.Instance{}, fault.New(fault.Internal, "ask %s: %w", addr, err)
		}
		return disco.Instance{
			Kind: disco.KindWorker, ID: d.ID, Epoch: d.Epoch, Namespace: d.Namespace, Component: d.Component, Endpoint: d.Endpoint,
			Addr: addr, Host: d.Host, PID: d.PID, Name: d.Name, Meta: d.Card,
		}, nil
	}
}
