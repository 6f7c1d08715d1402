package zmtp

import (
	"context"
	"errors"
)

// Router talks with many peers by their identities. Its methods may be called at
// once.
type Router struct{}

// ListenRouter talks with the peers that dial ep.
func ListenRouter(ep Endpoint, o Options) (*Router, error) { return nil, errors.ErrUnsupported }

// Recv returns the next message and the identity of the peer that sent it; both are
// the caller's. It returns ctx's error, or ErrClosed.
func (r *Router) Recv(ctx context.Context) (id []byte, frames [][]byte, err error) {
	return nil, nil, errors.ErrUnsupported
}

// Send queues one message of at least one frame for the peer of identity id, and
// copies it. It never waits: it returns ErrFull when the queue of that peer has no
// room, which is nothing to any other, and ErrUnknownPeer when there is none.
func (r *Router) Send(id []byte, frames ...[]byte) error { return errors.ErrUnsupported }

// Addr returns where r listens, with the port that the system chose.
func (r *Router) Addr() Endpoint { return Endpoint{} }

// Close sends what is queued, for as long as Options.Linger allows, and ends every
// connection.
func (r *Router) Close() error { return nil }
