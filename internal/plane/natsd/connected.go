package natsd

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
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
