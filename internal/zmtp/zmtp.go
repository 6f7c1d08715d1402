// Package zmtp implements ZeroMQ's wire protocol, ZMTP 3.0 and 3.1, in pure Go: SUB and PUB, DEALER
// and ROUTER, over TCP and Unix sockets, dialling and listening. It exists for the KV events that
// inference engines publish, so its reader is optimized: one socket read yields many messages,
// frames alias the reader's buffer, and a message needs no allocation.
//
// The security mechanism is NULL, as engines use it: no authentication and no encryption. A peer
// which requires another mechanism gets an error, and so does the caller.
//
// Everything a peer can send is bounded (see Options): the size of a message, its frames, the time
// of a handshake, subscriptions, peers. All data that waits for a peer is in a bounded queue: a
// subscriber or peer which does not keep up loses messages, which are counted, and does not delay
// others.
//
// docs/format/zmtp.md documents the formats.
package zmtp

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// Options bounds a socket. The zero value of every field selects its default.
type Options struct {
	// HighWater is how many messages may wait for one peer before further ones are dropped (Pub) or
	// refused (Router, Dealer). The default is 10,000. QueueBytes bounds the same queue in bytes;
	// the default is 64 MiB. A single message above QueueBytes is accepted if the queue is empty.
	HighWater  int
	QueueBytes int
	// MaxMessage bounds a received message, all frames together, in bytes; the default is 64 MiB.
	// MaxFrames bounds its frames; the default is 256. A peer that exceeds either is disconnected.
	MaxMessage int64
	MaxFrames  int
	// MaxPeers bounds the connections of a listening socket, including those in handshakes; the
	// default is 1,024. Further ones are closed at once.
	MaxPeers int
	// Heartbeat is the silence of a peer after which it gets a PING; the default is 15 s, and a
	// negative value disables PINGs. HeartbeatTimeout is how long it may take to answer; the
	// default is 15 s. Only peers of ZMTP 3.1 get PINGs, because older ones may not know the
	// command; TCP keep-alive covers those.
	Heartbeat, HeartbeatTimeout time.Duration
	// HandshakeTimeout bounds establishing a connection, including dialling; the default is 10 s.
	HandshakeTimeout time.Duration
	// ReconnectMin and ReconnectMax bound the backoff before a lost connection is dialled again:
	// from 100 ms, doubling up to 5 s by default, each plus a random half at most.
	ReconnectMin, ReconnectMax time.Duration
	// Linger bounds how long Close waits for queued messages to be sent; the default is 1 s. A
	// negative value means that it does not wait.
	Linger time.Duration
	// Identity is a Dealer's identity towards a ROUTER: at most 255 bytes, not beginning with a
	// zero byte. If it is "", the ROUTER assigns one.
	Identity string
	// OnState, if set, is called for connections that are established, lost or refused. The
	// socket's goroutines call it, in order for each peer. It must not block.
	OnState func(ConnState)
}

func (o Options) withDefaults() Options {
	o.HighWater = cmp.Or(o.HighWater, 10_000)
	o.QueueBytes = cmp.Or(o.QueueBytes, 64<<20)
	o.MaxMessage = cmp.Or(o.MaxMessage, 64<<20)
	o.MaxFrames = cmp.Or(o.MaxFrames, 256)
	o.MaxPeers = cmp.Or(o.MaxPeers, 1024)
	o.Heartbeat = cmp.Or(o.Heartbeat, 15*time.Second)
	o.HeartbeatTimeout = cmp.Or(o.HeartbeatTimeout, 15*time.Second)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, 10*time.Second)
	o.ReconnectMin = cmp.Or(o.ReconnectMin, 100*time.Millisecond)
	o.ReconnectMax = max(cmp.Or(o.ReconnectMax, 5*time.Second), o.ReconnectMin)
	o.Linger = cmp.Or(o.Linger, time.Second)
	return o
}

func (o *Options) reportState(s ConnState) {
	if o.OnState != nil {
		o.OnState(s)
	}
}

// ConnState is a change of a connection's state.
type ConnState struct {
	Kind ConnStateKind
	Peer string // the peer's address; for dialled connections the endpoint
	Err  error  // why it was lost or refused; nil when connected
}

// ConnStateKind is the kind of a ConnState.
type ConnStateKind uint8

const (
	// Connected means that the handshake is done. For a SUB, the subscriptions are active too: the
	// publisher has answered a PING which followed them, or has sent a message. A publisher of this
	// package has then applied them, and everything it publishes from then on arrives; libzmq
	// applies them before it answers. A peer of ZMTP 3.0 does not know PING; for it Connected only
	// means that the subscriptions were sent.
	Connected ConnStateKind = iota + 1
	// Lost means that a Connected connection has ended.
	Lost
	// Refused means that no connection was established: no process listens, the handshake failed,
	// or the peer disconnected before subscriptions were active.
	Refused
)

// String returns the name of k.
func (k ConnStateKind) String() string {
	switch k {
	case Connected:
		return "connected"
	case Lost:
		return "lost"
	case Refused:
		return "refused"
	}
	return "unknown"
}

// Errors which callers can distinguish with errors.Is.
var (
	// ErrFull means that the queue of a peer has no room for a message.
	ErrFull = errors.New("the queue of the peer is full")
	// ErrUnknownPeer means that no peer with that identity is connected.
	ErrUnknownPeer = errors.New("no peer of that identity is connected")
	// ErrClosed means that the socket was closed.
	ErrClosed = errors.New("the socket is closed")
	// ErrSilent means that a peer did not answer a PING.
	ErrSilent = errors.New("the peer gave no sign of life")
	// ErrProtocol means that a peer does not speak ZMTP 3 with the NULL mechanism, or violates it.
	ErrProtocol = errors.New("the peer does not keep to ZMTP 3")
	// ErrTooLarge means that a peer exceeded a bound of Options.
	ErrTooLarge = errors.New("the message is over the limit")
)

// lifetime is the goroutine of a socket, which ends with Close.
type lifetime struct {
	closing chan struct{} // closed when Close was called
	once    sync.Once
	ln      net.Listener // nil if the socket dials
	cancel  context.CancelFunc
	done    chan struct{}
}

func newLifetime(ln net.Listener) *lifetime {
	return &lifetime{closing: make(chan struct{}), ln: ln, done: make(chan struct{})}
}

// start runs f, which must return soon after its context ends. It is called once.
func (t *lifetime) start(ctx context.Context, f func(context.Context)) {
	ctx, t.cancel = context.WithCancel(ctx)
	if t.ln != nil {
		context.AfterFunc(ctx, func() { _ = t.ln.Close() })
	}
	go func() {
		defer close(t.done)
		f(ctx)
	}()
}

func (t *lifetime) isClosing() bool {
	select {
	case <-t.closing:
		return true
	default:
		return false
	}
}

// shutdown closes the socket. drain must close the outboxes for when they are empty, and return
// their number; they have up to linger to empty. All callers wait for the end.
func (t *lifetime) shutdown(linger time.Duration, drain func() int) {
	t.once.Do(func() {
		close(t.closing)
		if t.ln != nil {
			_ = t.ln.Close()
		}
		if drain() > 0 && linger > 0 {
			wait := time.NewTimer(linger)
			defer wait.Stop()
			select {
			case <-wait.C:
			case <-t.done:
			}
		}
		t.cancel()
	})
	<-t.done
}
