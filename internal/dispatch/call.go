package dispatch

import (
	"context"
	"errors"
	"time"

	"penstock/core/fault"
	"penstock/core/route"
)

// WorkerCaller is the part of the request plane that attempts need.
type WorkerCaller interface {
	// Call calls a method of a worker. It passes each frame of the answer to recv, whose error ends the
	// call and is returned, and returns nil at the end of the answer.
	Call(ctx context.Context, addr, method string, body []byte, recv func(frame []byte) error) error
}

// errStalled is the cause of a call's end when its worker was silent.
var errStalled = errors.New("dispatch: the worker sent nothing for too long")

// CallWorker calls the worker of d. It fails as Unavailable if the worker sends nothing for limit; time
// spent in recv does not count. It never returns nil: an answer that has ended has ended early, unless
// the caller knows from its frames that it is complete.
func CallWorker(ctx context.Context, plane WorkerCaller, limit time.Duration, d route.Decision, method string, body []byte, recv func(frame []byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(limit, func() { cancel(errStalled) })
	defer stall.Stop()
	err := plane.Call(ctx, d.Addr, method, body, func(frame []byte) error {
		stall.Stop()
		defer stall.Reset(limit)
		return recv(frame)
	})
	switch {
	case errors.Is(context.Cause(ctx), errStalled):
		return fault.New(fault.Unavailable, "worker %d sent nothing for %v", d.Worker.ID, limit)
	case err == nil:
		return fault.New(fault.Unavailable, "worker %d ended its answer early", d.Worker.ID)
	}
	return err
}
