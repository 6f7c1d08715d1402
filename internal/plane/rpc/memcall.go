package rpc

import (
	"context"
	"sync"

	"penstock/core/fault"
)

// maxKeptFrame is the largest frame buffer that a call keeps for its next frames, in bytes.
const maxKeptFrame = 64 << 10

// memCall is one call in progress. Frames pass from the handler's goroutine to the caller's through
// two batches, which the goroutines exchange. The caller takes all queued frames at once.
type memCall struct {
	cancel context.CancelFunc
	wake   chan struct{} // signals the waiting caller; capacity one

	mu struct {
		sync.Mutex
		sent    frameBatch
		ahead   int           // frames that were sent but not received
		idle    bool          // the caller waits for wake
		blocked int           // senders that wait for room
		room    chan struct{} // signals that a frame was received; capacity one; nil until a sender waits
		over    bool          // the handler has returned
		err     error         // the handler's outcome
	}
	taken frameBatch // owned by the caller
}

// frameBatch is a queue of frames in one buffer.
type frameBatch struct {
	bytes []byte
	ends  []int // end offset of each frame in bytes
	at    int   // number of frames taken out
}

func (b *frameBatch) appendFrame(frame []byte) {
	b.bytes = append(b.bytes, frame...)
	b.ends = append(b.ends, len(b.bytes))
}

// next takes out a frame; ok is false if there is none.
func (b *frameBatch) next() (frame []byte, ok bool) {
	if b.at == len(b.ends) {
		return nil, false
	}
	from := 0
	if b.at > 0 {
		from = b.ends[b.at-1]
	}
	frame = b.bytes[from:b.ends[b.at]]
	b.at++
	return frame, true
}

// reset empties b. It keeps the buffer unless that is larger than maxKeptFrame.
func (b *frameBatch) reset() {
	if cap(b.bytes) > maxKeptFrame {
		b.bytes = nil
	}
	b.bytes, b.ends, b.at = b.bytes[:0], b.ends[:0], 0
}

func newMemCall(cancel context.CancelFunc) *memCall {
	return &memCall{cancel: cancel, wake: make(chan struct{}, 1)}
}

// runHandler runs the handler and records its outcome. A goroutine which the handler left behind
// can send nothing after that.
func (c *memCall) runHandler(ctx context.Context, h Handler, method string, body []byte) {
	defer c.wakeCaller()
	defer c.cancel()
	invokeHandler(ctx, h, method, body, func(frame []byte) error { return c.sendFrame(ctx, frame) }, c.recordOutcome)
}

func (c *memCall) recordOutcome(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.over, c.mu.err = true, err
}

// handlerError returns the handler's outcome.
func (c *memCall) handlerError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err
}

// hasUnreceived reports whether frames were sent that were not received yet.
func (c *memCall) hasUnreceived() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.ahead > 0
}

// wakeCaller wakes the caller if it waits.
func (c *memCall) wakeCaller() {
	c.mu.Lock()
	idle := c.mu.idle
	c.mu.idle = false
	c.mu.Unlock()
	if idle {
		c.wake <- struct{}{} // there is room: an idle caller has emptied it
	}
}

// sendFrame queues one frame. It waits while the caller is behind by the credit.
func (c *memCall) sendFrame(ctx context.Context, frame []byte) error {
	if len(frame) > MaxFrame {
		return errFrameTooLarge(len(frame))
	}
	for {
		if ctx.Err() != nil {
			return errCallOver()
		}
		room, err := c.enqueueFrame(frame)
		if room == nil {
			return err
		}
		select {
		case <-room:
		case <-ctx.Done():
		}
		c.mu.Lock()
		c.mu.blocked--
		c.mu.Unlock()
	}
}

// enqueueFrame queues a frame for the caller. If there is no room, it counts the calling goroutine
// as blocked and returns a channel which signals room.
func (c *memCall) enqueueFrame(frame []byte) (room <-chan struct{}, err error) {
	c.mu.Lock()
	switch {
	case c.mu.over:
		c.mu.Unlock()
		return nil, errCallOver()
	case c.mu.ahead >= Credit:
		if c.mu.room == nil {
			c.mu.room = make(chan struct{}, 1)
		}
		c.mu.blocked++
		room = c.mu.room
		c.mu.Unlock()
		return room, nil
	}
	c.mu.sent.appendFrame(frame)
	c.mu.ahead++
	c.wakeSenderLocked()
	c.mu.Unlock()
	c.wakeCaller()
	return nil, nil
}

// wakeSenderLocked wakes one blocked sender if there is room.
func (c *memCall) wakeSenderLocked() {
	if c.mu.blocked == 0 || c.mu.ahead >= Credit {
		return
	}
	select {
	case c.mu.room <- struct{}{}:
	default:
	}
}

func errCallOver() error { return fault.New(fault.Canceled, "send: the call is over") }

// receiveFrames passes frames to recv until the handler has returned and all frames are delivered,
// recv fails, or ctx ends.
func (c *memCall) receiveFrames(ctx context.Context, recv func([]byte) error) error {
	for {
		frame, ok, ended := c.dequeueFrame()
		switch {
		case ok:
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := recv(frame); err != nil {
				return err
			}
		case ended:
			if err := contextErr(ctx); err != nil {
				return err // the handler's error only echoes it
			}
			return c.handlerError()
		default:
			select {
			case <-c.wake:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// dequeueFrame takes out the next frame, which is valid until the next call. If there is none,
// ended reports whether the call is over; if it is not, the caller must wait for wake.
func (c *memCall) dequeueFrame() (frame []byte, ok, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if frame, ok = c.taken.next(); !ok {
		c.taken.reset()
		c.taken, c.mu.sent = c.mu.sent, c.taken
		if frame, ok = c.taken.next(); !ok {
			c.mu.idle = !c.mu.over
			return nil, false, c.mu.over
		}
	}
	c.mu.ahead--
	c.wakeSenderLocked()
	return frame, true, false
}
