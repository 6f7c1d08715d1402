package zmtp

import (
	"context"
	"errors"
)

// Pub publishes messages to those who subscribed to a prefix of their first frame.
// Its methods may be called at once.
type Pub struct{}

// ListenPub publishes to the subscribers that dial ep.
func ListenPub(ep Endpoint, o Options) (*Pub, error) { return nil, errors.ErrUnsupported }

// DialPub publishes to the one subscriber that listens at ep. It dials until it is
// closed or ctx ends, and again when the connection is lost. What is sent while
// there is no connection is lost.
func DialPub(ctx context.Context, ep Endpoint, o Options) (*Pub, error) {
	return nil, errors.ErrUnsupported
}

// Send publishes one message of at least one frame, and copies it. It never waits:
// a subscriber whose queue is full loses the message, which Dropped counts.
func (p *Pub) Send(frames ...[]byte) {}

// Addr returns where p listens, with the port that the system chose; the zero
// endpoint if it dials.
func (p *Pub) Addr() Endpoint { return Endpoint{} }

// Subscribers returns how many connected peers have a subscription.
func (p *Pub) Subscribers() int { return 0 }

// Await waits until at least n connected peers have a subscription.
func (p *Pub) Await(ctx context.Context, n int) error { return errors.ErrUnsupported }

// Dropped returns how many messages were lost because the queue of a subscriber was
// full, counted once for each of them.
func (p *Pub) Dropped() uint64 { return 0 }

// Close sends what is queued, for as long as Options.Linger allows, and ends every
// connection.
func (p *Pub) Close() error { return nil }
