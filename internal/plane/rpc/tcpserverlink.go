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
	bodies        byteBudget
	handlers      sync.WaitGroup
	buf           []byte
	releaseBuf    func()        // returns buf to the pool
	incoming      []*serverCall // calls whose bodies may be incomplete; owned by the reader

	mu struct {
		sync.Mutex
		calls   map[uint32]*serverCall
		inside  int    // running handlers, including handlers of canceled calls
		last    uint32 // number of the most recent call that was started
		leaving bool
		linger  *time.Timer // closes the link if the client does not
	}
}

func newServerLink(s *tcpServer, conn net.Conn, theirs hello) *serverLink {
	l := &serverLink{server: s, frames: int64(theirs.frames), bytes: int64(theirs.bytes), bodies: byteBudget{limit: s.cfg.ConnBodies}}
	if l.frames == 0 {
		l.frames = Credit
	}
	if l.bytes == 0 {
		l.bytes = tcpWindow
	}
	l.conn, l.cfg = conn, s.cfg
	ours := hello{minVersion: tcpVersion, maxVersion: tcpVersion, maxBody: MaxBody, calls: uint32(s.cfg.Calls)}
	if s.cfg.ServerTLS == nil && !s.plane.noChecksums {
		ours.checksums = checksumsKnown
		if theirs.checksums == checksumsUsed {
			ours.checksums = checksumsUsed
		}
	}
	f := framing{checksums: ours.checksums == checksumsUsed}
	l.out.init(f, f.appendGreaseFrame(encodeGreeting(&ours)))
	l.tcpLink.onFrame, l.onTick = l.handleFrame, l.expireBodies
	l.buf, l.releaseBuf = s.plane.takeBuffer()
	l.mu.calls = make(map[uint32]*serverCall)
	return l
}

// serveConn runs the link until it ends, cancels its handlers, and waits for them.
func (l *serverLink) serveConn() {
	err := l.run(l.buf)
	l.releaseBuf()
	l.mu.Lock()
	left := l.mu.calls
	l.mu.calls = nil
	if l.mu.linger != nil {
		l.mu.linger.Stop()
	}
	l.mu.Unlock()
	for _, c := range left {
		l.endCall(c)
	}
	if len(left) > 0 {
		l.server.warnings.warnThrottled("a connection with calls in progress broke", l.conn.RemoteAddr(), err)
	}
	l.handlers.Wait()
}

var errCallNumber = errors.New("the number of a call is not above that of the one before")

// handleFrame handles a frame from the client.
func (l *serverLink) handleFrame(t frameType, id uint32, payload []byte) error {
	switch t {
	case frameCall:
		return l.acceptCall(id, payload)
	case frameBody:
		c := l.findCall(id)
		if c == nil || c.start == nil {
			return nil // refused or canceled
		}
		if err := c.body.appendPart(payload); err != nil {
			return fmt.Errorf("the body of call %d: %w", id, err)
		}
		if c.body.isComplete() {
			c.startHandler()
		}
		return nil
	case frameCredit:
		frames, bytes, err := decodeCredit(payload)
		if err != nil {
			return err
		}
		if c := l.findCall(id); c != nil {
			c.addCredit(frames, bytes)
		}
		return nil
	case frameCancel:
		if c := l.removeCall(id); c != nil {
			l.endCall(c)
		}
		return nil
	default:
		return nil
	}
}

// acceptCall starts a call or refuses it at once.
func (l *serverLink) acceptCall(id uint32, payload []byte) error {
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
		return errCallNumber
	}
	l.mu.last = id
	// Under the same lock as last, so that sendGoaway sees the call either fully started or not at
	// all.
	c, why := l.admitCallLocked(id, &head)
	l.mu.Unlock()
	if why != nil {
		return l.refuseCall(id, why)
	}
	l.countCallStart()
	if err := c.body.appendPart(part); err != nil {
		return err
	}
	if c.body.isComplete() {
		c.startHandler()
		return nil
	}
	l.incoming = append(l.incoming, c)
	return nil
}

// expireBodies ends calls whose bodies take too long. Their reserved memory is then available to
// other calls, including calls of other connections.
func (l *serverLink) expireBodies() (err error) {
	now := time.Now()
	l.incoming = slices.DeleteFunc(l.incoming, func(c *serverCall) bool {
		if c.start == nil || l.findCall(c.id) == nil { // it runs, or is over
			return true
		}
		if now.Sub(c.started) < bodyTimeout {
			return false
		}
		l.endCall(l.removeCall(c.id))
		why := fault.New(fault.Unavailable, "a body of %d bytes did not come within %v", c.size, bodyTimeout)
		err = errors.Join(err, l.refuseCall(c.id, why))
		return true
	})
	return err
}

// admitCallLocked registers a call if there is room for it.
func (l *serverLink) admitCallLocked(id uint32, head *callHeader) (*serverCall, *fault.Error) {
	size := int64(head.size)
	switch {
	case l.mu.inside >= l.cfg.Calls:
		return nil, fault.New(fault.Overloaded, "call %s: %d calls are in progress on this connection, and no more are taken", head.method, l.mu.inside)
	case head.size > MaxBody:
		return nil, errBodyTooLarge(head.method, head.size)
	case !l.bodies.tryReserve(size):
		return nil, errBodiesFull(head.method, size)
	case !l.server.bodies.tryReserve(size):
		l.bodies.release(size)
		return nil, errBodiesFull(head.method, size)
	}
	ctx, cancel := head.handlerContext(context.Background())
	c := newServerCall(l, id, head.size, cancel)
	c.start = func(body []byte) { c.runHandler(ctx, l.server.handler, head.method, body) }
	l.mu.inside++
	l.mu.calls[id] = c
	return c, nil
}

// refuseCall ends a call that has no handler.
func (l *serverLink) refuseCall(id uint32, why *fault.Error) error {
	return l.out.sendFrameNow(frameEnd, id, appendFault(nil, why))
}

// findCall returns the call with that number, or nil if it is over.
func (l *serverLink) findCall(id uint32) *serverCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.calls[id]
}

// removeCall removes and returns the call with that number, or nil if it is over.
func (l *serverLink) removeCall(id uint32) *serverCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.mu.calls[id]
	delete(l.mu.calls, id)
	return c
}

// endCall ends a call that was removed.
func (l *serverLink) endCall(c *serverCall) {
	c.cancel()
	if c.start != nil { // no handler will release them
		c.releaseResources()
	}
	if l.countCallEnd() {
		l.lingerIfDraining()
	}
}

// sendGoaway tells the client to make further calls elsewhere.
func (l *serverLink) sendGoaway() {
	l.mu.Lock()
	l.mu.leaving = true
	last := l.mu.last
	none := len(l.mu.calls) == 0
	l.mu.Unlock()
	if err := l.out.sendFrameNow(frameGoaway, 0, appendGoaway(nil, last, fault.New(fault.Unavailable, "the server is leaving"))); err != nil {
		l.closeWith(err)
	}
	if none {
		l.lingerIfDraining()
	}
}

// lingerIfDraining gives the client of a draining link without calls time to close it.
func (l *serverLink) lingerIfDraining() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.leaving && len(l.mu.calls) == 0 && l.mu.calls != nil && l.mu.linger == nil {
		l.mu.linger = time.AfterFunc(tcpLinger, func() { l.closeWith(errClosed) })
	}
}
