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
	zmqQueueLen = 256
	// zmqAttempts is how often missing messages are requested from a peer, and zmqTimeout how long
	// one attempt may take without an answer.
	zmqAttempts = 3
	zmqTimeout  = 5 * time.Second
)

// zmqLink receives one topic from one peer. On a durable topic it requests the messages it has not
// received: at the start, after each reconnection, and when it detects a gap in the numbers.
type zmqLink struct {
	bus    *ZMQBus
	peer   ZMQPeer
	topic  *memTopic
	cancel context.CancelFunc

	live         chan zmqMessage
	subscribed   chan struct{}      // holds a token after each (re)connection of the subscription
	requests     chan chan struct{} // each is closed after one request to the peer
	answered     chan struct{}      // closed when the peer has answered or cannot be reached
	answeredOnce sync.Once

	incarnation, next uint64 // next expected number, and the peer's incarnation; 0 if unknown
	prevIncarnation   uint64 // the previous incarnation, whose messages may still arrive
}

func newZMQLink(b *ZMQBus, p ZMQPeer, mt *memTopic, cancel context.CancelFunc) *zmqLink {
	return &zmqLink{
		bus: b, peer: p, topic: mt, cancel: cancel, next: 1,
		live: make(chan zmqMessage, zmqQueueLen), subscribed: make(chan struct{}, 1),
		requests: make(chan chan struct{}, 16), answered: make(chan struct{}),
	}
}

// requestCatchUp returns a channel which is closed when the link is up to date, see
// ZMQBus.awaitPeers. It does not wait for that.
func (l *zmqLink) requestCatchUp(ctx context.Context) <-chan struct{} {
	if !l.topic.topic.Durable {
		return l.answered
	}
	done := make(chan struct{})
	select {
	case l.requests <- done:
	case <-ctx.Done():
	}
	return done
}

// runLink receives from the peer until ctx ends.
func (l *zmqLink) runLink(ctx context.Context) {
	var listening sync.WaitGroup
	listening.Go(func() { l.receiveMessages(ctx) })
	defer listening.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-l.live:
			l.handleMessage(ctx, m)
		case <-l.subscribed:
			_ = l.catchUp(ctx, zmqAttempts) // it logs its errors
		case done := <-l.requests:
			_ = l.catchUp(ctx, 1)
			close(done)
		}
	}
}

// receiveMessages subscribes to the peer and passes its messages to runLink.
func (l *zmqLink) receiveMessages(ctx context.Context) {
	known := func() { l.answeredOnce.Do(func() { close(l.answered) }) }
	o := zmtp.Options{
		OnState: func(s zmtp.ConnState) {
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
		m, err := decodeZMQMessage(frames)
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
func (l *zmqLink) handleMessage(ctx context.Context, m zmqMessage) {
	switch {
	case m.incarnation == l.bus.incarnation: // the peer is this process under another address
		return
	case !l.topic.topic.Durable:
		l.bus.local.deliverMessage(l.topic, m.key, m.data)
		return
	case !m.isNumbered():
		l.bus.malformed.Add(1)
		return
	case m.incarnation == l.prevIncarnation:
		return
	case m.incarnation == l.incarnation && m.seq <= l.next:
	case l.catchUp(ctx, zmqAttempts) != nil && ctx.Err() != nil:
		return
	}
	l.acceptMessage(m)
}

// acceptMessage appends a message to the local journal unless it was received before.
func (l *zmqLink) acceptMessage(m zmqMessage) {
	l.advanceTo(m.incarnation, m.seq)
	if m.seq < l.next {
		return
	}
	l.next = m.seq + 1
	l.bus.local.deliverMessage(l.topic, m.key, m.data)
}

// advanceTo makes seq of an incarnation the next expected number, unless that is already higher.
// The numbers in between are lost.
func (l *zmqLink) advanceTo(life, seq uint64) {
	known := l.incarnation != 0
	if l.incarnation != life {
		l.prevIncarnation, l.incarnation, l.next = l.incarnation, life, 1
	}
	if seq <= l.next {
		return
	}
	if known {
		l.bus.gaps.Add(1)
		l.bus.cfg.Log.Warn("messages of a peer are lost for good: it no longer has them", "peer", l.peer.Events.String(), "topic", l.topic.topic.Name, "messages", seq-l.next)
	}
	l.topic.skipNumbers(seq - l.next)
	l.next = seq
}

// catchUp requests all messages of the peer which were not received, in up to the given number of
// attempts.
func (l *zmqLink) catchUp(ctx context.Context, attempts int) error {
	if !l.topic.topic.Durable {
		return nil
	}
	retry := backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	for {
		err := l.requestReplay(ctx)
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
func (l *zmqLink) requestReplay(ctx context.Context) error {
	d, err := zmtp.DialDealer(ctx, l.peer.Replay, zmtp.Options{HandshakeTimeout: l.bus.replayLimit})
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		more, err := l.requestPage(ctx, d)
		if err != nil || !more {
			return err
		}
	}
}

var errZMQPage = errors.New("the peer answers something else")

// requestPage requests and processes one page; more means that another page follows.
func (l *zmqLink) requestPage(ctx context.Context, d *zmtp.Dealer) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.bus.replayLimit)
	defer cancel()
	from, life := l.next, l.incarnation
	if err := d.Send(ctx, zmqRequest{l.topic.topic.Name, from, life}.encodeFrames()...); err != nil {
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
		m, err := decodeZMQMessage(frames[1:])
		switch {
		case err != nil:
			return false, fmt.Errorf("%w: %w", errZMQPage, err)
		case m.topic != l.topic.topic.Name:
			return false, errZMQPage
		case m.incarnation == l.bus.incarnation: // as in handleMessage
			return false, nil
		case m.isNumbered():
			l.acceptMessage(m)
			continue
		case m.seq != zmqEnd || m.incarnation == 0:
			return false, errZMQPage
		}
		next, last, ok := decodeZMQPageEnd(m.data)
		if !ok {
			return false, errZMQPage
		}
		l.advanceTo(m.incarnation, next)
		if next <= last && l.incarnation == life && l.next <= from {
			return false, fmt.Errorf("%w: it comes no further than %d of %d", errZMQPage, next, last)
		}
		return next <= last, nil
	}
}
