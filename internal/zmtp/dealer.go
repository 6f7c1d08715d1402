package zmtp

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// inboxMessages bounds how many received messages wait for Recv, and inboxBytes their total size. A
// single message above inboxBytes waits alone. Beyond the bounds nothing is read, and TCP flow
// control stops the peer.
const (
	inboxMessages = 64
	inboxBytes    = 16 << 20
)

// Dealer is one connection to a ROUTER, with messages in both directions. It does not dial again,
// because a requester of a replay must learn that the answer will not arrive. Send and Recv may be
// called concurrently.
type Dealer struct {
	o          Options
	out        *outbox
	in         chan [][]byte
	held       atomic.Int64  // bytes in in
	spaceFreed chan struct{} // signals that held has decreased; capacity one
	lifetime   *lifetime
	err        error // why the connection ended; read after in is closed
}

// DialDealer connects to the ROUTER at ep. ctx and Options.HandshakeTimeout bound the time.
func DialDealer(ctx context.Context, ep Endpoint, o Options) (*Dealer, error) {
	if err := ep.checkDialable(); err != nil {
		return nil, err
	}
	d := &Dealer{o: o.withDefaults(), in: make(chan [][]byte, inboxMessages), spaceFreed: make(chan struct{}, 1), lifetime: newLifetime(nil)}
	if err := checkIdentity(d.o.Identity); err != nil {
		return nil, err
	}
	l, err := dialConn(ctx, ep, typeDealer, &d.o)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", ep, err)
	}
	d.out = newOutbox(&d.o)
	d.lifetime.start(context.Background(), func(ctx context.Context) { d.receiveMessages(ctx, l) })
	return d, nil
}

func checkIdentity(id string) error {
	if len(id) > 255 || len(id) > 0 && id[0] == 0 {
		return fmt.Errorf("dial: the identity must have at most 255 bytes and not begin with zero, has %d", len(id))
	}
	return nil
}

func (d *Dealer) receiveMessages(ctx context.Context, l *peerConn) {
	d.err = exchangeMessages(ctx, l, d.out, func(frames [][]byte, _ peerCommand) error {
		if frames == nil {
			return nil // not a command for a dealer
		}
		size := messageBytes(frames)
		for held := d.held.Load(); held > 0 && held+size > inboxBytes; held = d.held.Load() {
			select {
			case <-d.spaceFreed:
			case <-d.lifetime.closing:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		d.held.Add(size)
		select {
		case d.in <- cloneMessage(frames):
		case <-d.lifetime.closing: // no receiver is left
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	})
	if d.lifetime.isClosing() {
		d.err = ErrClosed
	}
	close(d.in)
}

// Send queues a copy of one message of at least one frame. It blocks while there is no room, and
// returns ctx's error or why the connection ended.
func (d *Dealer) Send(ctx context.Context, frames ...[]byte) error {
	if len(frames) == 0 {
		return errors.New("send: a message has at least one frame")
	}
	for {
		if d.isDone() {
			return fmt.Errorf("send: %w", d.err)
		}
		if d.out.push(frames) {
			return nil
		}
		select {
		case <-d.out.room:
		case <-d.lifetime.done:
		case <-d.lifetime.closing:
			return fmt.Errorf("send: %w", ErrClosed)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// isDone reports whether the connection has ended.
func (d *Dealer) isDone() bool {
	select {
	case <-d.lifetime.done:
		return true
	default:
		return false
	}
}

// Recv returns the next message, which the caller owns, or ctx's error. After all received messages
// it returns why the connection ended: io.EOF when the peer closed it.
func (d *Dealer) Recv(ctx context.Context) ([][]byte, error) {
	select {
	case frames, ok := <-d.in:
		if !ok {
			return nil, fmt.Errorf("receive: %w", d.err)
		}
		d.held.Add(-messageBytes(frames))
		select {
		case d.spaceFreed <- struct{}{}:
		default:
		}
		return frames, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close ends the connection after queued messages are sent or Options.Linger has passed.
func (d *Dealer) Close() error {
	d.lifetime.shutdown(d.o.Linger, func() int {
		d.out.closeWhenEmpty()
		return 1
	})
	return nil
}

// messageBytes returns the total size of a message's frames.
func messageBytes(frames [][]byte) (size int64) {
	for _, f := range frames {
		size += int64(len(f))
	}
	return size
}

// cloneMessage copies a message into new memory.
func cloneMessage(frames [][]byte) [][]byte {
	size := messageBytes(frames)
	own := make([][]byte, len(frames))
	buf := make([]byte, 0, size)
	for i, f := range frames {
		from := len(buf)
		buf = append(buf, f...)
		own[i] = buf[from:len(buf):len(buf)]
	}
	return own
}
