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

// serverCall is the handler's side of a call.
type callIn struct {
	link   *serverLink
	id     uint32
	size   int64 // of the body, in bytes
	cancel context.CancelFunc
	// Owned by the link's reader until the handler runs; start is nil from then on.
	began time.Time
	body  gather
	start func(body []byte)

	turn chan struct{} // held by the sending goroutine
	wait outWait       // owned by the sending goroutine
	wake chan struct{} // wakes the sender if waiting was set
	mu   struct {
		sync.Mutex
		frames, bytes int64 // remaining credit
		waiting       bool
	}
}

func newCallIn(l *serverLink, id uint32, size int, cancel context.CancelFunc) *callIn {
	c := &callIn{link: l, id: id, size: int64(size), cancel: cancel, began: time.Now(), body: gather{size: size}}
	c.turn, c.wake = make(chan struct{}, 1), make(chan struct{}, 1)
	c.mu.frames, c.mu.bytes = l.frames, l.bytes
	return c
}

// startHandler starts the handler.
func (c *callIn) run() {
	start, body := c.start, c.body.buf
	c.start, c.body = nil, gather{}
	c.link.handlers.Go(func() { start(body) })
}

// releaseResources releases the call's place and the memory of its body. A canceled handler keeps
// both until it returns, so a client which calls and cancels cannot have more work in progress than
// one which waits.
func (c *callIn) settle() {
	c.link.bodies.give(c.size)
	c.link.server.bodies.give(c.size)
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.link.mu.inside--
}

// runHandler runs the handler and sends its outcome.
func (c *callIn) serve(ctx context.Context, h Handler, method string, body []byte) {
	send := func(frame []byte) error { return c.send(ctx, frame) }
	invoke(ctx, h, method, body, send, func(err error) { c.finish(method, err) })
}

// sendOutcome sends the outcome if the caller has not canceled.
func (c *callIn) finish(method string, err error) {
	c.cancel() // a send by a goroutine that the handler left behind fails
	c.settle()
	if c.link.remove(c.id) == nil {
		return // canceled, or the connection is closed
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
	// An error means that the connection is closed.
	_ = c.link.out.frame(nil, new(outWait), frameEnd, c.id, payload, nil)
}

// sendFrame sends one frame. It blocks while the caller is behind by the credit, or while the
// connection's buffer is full.
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

// writeParts sends frame in as many parts as it needs.
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

// awaitCredit waits for credit and takes that of a frame of n bytes. It returns false when the call
// is over.
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

// addCredit adds the credit that the caller granted.
func (c *callIn) earn(frames, bytes uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.frames = min(c.mu.frames+int64(frames), math.MaxUint32)
	c.mu.bytes = min(c.mu.bytes+int64(bytes), math.MaxUint32)
	if c.mu.waiting && c.mu.frames > 0 && c.mu.bytes > 0 {
		c.mu.waiting = false
		c.wake <- struct{}{} // never blocks: one signal per wait
	}
}
