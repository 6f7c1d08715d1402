package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"penstock/internal/backoff"
	"penstock/internal/zmtp"
)

const (
	// zmqQueueLen is how many messages of a peer may wait to be processed. Beyond it the peer
	// queues messages, and then drops them, which the numbering reveals.
	zmqAhead = 256
	// zmqAttempts is how often missing messages are requested from a peer, and zmqTimeout how long
	// one attempt may take without an answer.
	zmqAttempts = 3
	zmqPatience = 5 * time.Second
)

// zmqLink receives one topic from one peer. On a durable topic it requests the messages it has not
// received: at the start, after each reconnection, and when it detects a gap in the numbers.
type zmqLink struct {
	bus    *ZMQ
	peer   ZMQPeer
	topic  *memTopic
	cancel context.CancelFunc

	live       chan zmqMessage
	subscribed chan struct{}      // holds a token after each (re)connection of the subscription
	asks       chan chan struct{} // each is closed after one request to the peer
	met        chan struct{}      // closed when the peer has answered or cannot be reached
	meet       sync.Once

	life, next uint64 // next expected number, and the peer's incarnation; 0 if unknown
	past       uint64 // the previous incarnation, whose messages may still arrive
}

func newZMQLink(b *ZMQ, p ZMQPeer, mt *memTopic, cancel context.CancelFunc) *zmqLink {
	return &zmqLink{
		bus: b, peer: p, topic: mt, cancel: cancel, next: 1,
		live: make(chan zmqMessage, zmqAhead), subscribed: make(chan struct{}, 1),
		asks: make(chan chan struct{}, 16), met: make(chan struct{}),
	}
}

// requestCatchUp returns a channel which is closed when the link is up to date, see
// ZMQBus.awaitPeers. It does not wait for that.
func (l *zmqLink) ask(ctx context.Context) <-chan struct{} {
	if !l.topic.topic.Durable {
		return l.met
	}
	done := make(chan struct{})
	select {
	case l.asks <- done:
	case <-ctx.Done():
	}
	return done
}

// runLink receives from the peer until ctx ends.
func (l *zmqLink) run(ctx context.Context) {
	var listening sync.WaitGroup
	listening.Go(func() { l.listen(ctx) })
	defer listening.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-l.live:
			l.hear(ctx, m)
		case <-l.subscribed:
			_ = l.catchUp(ctx, zmqAttempts) // it logs its errors
		case done := <-l.asks:
			_ = l.catchUp(ctx, 1)
			close(done)
		}
	}
}

// receiveMessages subscribes to the peer and passes its messages to runLink.
func (l *zmqLink) listen(ctx context.Context) {
	known := func() { l.meet.Do(func() { close(l.met) }) }
	o := zmtp.Options{
		OnState: func(s zmtp.State) {
			switch s.Kind {
			case zmtp.Refused: // zmtp retries, with backoff
				known()
				l.bus.cfg.Log.Debug("a peer of the event plane does not answer", "peer", s.Peer, "topic", l.topic.topic.Name, "err", s.Err)
			case zmtp.Connected:
				known()
				select {
				case l.subscribed <- struct{}{}:
				default:
				}
			case zmtp.Lost:
				l.bus.cfg.Log.Info("a peer of the event plane went, dialling it again", "peer", s.Peer, "topic", l.topic.topic.Name, "err", s.Err)
			}
		},
	}
	// An error other than ctx's means that the peer's endpoint cannot be dialled.
	err := zmtp.Subscribe(ctx, l.peer.Events, []string{zmqSubject(l.topic.topic.Name)}, o, func(frames [][]byte) error {
		m, err := readZMQ(frames)
		if err != nil || m.topic != l.topic.topic.Name {
			l.bus.malformed.Add(1)
			return nil
		}
		m.data = bytes.Clone(m.data)
		select {
		case l.live <- m:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if ctx.Err() == nil {
		known()
		l.bus.cfg.Log.Error("a peer of the event plane cannot be dialled", "peer", l.peer.Events.String(), "err", err)
	}
}

// handleMessage handles a message of the subscription.
func (l *zmqLink) hear(ctx context.Context, m zmqMessage) {
	switch {
	case m.life == l.bus.life: // the peer is this process under another address
		return
	case !l.topic.topic.Durable:
		l.bus.local.deliver(l.topic, m.key, m.data)
		return
	case !m.numbered():
		l.bus.malformed.Add(1)
		return
	case m.life == l.past:
		return
	case m.life == l.life && m.seq <= l.next:
	case l.catchUp(ctx, zmqAttempts) != nil && ctx.Err() != nil:
		return
	}
	l.take(m)
}

// acceptMessage appends a message to the local journal unless it was received before.
func (l *zmqLink) take(m zmqMessage) {
	l.reach(m.life, m.seq)
	if m.seq < l.next {
		return
	}
	l.next = m.seq + 1
	l.bus.local.deliver(l.topic, m.key, m.data)
}

// advanceTo makes seq of an incarnation the next expected number, unless that is already higher.
// The numbers in between are lost.
func (l *zmqLink) reach(life, seq uint64) {
	known := l.life != 0
	if l.life != life {
		l.past, l.life, l.next = l.life, life, 1
	}
	if seq <= l.next {
		return
	}
	if known {
		l.bus.holes.Add(1)
		l.bus.cfg.Log.Warn("messages of a peer are lost for good: it no longer has them", "peer", l.peer.Events.String(), "topic", l.topic.topic.Name, "messages", seq-l.next)
	}
	l.topic.skip(seq - l.next)
	l.next = seq
}

// catchUp requests all messages of the peer which were not received, in up to the given number of
// attempts.
func (l *zmqLink) catchUp(ctx context.Context, attempts int) error {
	if !l.topic.topic.Durable {
		return nil
	}
	retry := backoff.Backoff{Least: 50 * time.Millisecond, Most: time.Second}
	for {
		err := l.replay(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if attempts--; attempts == 0 {
			l.bus.cfg.Log.Warn("a peer does not say what it published before", "peer", l.peer.Replay.String(), "topic", l.topic.topic.Name, "err", err)
			return err
		}
		if err := retry.Wait(ctx); err != nil {
			return err
		}
	}
}

// requestReplay requests the missing messages once, page by page.
func (l *zmqLink) replay(ctx context.Context) error {
	d, err := zmtp.DialDealer(ctx, l.peer.Replay, zmtp.Options{HandshakeTimeout: zmqPatience})
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		more, err := l.page(ctx, d)
		if err != nil || !more {
			return err
		}
	}
}

var errZMQPage = errors.New("the peer answers something else")

// requestPage requests and processes one page; more means that another page follows.
func (l *zmqLink) page(ctx context.Context, d *zmtp.Dealer) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, zmqPatience)
	defer cancel()
	from, life := l.next, l.life
	if err := d.Send(ctx, zmqRequest{l.topic.topic.Name, from, life}.frames()...); err != nil {
		return false, err
	}
	for {
		frames, err := d.Recv(ctx)
		if err != nil {
			return false, err
		}
		if len(frames) != 4 {
			return false, errZMQPage
		}
		m, err := readZMQ(frames[1:])
		switch {
		case err != nil:
			return false, fmt.Errorf("%w: %w", errZMQPage, err)
		case m.topic != l.topic.topic.Name:
			return false, errZMQPage
		case m.life == l.bus.life: // as in handleMessage
			return false, nil
		case m.numbered():
			l.take(m)
			continue
		case m.seq != zmqEnd || m.life == 0:
			return false, errZMQPage
		}
		next, last, ok := readZMQPage(m.data)
		if !ok {
			return false, errZMQPage
		}
		l.reach(m.life, next)
		if next <= last && l.life == life && l.next <= from {
			return false, fmt.Errorf("%w: it comes no further than %d of %d", errZMQPage, next, last)
		}
		return next <= last, nil
	}
}
