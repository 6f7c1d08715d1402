package bus

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/zmtp"
)

// ZMQPeer is where a process publishes over ZeroMQ, and where it is asked for what
// it published before.
type ZMQPeer struct {
	Events zmtp.Endpoint
	Replay zmtp.Endpoint
}

// ZMQConfig configures a bus over ZeroMQ.
type ZMQConfig struct {
	// Events and Replay are where to listen; port 0 lets the system choose.
	Events, Replay zmtp.Endpoint
	// Settle bounds how long a subscriber to a durable topic, and Span and Purge, wait
	// for peers that do not answer: 2 s.
	Settle time.Duration
	// Log gets what is lost. Nil discards it.
	Log *slog.Logger
}

// EnsureDefaults replaces zero values by their defaults.
func (c *ZMQConfig) EnsureDefaults() {
	if c.Settle == 0 {
		c.Settle = 2 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// ZMQ is the event plane of processes that reach each other directly, with no
// server between them: each publishes to those who subscribe to it, keeps what it
// published on durable topics within their bounds, and is asked for what somebody
// missed.
//
// There is no one who numbers all messages, so each process has numbers of its own:
// Seq and Life are those of the journal in which it gathers what it hears, which
// ends with the process. Messages of one publisher keep their order; those of
// several come in another order elsewhere. What a publisher kept ends with it too.
// So Span and Purge are about this process alone, and there is nothing that a
// snapshot could go on from: whoever starts asks all others for all they keep.
type ZMQ struct {
	cfg    ZMQConfig
	local  *Mem // what is published here and heard of others
	pub    *zmtp.Pub
	router *zmtp.Router
	life   uint64

	malformed, holes atomic.Uint64

	work sync.WaitGroup // the goroutines behind the bus, which end with Close
	mu   struct {
		sync.Mutex
		closed bool
		own    map[string]*zmqOrigin           // by topic
		joined map[string]*memTopic            // what somebody here subscribed to
		peers  map[ZMQPeer]map[string]*zmqLink // by topic
	}
}

var _ Bus = (*ZMQ)(nil)

// zmqOrigin is what this process published on one topic.
type zmqOrigin struct {
	topic Topic
	mu    struct {
		sync.Mutex
		journal journal
	}
}

// NewZMQ listens as cfg says. The bus knows nobody until SetPeers.
func NewZMQ(cfg ZMQConfig) (*ZMQ, error) {
	cfg.EnsureDefaults()
	pub, err := zmtp.ListenPub(cfg.Events, zmtp.Options{})
	if err != nil {
		return nil, fmt.Errorf("event plane: %w", err)
	}
	router, err := zmtp.ListenRouter(cfg.Replay, zmtp.Options{})
	if err != nil {
		_ = pub.Close()
		return nil, fmt.Errorf("event plane: %w", err)
	}
	b := &ZMQ{cfg: cfg, local: NewMem(), pub: pub, router: router, life: max(rand.Uint64(), 1)}
	b.mu.own = map[string]*zmqOrigin{}
	b.mu.joined = map[string]*memTopic{}
	b.mu.peers = map[ZMQPeer]map[string]*zmqLink{}
	b.work.Go(b.serveReplays)
	return b, nil
}

// Self is where others reach this process, with the ports that the system chose.
// The host is the one that it listens at, which may be all interfaces.
func (b *ZMQ) Self() ZMQPeer { return ZMQPeer{b.pub.Addr(), b.router.Addr()} }

// Dropped returns how many messages of topics that are not durable were lost by
// subscribers here that fell behind, and how many messages others lost because they
// did not take them in time; of those on durable topics they ask again.
func (b *ZMQ) Dropped() uint64 { return b.local.Dropped() + b.pub.Dropped() }

// Malformed returns how many messages of others could not be read.
func (b *ZMQ) Malformed() uint64 { return b.malformed.Load() }

// Holes returns how many times messages of a durable topic were lost for good: their
// publisher no longer had them.
func (b *ZMQ) Holes() uint64 { return b.holes.Load() }

// SetPeers says who the others are, all of them. It may be called at any time; this
// process may be among them.
func (b *ZMQ) SetPeers(peers []ZMQPeer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.closed {
		return
	}
	want := map[ZMQPeer]bool{}
	for _, p := range peers {
		if p != b.Self() {
			want[p] = true
		}
	}
	for p, links := range b.mu.peers {
		if !want[p] {
			for _, l := range links {
				l.cancel()
			}
			delete(b.mu.peers, p)
		}
	}
	for p := range want {
		if b.mu.peers[p] == nil {
			b.mu.peers[p] = map[string]*zmqLink{}
			for _, mt := range b.mu.joined {
				b.link(p, mt)
			}
		}
	}
}

// join has a topic heard from all peers, and returns the links over which it is.
func (b *ZMQ) join(mt *memTopic) (links []*zmqLink) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.closed {
		return nil
	}
	known := b.mu.joined[mt.topic.Name] != nil
	b.mu.joined[mt.topic.Name] = mt
	for p := range b.mu.peers {
		if !known {
			b.link(p, mt)
		}
		links = append(links, b.mu.peers[p][mt.topic.Name])
	}
	return links
}

// link begins to hear a topic from a peer. b.mu is held.
func (b *ZMQ) link(p ZMQPeer, mt *memTopic) {
	ctx, cancel := context.WithCancel(context.Background())
	l := newZMQLink(b, p, mt, cancel)
	b.mu.peers[p][mt.topic.Name] = l
	b.work.Go(func() { l.run(ctx) })
}

// settle waits until all that the peers had published on a topic when it was called
// is in the journal here, or, of a topic that is not durable, until they all know
// that it is wanted; for peers that do not answer not longer than the limit.
func (b *ZMQ) settle(ctx context.Context, mt *memTopic) {
	links := b.join(mt)
	if len(links) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Settle)
	defer cancel()
	asked := make([]<-chan struct{}, len(links))
	for i, l := range links {
		asked[i] = l.ask(ctx)
	}
	for _, done := range asked {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

// Close ends the bus and sends what is queued for others.
func (b *ZMQ) Close() error {
	b.mu.Lock()
	b.mu.closed = true
	for _, links := range b.mu.peers {
		for _, l := range links {
			l.cancel()
		}
	}
	b.mu.Unlock()
	_ = b.pub.Close() // neither fails
	_ = b.router.Close()
	b.work.Wait()
	return nil
}

// Publish implements Bus. It waits for nobody.
func (b *ZMQ) Publish(ctx context.Context, t Topic, key string, data []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	mt, err := b.local.topic(t)
	if err != nil {
		return err
	}
	if err := checkMessage(mt.topic, key, data); err != nil {
		return err
	}
	m := zmqMessage{topic: t.Name, key: key, life: b.life, data: bytes.Clone(data)}
	if !mt.topic.Durable {
		b.local.deliver(mt, m.key, m.data)
		b.pub.Send(m.frames()...)
		return nil
	}
	o := b.origin(mt.topic)
	o.mu.Lock() // what is numbered first goes out first; none of the three below waits
	defer o.mu.Unlock()
	o.mu.journal.append(entry{key, m.data, time.Now()})
	m.seq = o.mu.journal.last()
	b.local.deliver(mt, m.key, m.data)
	b.pub.Send(m.frames()...)
	return nil
}

// origin returns the journal of what this process publishes on a topic.
func (b *ZMQ) origin(t Topic) *zmqOrigin {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.mu.own[t.Name]
	if o == nil {
		o = &zmqOrigin{topic: t}
		o.mu.journal = journal{maxBytes: t.MaxBytes, maxAge: t.MaxAge, first: 1}
		b.mu.own[t.Name] = o
	}
	return o
}

// Subscribe implements Bus. Of peers that do not answer it waits for none longer
// than ZMQConfig.Settle; what they have comes when they do.
func (b *ZMQ) Subscribe(ctx context.Context, t Topic, from uint64, sink func(Message) error, ready func()) error {
	mt, err := b.local.topic(t)
	if err != nil {
		return err
	}
	if mt.topic.Durable {
		b.settle(ctx, mt)
		return b.local.Subscribe(ctx, t, from, sink, ready)
	}
	return b.local.Subscribe(ctx, t, from, sink, func() {
		b.settle(ctx, mt)
		if ready != nil && ctx.Err() == nil {
			ready()
		}
	})
}

// Span implements Bus: it is that of this process, after it has asked the others
// for what it has not heard.
func (b *ZMQ) Span(ctx context.Context, t Topic) (Span, error) {
	mt, err := b.local.lasting(ctx, "look at", t)
	if err != nil {
		return Span{}, err
	}
	b.settle(ctx, mt)
	return b.local.Span(ctx, t)
}

// Purge implements Bus for this process: what others keep is theirs.
func (b *ZMQ) Purge(ctx context.Context, t Topic, below uint64) error {
	return b.local.Purge(ctx, t, below)
}
