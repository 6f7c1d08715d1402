package xfer

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"penstock/core/fault"
)

// lanePool has the lanes of this process, by the owner's address. Lanes are kept for the next
// transfer, since connecting, and mapping a new region, cost more than a small transfer.
type lanePool struct {
	cfg       *Config
	transport Transport
	dial      func(ctx context.Context, addr string) (*lane, error)
	bulk      bulkWork
	poll      *poller
	mu        struct {
		sync.Mutex
		owners map[string]*ownerLanes
		reaper *time.Timer // closes idle lanes; nil if there are none
		closed bool
	}
}

// ownerLanes are the lanes to one owner.
type ownerLanes struct {
	room  chan struct{} // has one value for each lane in use
	users int           // in Open or in a transfer
	idle  []*lane       // the longest idle first
	// shared is the connection for small transfers, nil if there is none.
	shared  *sharedLane
	dialing *dialAttempt // of the goroutine which connects shared; nil if there is none
}

// dialAttempt is connecting once, for all calls which wait for it.
type dialAttempt struct {
	done chan struct{}
	err  error // why it failed, once done is closed; nil if only its own context ended
}

func newLanePool(cfg *Config, t Transport, dial func(context.Context, string) (*lane, error)) *lanePool {
	p := &lanePool{cfg: cfg, transport: t, dial: dial, bulk: newBulkWork(), poll: newPoller()}
	p.mu.owners = make(map[string]*ownerLanes)
	return p
}

var errPoolClosed = lastingError{fault.New(fault.Unavailable, "open transfer: this side of the plane is closed")}

// open returns a writer of the transfer which d names, at addr.
func (p *lanePool) open(ctx context.Context, addr string, d Descriptor) (TransferWriter, error) {
	l, err := p.takeLane(ctx, addr)
	if err != nil {
		return nil, err
	}
	return newLaneWriter(ctx, p, l, d), nil
}

// takeLane returns an idle lane, or a new one. The caller must put or drop it.
func (p *lanePool) takeLane(ctx context.Context, addr string) (*lane, error) {
	o, err := p.addUser(addr)
	if err != nil {
		return nil, err
	}
	select {
	case o.room <- struct{}{}:
	case <-ctx.Done():
		p.removeUser(addr, o)
		return nil, ctx.Err()
	}
	for {
		l := p.popIdle(o)
		if l == nil {
			break
		}
		if isUsable(l) {
			return l, nil
		}
		l.close()
	}
	l, err := p.connect(ctx, addr)
	if err != nil {
		<-o.room
		p.removeUser(addr, o)
		return nil, err
	}
	return l, nil
}

// addUser counts the caller as a user of an owner's lanes. It must call removeUser.
func (p *lanePool) addUser(addr string) (*ownerLanes, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, errPoolClosed
	}
	o := p.mu.owners[addr]
	if o == nil {
		o = &ownerLanes{room: make(chan struct{}, p.cfg.Lanes)}
		p.mu.owners[addr] = o
	}
	o.users++
	return o, nil
}

// connect returns a new lane.
func (p *lanePool) connect(ctx context.Context, addr string) (*lane, error) {
	dialing, cancel := context.WithTimeout(ctx, p.cfg.Handshake)
	defer cancel()
	l, err := p.dial(dialing, addr)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var f *fault.Error
		if errors.As(err, &f) {
			return nil, err
		}
		return nil, fault.New(fault.Unavailable, "open transfer: the owner cannot be reached: %w", err)
	}
	l.addr = addr
	return l, nil
}

// joinShared returns the connection for small transfers, after join.
func (p *lanePool) joinShared(ctx context.Context, addr string) (*sharedLane, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for {
		p.mu.Lock()
		o := p.mu.owners[addr]
		if o != nil && o.shared != nil {
			if o.shared.join() {
				defer p.mu.Unlock()
				return o.shared, nil
			}
			o.shared = nil
		}
		var dialing *dialAttempt
		if o != nil {
			dialing = o.dialing
		}
		p.mu.Unlock()
		if dialing == nil {
			if err := p.connectShared(ctx, addr); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-dialing.done:
			if dialing.err != nil { // one after the other would wait as long again
				return nil, dialing.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// connectShared connects the connection for small transfers, unless another goroutine does.
func (p *lanePool) connectShared(ctx context.Context, addr string) error {
	o, err := p.addUser(addr)
	if err != nil {
		return err
	}
	defer p.removeUser(addr, o)
	p.mu.Lock()
	if o.dialing != nil || o.shared != nil {
		p.mu.Unlock()
		return nil
	}
	attempt := &dialAttempt{done: make(chan struct{})}
	o.dialing = attempt
	p.mu.Unlock()
	l, err := p.connect(ctx, addr)
	p.mu.Lock()
	defer p.mu.Unlock()
	o.dialing = nil
	if ctx.Err() == nil {
		attempt.err = err
	}
	close(attempt.done)
	switch {
	case err != nil:
		return err
	case p.mu.closed:
		l.close()
		return errPoolClosed
	}
	l.idleSince = time.Now()
	o.shared = newSharedLane(p, l)
	p.startReaperLocked()
	return nil
}

// popIdle returns the lane which was idle for the shortest time, or nil.
func (p *lanePool) popIdle(o *ownerLanes) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(o.idle) - 1
	if last < 0 {
		return nil
	}
	l := o.idle[last]
	o.idle = o.idle[:last]
	return l
}

// removeUser forgets an owner without lanes.
func (p *lanePool) removeUser(addr string, o *ownerLanes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o.users--
	p.removeEmptyLocked(addr, o)
}

func (p *lanePool) removeEmptyLocked(addr string, o *ownerLanes) {
	if o.users == 0 && len(o.idle) == 0 && o.shared == nil && p.mu.owners[addr] == o {
		delete(p.mu.owners, addr)
	}
}

// putLane returns a lane on which a transfer ended well.
func (p *lanePool) putLane(l *lane) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.mu.owners[l.addr]
	<-o.room
	o.users--
	if p.mu.closed {
		l.close()
		p.removeEmptyLocked(l.addr, o)
		return
	}
	l.idleSince = now
	o.idle = append(o.idle, l)
	p.startReaperLocked()
}

func (p *lanePool) startReaperLocked() {
	if p.mu.reaper == nil {
		p.mu.reaper = time.AfterFunc(min(p.cfg.Idle, peekEvery), p.closeIdle)
	}
}

// dropLane closes a lane on which a transfer failed.
func (p *lanePool) dropLane(l *lane) {
	l.close()
	p.mu.Lock()
	o := p.mu.owners[l.addr]
	p.mu.Unlock()
	<-o.room
	p.removeUser(l.addr, o)
}

// peekEvery is how often idle lanes are looked at: the owner may have died, or want one closed.
const peekEvery = 100 * time.Millisecond

// closeIdle closes the lanes which were idle for too long, or which the owner does not want any more.
func (p *lanePool) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.reaper = nil
	limit := time.Now().Add(-p.cfg.Idle)
	left := false
	for addr, o := range p.mu.owners {
		o.idle = slices.DeleteFunc(o.idle, func(l *lane) bool {
			gone := !l.idleSince.After(limit) || !isUsable(l)
			if gone {
				l.close()
			}
			return gone
		})
		if o.shared != nil && o.shared.closeIf(limit, false) {
			o.shared = nil
		}
		left = left || len(o.idle) > 0 || o.shared != nil
		p.removeEmptyLocked(addr, o)
	}
	if left && !p.mu.closed {
		p.startReaperLocked()
	}
}

// close closes the idle lanes, and those in use when their transfers end.
func (p *lanePool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.closed = true
	if p.mu.reaper != nil {
		p.mu.reaper.Stop()
		p.mu.reaper = nil
	}
	for addr, o := range p.mu.owners {
		for _, l := range o.idle {
			l.close()
		}
		o.idle = nil
		if o.shared != nil {
			o.shared.closeIf(time.Time{}, true)
			o.shared = nil
		}
		p.removeEmptyLocked(addr, o)
	}
}

// isUsable reports whether an idle lane is still connected. The owner may have died, and sends
// nothing on an idle connection.
func isUsable(l *lane) bool {
	if l.in.buffered() {
		return false
	}
	if c, ok := l.conn.(interface{ IsQuiet() bool }); ok {
		return c.IsQuiet()
	}
	conn, ok := l.conn.(syscall.Conn)
	if secure, isTLS := l.conn.(*tls.Conn); isTLS {
		if l.hasRecord() {
			return false
		}
		conn, ok = secure.NetConn().(syscall.Conn)
	}
	if !ok {
		return true
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	usable := false
	err = raw.Control(func(fd uintptr) { usable = hasNothingToRead(fd) })
	return err == nil && usable
}

// hasRecord reports whether the TLS connection of an idle l holds a record which it read together with an earlier one,
// or has ended. It takes a byte of the record: l is not usable then.
func (l *lane) hasRecord() bool {
	_ = l.conn.SetReadDeadline(past) // reading takes what TLS holds, and nothing from the socket
	_, err := l.conn.Read(make([]byte, 1))
	l.until = time.Time{} // the next transfer sets a deadline again
	return !errors.Is(err, os.ErrDeadlineExceeded) || l.conn.SetReadDeadline(time.Time{}) != nil
}
