package zmtp

import (
	"context"
	"fmt"
	"net"
)

// Subscribe dials the publisher at ep, subscribes to the prefixes (nil means everything) and calls
// recv with the frames of each message, in order. The frames alias reused memory and are valid
// until recv returns. A connection that cannot be made or is lost is dialled again, with backoff,
// until ctx ends. Messages published meanwhile are lost, as are messages for which the publisher
// had no room.
//
// Subscribe returns the error of ctx or of recv, or an error if ep cannot be dialled at all.
// OnState gets all other errors. While recv runs, nothing is read and no heartbeat is answered: a
// publisher may disconnect a subscriber whose recv takes too long.
func Subscribe(ctx context.Context, ep Endpoint, prefixes []string, o Options, recv func(frames [][]byte) error) error {
	o = o.withDefaults()
	s := newSubscription(prefixes)
	if err := s.checkPrefixes(); err != nil {
		return err
	}
	return keepDialing(ctx, ep, typeSub, &o, func(ctx context.Context, l *peerConn) error {
		defer closeOnDone(ctx, l.conn)()
		if err := s.sendSubscriptions(l); err != nil {
			return err
		}
		for {
			frames, _, err := l.nextMessage()
			switch {
			case err != nil:
				return err
			case frames == nil:
				continue // not a command for a subscriber
			}
			l.markConnected()
			if !s.matches(frames) {
				continue
			}
			if err := recv(frames); err != nil {
				return &finalError{err}
			}
		}
	})
}

// SubscribeListen is Subscribe for publishers that dial. It accepts many of them on ln, and calls
// recv with the messages of all, one at a time, on the calling goroutine. It closes ln before it
// returns.
func SubscribeListen(ctx context.Context, ln net.Listener, prefixes []string, o Options, recv func(frames [][]byte) error) error {
	o = o.withDefaults()
	s := newSubscription(prefixes)
	if err := s.checkPrefixes(); err != nil {
		_ = ln.Close()
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	turns := make(chan *readTurn)
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	go func() {
		defer close(done)
		acceptAll(ctx, ln, typeSub, &o, func(ctx context.Context, l *peerConn) error {
			return s.readPublisher(ctx, l, turns)
		})
	}()
	err := s.serveTurns(ctx, turns, done, recv)
	cancel(err)
	stop()
	_ = ln.Close()
	<-done
	return err
}

// readTurn is a connection with messages which waits for its turn to be read.
type readTurn struct {
	l    *peerConn
	done chan error // result of the turn; capacity one
}

// serveTurns calls recv with the messages of one connection after another.
func (s *subscription) serveTurns(ctx context.Context, turns <-chan *readTurn, done <-chan struct{}, recv func([][]byte) error) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-done:
			if err := ctx.Err(); err != nil { // which closed the listener
				return err
			}
			return fmt.Errorf("accept: %w", net.ErrClosed)
		case t := <-turns:
			final, err := s.drainConn(t.l, recv)
			t.done <- err
			if final != nil {
				return final
			}
		}
	}
}

// drainConn passes the messages received over l to recv. final is an error of recv, err one of l.
func (s *subscription) drainConn(l *peerConn, recv func([][]byte) error) (final, err error) {
	for {
		frames, c, err := l.nextBuffered()
		switch {
		case err != nil:
			return nil, err
		case frames == nil && c.name == "":
			return nil, nil
		case frames == nil:
			continue
		}
		l.markConnected()
		if !s.matches(frames) {
			continue
		}
		if err := recv(frames); err != nil {
			return err, err
		}
	}
}

// readPublisher reads from one publisher that dialled, in turns with the others.
func (s *subscription) readPublisher(ctx context.Context, l *peerConn, turns chan<- *readTurn) error {
	defer closeOnDone(ctx, l.conn)()
	if err := s.sendSubscriptions(l); err != nil {
		return err
	}
	t := &readTurn{l: l, done: make(chan error, 1)}
	for {
		select {
		case turns <- t:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := <-t.done; err != nil { // the goroutine which took the turn always answers
			return err
		}
		if err := l.readMore(); err != nil {
			return err
		}
	}
}

// afterSubscriptions is the context of the PING which follows the subscriptions.
const afterSubscriptions = "subscribed"

// subscription is the set of prefixes of a SUB.
type subscription struct {
	prefixes []string
	all      bool
}

func newSubscription(prefixes []string) *subscription {
	s := &subscription{prefixes: prefixes}
	if len(prefixes) == 0 {
		s.prefixes = []string{""}
	}
	for _, p := range s.prefixes {
		s.all = s.all || p == ""
	}
	return s
}

// maxPrefix bounds a prefix, in bytes.
const maxPrefix = 1 << 10

func (s *subscription) checkPrefixes() error {
	if len(s.prefixes) > maxPrefixes {
		return fmt.Errorf("subscribe: %d prefixes, at most %d are allowed", len(s.prefixes), maxPrefixes)
	}
	for _, p := range s.prefixes {
		if len(p) > maxPrefix {
			return fmt.Errorf("subscribe: a prefix of %d bytes, at most %d are allowed", len(p), maxPrefix)
		}
	}
	return nil
}

// sendSubscriptions sends the subscriptions to the publisher at the other end of l: as commands
// from ZMTP 3.1 on, as messages that begin with 1 before. The answer to the PING which follows them
// shows that they are active.
func (s *subscription) sendSubscriptions(l *peerConn) error {
	l.writeCommandsDirectly()
	var b []byte
	for _, p := range s.prefixes {
		if l.peer.minor >= 1 {
			b = appendCommand(b, "SUBSCRIBE", p)
		} else {
			b = appendMessage(b, [][]byte{append([]byte{1}, p...)})
		}
	}
	if l.peer.minor >= 1 {
		b = appendCommand(b, "PING", "\x00\x00"+afterSubscriptions)
	}
	if err := l.control(b); err != nil {
		return err
	}
	if l.peer.minor < 1 {
		l.markConnected()
	}
	l.startHeartbeat()
	return nil
}

// matches reports whether a message matches the subscription. Publishers filter, but a publisher
// may send more.
func (s *subscription) matches(frames [][]byte) bool {
	if s.all {
		return true
	}
	for _, p := range s.prefixes {
		if len(frames[0]) >= len(p) && string(frames[0][:len(p)]) == p {
			return true
		}
	}
	return false
}
