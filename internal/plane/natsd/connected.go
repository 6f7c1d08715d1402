package natsd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"penstock/core/fault"
)

// WhileConnected returns a context that ends with ctx, or with ErrInterrupted as
// its cause when nc is not connected or ceases to be. A request under way at that
// moment would otherwise wait for an answer that cannot come. The returned
// function ends the watch and waits for it.
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
	if !nc.IsConnected() { // before the watch began
		cancel(lost)
	}
	return ctx, func() {
		nc.RemoveStatusListener(status)
		<-done
		cancel(nil)
	}
}

// While runs one operation on the server under ctx, at most until the connection is lost,
// and makes its failure one that a caller may see: ctx's error if it has ended, an error of
// core/fault as it is, and Unavailable otherwise. op says in words what is done.
func While(ctx context.Context, nc *nats.Conn, op string, f func(context.Context) error) error {
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
	return Unavailable(op, err)
}

// Unavailable says that an operation failed for a reason that may pass. It hides the cause
// from errors.Is: a time limit within the client library is not the end of the caller's
// context.
func Unavailable(op string, err error) error {
	if errors.Is(err, nats.ErrReconnectBufExceeded) { // nothing is buffered, so that is what every publication says
		err = fmt.Errorf("%w: no connection", ErrInterrupted)
	}
	return fault.New(fault.Unavailable, "%s: %v; %s", op, err, operationHint(err))
}

// createTimeout bounds a request that is seen through although its caller is gone.
const createTimeout = 5 * time.Second

// SeeThrough returns a context for a request that creates a stream: it does not
// end with ctx, only when nc is lost or too much time has passed. A server that is
// shut down while it creates a stream leaves that stream's store open for ever;
// so whoever asks for one waits for the answer before it lets go of the server.
// The returned function releases the context and waits for it.
func SeeThrough(ctx context.Context, nc *nats.Conn) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	ctx, stop := WhileConnected(ctx, nc)
	return ctx, func() { stop(); cancel() }
}
