package natsd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"penstock/core/fault"
)

// WhileConnected returns a context which ends with ctx, or with cause ErrInterrupted when nc is not
// connected or disconnects: a request in flight at that moment would otherwise wait for an answer
// that cannot arrive. The returned function stops watching nc and waits for that.
func WhileConnected(ctx context.Context, nc *nats.Conn) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	lost := fmt.Errorf("%w: no connection", ErrInterrupted)
	status := nc.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, ok := <-status; ok {
			cancel(lost)
		}
	}()
	if !nc.IsConnected() { // covers a disconnection before StatusChanged
		cancel(lost)
	}
	return ctx, func() {
		nc.RemoveStatusListener(status)
		<-done
		cancel(nil)
	}
}

// RunWhileConnected runs one operation on the server under ctx, at most until the connection is
// lost. It converts the operation's error to one for callers: ctx's error if ctx has ended, a
// fault.Error unchanged, and Unavailable otherwise. op describes the operation.
func RunWhileConnected(ctx context.Context, nc *nats.Conn, op string, f func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	cctx, stop := WhileConnected(ctx, nc)
	defer stop()
	err := f(cctx)
	var typed *fault.Error
	switch {
	case err == nil || errors.As(err, &typed):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case cctx.Err() != nil:
		err = context.Cause(cctx)
	}
	return WrapUnavailable(op, err)
}

// WrapUnavailable returns err as Unavailable, a failure for a reason that may pass. It hides the
// cause from errors.Is: a timeout within the client library does not mean that the caller's context
// has ended.
func WrapUnavailable(op string, err error) error {
	if errors.Is(err, nats.ErrReconnectBufExceeded) { // nothing is buffered, so every publication returns this
		err = fmt.Errorf("%w: no connection", ErrInterrupted)
	}
	return fault.New(fault.Unavailable, "%s: %v; %s", op, err, operationHint(err))
}

// createTimeout bounds a request which continues after its caller's context has ended.
const createTimeout = 5 * time.Second

// DetachedContext returns a context for a request that creates a stream. It does not end with ctx,
// only when nc disconnects or createTimeout has passed. A server which is shut down while it
// creates a stream leaves that stream's store open forever, so the creator must wait for the answer
// before it releases the server. The returned function releases the context and waits for that.
func DetachedContext(ctx context.Context, nc *nats.Conn) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	ctx, stop := WhileConnected(ctx, nc)
	return ctx, func() { stop(); cancel() }
}
