package rpc

import (
	"context"
	"sync"

	"penstock/core/fault"
)

// keepFrame is the largest frame buffer that a call keeps for its next frames.
const keepFrame = 64 << 10

// memCall is one call in progress: frames pass from the handler's goroutine to the caller's
// through memory that both take turns with. The caller takes all that are there at once.
type memCall struct {
	cancel context.CancelFunc
	wake   chan struct{} // there is something for the caller, who waits; has room for one

	mu struct {
		sync.Mutex
		sent    batch
		ahead   int           // frames that were sent and not received
		idle    bool          // the caller waits for wake
		blocked int           // senders that wait for room
		room    chan struct{} // a frame was received; has room for one; nil before anybody waited
		over    bool          // the handler has returned
		err     error         // what with
	}
	taken batch // the caller's
}

// batch is frames one behind another.
type batch struct {
	bytes []byte
	ends  []int // of each frame in bytes
	at    int   // how many were taken out
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

// clear makes b empty, and keeps its memory if that is not too much.
func (b *batch) clear() {
	if cap(b.bytes) > keepFrame {
		b.bytes = nil
	}
	b.bytes, b.ends, b.at = b.bytes[:0], b.ends[:0], 0
}

func newMemCall(cancel context.CancelFunc) *memCall {
	return &memCall{cancel: cancel, wake: make(chan struct{}, 1)}
}

// serve runs the handler and records how it ended. Whoever it left behind sends too late.
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

// outcome is what the handler returned with.
func (c *memCall) outcome() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err
}

// more reports whether frames were sent that were not received.
func (c *memCall) more() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.ahead > 0
}

// rouse wakes the caller if it waits.
func (c *memCall) rouse() {
	c.mu.Lock()
	idle := c.mu.idle
	c.mu.idle = false
	c.mu.Unlock()
	if idle {
		c.wake <- struct{}{} // there is room: whoever is idle has emptied it
	}
}

// send passes one frame on, waiting while the caller is behind by the credit.
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

// enqueue adds a frame for the caller. If there is no room for it, it counts its caller among the
// blocked and returns what tells that there may be.
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

// admit lets one of those that are blocked look whether there is room, if there is some.
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

// receive passes frames to recv until the handler has returned and all of them
// are delivered, recv fails, or ctx ends.
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
				return err // the handler's error is then an echo of it
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

// dequeue takes out the next frame, valid until the next call. If there is none, it says whether there
// will be none; if it does not, the caller has to wait for wake.
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
