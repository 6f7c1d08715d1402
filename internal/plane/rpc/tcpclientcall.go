package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
)

// clientCall is the caller's side of a call. The connection's reader queues the frames of the
// answer. The caller takes all queued frames at once and passes them to recv without copying.
type clientCall struct {
	link   *clientLink
	method string
	id     uint32 // 0 until it is sent; guarded by link.mu
	at     uint64 // stream offset at which it starts; guarded by link.mu

	wake chan struct{} // wakes the caller if waiting was set
	over chan struct{} // closed when the outcome is known
	mu   struct {
		sync.Mutex
		in      answerFrames
		part    partBuffer // a frame that is arriving in parts
		parting bool
		frames  int64 // credit left to the server
		bytes   int64
		charged int // bytes reserved in link.answerBudget
		waiting bool
		begun   bool // some of the answer has arrived
		ended   bool
		err     error
		again   bool
	}
	// The remaining fields belong to the caller's goroutine.
	taken answerFrames // frames being passed to recv
	owed  struct{ frames, bytes uint32 }
}

// answerFrames is a queue of frames in order of arrival. A small frame is a record in small: a
// length of 4 bytes and the data. A large frame is in large; its place in small is marked by the
// length largeFrame.
type answerFrames struct {
	small []byte
	large [][]byte
}

const largeFrame = 1 << 31

var (
	errUnreadAnswers  = errors.New("too much is waiting for its callers")
	errCreditExceeded = errors.New("the server sent more than it had credit for")
	errPartOrder      = errors.New("the parts of a frame are not in order")
)

func newClientCall(l *clientLink, method string) *clientCall {
	c := &clientCall{link: l, method: method, wake: make(chan struct{}, 1), over: make(chan struct{})}
	c.mu.frames, c.mu.bytes = Credit, tcpWindow
	return c
}

// enqueueFrame queues a frame of the answer or a part of one. Every error except errUnreadAnswers
// is a protocol violation of the server.
func (c *clientCall) enqueueFrame(t frameType, payload []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ended {
		return nil
	}
	c.mu.begun = true
	if (t == frameMore) != c.mu.parting {
		return errPartOrder
	}
	switch t {
	case frameData:
		if err := c.spendCreditLocked(len(payload)); err != nil {
			return err
		}
		need := len(c.mu.in.small) + 4 + len(payload)
		if need > cap(c.mu.in.small) {
			grown := max(2*cap(c.mu.in.small), need, 512)
			if !c.reserveMemoryLocked(grown - cap(c.mu.in.small)) {
				return errUnreadAnswers
			}
			c.mu.in.small = append(make([]byte, 0, grown), c.mu.in.small...)
		}
		c.mu.in.small = binary.LittleEndian.AppendUint32(c.mu.in.small, uint32(len(payload)))
		c.mu.in.small = append(c.mu.in.small, payload...)
		c.wakeCallerLocked()
		return nil
	case frameStart:
		size, part, err := decodeStart(payload)
		if err != nil {
			return err
		}
		if size > MaxFrame {
			return errTooManyBytes
		}
		if err := c.spendCreditLocked(int(size)); err != nil {
			return err
		}
		if !c.reserveMemoryLocked(int(size) + 4) {
			return errUnreadAnswers
		}
		c.mu.part, c.mu.parting = partBuffer{size: int(size)}, true
		payload = part
	}
	if err := c.mu.part.appendPart(payload); err != nil {
		return err
	}
	if c.mu.part.isComplete() {
		c.mu.in.small = binary.LittleEndian.AppendUint32(c.mu.in.small, largeFrame)
		c.mu.in.large = append(c.mu.in.large, c.mu.part.buf)
		c.mu.part, c.mu.parting = partBuffer{}, false
		c.wakeCallerLocked()
	}
	return nil
}

// spendCreditLocked takes the credit for a frame of n bytes.
func (c *clientCall) spendCreditLocked(n int) error {
	if c.mu.frames <= 0 || c.mu.bytes <= 0 {
		return errCreditExceeded
	}
	c.mu.frames--
	c.mu.bytes -= int64(n)
	return nil
}

// reserveMemoryLocked reserves n bytes of the connection's answer budget for the call.
func (c *clientCall) reserveMemoryLocked(n int) bool {
	if !c.link.answerBudget.tryReserve(int64(n)) {
		return false
	}
	c.mu.charged += n
	return true
}

// wakeCallerLocked wakes the caller if it waits.
func (c *clientCall) wakeCallerLocked() {
	if c.mu.waiting {
		c.mu.waiting = false
		c.wake <- struct{}{} // never blocks: one signal per wait
	}
}

// recordOutcome records how the call ended, unless it has ended already. Frames received before are
// still delivered; once a frame has arrived, again is ignored.
func (c *clientCall) recordOutcome(err error, again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ended {
		return
	}
	c.mu.ended, c.mu.err, c.mu.again = true, err, again && !c.mu.begun
	close(c.over)
	c.wakeCallerLocked()
}

// receiveFrames passes frames to recv until the call has ended and all of them are delivered, recv
// fails, or ctx ends.
func (c *clientCall) receiveFrames(ctx context.Context, recv func([]byte) error) (err error, again bool) {
	for {
		ended := c.takeFrames()
		if err := c.deliverFrames(ctx, recv); err != nil {
			return err, false
		}
		if !ended {
			continue
		}
		if err := contextErr(ctx); err != nil {
			return err, false // the handler's error only echoes it
		}
		return c.mu.err, c.mu.again // no writer is left
	}
}

// takeFrames exchanges the queued frames for the delivered ones. It waits until there are frames or
// the call has ended, and reports whether it has ended.
func (c *clientCall) takeFrames() (ended bool) {
	c.mu.Lock()
	for len(c.mu.in.small) == 0 && !c.mu.ended {
		c.mu.waiting = true
		c.mu.Unlock()
		<-c.wake
		c.mu.Lock()
	}
	c.taken.small, c.taken.large = c.taken.small[:0], c.taken.large[:0]
	c.taken, c.mu.in = c.mu.in, c.taken
	ended = c.mu.ended
	c.mu.Unlock()
	return ended
}

// deliverFrames passes the taken frames to recv.
func (c *clientCall) deliverFrames(ctx context.Context, recv func([]byte) error) error {
	large := 0
	for b := c.taken.small; len(b) > 0; {
		var frame []byte
		n := binary.LittleEndian.Uint32(b)
		b = b[4:]
		if n == largeFrame {
			frame, c.taken.large[large] = c.taken.large[large], nil
			large++
		} else {
			frame, b = b[:n], b[n:]
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := recv(frame); err != nil {
			return err
		}
		if n == largeFrame {
			c.refundMemory(len(frame) + 4)
		}
		if err := c.returnCredit(len(frame)); err != nil {
			return err
		}
	}
	return nil
}

// refundMemory returns n bytes to the connection's answer budget.
func (c *clientCall) refundMemory(n int) {
	c.mu.Lock()
	c.mu.charged -= n
	c.mu.Unlock()
	c.link.answerBudget.release(int64(n))
}

// returnCredit returns the credit for a delivered frame of n bytes to the server, in batches.
func (c *clientCall) returnCredit(n int) error {
	c.owed.frames++
	c.owed.bytes += uint32(n)
	if c.owed.frames < Credit/2 && c.owed.bytes < tcpWindow/2 {
		return nil
	}
	owed := c.owed
	c.owed.frames, c.owed.bytes = 0, 0
	c.mu.Lock()
	c.mu.frames += int64(owed.frames)
	c.mu.bytes += int64(owed.bytes)
	ended := c.mu.ended
	c.mu.Unlock()
	if ended {
		return nil
	}
	var payload [8]byte
	if err := c.link.out.sendFrameNow(frameCredit, c.id, appendCredit(payload[:0], owed.frames, owed.bytes)); err != nil {
		c.link.closeWith(err) // the call ends with the link
	}
	return nil
}

// releaseMemory returns the memory of a finished call.
func (c *clientCall) releaseMemory() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.ended = true
	c.link.answerBudget.release(int64(c.mu.charged))
	c.mu.charged = 0
	c.mu.in, c.mu.part = answerFrames{}, partBuffer{}
}
