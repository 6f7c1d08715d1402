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
	// zmqAhead is how many messages of a peer wait for their turn. Beyond it the peer
	// queues them, and then drops them: that shows in their numbers.
	zmqAhead = 256
	// zmqAttempts is how often a peer is asked for what is missing before that is
	// given up, and zmqPatience how long one attempt may take without an answer.
	zmqAttempts = 3
	zmqPatience = 5 * time.Second
)

// zmqLink hears one topic from one peer. On a durable topic it asks for what it
// has not heard: at first, whenever the subscription is in force anew, and when a
// number is missing.
type zmqLink struct {
	bus    *ZMQ
	peer   ZMQPeer
	topic  *memTopic
	cancel context.CancelFunc

	live       chan zmqMessage
	subscribed chan struct{}      // holds a token when the subscription is in force anew
	asks       chan chan struct{} // each is closed when the peer was asked once
	met        chan struct{}      // closed when the peer has answered, or nobody did
	meet       sync.Once

	life, next uint64 // what is to come, in the peer's numbers; its life is 0 if unknown
	past       uint64 // the life before, of which messages may still be on their way
}

func newZMQLink(b *ZMQ, p ZMQPeer, mt *memTopic, cancel context.CancelFunc) *zmqLink {
	return &zmqLink{
		bus: b, peer: p, topic: mt, cancel: cancel, next: 1,
		live: make(chan zmqMessage, zmqAhead), subscribed: make(chan struct{}, 1),
		asks: make(chan chan struct{}, 16), met: make(chan struct{}),
	}
}

// ask returns what is closed when the link is settled, see ZMQ.settle. It does not
// wait for that.
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

// run hears the peer until ctx ends.
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
			_ = l.catchUp(ctx, zmqAttempts) // it tells the log
		case done := <-l.asks:
			_ = l.catchUp(ctx, 1)
			close(done)
		}
	}
}

// listen subscribes to the peer and passes on what it sends.
func (l *zmqLink) listen(ctx context.Context) {
	known := func() { l.meet.Do(func() { close(l.met) }) }
	o := zmtp.Options{
		OnState: func(s zmtp.State) {
			switch s.Kind {
			case zmtp.Refused: // and tried again, with pauses
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
	// An error other than ctx's says that the peer's endpoint is none to dial.
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

// hear takes a message that came by itself.
func (l *zmqLink) hear(ctx context.Context, m zmqMessage) {
	switch {
	case m.life == l.bus.life: // the peer is this process, by another name
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

// take appends a message to the journal here, if it was not heard before.
func (l *zmqLink) take(m zmqMessage) {
	l.reach(m.life, m.seq)
	if m.seq < l.next {
		return
	}
	l.next = m.seq + 1
	l.bus.local.deliver(l.topic, m.key, m.data)
}

// reach makes seq of a life the next number, if it is not behind: what is between
// is lost.
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

// catchUp asks the peer for all that it published and was not heard here, up to so
// many times.
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

// replay asks once, page by page.
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

// page asks for a page and takes it; more says that another one follows.
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
		case m.life == l.bus.life: // as in hear
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
