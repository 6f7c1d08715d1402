package rpc

import (
	"context"

	"penstock/core/fault"
)

// keepFrame is the largest frame buffer that a call keeps for its next frames.
const keepFrame = 64 << 10

// memCall is one call in progress: frames pass from the handler's goroutine to
// the caller's through a channel whose capacity is the credit.
type memCall struct {
	cancel context.CancelFunc
	frames chan []byte
	free   chan []byte   // buffers of delivered frames, for reuse
	done   chan struct{} // closed after err is set
	err    error
}

func newMemCall(cancel context.CancelFunc) *memCall {
	return &memCall{
		cancel: cancel,
		frames: make(chan []byte, Credit),
		free:   make(chan []byte, Credit+2), // and one in each hand
		done:   make(chan struct{}),
	}
}

// serve runs the handler and records how it ended. The frames it sent are in
// the channel by then, so a caller that sees done has only to drain it.
func (c *memCall) serve(ctx context.Context, h Handler, method string, body []byte) {
	defer close(c.done)
	defer c.cancel() // a send by a goroutine that the handler left behind fails
	invoke(ctx, h, method, body, func(frame []byte) error { return c.send(ctx, frame) }, func(err error) { c.err = err })
}

// send passes one frame on, waiting while the caller is behind by the credit.
func (c *memCall) send(ctx context.Context, frame []byte) error {
	if len(frame) > MaxFrame {
		return errFrameTooLarge(len(frame))
	}
	if ctx.Err() != nil {
		return errOver()
	}
	select {
	case c.frames <- c.copy(frame):
		return nil
	case <-ctx.Done():
		return errOver()
	}
}

func errOver() error { return fault.New(fault.Canceled, "send: the call is over") }

// copy returns frame in a buffer of the call's own.
func (c *memCall) copy(frame []byte) []byte {
	select {
	case b := <-c.free:
		return append(b[:0], frame...)
	default:
		return append([]byte(nil), frame...)
	}
}

// receive passes frames to recv until the handler has returned and all of them
// are delivered, recv fails, or ctx ends.
func (c *memCall) receive(ctx context.Context, recv func([]byte) error) error {
	for {
		select {
		case f := <-c.frames:
			if err := c.deliver(ctx, f, recv); err != nil {
				return err
			}
			continue
		case <-ctx.Done():
			return ctx.Err()
		case <-c.done:
		}
		for {
			select {
			case f := <-c.frames:
				if err := c.deliver(ctx, f, recv); err != nil {
					return err
				}
				continue
			default:
			}
			if err := over(ctx); err != nil {
				return err // the handler's error is then an echo of it
			}
			return c.err
		}
	}
}

func (c *memCall) deliver(ctx context.Context, f []byte, recv func([]byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := recv(f); err != nil {
		return err
	}
	if cap(f) <= keepFrame {
		select {
		case c.free <- f:
		default:
		}
	}
	return nil
}
