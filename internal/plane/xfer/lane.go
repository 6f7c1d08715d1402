package xfer

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// lane is the writer's end of a connection to an owner. It carries one transfer at a time.
type lane struct {
	addr  string
	conn  net.Conn
	in    frameReader
	out   []byte      // frames to be written
	parts [3][]byte   // of one write
	write net.Buffers // the rest of parts
	// window is the region of the connection in shared memory; nil over TCP.
	window     *window
	slots      int
	generation uint64
	chunk      []byte // collects pieces of a chunk over TCP; nil until it is needed
	until      time.Time
	idleSince  time.Time
	retired    bool // the owner wants it closed
}

// past is a deadline which makes reading and writing fail at once.
var past = time.Unix(1, 0)

// verdictWait is how long an end of a broken connection waits for the peer's reason.
const verdictWait = time.Second

func (l *lane) close() {
	_ = l.conn.Close()
	if l.window != nil {
		l.window.close()
		l.window = nil
	}
}

// extendDeadline lets the owner be silent for d from now. It is lazy: it sets a timer only when a
// quarter of d is over.
func (l *lane) extendDeadline(ctx context.Context, d time.Duration) error {
	now := time.Now()
	if l.until.Sub(now) > d-d/4 {
		return nil
	}
	l.until = now.Add(d)
	if err := l.conn.SetDeadline(l.until); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil { // its deadline may just have been overwritten
		_ = l.conn.SetDeadline(past)
		return err
	}
	return nil
}

// flush writes the frames of l, followed by the given parts.
func (l *lane) flush(a, b []byte) error {
	if len(a) == 0 && len(b) == 0 {
		_, err := l.conn.Write(l.out)
		l.out = l.out[:0]
		return err
	}
	l.parts = [3][]byte{l.out, a, b}
	l.write = l.parts[:]
	if len(b) == 0 {
		l.write = l.parts[:2]
	}
	err := writeBuffers(l.conn, &l.write)
	l.parts = [3][]byte{}
	l.out = l.out[:0]
	return err
}

// writeBuffers writes all of b, at once if the connection can. It changes b.
func writeBuffers(conn net.Conn, b *net.Buffers) error {
	if c, ok := conn.(interface{ WriteBuffers(net.Buffers) error }); ok {
		return c.WriteBuffers(*b)
	}
	_, err := b.WriteTo(conn)
	return err
}

// laneWriter is a Writer over a lane.
type laneWriter struct {
	pool   *lanePool
	lane   *lane
	ctx    context.Context // of Open; it governs the transfer and ends with it
	stop   func() bool     // detaches ctx from the lane
	size   uint64
	offset uint64 // of the current chunk
	fill   int    // bytes of it which are in buf
	buf    []byte // the memory of the current chunk; nil unless fill > 0
	note   []byte // to be sent with the last chunk; nil if it is not known yet
	ended  bool   // END was sent
	slot   int    // of the current chunk
	free   int    // slots which may be written
	total  totalDigest
	began  time.Time
	cut    bool  // a write failed: the owner may have part of a frame
	told   bool  // the owner said how the transfer ended
	err    error // why it failed
	over   bool
}

var _ TransferWriter = (*laneWriter)(nil)

func newLaneWriter(ctx context.Context, p *lanePool, l *lane, d Descriptor) *laneWriter {
	w := &laneWriter{pool: p, lane: l, ctx: ctx, size: uint64(d.Size), free: l.slots, began: time.Now()}
	w.stop = context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(past) })
	w.total.reset()
	l.out = appendBegin(l.out[:0], beginHeader{epoch: d.epoch, id: d.id, size: w.size, generation: l.generation})
	return w
}

// Write implements Writer.
func (w *laneWriter) Write(p []byte) error {
	if err := w.checkOpen(); err != nil {
		return err
	}
	if uint64(len(p)) > w.size-w.offset-uint64(w.fill) {
		return w.fail(newFailure(Invalid, "write: more than the %d bytes of the transfer", w.size))
	}
	if err := w.lane.extendDeadline(w.ctx, w.pool.cfg.Silence); err != nil {
		return w.fail(err)
	}
	for len(p) > 0 {
		want := chunkLength(w.offset, w.size)
		if w.fill == 0 && w.lane.window == nil && len(p) >= want { // straight from the caller's memory
			if err := w.sendChunk(p[:want], digestBytes(p[:want])); err != nil {
				return w.fail(err)
			}
			p = p[want:]
			continue
		}
		if w.fill == 0 {
			if err := w.reserveChunk(); err != nil {
				return w.fail(err)
			}
		}
		var n int
		var d Digest
		_ = w.pool.bulk.do(w.size, func() error { // copying does not fail
			if n = copy(w.buf[w.fill:want], p); w.fill+n == want {
				d = digestBytes(w.buf[:want])
			}
			return nil
		})
		p = p[n:]
		if w.fill += n; w.fill == want {
			w.fill = 0
			if err := w.sendChunk(w.buf[:want], d); err != nil {
				return w.fail(err)
			}
		}
	}
	return nil
}

func (w *laneWriter) checkOpen() error {
	if w.err != nil {
		return w.err
	}
	if w.over {
		return newFailure(Invalid, "write: the transfer is over")
	}
	return nil
}

// reserveChunk provides the memory of the next chunk: a slot of the region, once the owner has
// taken what was in it, or a buffer.
func (w *laneWriter) reserveChunk() error {
	l := w.lane
	if l.window == nil {
		if l.chunk == nil {
			l.chunk = make([]byte, ChunkSize)
		}
		w.buf = l.chunk
		return nil
	}
	for w.free == 0 {
		if err := w.readFrame(); err != nil {
			return err
		}
	}
	w.free--
	w.buf = l.window.slot(w.slot)
	return nil
}

// sendChunk sends the current chunk, whose bytes are b.
func (w *laneWriter) sendChunk(b []byte, d Digest) error {
	l := w.lane
	h := chunkHeader{offset: w.offset, size: uint32(len(b)), digest: d}
	w.total.addChunk(h.digest, len(b))
	w.offset += uint64(len(b))
	if err := l.extendDeadline(w.ctx, w.pool.cfg.Silence); err != nil {
		return err
	}
	if l.window != nil {
		h.slot = uint32(w.slot)
		w.slot = (w.slot + 1) % l.slots
		l.out = appendChunk(l.out, h)
		if w.offset == w.size { // Commit sends it with the END
			return nil
		}
		return w.flush(nil, nil)
	}
	l.out = appendChunk(l.out, h)
	var end []byte
	if w.offset == w.size && w.note != nil {
		end = appendEnd(nil, w.total.sum(), w.note)
		w.ended = true
	}
	return w.flush(b, end)
}

// flush writes the frames of the lane, followed by a and b.
func (w *laneWriter) flush(a, b []byte) error {
	err := w.lane.flush(a, b)
	w.cut = w.cut || err != nil
	return err
}

// lastWriter is a Writer which sends the last bytes and the note at once.
type lastWriter interface {
	writeLast(p, note []byte) error
}

var _ lastWriter = (*laneWriter)(nil)

// writeLast is Write of the last bytes, followed by Commit. It saves a write over TCP.
func (w *laneWriter) writeLast(p, note []byte) error {
	if len(note) <= MaxNote { // otherwise Commit refuses it
		w.note = append([]byte{}, note...)
	}
	if err := w.Write(p); err != nil {
		return err
	}
	return w.Commit(note)
}

// Commit implements Writer.
func (w *laneWriter) Commit(note []byte) error {
	if err := w.checkOpen(); err != nil {
		return err
	}
	switch {
	case w.offset != w.size:
		return w.fail(newFailure(Invalid, "commit: %d of the %d bytes were written", w.offset+uint64(w.fill), w.size))
	case len(note) > MaxNote:
		return w.fail(newFailure(Invalid, "commit: a note of %d bytes, at most %d are allowed", len(note), MaxNote))
	}
	if !w.ended {
		w.lane.out = appendEnd(w.lane.out, w.total.sum(), note)
		w.ended = true
		if err := w.flush(nil, nil); err != nil {
			return w.fail(err)
		}
	}
	for !w.over {
		if err := w.readFrame(); err != nil {
			return w.fail(err)
		}
	}
	// If stop fails, the lane's deadline may still be set. Bytes after the outcome are a RETIRE.
	if w.stop() && !w.lane.retired && !w.lane.in.buffered() {
		w.lane.generation++
		w.pool.putLane(w.lane)
	} else {
		w.pool.dropLane(w.lane)
	}
	w.report(nil)
	return nil
}

// readFrame waits for a frame of the owner. It returns the owner's verdict if the transfer failed.
func (w *laneWriter) readFrame() error {
	t, payload, err := w.lane.in.next()
	if err != nil {
		return err
	}
	switch t {
	case frameTaken:
		n, err := decodeTaken(payload)
		if err != nil {
			return err
		}
		if uint64(n) > uint64(w.lane.slots-w.free) {
			return newFailure(Invalid, "write: the owner returned %d slots too many", n)
		}
		w.free += int(n)
	case frameOutcome:
		verdict, err := decodeVerdict(payload)
		if err == nil {
			err = verdict
		}
		if err == nil && !w.ended {
			return newFailure(Invalid, "write: the owner says that it has the bytes before all were sent")
		}
		w.told = true
		w.over = err == nil
		return err
	case frameRetire:
		w.lane.retired = true
	}
	return nil
}

// Abort implements Writer.
func (w *laneWriter) Abort(reason error) {
	if w.err != nil || w.over {
		return
	}
	if reason == nil {
		reason = errors.New("no reason was given")
	}
	_ = w.fail(newFailure(Aborted, "transfer: the writer has aborted it: %w", reason))
}

// abortWait bounds how long an abort may take to send.
const abortWait = 100 * time.Millisecond

// fail ends the transfer with err, and closes the lane: its region is never used again.
func (w *laneWriter) fail(err error) error {
	lost := OutcomeOf(err) == Lost && !w.told
	switch {
	case w.ctx.Err() != nil:
		err = w.ctx.Err()
	case lost && !errors.Is(err, os.ErrDeadlineExceeded):
		err = w.findVerdict(err)
	case lost:
		err = newFailure(Lost, "write: the owner was silent for %v", w.pool.cfg.Silence)
	}
	w.stop()
	if !w.cut && !w.told {
		// Without it the owner learns it when the connection closes, if it knows of the transfer.
		reason := newFailure(Aborted, "%v", err)
		_ = w.lane.conn.SetDeadline(time.Now().Add(abortWait)) // a ring which waits for room obeys that for reading
		w.lane.out = appendVerdict(w.lane.out, frameAbort, reason)
		_ = w.lane.flush(nil, nil)
	}
	w.pool.dropLane(w.lane)
	w.err, w.over = err, true
	w.report(err)
	return err
}

// findVerdict returns the reason which the owner gave before it closed the connection, if it did.
func (w *laneWriter) findVerdict(err error) error {
	_ = w.lane.conn.SetReadDeadline(time.Now().Add(verdictWait))
	for {
		t, payload, readErr := w.lane.in.next()
		if readErr != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return newFailure(Lost, "write: the connection to the owner broke: %w", err)
		}
		if t != frameOutcome {
			continue
		}
		if verdict, err := decodeVerdict(payload); err == nil && verdict != nil {
			w.told = true
			return verdict
		}
	}
}

func (w *laneWriter) report(err error) {
	w.pool.cfg.Observer.ObserveTransfer(Report{
		Side: WriterSide, Transport: w.pool.transport, Outcome: OutcomeOf(err), Bytes: int64(w.offset), Took: time.Since(w.began),
	})
}
