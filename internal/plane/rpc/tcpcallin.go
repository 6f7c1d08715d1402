package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"time"

	"penstock/core/fault"
)

// callIn is the handler's side of a call.
type callIn struct {
	link   *serverLink
	id     uint32
	size   int64 // of the body
	cancel context.CancelFunc
	// Of the link's reader, until the handler runs; start is nil from then on.
	began time.Time
	body  gather
	start func(body []byte)

	turn chan struct{} // held by the one who sends
	wait outWait       // of that one
	wake chan struct{} // for the sender, when waiting was set
	mu   struct {
		sync.Mutex
		frames, bytes int64 // credit
		waiting       bool
	}
}

func newCallIn(l *serverLink, id uint32, size int, cancel context.CancelFunc) *callIn {
	c := &callIn{link: l, id: id, size: int64(size), cancel: cancel, began: time.Now(), body: gather{size: size}}
	c.turn, c.wake = make(chan struct{}, 1), make(chan struct{}, 1)
	c.mu.frames, c.mu.bytes = l.frames, l.bytes
	return c
}

// run starts the handler.
func (c *callIn) run() {
	start, body := c.start, c.body.buf
	c.start, c.body = nil, gather{}
	c.link.handlers.Go(func() { start(body) })
}

// settle returns what the call took up: its place and the memory of its body. A
// handler that has been cancelled has both until it returns, so that a client that
// calls and cancels cannot have more at work than one that waits.
func (c *callIn) settle() {
	c.link.bodies.give(c.size)
	c.link.server.bodies.give(c.size)
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.link.mu.inside--
}

// serve runs the handler and sends how it ended.
func (c *callIn) serve(ctx context.Context, h Handler, method string, body []byte) {
	send := func(frame []byte) error { return c.send(ctx, frame) }
	invoke(ctx, h, method, body, send, func(err error) { c.finish(method, err) })
}

// finish sends the outcome to a caller that is still there.
func (c *callIn) finish(method string, err error) {
	c.cancel() // a send by a goroutine that the handler left behind fails
	c.settle()
	if c.link.remove(c.id) == nil {
		return // cancelled, or the connection is gone
	}
	defer c.link.drop(c)
	var payload []byte
	var f *fault.Error
	if errors.As(err, &f) {
		if f.Err != nil {
			c.link.cfg.Log.Error("a handler failed", "method", method, "err", f.Err)
		}
		payload = appendFault(nil, f)
	}
	// An error is that the connection is gone.
	_ = c.link.out.frame(nil, new(outWait), frameEnd, c.id, payload, nil)
}

// send sends one frame, waiting while the caller is behind by the credit or the
// connection by its buffer.
func (c *callIn) send(ctx context.Context, frame []byte) error {
	if len(frame) > MaxFrame {
		return errFrameTooLarge(len(frame))
	}
	if ctx.Err() != nil {
		return errOver()
	}
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return errOver()
	}
	defer func() { <-c.turn }()
	if !c.pay(ctx, len(frame)) || c.write(ctx, frame) != nil {
		return errOver()
	}
	return nil
}

// write sends frame in as many parts as it needs.
func (c *callIn) write(ctx context.Context, frame []byte) error {
	out, stop := &c.link.out, ctx.Done()
	if len(frame) <= tcpPayload {
		return out.frame(stop, &c.wait, frameData, c.id, frame, nil)
	}
	var size [4]byte
	binary.LittleEndian.PutUint32(size[:], uint32(len(frame)))
	part := tcpPayload - len(size)
	if err := out.frame(stop, &c.wait, frameStart, c.id, size[:], frame[:part]); err != nil {
		return err
	}
	return out.long(stop, &c.wait, frameMore, c.id, frame[part:])
}

// pay waits for credit and takes that of a frame of n bytes. It reports false
// when the call is over.
func (c *callIn) pay(ctx context.Context, n int) bool {
	c.mu.Lock()
	for c.mu.frames <= 0 || c.mu.bytes <= 0 {
		c.mu.waiting = true
		c.mu.Unlock()
		select {
		case <-c.wake:
		case <-ctx.Done():
			return false
		}
		c.mu.Lock()
	}
	c.mu.frames--
	c.mu.bytes -= int64(n)
	c.mu.Unlock()
	return true
}

// earn adds the credit that the caller gave.
func (c *callIn) earn(frames, bytes uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.frames = min(c.mu.frames+int64(frames), math.MaxUint32)
	c.mu.bytes = min(c.mu.bytes+int64(bytes), math.MaxUint32)
	if c.mu.waiting && c.mu.frames > 0 && c.mu.bytes > 0 {
		c.mu.waiting = false
		c.wake <- struct{}{} // never blocks: one ring for each wait
	}
}
