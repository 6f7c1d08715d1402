package rpc

import (
	"context"
	"sync"

	"penstock/core/fault"
)

// maxKeptFrame is the largest frame buffer that a call keeps for its next frames, in bytes.
const keepFrame = 64 << 10

// memCall is one call in progress. Frames pass from the handler's goroutine to the caller's through
// two batches, which the goroutines exchange. The caller takes all queued frames at once.
type memCall struct {
	cancel context.CancelFunc
	wake   chan struct{} // signals the waiting caller; capacity one

	mu struct {
		sync.Mutex
		sent    batch
		ahead   int           // frames that were sent but not received
		idle    bool          // the caller waits for wake
		blocked int           // senders that wait for room
		room    chan struct{} // signals that a frame was received; capacity one; nil until a sender waits
		over    bool          // the handler has returned
		err     error         // the handler's outcome
	}
	taken batch // owned by the caller
}

// frameBatch is a queue of frames in one buffer.
type batch struct {
	bytes []byte
	ends  []int // end offset of each frame in bytes
	at    int   // number of frames taken out
}

func (b *batch) add(frame []byte) {
	b.bytes = append(b.bytes, frame...)
	b.ends = append(b.ends, len(b.bytes))
}

// next takes out a frame; ok is false if there is none.
func (b *batch) next() (frame []byte, ok bool) {
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
func (b *batch) clear() {
	if cap(b.bytes) > keepFrame {
		b.bytes = nil
	}
	b.bytes, b.ends, b.at = b.bytes[:0], b.ends[:0], 0
}

func newMemCall(cancel context.CancelFunc) *memCall {
	return &memCall{cancel: cancel, wake: make(chan struct{}, 1)}
}

// runHandler runs the handler and records its outcome. A goroutine which the handler left behind
// can send nothing after that.
func (c *memCall) serve(ctx context.Context, h Handler, method string, body []byte) {
	defer c.rouse()
	defer c.cancel()
	invoke(ctx, h, method, body, func(frame []byte) error { return c.send(ctx, frame) }, c.ended)
}

func (c *memCall) ended(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.over, c.mu.err = true, err
}

// handlerError returns the handler's outcome.
func (c *memCall) outcome() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err
}

// hasUnreceived reports whether frames were sent that were not received yet.
func (c *memCall) more() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.ahead > 0
}

// wakeCaller wakes the caller if it waits.
func (c *memCall) rouse() {
	c.mu.Lock()
	idle := c.mu.idle
	c.mu.idle = false
	c.mu.Unlock()
	if idle {
		c.wake <- struct{}{} // there is room: an idle caller has emptied it
	}
}

// sendFrame queues one frame. It waits while the caller is behind by the credit.
func (c *memCall) send(ctx context.Context, frame []byte) error {
	if len(frame) > MaxFrame {
		return errFrameTooLarge(len(frame))
	}
	for {
		if ctx.Err() != nil {
			return errOver()
		}
		room, err := c.enqueue(frame)
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
func (c *memCall) enqueue(frame []byte) (room <-chan struct{}, err error) {
	c.mu.Lock()
	switch {
	case c.mu.over:
		c.mu.Unlock()
		return nil, errOver()
	case c.mu.ahead >= Credit:
		if c.mu.room == nil {
			c.mu.room = make(chan struct{}, 1)
		}
		c.mu.blocked++
		room = c.mu.room
		c.mu.Unlock()
		return room, nil
	}
	c.mu.sent.add(frame)
	c.mu.ahead++
	c.admit()
	c.mu.Unlock()
	c.rouse()
	return nil, nil
}

// wakeSenderLocked wakes one blocked sender if there is room.
func (c *memCall) admit() {
	if c.mu.blocked == 0 || c.mu.ahead >= Credit {
		return
	}
	select {
	case c.mu.room <- struct{}{}:
	default:
	}
}

func errOver() error { return fault.New(fault.Canceled, "send: the call is over") }

// receiveFrames passes frames to recv until the handler has returned and all frames are delivered,
// recv fails, or ctx ends.
func (c *memCall) receive(ctx context.Context, recv func([]byte) error) error {
	for {
		frame, ok, ended := c.dequeue()
		switch {
		case ok:
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := recv(frame); err != nil {
				return err
			}
		case ended:
			if err := over(ctx); err != nil {
				return err // the handler's error only echoes it
			}
			return c.outcome()
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
func (c *memCall) dequeue() (frame []byte, ok, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if frame, ok = c.taken.next(); !ok {
		c.taken.clear()
		c.taken, c.mu.sent = c.mu.sent, c.taken
		if frame, ok = c.taken.next(); !ok {
			c.mu.idle = !c.mu.over
			return nil, false, c.mu.over
		}
	}
	c.mu.ahead--
	c.admit()
	return frame, true, false
}
