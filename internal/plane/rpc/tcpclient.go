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
	unchecked bool
	forget    func() // unregisters the link, so that later calls dial
	answers   budget
	buf       []byte
	give      func() // returns buf to the pool

	mu struct {
		sync.Mutex
		calls map[uint32]*callOut
		last  uint32 // number of the most recent call
		gone  bool   // no new calls
		idle  time.Time
	}
}

func newClientLink(t *TCP, p *tcpPeer, conn net.Conn, greeting hello) *clientLink {
	l := &clientLink{addr: p.addr, maxBody: MaxBody, forget: func() { t.forget(p) }}
	l.conn, l.cfg = conn, &t.cfg
	f := framing{sums: greeting.checksums == checksumsUsed}
	l.out.init(f, f.appendGrease(nil))
	l.unchecked = t.cfg.ClientTLS == nil && !f.sums
	l.tcpLink.frame, l.tick = l.frame, l.tickle
	if greeting.maxBody != 0 {
		l.maxBody = int(min(greeting.maxBody, MaxBody))
	}
	l.answers.limit = t.cfg.Answers
	l.buf, l.give = t.buffer()
	l.mu.calls = make(map[uint32]*callOut)
	l.mu.idle = time.Now()
	return l
}

// serveConn runs the link until it ends, and then ends its calls. A call without a byte written to
// the operating system can be retried on another connection.
func (l *clientLink) serve() {
	err := l.run(l.buf)
	l.give()
	l.retire()
	l.mu.Lock()
	left := l.mu.calls
	l.mu.calls = nil
	l.mu.Unlock()
	for _, c := range left {
		l.leave()
		c.finish(l.broken(c.method, err), c.at >= l.out.written)
	}
}

// connectionError returns the outcome of a call whose connection ended because of cause.
func (l *clientLink) broken(method string, cause error) error {
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
func (l *clientLink) retire() {
	l.forget()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.gone = true
}

// closeIfIdle closes a link which has had no call for cfg.Idle.
func (l *clientLink) tickle() error {
	l.mu.Lock()
	over := len(l.mu.calls) == 0 && time.Since(l.mu.idle) >= l.cfg.Idle
	l.mu.gone = l.mu.gone || over
	l.mu.Unlock()
	if over {
		l.retire()
		return errClosed
	}
	return nil
}

// startCall sends the header of c and the first part of its body, once there is room. Call numbers
// ascend in the order of sending. It returns false if the link takes no more calls.
func (l *clientLink) begin(c *callOut, head, part []byte) bool {
	for {
		l.mu.Lock()
		if l.mu.gone {
			l.mu.Unlock()
			return false
		}
		at, space, err := l.out.try(frameCall, l.mu.last+1, head, part)
		if err == nil && space == nil {
			l.mu.last++
			c.id, c.at = l.mu.last, at
			l.mu.calls[c.id] = c
			l.mu.gone = l.mu.last == lastCall
			used := l.mu.gone
			l.mu.Unlock()
			l.enter()
			if used {
				l.forget()
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
func (l *clientLink) find(id uint32) *callOut {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.calls[id]
}

// removeCall removes c and reports whether it was present. Removing the last call of a link which
// takes no new calls closes the link.
func (l *clientLink) drop(c *callOut) bool {
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
		l.leave()
	}
	if over {
		l.shut(errClosed)
	}
	return there
}

// cancelCall ends c with the given reason and cancels its handler, unless c has ended.
func (l *clientLink) abandon(c *callOut, why error) {
	c.finish(why, false)
	l.mu.Lock()
	there := c.id != 0 && l.mu.calls[c.id] == c
	l.mu.Unlock()
	if !there {
		return
	}
	if err := l.out.now(frameCancel, c.id, nil); err != nil {
		l.shut(err)
	}
	l.drop(c)
}

var errGone = errors.New("the caller has gone away")

// handleFrame handles a frame from the server.
func (l *clientLink) frame(t frameType, id uint32, payload []byte) error {
	switch t {
	case frameData, frameStart, frameMore:
		c := l.find(id)
		if c == nil {
			return nil // it was just canceled
		}
		err := c.arrive(t, payload)
		if errors.Is(err, errAnswers) {
			l.abandon(c, fault.New(fault.Overloaded, "call %s: callers have not taken %d bytes that came on their connection, and more is not kept", c.method, l.answers.limit))
			return nil
		}
		return err
	case frameEnd:
		f, err := decodeEnd(payload)
		if err != nil {
			return err
		}
		if c := l.find(id); c != nil {
			l.drop(c)
			if f == nil {
				c.finish(nil, false)
			} else {
				c.finish(f, false)
			}
		}
		return nil
	case frameGoaway:
		last, why, err := decodeGoaway(payload)
		if err != nil {
			return err
		}
		return l.goaway(last, why)
	default:
		return nil
	}
}

// handleGoaway stops new calls and hands back the calls which the server will not start, for a
// retry elsewhere.
func (l *clientLink) goaway(last uint32, why *fault.Error) error {
	l.retire()
	var back []*callOut
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
		l.leave()
		c.finish(&fault.Error{Code: fault.Unavailable, Message: fmt.Sprintf("call %s: %s takes no more calls: %s", c.method, l.addr, why.Message)}, true)
	}
	if none {
		return errClosed
	}
	return nil
}

// makeCall makes one call. again means that the call had no effect and may be made on another
// connection.
func (l *clientLink) call(ctx context.Context, method string, body []byte, recv func([]byte) error) (err error, again bool) {
	if len(body) > l.maxBody {
		return fault.New(fault.TooLarge, "call %s: the body has %d bytes, %s takes at most %d", method, len(body), l.addr, l.maxBody), false
	}
	c := newCallOut(l, method)
	defer c.release()
	defer l.abandon(c, errGone) // no effect if the call has ended
	defer context.AfterFunc(ctx, func() { l.abandon(c, errGone) })()

	head := appendCallHead(nil, &callHead{size: len(body), method: method, envelope: envelop(ctx)})
	part := min(len(body), tcpPayload-len(head))
	if !l.begin(c, head, body[:part]) {
		l.forget()
		return fault.New(fault.Unavailable, "call %s: the connection to %s was just closed", method, l.addr), true
	}
	if c.id != 0 {
		// An error means that the call is over; receiveFrames returns its outcome.
		_ = l.out.long(c.over, new(outWait), frameBody, c.id, body[part:])
	}
	return c.receive(ctx, recv)
}
