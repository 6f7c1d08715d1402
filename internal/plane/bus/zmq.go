package bus

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/zmtp"
)

// ZMQPeer is the pair of endpoints of one process: where it publishes over ZeroMQ, and where it
// answers requests for earlier messages.
type ZMQPeer struct {
	Events zmtp.Endpoint
	Replay zmtp.Endpoint
}

// ZMQBusConfig configures a bus over ZeroMQ.
type ZMQBusConfig struct {
	// Events and Replay are the endpoints to listen at; port 0 selects a free port.
	Events, Replay zmtp.Endpoint
	// PeerTimeout bounds how long Subscribe to a durable topic, DescribeTopic and Purge wait for
	// peers which do not answer. 0 means 2 s.
	PeerTimeout time.Duration
	// Log receives losses of messages. Nil discards them.
	Log *slog.Logger
}

// EnsureDefaults replaces zero values by their defaults.
func (c *ZMQBusConfig) EnsureDefaults() {
	c.PeerTimeout = cmp.Or(c.PeerTimeout, 2*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// ZMQBus is the event plane of processes which reach each other directly, without a server. Each
// process publishes to its subscribers, retains what it published on durable topics within their
// bounds, and answers requests for missed messages.
//
// There is no global numbering, so each process numbers messages itself: Seq and Incarnation belong
// to the local journal in which it collects the messages it receives, which ends with the process.
// Messages of one publisher keep their order; the order across publishers differs between
// processes. The messages that a publisher retains also end with its process. DescribeTopic and
// Purge therefore concern this process alone, and a snapshot cannot be resumed from: a process
// which starts requests all messages that the others retain.
type ZMQBus struct {
	cfg         ZMQBusConfig
	local       *MemBus // messages published here and received from peers
	pub         *zmtp.Pub
	router      *zmtp.Router
	incarnation uint64
	replayLimit time.Duration // for connecting to a peer to request messages, and for each page of them

	malformed, gaps atomic.Uint64

	work sync.WaitGroup // the bus's goroutines, which end with Close
	mu   struct {
		sync.Mutex
		closed bool
		own    map[string]*zmqJournal          // by topic
		joined map[string]*memTopic            // topics with a local subscriber
		peers  map[ZMQPeer]map[string]*zmqLink // by topic
	}
}

var _ Bus = (*ZMQBus)(nil)

// zmqJournal holds what this process published on one topic.
type zmqJournal struct {
	topic Topic
	mu    struct {
		sync.Mutex
		journal journal
	}
}

// NewZMQBus listens at the endpoints of cfg. The bus has no peers until SetPeers.
func NewZMQBus(cfg ZMQBusConfig) (*ZMQBus, error) {
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
	b := &ZMQBus{cfg: cfg, local: NewMemBus(), pub: pub, router: router, incarnation: max(rand.Uint64(), 1), replayLimit: zmqTimeout}
	b.mu.own = map[string]*zmqJournal{}
	b.mu.joined = map[string]*memTopic{}
	b.mu.peers = map[ZMQPeer]map[string]*zmqLink{}
	b.work.Go(b.serveReplays)
	return b, nil
}

// LocalPeer returns the endpoints of this process, with the ports that the system chose. The host
// is the one it listens at, which may be all interfaces.
func (b *ZMQBus) LocalPeer() ZMQPeer { return ZMQPeer{b.pub.Addr(), b.router.Addr()} }

// Dropped returns how many messages of topics that are not durable were lost because local
// subscribers fell behind, plus how many messages of any topic were dropped because remote
// subscribers did not read them in time. Remote subscribers request the missed messages of durable
// topics again.
func (b *ZMQBus) Dropped() uint64 { return b.local.Dropped() + b.pub.Dropped() }

// Malformed returns how many messages of peers could not be decoded.
func (b *ZMQBus) Malformed() uint64 { return b.malformed.Load() }

// Gaps returns how many times messages of a durable topic were lost permanently because their
// publisher no longer had them.
func (b *ZMQBus) Gaps() uint64 { return b.gaps.Load() }

// SetPeers sets the complete list of peers. It may be called at any time; the list may contain this
// process.
func (b *ZMQBus) SetPeers(peers []ZMQPeer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.closed {
		return
	}
	want := map[ZMQPeer]bool{}
	for _, p := range peers {
		if p != b.LocalPeer() {
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
				b.linkPeerLocked(p, mt)
			}
		}
	}
}

// joinTopic subscribes to a topic at all peers, and returns the links.
func (b *ZMQBus) joinTopic(mt *memTopic) (links []*zmqLink) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.closed {
		return nil
	}
	known := b.mu.joined[mt.topic.Name] != nil
	b.mu.joined[mt.topic.Name] = mt
	for p := range b.mu.peers {
		if !known {
			b.linkPeerLocked(p, mt)
		}
		links = append(links, b.mu.peers[p][mt.topic.Name])
	}
	return links
}

// linkPeerLocked starts to receive a topic from a peer.
func (b *ZMQBus) linkPeerLocked(p ZMQPeer, mt *memTopic) {
	ctx, cancel := context.WithCancel(context.Background())
	l := newZMQLink(b, p, mt, cancel)
	b.mu.peers[p][mt.topic.Name] = l
	b.work.Go(func() { l.runLink(ctx) })
}

// awaitPeers waits until the local journal contains all messages which the peers had published on a
// durable topic at the time of the call, or, for another topic, until all peers know of the
// subscription. It waits at most cfg.PeerTimeout for peers which do not answer.
func (b *ZMQBus) awaitPeers(ctx context.Context, mt *memTopic) {
	links := b.joinTopic(mt)
	if len(links) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.PeerTimeout)
	defer cancel()
	asked := make([]<-chan struct{}, len(links))
	for i, l := range links {
		asked[i] = l.requestCatchUp(ctx)
	}
	for _, done := range asked {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

// Close stops the bus and sends what is queued for subscribers.
func (b *ZMQBus) Close() error {
	b.mu.Lock()
	b.mu.closed = true
	for _, links := range b.mu.peers {
		for _, l := range links {
			l.cancel()
		}
	}
	b.mu.Unlock()
	_ = b.pub.Close() // neither can fail
	_ = b.router.Close()
	b.work.Wait()
	return nil
}

// Publish implements Bus. It never blocks on peers or subscribers.
func (b *ZMQBus) Publish(ctx context.Context, t Topic, key string, data []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	mt, err := b.local.lookupTopic(t)
	if err != nil {
		return err
	}
	if err := checkMessage(mt.topic, key, data); err != nil {
		return err
	}
	m := zmqMessage{topic: t.Name, key: key, incarnation: b.incarnation, data: bytes.Clone(data)}
	if !mt.topic.Durable {
		b.local.deliverMessage(mt, m.key, m.data)
		b.pub.Send(m.encodeFrames()...)
		return nil
	}
	o := b.journalOf(mt.topic)
	o.mu.Lock() // sends in the order of numbering; none of the three calls below blocks
	defer o.mu.Unlock()
	o.mu.journal.appendEntry(journalEntry{key, m.data, time.Now()})
	m.seq = o.mu.journal.lastSeq()
	b.local.deliverMessage(mt, m.key, m.data)
	b.pub.Send(m.encodeFrames()...)
	return nil
}

// journalOf returns the journal of what this process publishes on a topic.
func (b *ZMQBus) journalOf(t Topic) *zmqJournal {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.mu.own[t.Name]
	if o == nil {
		o = &zmqJournal{topic: t}
		o.mu.journal = journal{maxBytes: t.MaxBytes, maxAge: t.MaxAge, first: 1}
		b.mu.own[t.Name] = o
	}
	return o
}

// Subscribe implements Bus. It waits at most ZMQBusConfig.PeerTimeout for peers which do not
// answer; their messages are delivered when they do.
func (b *ZMQBus) Subscribe(ctx context.Context, t Topic, from uint64, sink func(Message) error, ready func()) error {
	mt, err := b.local.lookupTopic(t)
	if err != nil {
		return err
	}
	if mt.topic.Durable {
		b.awaitPeers(ctx, mt)
		return b.local.Subscribe(ctx, t, from, sink, ready)
	}
	return b.local.Subscribe(ctx, t, from, sink, func() {
		b.awaitPeers(ctx, mt)
		if ready != nil && ctx.Err() == nil {
			ready()
		}
	})
}

// DescribeTopic implements Bus. It requests missing messages from the peers and then describes the
// local journal.
func (b *ZMQBus) DescribeTopic(ctx context.Context, t Topic) (TopicState, error) {
	mt, err := b.local.durableTopic(ctx, "look at", t)
	if err != nil {
		return TopicState{}, err
	}
	b.awaitPeers(ctx, mt)
	return b.local.DescribeTopic(ctx, t)
}

// Purge implements Bus. It affects this process only; peers keep their messages.
func (b *ZMQBus) Purge(ctx context.Context, t Topic, below uint64) error {
	return b.local.Purge(ctx, t, below)
}

// zmqCheckTopic is a topic on which no process publishes.
const zmqCheckTopic = "check"

// Check reports why this process could not receive messages from a peer, or nil if it could. It
// makes a subscription and a replay request, both without side effects.
func (p ZMQPeer) Check(ctx context.Context) error {
	d, err := zmtp.DialDealer(ctx, p.Replay, zmtp.Options{})
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Send(ctx, zmqRequest{topic: zmqCheckTopic}.encodeFrames()...); err != nil {
		return err
	}
	frames, err := d.Recv(ctx)
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", p.Replay, err)
	}
	if len(frames) != 4 {
		return fmt.Errorf("%s: %w", p.Replay, errZMQPage)
	}
	if m, err := decodeZMQMessage(frames[1:]); err != nil || m.topic != zmqCheckTopic || m.seq != zmqEnd {
		return fmt.Errorf("%s: %w", p.Replay, errZMQPage)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	met := errors.New("met")
	o := zmtp.Options{
		OnState: func(s zmtp.ConnState) {
			switch s.Kind {
			case zmtp.Connected:
				cancel(met)
			case zmtp.Refused:
				cancel(fmt.Errorf("%s: %w", p.Events, s.Err))
			}
		},
	}
	err = zmtp.Subscribe(ctx, p.Events, []string{zmqSubject(zmqCheckTopic)}, o, func([][]byte) error { return nil })
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, met):
		return nil
	case cause != nil:
		return cause
	}
	return err
}
