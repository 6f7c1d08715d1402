package xfer

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
)

// sharedLane is a connection for small transfers, many at a time. Each is one WHOLE, and has a piece of the
// region to itself until its outcome has come. One of the goroutines which have transfers reads the outcomes
// of all.
//
//	state     event                            next       what happens
//	new       a piece is free                  new        the bytes are copied into it (shared memory)
//	new       shared memory: the frame is put  sent
//	new       TCP: the frame is queued         queued     its memory is in use
//	queued    it is its turn                   writing
//	queued    the context ends                 over       it is removed: the owner hears nothing
//	writing   all is written                   sent
//	sent      the outcome comes                over       its piece is free
//	sent      the context ends                 abandoned  its piece is never used again
//	any       the connection breaks            over       the outcome is Lost
//
// After a transfer which did not end well, or was abandoned, no other begins: the connection is closed with
// the last one in progress, and its region is never used again.
type sharedLane struct {
	lane
	pool    *lanePool
	reading chan struct{} // has a value while a goroutine reads outcomes
	buffers net.Buffers   // of the goroutine which writes, over TCP
	writing []*wholeTransfer
	more    chan struct{} // tells writeQueued that transfers are queued; closed at the end
	done    chan struct{} // writeQueued has ended
	mu      struct {
		sync.Mutex
		written sync.Cond // transfers are not writing any more
		users   int       // goroutines with a transfer
		closing bool
		err     error  // why the connection broke
		free    uint64 // units of the region; over TCP they bound the bytes in progress
		waiting []*wholeTransfer
		queued  []*wholeTransfer
		writes  bool             // a goroutine writes, or will
		sent    []*wholeTransfer // writing, sent or abandoned, in the order of their outcomes
		unused  []*wholeTransfer // for later transfers
	}
}

// wholeTransfer is one transfer of a sharedLane.
type wholeTransfer struct {
	over  chan error // capacity 1: its outcome
	room  chan error // capacity 1: it has a piece
	piece piece
	frame []byte
	data  [][]byte   // over TCP
	state wholeState // guarded by the lane's mu
}

type wholeState uint8

const (
	wholeNew wholeState = iota
	wholeQueued
	wholeWriting
	wholeSent
	wholeAbandoned
)

// errLaneClosing tells to use another connection.
var errLaneClosing = errors.New("the connection is being closed")

func newSharedLane(p *lanePool, l *lane) *sharedLane {
	s := &sharedLane{lane: *l, pool: p, reading: make(chan struct{}, 1), more: make(chan struct{}, 1), done: make(chan struct{})}
	s.mu.written.L = &s.mu
	s.mu.free = 1<<regionUnits - 1
	if s.window != nil { // the owner has chosen its size
		s.mu.free = piece{count: min(regionUnits, s.slots*ChunkSize/pieceUnit)}.mask()
	}
	if s.window == nil {
		go s.writeQueued()
	} else {
		close(s.done)
	}
	return s
}

// close closes a connection without transfers.
func (l *sharedLane) close() {
	close(l.more)
	<-l.done
	l.lane.close()
}

// join adds a user, unless the connection must not be used any more.
func (l *sharedLane) join() bool {
	l.mu.Lock()
	if l.mu.closing {
		l.mu.Unlock()
		return false
	}
	broken := l.mu.users == 0 && !isUsable(&l.lane)
	if broken {
		l.mu.closing = true
	} else {
		l.mu.users++
	}
	l.mu.Unlock()
	if broken {
		l.close()
	}
	return !broken
}

// leave removes a user. The last one closes the connection if it must not be used any more.
func (l *sharedLane) leave() {
	l.mu.Lock()
	l.mu.users--
	last := l.mu.users == 0
	if last {
		l.idleSince = time.Now()
		last = l.mu.closing
	}
	l.mu.Unlock()
	if last {
		l.close()
	}
}

// closeIf closes the connection if it is idle since limit, or must go. It reports whether no transfer will
// begin on it.
func (l *sharedLane) closeIf(limit time.Time, must bool) bool {
	l.mu.Lock()
	unused, was := l.mu.users == 0, l.mu.closing
	if !was && (must || unused && (!l.idleSince.After(limit) || !isUsable(&l.lane))) {
		l.retireLocked()
	}
	closing := l.mu.closing
	l.mu.Unlock()
	if closing && !was && unused {
		l.close()
	}
	return closing
}

// retireLocked lets no other transfer begin.
func (l *sharedLane) retireLocked() {
	l.mu.closing = true
	for _, t := range l.mu.waiting {
		t.room <- errLaneClosing
	}
	l.mu.waiting = nil
}

// breakOff ends all transfers: the connection failed.
func (l *sharedLane) breakOff(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.err != nil {
		return
	}
	if OutcomeOf(err) == Lost {
		err = newFailure(Lost, "write: the connection to the owner broke: %w", err)
	}
	l.mu.err = err
	l.retireLocked()
	for _, t := range append(l.mu.sent, l.mu.queued...) {
		if t.state != wholeAbandoned {
			t.over <- err
		}
	}
	l.mu.sent, l.mu.queued = nil, nil
	_ = l.conn.SetDeadline(past) // reading and writing stop
}

// writeWhole moves a small transfer: it is Open, Write and Commit. It must be called once after openWhole.
// If it returns errLaneClosing, the transfer has not begun.
func (l *sharedLane) writeWhole(ctx context.Context, d Descriptor, note []byte, src [][]byte) error {
	began := time.Now()
	err := l.moveWhole(ctx, &d, note, src)
	l.leave()
	if err == errLaneClosing {
		return err
	}
	r := Report{Side: WriterSide, Transport: l.pool.transport, Outcome: OutcomeOf(err), Took: time.Since(began)}
	if err == nil {
		r.Bytes = d.Size
	}
	l.pool.cfg.Observer.ObserveTransfer(r)
	return err
}

func (l *sharedLane) moveWhole(ctx context.Context, d *Descriptor, note []byte, src [][]byte) error {
	t, err := l.reservePiece(ctx, unitsOf(int(d.Size)))
	if err != nil {
		return err
	}
	h := wholeHeader{epoch: d.epoch, id: d.id, size: uint32(d.Size)}
	if l.window != nil {
		h.at = uint32(t.piece.at * pieceUnit)
		into := l.window.part(int(h.at), int(d.Size))
		rest := into
		for _, s := range src {
			rest = rest[copy(rest, s):]
		}
		h.digest = digestBytes(into)
	} else {
		t.data = append(t.data[:0], src...)
		h.digest = digestSlices(src)
	}
	if err := l.sendWhole(ctx, t, h, note); err != nil {
		return err
	}
	return l.awaitOutcome(ctx, t)
}

// reservePiece returns a transfer with a piece of count units. Transfers wait in order.
func (l *sharedLane) reservePiece(ctx context.Context, count int) (*wholeTransfer, error) {
	l.mu.Lock()
	if l.mu.closing {
		defer l.mu.Unlock()
		return nil, errLaneClosing
	}
	t := l.newTransferLocked()
	t.piece.count = count
	if len(l.mu.waiting) == 0 {
		if p, ok := findPiece(l.mu.free, count); ok {
			l.mu.free &^= p.mask()
			t.piece = p
			l.mu.Unlock()
			return t, nil
		}
	}
	l.mu.waiting = append(l.mu.waiting, t)
	l.mu.Unlock()
	// Transfers with pieces read outcomes, and so make room.
	select {
	case err := <-t.room:
		return t, err
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.mu.waiting, t); i >= 0 {
		l.mu.waiting = slices.Delete(l.mu.waiting, i, i+1)
	} else if <-t.room == nil { // it was granted at the same time
		l.freePieceLocked(t.piece)
	}
	return nil, ctx.Err()
}

func (l *sharedLane) newTransferLocked() *wholeTransfer {
	n := len(l.mu.unused)
	if n == 0 {
		return &wholeTransfer{over: make(chan error, 1), room: make(chan error, 1)}
	}
	t := l.mu.unused[n-1]
	l.mu.unused = l.mu.unused[:n-1]
	t.state = wholeNew
	return t
}

// freePieceLocked makes p free, and grants pieces to waiting transfers.
func (l *sharedLane) freePieceLocked(p piece) {
	l.mu.free |= p.mask()
	for len(l.mu.waiting) > 0 {
		t := l.mu.waiting[0]
		granted, ok := findPiece(l.mu.free, t.piece.count)
		if !ok {
			return
		}
		l.mu.waiting = slices.Delete(l.mu.waiting, 0, 1)
		l.mu.free &^= granted.mask()
		t.piece = granted
		t.room <- nil
	}
}

// sendWhole sends t: in shared memory at once, since the ring has room for the frames of all pieces, over
// TCP unless another goroutine writes, which sends it then.
func (l *sharedLane) sendWhole(ctx context.Context, t *wholeTransfer, h wholeHeader, note []byte) error {
	l.mu.Lock()
	if err := l.mu.err; err != nil {
		l.mu.Unlock()
		return err
	}
	h.generation = l.generation
	if l.window != nil {
		l.generation++
		t.frame = appendWhole(t.frame[:0], h, note)
		t.state = wholeSent
		l.mu.sent = append(l.mu.sent, t)
		err := errNoSharedMemory
		if ring, ok := l.conn.(interface{ writeNow([]byte) error }); ok {
			err = ring.writeNow(t.frame)
		}
		l.mu.Unlock()
		if err != nil {
			l.breakOff(err)
		}
		return nil
	}
	t.frame = appendWhole(t.frame[:0], h, note)
	t.state = wholeQueued
	l.mu.queued = append(l.mu.queued, t)
	first := !l.mu.writes
	l.mu.writes = true
	l.mu.Unlock()
	if first {
		runtime.Gosched() // others may be about to queue theirs
		defer l.cutOffWith(ctx, t)()
		if l.writeOnce() {
			l.more <- struct{}{}
		}
	}
	return nil
}

// cutOffWith cuts the writing of t off, with the connection, when ctx ends before stop is called.
func (l *sharedLane) cutOffWith(ctx context.Context, t *wholeTransfer) (stop func() bool) {
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.cutOffLocked(t)
	})
}

// cutOffLocked lets the writing of t take no longer than abortWait.
func (l *sharedLane) cutOffLocked(t *wholeTransfer) {
	if t.state == wholeWriting {
		_ = l.conn.SetWriteDeadline(time.Now().Add(abortWait))
	}
}

// writeQueued writes what was queued while another goroutine wrote, until close.
func (l *sharedLane) writeQueued() {
	defer close(l.done)
	for range l.more {
		for l.writeOnce() {
		}
	}
}

// writeOnce writes what is queued. It reports whether the caller must see to it that it is called again.
func (l *sharedLane) writeOnce() (again bool) {
	l.mu.Lock()
	for _, t := range l.mu.queued {
		t.state = wholeWriting
		l.writing = append(l.writing, t)
		l.buffers = append(append(l.buffers, t.frame), t.data...)
	}
	l.mu.sent = append(l.mu.sent, l.mu.queued...)
	l.mu.queued = l.mu.queued[:0]
	err := l.mu.err
	if err == nil { // abandon may have shortened it
		err = l.conn.SetWriteDeadline(time.Now().Add(l.pool.cfg.Silence))
	}
	l.mu.Unlock()
	if err == nil && len(l.buffers) > 0 {
		b := l.buffers // writing changes it
		err = writeBuffers(l.conn, &b)
	}
	clear(l.buffers)
	l.buffers = l.buffers[:0]
	if err != nil {
		l.breakOff(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.writing {
		if t.state == wholeWriting { // otherwise it is over already
			t.state = wholeSent
		}
	}
	clear(l.writing)
	l.writing = l.writing[:0]
	l.mu.written.Broadcast()
	l.mu.writes = len(l.mu.queued) > 0
	return l.mu.writes
}

// awaitOutcome waits for the outcome of t. Meanwhile it reads all outcomes, unless another goroutine does.
func (l *sharedLane) awaitOutcome(ctx context.Context, t *wholeTransfer) error {
	for len(t.over) == 0 {
		select {
		case err := <-t.over:
			t.over <- err
		case l.reading <- struct{}{}:
			err := l.readOutcomes(ctx, t)
			<-l.reading
			if err != nil {
				l.breakOff(err)
			}
		case <-ctx.Done():
			if l.abandon(t) {
				return ctx.Err()
			}
		}
	}
	err := <-t.over
	l.mu.Lock()
	defer l.mu.Unlock()
	writing := t.state == wholeWriting
	if writing { // its memory is in use, also if the owner says that it has the bytes
		defer l.cutOffWith(ctx, t)()
		l.awaitWrittenLocked(t)
	}
	if err == nil {
		clear(t.data)
		if !writing && ctx.Err() == nil { // otherwise a late cutOffWith may look at it
			l.mu.unused = append(l.mu.unused, t)
		}
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (l *sharedLane) awaitWrittenLocked(t *wholeTransfer) {
	for t.state == wholeWriting {
		l.mu.written.Wait()
	}
}

// abandon gives t up. It reports false if the outcome has come.
func (l *sharedLane) abandon(t *wholeTransfer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.mu.queued, t); i >= 0 {
		l.mu.queued = slices.Delete(l.mu.queued, i, i+1)
		l.freePieceLocked(t.piece)
		return true
	}
	if t.state == wholeWriting { // a write which does not end soon is cut off, with the connection
		l.cutOffLocked(t)
		l.awaitWrittenLocked(t)
	}
	if len(t.over) > 0 {
		return false
	}
	t.state = wholeAbandoned
	l.retireLocked()
	return true
}

// readOutcomes reads outcomes until that of t has come, or ctx ends.
func (l *sharedLane) readOutcomes(ctx context.Context, t *wholeTransfer) error {
	if ctx.Done() != nil {
		var stop func() bool
		l.in.beforeSleep = func() {
			if stop == nil {
				stop = context.AfterFunc(ctx, func() { _ = l.conn.SetReadDeadline(past) })
			}
		}
		defer func() {
			if l.in.beforeSleep = nil; stop != nil {
				stop()
			}
		}()
	}
	for len(t.over) == 0 || l.in.hasFrame() {
		if !l.in.hasFrame() {
			if err := l.extendReading(); err != nil {
				return err
			}
			if ctx.Err() != nil { // its deadline may just have been overwritten
				return nil
			}
		}
		typ, payload, err := l.in.next()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if !time.Now().Before(l.until) {
				return newFailure(Lost, "write: the owner was silent for %v", l.pool.cfg.Silence)
			}
			l.until = time.Time{} // the context of a reader has ended: set the deadline again
			continue
		case err != nil:
			return err
		}
		if err := l.handleFrame(typ, payload); err != nil {
			return err
		}
	}
	return nil
}

// extendReading lets the owner be silent from now on, as lane.extendDeadline does.
func (l *sharedLane) extendReading() error {
	now, silence := time.Now(), l.pool.cfg.Silence
	if l.until.Sub(now) > silence-silence/4 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.err != nil { // the deadline has passed for good
		return l.mu.err
	}
	l.until = now.Add(silence)
	return l.conn.SetReadDeadline(l.until)
}

// handleFrame handles a frame of the owner.
func (l *sharedLane) handleFrame(typ frameType, payload []byte) error {
	var verdict error
	switch typ {
	case frameOutcome:
		var err error
		if verdict, err = decodeVerdict(payload); err != nil {
			return err
		}
	case frameRetire:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.retireLocked()
		return nil
	default:
		return newFailure(Invalid, "write: a frame of type %d from the owner", typ)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.sent) == 0 {
		return newFailure(Invalid, "write: an OUTCOME of no transfer")
	}
	t := l.mu.sent[0]
	l.mu.sent = slices.Delete(l.mu.sent, 0, 1)
	if t.state == wholeAbandoned {
		return nil
	}
	if verdict != nil {
		l.retireLocked()
	} else {
		l.freePieceLocked(t.piece)
	}
	t.over <- verdict
	return nil
}
