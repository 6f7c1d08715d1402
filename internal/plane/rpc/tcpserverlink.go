package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"penstock/core/fault"
)

// serverLink is the handlers' end of a connection.
type serverLink struct {
	tcpLink
	server        *tcpServer
	frames, bytes int64 // initial credit of a call
	bodies        budget
	handlers      sync.WaitGroup
	buf           []byte
	give          func()    // returns buf to the pool
	coming        []*callIn // calls whose bodies may be incomplete; owned by the reader

	mu struct {
		sync.Mutex
		calls   map[uint32]*callIn
		inside  int    // running handlers, including handlers of canceled calls
		last    uint32 // number of the most recent call that was started
		leaving bool
		linger  *time.Timer // closes the link if the client does not
	}
}

func newServerLink(s *tcpServer, conn net.Conn, theirs hello) *serverLink {
	l := &serverLink{server: s, frames: int64(theirs.frames), bytes: int64(theirs.bytes), bodies: budget{limit: s.cfg.ConnBodies}}
	if l.frames == 0 {
		l.frames = Credit
	}
	if l.bytes == 0 {
		l.bytes = tcpWindow
	}
	l.conn, l.cfg = conn, s.cfg
	ours := hello{least: tcpVersion, most: tcpVersion, maxBody: MaxBody, calls: uint32(s.cfg.Calls)}
	if s.cfg.ServerTLS == nil && !s.plane.old {
		ours.checksums = checksumsKnown
		if theirs.checksums == checksumsUsed {
			ours.checksums = checksumsUsed
		}
	}
	f := framing{sums: ours.checksums == checksumsUsed}
	l.out.init(f, f.appendGrease(greeting(&ours)))
	l.tcpLink.frame, l.tick = l.frame, l.expire
	l.buf, l.give = s.plane.buffer()
	l.mu.calls = make(map[uint32]*callIn)
	return l
}

// serveConn runs the link until it ends, cancels its handlers, and waits for them.
func (l *serverLink) serve() {
	err := l.run(l.buf)
	l.give()
	l.mu.Lock()
	left := l.mu.calls
	l.mu.calls = nil
	if l.mu.linger != nil {
		l.mu.linger.Stop()
	}
	l.mu.Unlock()
	for _, c := range left {
		l.drop(c)
	}
	if len(left) > 0 {
		l.server.trouble.say("a connection with calls in progress broke", l.conn.RemoteAddr(), err)
	}
	l.handlers.Wait()
}

var errNumber = errors.New("the number of a call is not above that of the one before")

// handleFrame handles a frame from the client.
func (l *serverLink) frame(t frameType, id uint32, payload []byte) error {
	switch t {
	case frameCall:
		return l.begin(id, payload)
	case frameBody:
		c := l.find(id)
		if c == nil || c.start == nil {
			return nil // refused or canceled
		}
		if err := c.body.add(payload); err != nil {
			return fmt.Errorf("the body of call %d: %w", id, err)
		}
		if c.body.whole() {
			c.run()
		}
		return nil
	case frameCredit:
		frames, bytes, err := decodeCredit(payload)
		if err != nil {
			return err
		}
		if c := l.find(id); c != nil {
			c.earn(frames, bytes)
		}
		return nil
	case frameCancel:
		if c := l.remove(id); c != nil {
			l.drop(c)
		}
		return nil
	default:
		return nil
	}
}

// acceptCall starts a call or refuses it at once.
func (l *serverLink) begin(id uint32, payload []byte) error {
	head, part, err := decodeCall(payload)
	if err != nil {
		return err
	}
	l.mu.Lock()
	if l.mu.leaving { // the client retries it elsewhere when it reads GOAWAY
		l.mu.Unlock()
		return nil
	}
	if id <= l.mu.last || id > lastCall {
		l.mu.Unlock()
		return errNumber
	}
	l.mu.last = id
	// Under the same lock as last, so that sendGoaway sees the call either fully started or not at
	// all.
	c, why := l.admitLocked(id, &head)
	l.mu.Unlock()
	if why != nil {
		return l.refuse(id, why)
	}
	l.enter()
	if err := c.body.add(part); err != nil {
		return err
	}
	if c.body.whole() {
		c.run()
		return nil
	}
	l.coming = append(l.coming, c)
	return nil
}

// expireBodies ends calls whose bodies take too long. Their reserved memory is then available to
// other calls, including calls of other connections.
func (l *serverLink) expire() (err error) {
	now := time.Now()
	l.coming = slices.DeleteFunc(l.coming, func(c *callIn) bool {
		if c.start == nil || l.find(c.id) == nil { // it runs, or is over
			return true
		}
		if now.Sub(c.began) < bodyTime {
			return false
		}
		l.drop(l.remove(c.id))
		why := fault.New(fault.Unavailable, "a body of %d bytes did not come within %v", c.size, bodyTime)
		err = errors.Join(err, l.refuse(c.id, why))
		return true
	})
	return err
}

// admitCallLocked registers a call if there is room for it.
func (l *serverLink) admitLocked(id uint32, head *callHead) (*callIn, *fault.Error) {
	size := int64(head.size)
	switch {
	case l.mu.inside >= l.cfg.Calls:
		return nil, fault.New(fault.Overloaded, "call %s: %d calls are in progress on this connection, and no more are taken", head.method, l.mu.inside)
	case head.size > MaxBody:
		return nil, errBodyTooLarge(head.method, head.size)
	case !l.bodies.take(size):
		return nil, errBodiesFull(head.method, size)
	case !l.server.bodies.take(size):
		l.bodies.give(size)
		return nil, errBodiesFull(head.method, size)
	}
	ctx, cancel := head.open(context.Background())
	c := newCallIn(l, id, head.size, cancel)
	c.start = func(body []byte) { c.serve(ctx, l.server.handler, head.method, body) }
	l.mu.inside++
	l.mu.calls[id] = c
	return c, nil
}

// refuseCall ends a call that has no handler.
func (l *serverLink) refuse(id uint32, why *fault.Error) error {
	return l.out.now(frameEnd, id, appendFault(nil, why))
}

// findCall returns the call with that number, or nil if it is over.
func (l *serverLink) find(id uint32) *callIn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.calls[id]
}

// removeCall removes and returns the call with that number, or nil if it is over.
func (l *serverLink) remove(id uint32) *callIn {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.mu.calls[id]
	delete(l.mu.calls, id)
	return c
}

// endCall ends a call that was removed.
func (l *serverLink) drop(c *callIn) {
	c.cancel()
	if c.start != nil { // no handler will release them
		c.settle()
	}
	if l.leave() {
		l.lingerIfLeaving()
	}
}

// sendGoaway tells the client to make further calls elsewhere.
func (l *serverLink) goaway() {
	l.mu.Lock()
	l.mu.leaving = true
	last := l.mu.last
	none := len(l.mu.calls) == 0
	l.mu.Unlock()
	if err := l.out.now(frameGoaway, 0, appendGoaway(nil, last, fault.New(fault.Unavailable, "the server is leaving"))); err != nil {
		l.shut(err)
	}
	if none {
		l.lingerIfLeaving()
	}
}

// lingerIfDraining gives the client of a draining link without calls time to close it.
func (l *serverLink) lingerIfLeaving() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.leaving && len(l.mu.calls) == 0 && l.mu.calls != nil && l.mu.linger == nil {
		l.mu.linger = time.AfterFunc(tcpLinger, func() { l.shut(errClosed) })
	}
}
