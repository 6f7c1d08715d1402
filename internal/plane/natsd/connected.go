package natsd

import (
	"context"
	"fmt"

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
