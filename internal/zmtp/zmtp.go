// Package zmtp is a peer of ZeroMQ's wire protocol, ZMTP 3.0 and 3.1, in Go
// alone: SUB and PUB, DEALER and ROUTER, over TCP and Unix sockets, dialling and
// listening. It exists for the events that inference engines publish, so its
// reader is what matters: many messages for one read of the socket, frames that
// alias the reader's buffer, and no allocation for a message.
//
// The mechanism is NULL: nobody is authenticated and nothing is encrypted, as
// engines have it. A peer that wants another one is told so, and so is the
// caller.
//
// Everything a peer can send is bounded (Options): the size of a message, its
// frames, the time of a handshake, subscriptions, peers. Everything that waits
// for a peer is a queue with a bound: a subscriber or peer that does not keep up
// loses messages, which are counted, and holds up nobody.
//
// The formats are in docs/format/zmtp.md.
package zmtp

import (
	"cmp"
	"errors"
	"time"
)

// Options bound a socket. The zero value of every field is its default.
type Options struct {
	// HighWater is how many messages wait for one peer before further ones are
	// dropped (Pub) or refused (Router, Dealer): 10,000. QueueBytes bounds the same
	// queue in bytes: 64 MiB. A message that is over it alone waits when the queue
	// is empty.
	HighWater  int
	QueueBytes int
	// MaxMessage bounds the bytes of a message that is received, all its frames
	// together: 64 MiB. MaxFrames bounds their number: 256. A peer that sends more is
	// disconnected.
	MaxMessage int64
	MaxFrames  int
	// MaxPeers is how many connections a listening socket has at once, those in
	// handshakes included: 1,024. Further ones are closed as they come.
	MaxPeers int
	// Heartbeat is the silence of a peer after which it is asked for a sign of life:
	// 15 s; below 0 nobody is asked. HeartbeatTimeout is how long it may take to give
	// one: 15 s. Only peers of ZMTP 3.1 are asked: older ones may not know the
	// command. TCP's own keep-alive watches those.
	Heartbeat, HeartbeatTimeout time.Duration
	// HandshakeTimeout bounds a connection's beginning, dialling included: 10 s.
	HandshakeTimeout time.Duration
	// ReconnectMin and ReconnectMax bound the pause before a lost connection is
	// dialled again: 100 ms doubling up to 5 s, each up to a half more at random.
	ReconnectMin, ReconnectMax time.Duration
	// Linger bounds how long Close waits for what is queued to be sent: 1 s; below 0
	// it does not wait.
	Linger time.Duration
	// Identity is what a Dealer calls itself towards a ROUTER: at most 255 bytes, the
	// first not zero. "" leaves it to the ROUTER.
	Identity string
	// OnState, if set, hears of connections made, lost and refused. It is called by
	// the goroutines of the socket, for one peer in order, and must not wait.
	OnState func(State)
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

func (o *Options) tell(s State) {
	if o.OnState != nil {
		o.OnState(s)
	}
}

// State is what became of a connection.
type State struct {
	Kind StateKind
	Peer string // the peer's address; for what is dialled, the endpoint
	Err  error  // why it was lost or refused; nil when connected
}

// StateKind is the kind of a State.
type StateKind uint8

const (
	// Connected says that a handshake is done. A SUB's subscriptions are in force, too:
	// the publisher has answered a question that was sent behind them, or sent a message.
	// One of this package has taken them then, and what it publishes from there on
	// comes; one of libzmq has them before it. A peer of ZMTP 3.0 cannot be asked: of it
	// nothing more is known than that they were sent.
	Connected StateKind = iota + 1
	// Lost says that a connection that was Connected is no more.
	Lost
	// Refused says that no connection came about: nobody listens, or the handshake
	// failed, or the peer went before subscriptions were in force.
	Refused
)

// String names k.
func (k StateKind) String() string {
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

// Errors that callers tell apart with errors.Is.
var (
	// ErrFull says that the queue of a peer has no room for a message.
	ErrFull = errors.New("the queue of the peer is full")
	// ErrUnknownPeer says that no peer of that identity is connected.
	ErrUnknownPeer = errors.New("no peer of that identity is connected")
	// ErrClosed says that the socket was closed.
	ErrClosed = errors.New("the socket is closed")
	// ErrSilent says that a peer gave no sign of life when asked for one.
	ErrSilent = errors.New("the peer gave no sign of life")
	// ErrProtocol says that a peer does not speak ZMTP 3 with the NULL mechanism, or
	// speaks it wrongly.
	ErrProtocol = errors.New("the peer does not keep to ZMTP 3")
	// ErrTooLarge says that a peer sent more than Options allow.
	ErrTooLarge = errors.New("the message is over the limit")
)
