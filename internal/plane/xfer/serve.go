package xfer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"penstock/internal/backoff"
	"penstock/internal/plane/endpoint"
)

// owner serves the connections of writers: one Run in progress.
type owner struct {
	cfg       *Config
	registry  *registry
	transport Transport
	tls       *tls.Config
	// newRegion makes the region of a connection; nil over TCP.
	newRegion func() (*window, error)
	// joinUCX makes the connection which takes the place of one that has greeted; nil except over UCX.
	joinUCX func(l *ownerLane, greeting []byte) (net.Conn, error)
	// checkPeer, if not nil, refuses peers by their credentials.
	checkPeer func(net.Conn) error
	conns     sync.WaitGroup
	mu        struct {
		sync.Mutex
		lanes   map[*ownerLane]struct{}
		leaving bool
	}
	waiting atomic.Int32  // connections which wait for room: a lane which becomes idle is closed
	room    chan struct{} // has one value for each connection which has greeted
	bulk    bulkWork
	poll    *poller
}

func newOwner(cfg *Config, r *registry, t Transport) *owner {
	o := &owner{cfg: cfg, registry: r, transport: t, room: make(chan struct{}, cfg.Serve), bulk: newBulkWork(), poll: newPoller()}
	o.mu.lanes = make(map[*ownerLane]struct{})
	return o
}

// run serves at l, whose address writers know as at, until ctx ends.
func (o *owner) run(ctx context.Context, l net.Listener, at string, ready func()) error {
	e := OwnerAddress{o.transport, at}
	o.registry.addEndpoint(e)
	if ready != nil {
		ready()
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	err := o.acceptConns(ctx, l)
	stop()
	l.Close()
	o.registry.removeEndpoint(e)
	o.closeLanes()
	o.conns.Wait()
	return err
}

// acceptConns accepts connections until ctx ends, which closes l.
func (o *owner) acceptConns(ctx context.Context, l net.Listener) error {
	again := backoff.Backoff{Min: 5 * time.Millisecond, Max: time.Second}
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			again.Reset()
			if l := o.addLane(conn); l == nil {
				conn.Close()
			} else {
				o.conns.Go(func() { o.serveLane(ctx, l) })
			}
			continue
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("serve transfers at %v: %w", l.Addr(), err)
		}
		o.cfg.Log.Warn("accepting a connection for transfers failed", "err", err) // backoff bounds how often
		if again.Wait(ctx) != nil {
			return nil
		}
	}
}

// maxGreeting bounds the connections which have not greeted, or wait for room.
const maxGreeting = 1024

// addLane registers a connection which is to greet. Beyond maxGreeting the one ends which has been silent for
// longest, so that connections which say nothing do not keep writers out; if all have greeted and wait for room, it
// returns nil.
func (o *owner) addLane(conn net.Conn) *ownerLane {
	o.mu.Lock()
	defer o.mu.Unlock()
	greeting := 0
	var oldest *ownerLane
	for l := range o.mu.lanes {
		if l.state == laneServes {
			continue
		}
		greeting++
		if l.state == laneSilent && !l.retiring && (oldest == nil || l.accepted.Before(oldest.accepted)) {
			oldest = l
		}
	}
	if greeting >= maxGreeting {
		if oldest == nil {
			return nil
		}
		oldest.retiring = true
		oldest.interrupt()
	}
	l := &ownerLane{owner: o, conn: conn, accepted: time.Now()}
	o.mu.lanes[l] = struct{}{}
	return l
}

// waitRoom reserves room for a connection: it retires an idle one if there is none, or waits for
// one to end. It reports false if ctx ended.
func (o *owner) waitRoom(ctx context.Context) bool {
	select {
	case o.room <- struct{}{}:
		return true
	default:
	}
	o.waiting.Add(1)
	defer o.waiting.Add(-1)
	o.mu.Lock()
	o.retireIdleLocked()
	o.mu.Unlock()
	select {
	case o.room <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// retireIdleLocked retires an idle connection, if there is one.
func (o *owner) retireIdleLocked() {
	for l := range o.mu.lanes { // any of them: none has work
		if l.idle && !l.retiring {
			l.retireLocked()
			return
		}
	}
}

// closeLanes ends all connections. Their transfers are over already.
func (o *owner) closeLanes() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.leaving = true
	for l := range o.mu.lanes {
		l.interrupt()
	}
}

// serveLane serves a connection until it ends.
func (o *owner) serveLane(ctx context.Context, l *ownerLane) {
	if err := l.serve(ctx); err != nil {
		o.cfg.Log.Debug("a connection for transfers ended", "err", err)
	}
	o.mu.Lock()
	delete(o.mu.lanes, l)
	hasRoom := l.state == laneServes
	o.mu.Unlock()
	if l.failed && l.window != nil {
		l.window.discard()
	}
	l.close()
	if hasRoom {
		<-o.room
	}
}

// laneState is how far the greetings of a connection are.
type laneState uint8

const (
	laneSilent laneState = iota // the writer has not greeted
	laneWaits                   // it has, and waits for room
	laneServes                  // it has room
)

// ownerLane is the owner's end of a connection. It carries one transfer at a time.
type ownerLane struct {
	owner      *owner
	conn       net.Conn
	in         frameReader
	out        []byte
	sink       sink
	window     *window // the region of this connection; nil over TCP
	generation uint64  // of what is in it; one for each transfer
	chunk      []byte  // a chunk which goes into small pieces; nil until it is needed
	note       []byte  // of a WHOLE over TCP
	// current is the WHOLE whose bytes are read, nil if there is none.
	current       *Transfer
	interruptRead func()      // makes reading the bytes of current fail
	stuck         *time.Timer // interrupts a write for which the writer makes no room; nil before the first
	accepted      time.Time   // when the connection came
	state         laneState   // guarded by owner.mu
	idle          bool        // no transfer is in progress; guarded by owner.mu
	used          bool        // it has served a transfer; guarded by owner.mu
	retiring      bool        // its read deadline makes room; guarded by owner.mu
	retired       bool        // RETIRE was sent
	endBy         time.Time   // when a connection ends which retires; zero if it does not
	failed        bool        // a small transfer failed: the region is never used again
}

// interrupt makes reading and writing fail, and so ends the lane.
func (l *ownerLane) interrupt() { _ = l.conn.SetDeadline(past) }

func (l *ownerLane) close() {
	_ = l.conn.Close()
	if l.window != nil {
		l.window.close()
	}
}

// beginWait is how long a connection without a transfer so far may take to begin one while others wait for room: its
// writer has connected for one.
const beginWait = 100 * time.Millisecond

// retireLocked wakes the goroutine of an idle l, which retires it.
func (l *ownerLane) retireLocked() {
	l.retiring = true
	at := past
	if !l.used {
		at = time.Now().Add(beginWait)
	}
	_ = l.conn.SetReadDeadline(at)
}

// setIdle marks l as idle. It reports false if l must end. A connection which began to wait for room after l's last
// outcome found l busy, so l retires.
func (l *ownerLane) setIdle() bool {
	o := l.owner
	o.mu.Lock()
	defer o.mu.Unlock()
	l.idle = !l.retired // a retired one ends by itself
	l.used = l.generation > 1
	if l.idle && l.otherWaits() {
		l.retireLocked()
	}
	return !o.mu.leaving
}

// setBusy marks l as busy, if it need not end: a transfer has begun. If l was to make room, another idle connection
// does so now.
func (l *ownerLane) setBusy() bool {
	o := l.owner
	o.mu.Lock()
	defer o.mu.Unlock()
	l.idle = false
	if o.mu.leaving {
		return false
	}
	if (l.retiring || l.retired) && l.otherWaits() {
		o.retireIdleLocked()
	}
	if l.retiring { // the transfer was faster
		l.retiring = false
		return l.conn.SetReadDeadline(time.Time{}) == nil
	}
	return true
}

// retire makes room for another connection, if l's deadline passed for that: it asks the writer to
// close l, and still serves a transfer which the writer began before it read that. A writer which
// does neither, because it is paused, loses l after a while. It reports false if l must end.
func (l *ownerLane) retire() bool {
	o := l.owner
	o.mu.Lock()
	retiring := l.retiring && !o.mu.leaving && !l.retired
	if retiring {
		l.retiring, l.idle = false, false // it is not chosen again
		_ = l.endSoon()
	}
	o.mu.Unlock()
	if !retiring {
		return false
	}
	l.retired = true
	l.out = appendRetire(l.out) // outcomes may stand before it
	return l.sendOutcomes() == nil
}

// serve greets the writer and serves its transfers until one fails or the connection ends.
func (l *ownerLane) serve(ctx context.Context) error {
	if err := l.greet(ctx); err != nil {
		return err
	}
	l.interruptRead = func() {}
	if l.window == nil {
		l.interruptRead = func() { _ = l.conn.SetReadDeadline(past) }
	}
	l.in.beforeWait, l.in.onDeadline = l.sendOutcomes, l.goesOn
	for {
		idle := !l.in.hasFrame()
		if idle && !l.setIdle() {
			return nil
		}
		t, payload, err := l.in.next()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) && l.retire() {
				continue
			}
			return err
		}
		if idle && !l.setBusy() {
			return nil
		}
		switch t {
		case frameBegin:
			if l.retired && l.conn.SetReadDeadline(time.Time{}) != nil {
				return nil
			}
			if err := l.sendOutcomes(); err != nil {
				return err
			}
			l.in.onDeadline = nil
			if err := l.serveTransfer(payload); err != nil {
				l.sendVerdict(err)
				return err
			}
			l.in.onDeadline = l.goesOn
			if l.retired {
				return nil
			}
		case frameWhole:
			if err := l.serveWhole(payload); err != nil {
				return err
			}
		case frameChunk, frameEnd:
			return fmt.Errorf("a frame of type %d outside a transfer", t)
		case frameAbort:
			return nil
		}
	}
}

// otherWaits reports whether a connection waits for room.
func (l *ownerLane) otherWaits() bool {
	return l.owner.waiting.Load() > 0
}

// greet exchanges greetings, waits for room, and hands the writer its region.
func (l *ownerLane) greet(ctx context.Context) error {
	o := l.owner
	ctx, cancel := context.WithTimeout(ctx, o.cfg.Handshake)
	defer cancel()
	until, _ := ctx.Deadline()
	if err := l.enter(laneSilent, until); err != nil {
		return err
	}
	if o.checkPeer != nil {
		if err := o.checkPeer(l.conn); err != nil {
			return err
		}
	}
	if o.tls != nil {
		secure := tls.Server(l.conn, o.tls)
		if err := secure.Handshake(); err != nil {
			return err
		}
		o.mu.Lock() // interrupt reads it
		l.conn = secure
		o.mu.Unlock()
	}
	l.in.r = l.conn
	h, err := l.in.readHello()
	switch {
	case err != nil:
		return err
	case !h.speaksOurVersion():
		err = errVersions(h)
	case !endpoint.TokensMatch(h.token, o.cfg.Token):
		err = newFailure(Invalid, "the token of the writer is missing or not the owner's; give all processes the same")
	default:
		if err = l.reserveRoom(ctx, until); err == nil && o.newRegion != nil {
			l.window, err = o.newRegion()
		}
	}
	if err != nil {
		// The deadline may have passed, by which TLS would count a record that is not sent.
		if l.enter(l.state, time.Now().Add(verdictWait)) == nil {
			_, _ = l.conn.Write(appendVerdict([]byte(magic), frameOutcome, err)) // best effort
		}
		return err
	}
	l.generation = 1
	greeting := appendHello(nil, hello{least: version, most: version})
	if o.joinUCX != nil {
		var conn net.Conn
		if conn, err = o.joinUCX(l, greeting); err == nil {
			o.mu.Lock() // interrupt reads it
			l.conn, l.in.r = conn, conn
			o.mu.Unlock()
		}
	} else if l.window == nil {
		_, err = l.conn.Write(greeting)
		l.in.r = newTCPReader(l.conn, o.poll)
	} else {
		greeting = appendRegion(greeting, regionHeader{size: regionSize, slots: regionSlots, generation: l.generation})
		var conn net.Conn
		if conn, err = l.window.sendTo(l.conn, greeting, o.poll); err == nil {
			o.mu.Lock() // interrupt reads it
			l.conn, l.in.r = conn, conn
			o.mu.Unlock()
		}
	}
	if err != nil {
		return err
	}
	return l.enter(laneServes, time.Time{})
}

// reserveRoom waits for room for a connection which has greeted.
func (l *ownerLane) reserveRoom(ctx context.Context, until time.Time) error {
	if err := l.enter(laneWaits, until); err != nil {
		return err
	}
	if !l.owner.waitRoom(ctx) {
		return newFailure(Overloaded, "the owner serves %d connections, and none of them ends", l.owner.cfg.Serve)
	}
	if err := l.enter(laneServes, until); err != nil {
		<-l.owner.room
		return err
	}
	return nil
}

// enter notes how far the greetings are, and sets the time until which they may take, zero for none. It fails if l
// must end.
func (l *ownerLane) enter(s laneState, until time.Time) error {
	o := l.owner
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.leaving || l.retiring {
		return net.ErrClosed
	}
	l.state = s
	return l.conn.SetDeadline(until)
}

// serveTransfer serves the transfer which a BEGIN claims, until it is over.
func (l *ownerLane) serveTransfer(begin []byte) error {
	h, err := decodeBegin(begin)
	if err != nil {
		return newFailure(Invalid, "transfer: %w", err)
	}
	if l.window != nil && h.generation != l.generation {
		return newFailure(Invalid, "transfer: the writer uses generation %d of a region whose generation is %d", h.generation, l.generation)
	}
	t, err := l.owner.registry.claimTransfer(h, l.owner.transport, l.interrupt)
	if err != nil {
		return err
	}
	l.sink.start(t)
	defer l.sink.forget()
	for taken := 0; ; taken++ {
		over, err := l.serveFrame(taken)
		if err != nil {
			if OutcomeOf(err) == Lost {
				err = newFailure(Lost, "transfer: the connection to the writer broke: %w", err)
			}
			return t.release(err)
		}
		if over {
			break
		}
	}
	l.generation++
	l.out = appendVerdict(l.out[:0], frameOutcome, nil)
	if !l.retired && l.otherWaits() {
		l.retired = true
		l.out = appendRetire(l.out)
	}
	return l.sendOutcomes()
}

// serveFrame handles one frame of a transfer of which taken chunks have come. It reports whether
// the transfer ended well.
func (l *ownerLane) serveFrame(taken int) (over bool, err error) {
	t, payload, err := l.in.next()
	if err != nil {
		return false, err
	}
	switch t {
	case frameChunk:
		h, err := decodeChunk(payload)
		if err != nil {
			return false, newFailure(Invalid, "transfer: %w", err)
		}
		if l.window == nil {
			if _, err := l.readChunk(h); err != nil {
				return false, err
			}
			return false, l.sink.verify(h)
		}
		if h.slot >= regionSlots || h.size > ChunkSize {
			return false, newFailure(Invalid, "transfer: a chunk of %d bytes in slot %d", h.size, h.slot)
		}
		err = l.owner.bulk.do(uint64(l.sink.transfer.desc.Size), func() error {
			if err := l.sink.copyIn(h, l.window.slot(int(h.slot))[:h.size]); err != nil {
				return err
			}
			return l.sink.verify(h)
		})
		if err != nil {
			return false, err
		}
		l.returnSlots(taken + 1)
		return false, nil
	case frameEnd:
		d, note, err := decodeEnd(payload)
		if err != nil {
			return false, newFailure(Invalid, "transfer: %w", err)
		}
		if err := l.sink.complete(d, note); err != nil {
			return false, err
		}
		return true, nil
	case frameAbort:
		verdict, err := decodeVerdict(payload)
		if err != nil || verdict == nil {
			verdict = newFailure(Aborted, "transfer: the writer has aborted it")
		}
		return false, verdict
	default:
		return false, newFailure(Invalid, "transfer: a frame of type %d in it", t)
	}
}

// directPiece is the size from which bytes are read straight into a piece of the owner's memory.
const directPiece = 32 << 10

// readChunk reads the bytes of a chunk from the connection. It returns how many have come.
func (l *ownerLane) readChunk(h chunkHeader) (int, error) {
	pieces, err := l.sink.reserve(h)
	if err != nil {
		return 0, err
	}
	if len(pieces) > 1 && len(pieces[0]) < directPiece {
		if l.chunk == nil {
			l.chunk = make([]byte, ChunkSize)
		}
		from := l.chunk[:h.size]
		n, err := l.in.readFull(from)
		if err != nil {
			return n, err
		}
		for _, p := range pieces {
			from = from[copy(p, from):]
		}
		return n, nil
	}
	done := 0
	for _, p := range pieces {
		n, err := l.in.readFull(p)
		if done += n; err != nil {
			return done, err
		}
	}
	return done, nil
}

// returnSlots lets the writer use the slots of taken chunks again, if it needs them.
func (l *ownerLane) returnSlots(taken int) {
	size := uint64(l.sink.transfer.desc.Size)
	needed := int((size+ChunkSize-1)/ChunkSize) - regionSlots // chunks which need a slot a second time
	if taken%takenEvery != 0 || taken-takenEvery >= needed {
		return
	}
	l.out = appendTaken(l.out[:0], takenEvery)
	_ = l.sendOutcomes() // if the writer has closed the connection, reading tells why: it may have sent an ABORT
}

// sendVerdict tells the writer why its transfer failed, and waits until it has closed the
// connection, so that the answer is not lost. The region is freed first: a writer which is paused
// keeps only its own mapping.
func (l *ownerLane) sendVerdict(err error) {
	if l.window != nil {
		l.window.discard()
		l.window = nil
	}
	if l.conn.SetDeadline(time.Now().Add(verdictWait)) != nil {
		return
	}
	l.out = appendVerdict(l.out[:0], frameOutcome, err)
	if l.sendOutcomes() != nil {
		return
	}
	if c, ok := l.conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, l.conn, regionSize)
	}
}
