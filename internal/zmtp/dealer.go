package zmtp

import (
	"context"
	"errors"
)

// Dealer is one connection to a ROUTER: messages there and back, as they come. It
// does not dial again: who asks for a replay wants to know that the answer will not
// come. Send and Recv may be called at once.
type Dealer struct{}

// DialDealer connects to the ROUTER at ep; ctx and Options.HandshakeTimeout bound
// how long that takes.
func DialDealer(ctx context.Context, ep Endpoint, o Options) (*Dealer, error) {
	return nil, errors.ErrUnsupported
}

// Send queues one message of at least one frame, and copies it. It waits while
// there is no room, and returns ctx's error or why the connection ended.
func (d *Dealer) Send(ctx context.Context, frames ...[]byte) error { return errors.ErrUnsupported }

// Recv returns the next message, which is the caller's, or ctx's error, or, after
// all that came before, why the connection ended. One goroutine at a time calls it.
func (d *Dealer) Recv(ctx context.Context) ([][]byte, error) { return nil, errors.ErrUnsupported }

// Close ends the connection, after what is queued is sent or Options.Linger.
func (d *Dealer) Close() error { return nil }
