package zmtp

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// maxPrefixes bounds the subscriptions of one peer, which each message is compared with one by one.
// A peer that exceeds it is disconnected.
const maxPrefixes = 256

// Pub publishes messages to subscribers of a prefix of their first frame. Its methods may be called
// concurrently.
type Pub struct {
	o        Options
	addr     Endpoint
	dropped  atomic.Uint64
	subs     atomic.Pointer[[]*pubPeer] // copy on write
	lifetime *lifetime
	mu       struct {
		sync.Mutex
		changed chan struct{} // closed when a peer subscribes or disconnects
	}
}

// pubPeer is a connected peer of a Pub.
type pubPeer struct {
	out    *outbox
	filter atomic.Pointer[prefixFilter] // nil matches nothing
}

// prefixFilter is the set of a peer's subscriptions. It is immutable.
type prefixFilter struct {
	all      bool
	prefixes []string
}

// ListenPub publishes to the subscribers that dial ep.
func ListenPub(ep Endpoint, o Options) (*Pub, error) {
	ln, err := Listen(ep)
	if err != nil {
		return nil, err
	}
	return servePub(ln, o), nil
}

// servePub is ListenPub on an open listener.
func servePub(ln net.Listener, o Options) *Pub {
	p := newPub(o, ln)
	p.addr = EndpointOf(ln.Addr())
	p.lifetime.start(context.Background(), func(ctx context.Context) {
		acceptAll(ctx, ln, typePub, &p.o, p.serveSubscriber)
	})
	return p
}

// DialPub publishes to the one subscriber that listens at ep. It dials until it is closed or ctx
// ends, and dials again when the connection is lost. Messages sent without a connection are lost.
func DialPub(ctx context.Context, ep Endpoint, o Options) (*Pub, error) {
	if err := ep.checkDialable(); err != nil {
		return nil, err
	}
	p := newPub(o, nil)
	p.lifetime.start(ctx, func(ctx context.Context) {
		_ = keepDialing(ctx, ep, typePub, &p.o, func(ctx context.Context, l *peerConn) error {
			err := p.serveSubscriber(ctx, l)
			if p.lifetime.isClosing() {
				err = &finalError{ErrClosed}
			}
			return err
		})
	})
	return p, nil
}

func newPub(o Options, ln net.Listener) *Pub {
	p := &Pub{o: o.withDefaults(), lifetime: newLifetime(ln)}
	p.subs.Store(new([]*pubPeer))
	p.mu.changed = make(chan struct{})
	return p
}

// Send publishes a copy of one message of at least one frame. It never blocks: a subscriber whose
// queue is full loses the message, which Dropped counts. Messages of one caller keep their order.
func (p *Pub) Send(frames ...[]byte) {
	if len(frames) == 0 {
		return
	}
	for _, s := range *p.subs.Load() {
		if f := s.filter.Load(); f.matchesTopic(frames[0]) && !s.out.push(frames) {
			p.dropped.Add(1)
		}
	}
}

// Addr returns the endpoint at which p listens, with the port that the system chose; the zero
// endpoint if it dials.
func (p *Pub) Addr() Endpoint { return p.addr }

// Subscribers returns how many connected peers have a subscription.
func (p *Pub) Subscribers() int {
	n := 0
	for _, s := range *p.subs.Load() {
		if s.filter.Load() != nil {
			n++
		}
	}
	return n
}

// AwaitSubscribers waits until at least n connected peers have a subscription. It returns ctx's
// error, or ErrClosed.
func (p *Pub) AwaitSubscribers(ctx context.Context, n int) error {
	for {
		p.mu.Lock()
		changed := p.mu.changed
		p.mu.Unlock()
		if p.Subscribers() >= n {
			return nil
		}
		select {
		case <-changed:
		case <-p.lifetime.closing:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Dropped returns how many messages were lost because the queue of a subscriber was full, counted
// once per subscriber.
func (p *Pub) Dropped() uint64 { return p.dropped.Load() }

// Close sends queued messages, for at most Options.Linger, and closes all connections.
func (p *Pub) Close() error {
	p.lifetime.shutdown(p.o.Linger, func() int {
		p.mu.Lock() // no subscriber is added after this
		subs := *p.subs.Load()
		p.mu.Unlock()
		for _, s := range subs {
			s.out.closeWhenEmpty()
		}
		return len(subs)
	})
	return nil
}

// serveSubscriber sends to one subscriber, and handles its subscriptions, until it disconnects.
func (p *Pub) serveSubscriber(ctx context.Context, l *peerConn) error {
	s := &pubPeer{out: newOutbox(&p.o)}
	if !p.addPeer(s) {
		_ = l.conn.Close()
		return ErrClosed
	}
	defer p.removePeer(s)
	wants := subscriptionCounts{}
	return exchangeMessages(ctx, l, s.out, func(frames [][]byte, c peerCommand) error {
		op, topic := parseSubscription(frames, c)
		if op == opNone {
			return nil
		}
		if err := wants.applyOp(op, topic); err != nil {
			return err
		}
		s.filter.Store(wants.buildFilter())
		p.notifyWaiters()
		return nil
	})
}

// addPeer returns false if p is closing.
func (p *Pub) addPeer(s *pubPeer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lifetime.isClosing() {
		return false
	}
	subs := append(slices.Clip(*p.subs.Load()), s)
	p.subs.Store(&subs)
	return true
}

func (p *Pub) removePeer(s *pubPeer) {
	p.mu.Lock()
	subs := slices.DeleteFunc(slices.Clone(*p.subs.Load()), func(o *pubPeer) bool { return o == s })
	p.subs.Store(&subs)
	p.mu.Unlock()
	p.notifyWaiters()
}

// notifyWaiters wakes AwaitSubscribers.
func (p *Pub) notifyWaiters() {
	p.mu.Lock()
	close(p.mu.changed)
	p.mu.changed = make(chan struct{})
	p.mu.Unlock()
}

func (f *prefixFilter) matchesTopic(topic []byte) bool {
	if f == nil || f.all {
		return f != nil
	}
	for _, p := range f.prefixes {
		if len(topic) >= len(p) && string(topic[:len(p)]) == p {
			return true
		}
	}
	return false
}

// subscriptionOp is a request of a subscriber.
type subscriptionOp uint8

const (
	opNone subscriptionOp = iota
	opSubscribe
	opCancel
)

// parseSubscription parses a subscription: a command, or, in ZMTP 3.0, a message of one frame that
// begins with 1 or 0. A PUB ignores other messages of a subscriber.
func parseSubscription(frames [][]byte, c peerCommand) (subscriptionOp, []byte) {
	switch {
	case c.name == "SUBSCRIBE":
		return opSubscribe, c.data
	case c.name == "CANCEL":
		return opCancel, c.data
	case len(frames) != 1 || len(frames[0]) == 0 || frames[0][0] > 1:
		return opNone, nil
	case frames[0][0] == 1:
		return opSubscribe, frames[0][1:]
	}
	return opCancel, frames[0][1:]
}

// subscriptionCounts counts a peer's subscriptions by prefix: each needs its own cancellation.
type subscriptionCounts map[string]int

func (w subscriptionCounts) applyOp(op subscriptionOp, topic []byte) error {
	switch n := w[string(topic)]; {
	case op == opSubscribe && (len(topic) > maxPrefix || n == 0 && len(w) >= maxPrefixes):
		return ErrTooLarge
	case op == opSubscribe:
		w[string(topic)] = n + 1
	case n <= 1:
		delete(w, string(topic))
	default:
		w[string(topic)] = n - 1
	}
	return nil
}

// buildFilter returns a filter for the subscriptions, sorted by prefix; nil if there are none.
func (w subscriptionCounts) buildFilter() *prefixFilter {
	if len(w) == 0 {
		return nil
	}
	f := &prefixFilter{}
	for p := range w {
		f.all = f.all || p == ""
		f.prefixes = append(f.prefixes, p)
	}
	slices.SortFunc(f.prefixes, strings.Compare)
	return f
}
