package zmtp

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
)

// Router exchanges messages with many peers, which it addresses by identity. Its methods may be
// called concurrently.
type Router struct {
	o        Options
	addr     Endpoint
	in       chan routedMessage
	lifetime *lifetime
	mu       struct {
		sync.Mutex
		peers map[string]*routerPeer
		ids   uint32 // number of identities assigned to peers without one
	}
}

// routerPeer is a connected peer.
type routerPeer struct {
	out        *outbox
	disconnect context.CancelFunc // closes the connection
}

// routedMessage is a received message with the sender's identity.
type routedMessage struct {
	id     []byte
	frames [][]byte
}

// ListenRouter exchanges messages with the peers that dial ep.
func ListenRouter(ep Endpoint, o Options) (*Router, error) {
	ln, err := Listen(ep)
	if err != nil {
		return nil, err
	}
	return serveRouter(ln, o), nil
}

// serveRouter is ListenRouter on an open listener.
func serveRouter(ln net.Listener, o Options) *Router {
	r := &Router{o: o.withDefaults(), addr: EndpointOf(ln.Addr()), in: make(chan routedMessage, inboxMessages), lifetime: newLifetime(ln)}
	r.mu.peers = make(map[string]*routerPeer)
	r.lifetime.start(context.Background(), func(ctx context.Context) {
		acceptAll(ctx, ln, typeRouter, &r.o, r.servePeer)
	})
	return r
}

// Recv returns the next message and the identity of the sender; the caller owns both. Otherwise it
// returns ctx's error, or ErrClosed.
func (r *Router) Recv(ctx context.Context) (id []byte, frames [][]byte, err error) {
	select {
	case m := <-r.in:
		return m.id, m.frames, nil
	case <-r.lifetime.closing:
		return nil, nil, ErrClosed
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// Send queues a copy of one message of at least one frame for the peer with identity id. It never
// blocks: it returns ErrFull when the queue of that peer has no room, which does not affect other
// peers, and ErrUnknownPeer when there is no such peer.
func (r *Router) Send(id []byte, frames ...[]byte) error {
	if len(frames) == 0 {
		return errors.New("send: a message has at least one frame")
	}
	r.mu.Lock()
	p := r.mu.peers[string(id)]
	r.mu.Unlock()
	switch {
	case p == nil:
		return ErrUnknownPeer
	case !p.out.push(frames):
		return ErrFull
	}
	return nil
}

// Addr returns the endpoint at which r listens, with the port that the system chose.
func (r *Router) Addr() Endpoint { return r.addr }

// Close sends queued messages, for at most Options.Linger, and closes all connections.
func (r *Router) Close() error {
	r.lifetime.shutdown(r.o.Linger, func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, p := range r.mu.peers {
			p.out.closeWhenEmpty()
		}
		return len(r.mu.peers)
	})
	return nil
}

// servePeer receives from one peer and sends to it until it disconnects.
func (r *Router) servePeer(ctx context.Context, l *peerConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &routerPeer{newOutbox(&r.o), cancel}
	id, ok := r.addPeer(l.peer.identity, p)
	if !ok {
		_ = l.conn.Close()
		return ErrClosed
	}
	defer r.removePeer(id, p)
	return exchangeMessages(ctx, l, p.out, func(frames [][]byte, _ peerCommand) error {
		if frames == nil {
			return nil // not a command for a router
		}
		select {
		case r.in <- routedMessage{[]byte(id), cloneMessage(frames)}:
		case <-r.lifetime.closing: // no receiver is left
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	})
}

// addPeer registers a peer. A peer with the identity of an existing one replaces it: it is the same
// peer which dialled again before its old connection was known to be lost. A peer without identity
// gets five bytes that begin with zero, as in libzmq.
func (r *Router) addPeer(id string, p *routerPeer) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lifetime.isClosing() {
		return "", false
	}
	if id == "" || id[0] == 0 { // peers may not choose an identity that begins with zero
		r.mu.ids++
		id = string(binary.BigEndian.AppendUint32([]byte{0}, r.mu.ids))
	}
	if old := r.mu.peers[id]; old != nil {
		old.disconnect()
	}
	r.mu.peers[id] = p
	return id, true
}

func (r *Router) removePeer(id string, p *routerPeer) {
	r.mu.Lock()
	if r.mu.peers[id] == p {
		delete(r.mu.peers, id)
	}
	r.mu.Unlock()
}
