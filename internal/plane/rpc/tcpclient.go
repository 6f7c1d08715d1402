package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"penstock/core/fault"
)

// clientLink is the caller's end of a connection.
type clientLink struct {
	tcpLink
	addr    string
	maxBody int
	// unchecked means that damage to data on the connection would go unnoticed: it has neither TLS
	// nor checksums.
	unchecked    bool
	unregister   func() // unregisters the link, so that later calls dial
	answerBudget byteBudget
	buf          []byte
	releaseBuf   func() // returns buf to the pool

	mu struct {
		sync.Mutex
		calls map[uint32]*clientCall
		last  uint32 // number of the most recent call
		gone  bool   // no new calls
		idle  time.Time
	}
}

func newClientLink(t *TCPPlane, p *tcpPeer, conn net.Conn, greeting hello) *clientLink {
	l := &clientLink{addr: p.addr, maxBody: MaxBody, unregister: func() { t.forgetPeer(p) }}
	l.conn, l.cfg = conn, &t.cfg
	f := framing{checksums: greeting.checksums == checksumsUsed}
	l.out.init(f, f.appendGreaseFrame(nil))
	l.unchecked = t.cfg.ClientTLS == nil && !f.checksums
	l.tcpLink.onFrame, l.onTick = l.handleFrame, l.closeIfIdle
	if greeting.maxBody != 0 {
		l.maxBody = int(min(greeting.maxBody, MaxBody))
	}
	l.answerBudget.limit = t.cfg.Answers
	l.buf, l.releaseBuf = t.takeBuffer()
	l.mu.calls = make(map[uint32]*clientCall)
	l.mu.idle = time.Now()
	return l
}

// serveConn runs the link until it ends, and then ends its calls. A call without a byte written to
// the operating system can be retried on another connection.
func (l *clientLink) serveConn() {
	err := l.run(l.buf)
	l.releaseBuf()
	l.stopNewCalls()
	l.mu.Lock()
	left := l.mu.calls
	l.mu.calls = nil
	l.mu.Unlock()
	for _, c := range left {
		l.countCallEnd()
		c.recordOutcome(l.connectionError(c.method, err), c.at >= l.out.written)
	}
}

// connectionError returns the outcome of a call whose connection ended because of cause.
func (l *clientLink) connectionError(method string, cause error) error {
	why := "broke"
	switch {
	case errors.Is(cause, io.EOF):
		why = "was closed by the server"
	case errors.Is(cause, errSilent):
		why = "is dead: the server has gone silent"
	case errors.Is(cause, errDamaged):
		why = "carried damaged bytes"
	}
	return &fault.Error{Code: fault.Unavailable, Message: fmt.Sprintf("call %s: the connection to %s %s", method, l.addr, why), Err: cause}
}

// stopNewCalls makes later calls dial a new connection.
func (l *clientLink) stopNewCalls() {
	l.unregister()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.gone = true
}

// closeIfIdle closes a link which has had no call for cfg.Idle.
func (l *clientLink) closeIfIdle() error {
	l.mu.Lock()
	over := len(l.mu.calls) == 0 && time.Since(l.mu.idle) >= l.cfg.Idle
	l.mu.gone = l.mu.gone || over
	l.mu.Unlock()
	if over {
		l.stopNewCalls()
		return errClosed
	}
	return nil
}

// startCall sends the header of c and the first part of its body, once there is room. Call numbers
// ascend in the order of sending. It returns false if the link takes no more calls.
func (l *clientLink) startCall(c *clientCall, head, part []byte) bool {
	for {
		l.mu.Lock()
		if l.mu.gone {
			l.mu.Unlock()
			return false
		}
		at, space, err := l.out.trySendFrame(frameCall, l.mu.last+1, head, part)
		if err == nil && space == nil {
			l.mu.last++
			c.id, c.at = l.mu.last, at
			l.mu.calls[c.id] = c
			l.mu.gone = l.mu.last == lastCall
			used := l.mu.gone
			l.mu.Unlock()
			l.countCallStart()
			if used {
				l.unregister()
			}
			return true
		}
		l.mu.Unlock()
		if err != nil {
			return false
		}
		select {
		case <-space:
		case <-c.over:
			return true // nothing was sent, and the caller has left
		}
	}
}

// findCall returns the call with that number, or nil if it is over.
func (l *clientLink) findCall(id uint32) *clientCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.calls[id]
}

// removeCall removes c and reports whether it was present. Removing the last call of a link which
// takes no new calls closes the link.
func (l *clientLink) removeCall(c *clientCall) bool {
	l.mu.Lock()
	there := c.id != 0 && l.mu.calls[c.id] == c
	var over bool
	if there {
		delete(l.mu.calls, c.id)
		l.mu.idle = time.Now()
		over = l.mu.gone && len(l.mu.calls) == 0
	}
	l.mu.Unlock()
	if there {
		l.countCallEnd()
	}
	if over {
		l.closeWith(errClosed)
	}
	return there
}

// cancelCall ends c with the given reason and cancels its handler, unless c has ended.
func (l *clientLink) cancelCall(c *clientCall, why error) {
	c.recordOutcome(why, false)
	l.mu.Lock()
	there := c.id != 0 && l.mu.calls[c.id] == c
	l.mu.Unlock()
	if !there {
		return
	}
	if err := l.out.sendFrameNow(frameCancel, c.id, nil); err != nil {
		l.closeWith(err)
	}
	l.removeCall(c)
}

var errCallerGone = errors.New("the caller has gone away")

// handleFrame handles a frame from the server.
func (l *clientLink) handleFrame(t frameType, id uint32, payload []byte) error {
	switch t {
	case frameData, frameStart, frameMore:
		c := l.findCall(id)
		if c == nil {
			return nil // it was just canceled
		}
		err := c.enqueueFrame(t, payload)
		if errors.Is(err, errUnreadAnswers) {
			l.cancelCall(c, fault.New(fault.Overloaded, "call %s: callers have not taken %d bytes that came on their connection, and more is not kept", c.method, l.answerBudget.limit))
			return nil
		}
		return err
	case frameEnd:
		f, err := decodeEnd(payload)
		if err != nil {
			return err
		}
		if c := l.findCall(id); c != nil {
			l.removeCall(c)
			if f == nil {
				c.recordOutcome(nil, false)
			} else {
				c.recordOutcome(f, false)
			}
		}
		return nil
	case frameGoaway:
		last, why, err := decodeGoaway(payload)
		if err != nil {
			return err
		}
		return l.handleGoaway(last, why)
	default:
		return nil
	}
}

// handleGoaway stops new calls and hands back the calls which the server will not start, for a
// retry elsewhere.
func (l *clientLink) handleGoaway(last uint32, why *fault.Error) error {
	l.stopNewCalls()
	var back []*clientCall
	l.mu.Lock()
	for id, c := range l.mu.calls {
		if id > last {
			back = append(back, c)
			delete(l.mu.calls, id)
		}
	}
	none := len(l.mu.calls) == 0
	l.mu.Unlock()
	for _, c := range back {
		l.countCallEnd()
		c.recordOutcome(&fault.Error{Code: fault.Unavailable, Message: fmt.Sprintf("call %s: %s takes no more calls: %s", c.method, l.addr, why.Message)}, true)
	}
	if none {
		return errClosed
	}
	return nil
}

// makeCall makes one call. again means that the call had no effect and may be made on another
// connection.
func (l *clientLink) makeCall(ctx context.Context, method string, body []byte, recv func([]byte) error) (err error, again bool) {
	if len(body) > l.maxBody {
		return fault.New(fault.TooLarge, "call %s: the body has %d bytes, %s takes at most %d", method, len(body), l.addr, l.maxBody), false
	}
	c := newClientCall(l, method)
	defer c.releaseMemory()
	defer l.cancelCall(c, errCallerGone) // no effect if the call has ended
	defer context.AfterFunc(ctx, func() { l.cancelCall(c, errCallerGone) })()

	head := appendCallHead(nil, &callHeader{size: len(body), method: method, callMetadata: newCallMetadata(ctx)})
	part := min(len(body), tcpPayload-len(head))
	if !l.startCall(c, head, body[:part]) {
		l.unregister()
		return fault.New(fault.Unavailable, "call %s: the connection to %s was just closed", method, l.addr), true
	}
	if c.id != 0 {
		// An error means that the call is over; receiveFrames returns its outcome.
		_ = l.out.sendInTurns(c.over, new(queuedSend), frameBody, c.id, body[part:])
	}
	return c.receiveFrames(ctx, recv)
}
