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
	// unchecked is that damage to what goes over the connection would not be noticed: it
	// has neither TLS nor checksums.
	unchecked bool
	forget    func() // has later calls dial
	answers   budget
	buf       []byte
	give      func() // returns buf

	mu struct {
		sync.Mutex
		calls map[uint32]*callOut
		last  uint32 // number of the last call
		gone  bool   // no call is begun here any more
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

// serve runs the link and ends its calls when it has ended. Those of which the
// operating system took nothing can be made elsewhere.
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

// broken is the outcome of a call whose connection ended because of cause.
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

// retire has later calls dial a connection of their own.
func (l *clientLink) retire() {
	l.forget()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.gone = true
}

// tickle closes a link that has had no call for long.
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

// begin sends the head of c and the first part of its body, once there is room.
// The numbers of calls ascend in the order in which they are sent. False is that
// the link takes no more calls.
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
			return true // nothing was sent, and the caller has gone
		}
	}
}

// find returns the call of that number, nil if it is over.
func (l *clientLink) find(id uint32) *callOut {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.calls[id]
}

// drop removes c and reports whether it was there. The last call of a link that
// takes no more closes it.
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

// abandon ends c for the given reason, and its handler, unless it has ended.
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

// frame takes what the server sends.
func (l *clientLink) frame(t frameType, id uint32, payload []byte) error {
	switch t {
	case frameData, frameStart, frameMore:
		c := l.find(id)
		if c == nil {
			return nil // it was cancelled a moment ago
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

// goaway takes no more calls and gives those back that the server will not begin.
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

// call makes one call. Again is that it had no effect and may be made on another
// connection.
func (l *clientLink) call(ctx context.Context, method string, body []byte, recv func([]byte) error) (err error, again bool) {
	if len(body) > l.maxBody {
		return fault.New(fault.TooLarge, "call %s: the body has %d bytes, %s takes at most %d", method, len(body), l.addr, l.maxBody), false
	}
	c := newCallOut(l, method)
	defer c.release()
	defer l.abandon(c, errGone) // if it is still there
	defer context.AfterFunc(ctx, func() { l.abandon(c, errGone) })()

	head := appendCallHead(nil, &callHead{size: len(body), method: method, envelope: envelop(ctx)})
	part := min(len(body), tcpPayload-len(head))
	if !l.begin(c, head, body[:part]) {
		l.forget()
		return fault.New(fault.Unavailable, "call %s: the connection to %s was just closed", method, l.addr), true
	}
	if c.id != 0 {
		// An error is that the call is over: receive knows how.
		_ = l.out.long(c.over, new(outWait), frameBody, c.id, body[part:])
	}
	return c.receive(ctx, recv)
}
