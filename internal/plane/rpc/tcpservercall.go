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
type serverCall struct {
	link   *serverLink
	id     uint32
	size   int64 // of the body, in bytes
	cancel context.CancelFunc
	// Owned by the link's reader until the handler runs; start is nil from then on.
	started time.Time
	body    partBuffer
	start   func(body []byte)

	sending chan struct{} // held by the sending goroutine
	wait    queuedSend    // owned by the sending goroutine
	wake    chan struct{} // wakes the sender if waiting was set
	mu      struct {
		sync.Mutex
		frames, bytes int64 // remaining credit
		waiting       bool
	}
}

func newServerCall(l *serverLink, id uint32, size int, cancel context.CancelFunc) *serverCall {
	c := &serverCall{link: l, id: id, size: int64(size), cancel: cancel, started: time.Now(), body: partBuffer{size: size}}
	c.sending, c.wake = make(chan struct{}, 1), make(chan struct{}, 1)
	c.mu.frames, c.mu.bytes = l.frames, l.bytes
	return c
}

// startHandler starts the handler.
func (c *serverCall) startHandler() {
	start, body := c.start, c.body.buf
	c.start, c.body = nil, partBuffer{}
	c.link.handlers.Go(func() { start(body) })
}

// releaseResources releases the call's place and the memory of its body. A canceled handler keeps
// both until it returns, so a client which calls and cancels cannot have more work in progress than
// one which waits.
func (c *serverCall) releaseResources() {
	c.link.bodies.release(c.size)
	c.link.server.bodies.release(c.size)
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.link.mu.inside--
}

// runHandler runs the handler and sends its outcome.
func (c *serverCall) runHandler(ctx context.Context, h Handler, method string, body []byte) {
	send := func(frame []byte) error { return c.sendFrame(ctx, frame) }
	invokeHandler(ctx, h, method, body, send, func(err error) { c.sendOutcome(method, err) })
}

// sendOutcome sends the outcome if the caller has not canceled.
func (c *serverCall) sendOutcome(method string, err error) {
	c.cancel() // a send by a goroutine that the handler left behind fails
	c.releaseResources()
	if c.link.removeCall(c.id) == nil {
		return // canceled, or the connection is closed
	}
	defer c.link.endCall(c)
	var payload []byte
	var f *fault.Error
	if errors.As(err, &f) {
		if f.Err != nil {
			c.link.cfg.Log.Error("a handler failed", "method", method, "err", f.Err)
		}
		payload = appendFault(nil, f)
	}
	// An error means that the connection is closed.
	_ = c.link.out.sendFrame(nil, new(queuedSend), frameEnd, c.id, payload, nil)
}

// sendFrame sends one frame. It blocks while the caller is behind by the credit, or while the
// connection's buffer is full.
func (c *serverCall) sendFrame(ctx context.Context, frame []byte) error {
	if len(frame) > MaxFrame {
		return errFrameTooLarge(len(frame))
	}
	if ctx.Err() != nil {
		return errCallOver()
	}
	if !c.acquireSending(ctx) {
		return errCallOver()
	}
	defer func() { <-c.sending }()
	if !c.awaitCredit(ctx, len(frame)) || c.writeParts(ctx, frame) != nil {
		return errCallOver()
	}
	return nil
}

// acquireSending waits until no other goroutine sends a frame of the call. It returns false when the
// call is over. Without the attempt before it, the select takes a quarter of the server's time.
func (c *serverCall) acquireSending(ctx context.Context) bool {
	select {
	case c.sending <- struct{}{}:
		return true
	default:
	}
	select {
	case c.sending <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// writeParts sends frame in as many parts as it needs.
func (c *serverCall) writeParts(ctx context.Context, frame []byte) error {
	out, stop := &c.link.out, ctx.Done()
	if len(frame) <= tcpPayload {
		return out.sendFrame(stop, &c.wait, frameData, c.id, frame, nil)
	}
	var size [4]byte
	binary.LittleEndian.PutUint32(size[:], uint32(len(frame)))
	part := tcpPayload - len(size)
	if err := out.sendFrame(stop, &c.wait, frameStart, c.id, size[:], frame[:part]); err != nil {
		return err
	}
	return out.sendInTurns(stop, &c.wait, frameMore, c.id, frame[part:])
}

// awaitCredit waits for credit and takes that of a frame of n bytes. It returns false when the call
// is over.
func (c *serverCall) awaitCredit(ctx context.Context, n int) bool {
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
func (c *serverCall) addCredit(frames, bytes uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.frames = min(c.mu.frames+int64(frames), math.MaxUint32)
	c.mu.bytes = min(c.mu.bytes+int64(bytes), math.MaxUint32)
	if c.mu.waiting && c.mu.frames > 0 && c.mu.bytes > 0 {
		c.mu.waiting = false
		c.wake <- struct{}{} // never blocks: one signal per wait
	}
}
