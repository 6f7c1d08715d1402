package zmtp

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// maxPrefixes bounds the subscriptions of one peer, which a message is held
// against one by one. A peer that asks for more is disconnected.
const maxPrefixes = 256

// Pub publishes messages to those who subscribed to a prefix of their first frame.
// Its methods may be called at once.
type Pub struct {
	o       Options
	addr    Endpoint
	dropped atomic.Uint64
	subs    atomic.Pointer[[]*subscriber] // never changed in place
	life    *lifetime
	mu      struct {
		sync.Mutex
		changed chan struct{} // closed when a peer subscribes or goes
	}
}

// subscriber is a peer that a Pub sends to.
type subscriber struct {
	out    *outbox
	filter atomic.Pointer[filter] // nil: nothing
}

// filter is what a peer has subscribed to; it is never changed in place.
type filter struct {
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

// servePub is ListenPub on a listener that is open already.
func servePub(ln net.Listener, o Options) *Pub {
	p := newPub(o, ln)
	p.addr = EndpointOf(ln.Addr())
	p.life.begin(context.Background(), func(ctx context.Context) {
		acceptAll(ctx, ln, typePub, &p.o, p.serve)
	})
	return p
}

// DialPub publishes to the one subscriber that listens at ep. It dials until it is
// closed or ctx ends, and again when the connection is lost. What is sent while
// there is no connection is lost.
func DialPub(ctx context.Context, ep Endpoint, o Options) (*Pub, error) {
	if err := ep.dialable(); err != nil {
		return nil, err
	}
	p := newPub(o, nil)
	p.life.begin(ctx, func(ctx context.Context) {
		_ = persist(ctx, ep, typePub, &p.o, func(ctx context.Context, l *link) error {
			err := p.serve(ctx, l)
			if p.life.isClosing() {
				err = &finalError{ErrClosed}
			}
			return err
		})
	})
	return p, nil
}

func newPub(o Options, ln net.Listener) *Pub {
	p := &Pub{o: o.withDefaults(), life: newLifetime(ln)}
	p.subs.Store(new([]*subscriber))
	p.mu.changed = make(chan struct{})
	return p
}

// Send publishes one message of at least one frame, and copies it. It never waits:
// a subscriber whose queue is full loses the message, which Dropped counts.
// Messages of one caller keep their order.
func (p *Pub) Send(frames ...[]byte) {
	if len(frames) == 0 {
		return
	}
	for _, s := range *p.subs.Load() {
		if f := s.filter.Load(); f.matches(frames[0]) && !s.out.push(frames) {
			p.dropped.Add(1)
		}
	}
}

// Addr returns where p listens, with the port that the system chose; the zero
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

// Await waits until at least n connected peers have a subscription. It returns
// ctx's error, or ErrClosed.
func (p *Pub) Await(ctx context.Context, n int) error {
	for {
		p.mu.Lock()
		changed := p.mu.changed
		p.mu.Unlock()
		if p.Subscribers() >= n {
			return nil
		}
		select {
		case <-changed:
		case <-p.life.closing:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Dropped returns how many messages were lost because the queue of a subscriber was
// full, counted once for each of them.
func (p *Pub) Dropped() uint64 { return p.dropped.Load() }

// Close sends what is queued, for as long as Options.Linger allows, and ends every
// connection.
func (p *Pub) Close() error {
	p.life.end(p.o.Linger, func() int {
		p.mu.Lock() // nobody comes after this
		subs := *p.subs.Load()
		p.mu.Unlock()
		for _, s := range subs {
			s.out.close()
		}
		return len(subs)
	})
	return nil
}

// serve sends to one subscriber, and hears what it wants, until it goes.
func (p *Pub) serve(ctx context.Context, l *link) error {
	s := &subscriber{out: newOutbox(&p.o)}
	if !p.add(s) {
		_ = l.conn.Close()
		return ErrClosed
	}
	defer p.remove(s)
	wants := wishes{}
	return exchange(ctx, l, s.out, func(frames [][]byte, c command) error {
		op, topic := subscriptionOf(frames, c)
		if op == opNone {
			return nil
		}
		if err := wants.change(op, topic); err != nil {
			return err
		}
		s.filter.Store(wants.filter())
		p.announce()
		return nil
	})
}

// add reports false when p is closing.
func (p *Pub) add(s *subscriber) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.isClosing() {
		return false
	}
	subs := append(slices.Clip(*p.subs.Load()), s)
	p.subs.Store(&subs)
	return true
}

func (p *Pub) remove(s *subscriber) {
	p.mu.Lock()
	subs := slices.DeleteFunc(slices.Clone(*p.subs.Load()), func(o *subscriber) bool { return o == s })
	p.subs.Store(&subs)
	p.mu.Unlock()
	p.announce()
}

// announce wakes those who wait for subscribers.
func (p *Pub) announce() {
	p.mu.Lock()
	close(p.mu.changed)
	p.mu.changed = make(chan struct{})
	p.mu.Unlock()
}

func (f *filter) matches(topic []byte) bool {
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

// What a subscriber asks for.
type subscriptionOp uint8

const (
	opNone subscriptionOp = iota
	opSubscribe
	opCancel
)

// subscriptionOf reads a subscription: a command, or, as ZMTP 3.0 has it, a message
// of one frame that begins with 1 or 0. Other messages of a subscriber mean
// nothing to a PUB.
func subscriptionOf(frames [][]byte, c command) (subscriptionOp, []byte) {
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

// wishes counts a peer's subscriptions: each needs a cancellation of its own.
type wishes map[string]int

func (w wishes) change(op subscriptionOp, topic []byte) error {
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

// filter returns what matches the wishes, the shortest first; nil if there are none.
func (w wishes) filter() *filter {
	if len(w) == 0 {
		return nil
	}
	f := &filter{}
	for p := range w {
		f.all = f.all || p == ""
		f.prefixes = append(f.prefixes, p)
	}
	slices.SortFunc(f.prefixes, strings.Compare)
	return f
}
