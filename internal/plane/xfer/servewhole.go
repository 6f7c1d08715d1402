package xfer

import (
	"time"
)

// serveWhole serves a small transfer. Whatever becomes of it, the connection goes on, unless it is broken;
// after a failure the writer is asked to close it.
func (l *ownerLane) serveWhole(payload []byte) error {
	h, note, err := decodeWhole(payload)
	if err != nil {
		return err
	}
	if l.window != nil && h.generation != l.generation {
		return newFailure(Invalid, "transfer: the writer uses generation %d of a region whose generation is %d", h.generation, l.generation)
	}
	l.generation++
	if l.window == nil {
		l.note = append(l.note[:0], note...)
		note = l.note
	}
	verdict, err := l.receiveWhole(h, note)
	if err != nil {
		return err
	}
	l.failed = l.failed || verdict != nil
	l.out = appendVerdict(l.out, frameOutcome, verdict)
	if !l.retired && (verdict != nil || l.otherWaits()) {
		l.retired = true
		l.out = appendRetire(l.out)
		if err := l.endSoon(); err != nil {
			return err
		}
	}
	if l.window == nil && len(l.out) < maxOutcomes {
		return nil // sent before reading waits: one system call for several
	}
	return l.sendOutcomes()
}

// maxOutcomes bounds the bytes of outcomes which wait to be sent.
const maxOutcomes = 16 << 10

// endSoon gives a writer which was asked to close the connection time to do so.
func (l *ownerLane) endSoon() error {
	l.endBy = time.Now().Add(l.owner.cfg.Handshake)
	return l.conn.SetReadDeadline(l.endBy)
}

// sendOutcomes sends what is in out: outcomes, slots which may be written again, and the wish to close. A writer
// which does not read them for as long as Silence loses the connection.
func (l *ownerLane) sendOutcomes() error {
	if len(l.out) == 0 {
		return nil
	}
	if l.stuck == nil {
		l.stuck = time.AfterFunc(l.owner.cfg.Silence, l.interrupt)
	} else {
		l.stuck.Reset(l.owner.cfg.Silence)
	}
	_, err := l.conn.Write(l.out)
	l.stuck.Stop()
	l.out = l.out[:0]
	return err
}

// receiveWhole takes the bytes of a small transfer, and returns its outcome. The error is that of the
// connection.
func (l *ownerLane) receiveWhole(h wholeHeader, note []byte) (verdict, err error) {
	t, verdict := l.owner.registry.claimTransfer(beginHeader{epoch: h.epoch, id: h.id, size: uint64(h.size)}, l.owner.transport, l.interruptRead)
	if verdict != nil {
		if l.window == nil {
			err = l.skipBytes(int(h.size))
		}
		return verdict, err
	}
	l.sink.start(t)
	defer l.sink.forget()
	c := chunkHeader{size: h.size, digest: h.digest}
	if l.window == nil {
		return l.readWhole(t, c, note)
	}
	if verdict = l.sink.copyIn(c, l.window.part(int(h.at), int(h.size))); verdict == nil {
		verdict = l.sink.verifyWhole(c, note)
	}
	if verdict != nil {
		verdict = t.release(verdict)
	}
	return verdict, nil
}

// readWhole reads the bytes of a claimed transfer from the connection.
func (l *ownerLane) readWhole(t *Transfer, c chunkHeader, note []byte) (verdict, err error) {
	l.current = t
	defer func() { l.current = nil }()
	n, err := l.readChunk(c)
	if err == nil {
		if verdict = l.sink.verifyWhole(c, note); verdict != nil {
			verdict = t.release(verdict)
		}
		return verdict, nil
	}
	reason := t.endReason()
	if reason == nil || l.isLeaving() {
		_ = t.release(newFailure(Lost, "transfer: the connection to the writer broke: %w", err)) // err says the same
		return nil, err
	}
	// The owner has aborted it, which interrupted reading. Others follow on the connection.
	verdict = t.release(reason)
	l.current = nil
	return verdict, l.skipBytes(int(c.size) - n)
}

// skipBytes reads the rest of a small transfer which is over. No lease bounds it, and the connection retires after
// it, so it has the time of that.
func (l *ownerLane) skipBytes(n int) error {
	if l.endBy.IsZero() {
		if err := l.endSoon(); err != nil {
			return err
		}
	}
	return l.in.skip(n)
}

// goesOn handles a deadline for reading outside transfers in chunks: it reports whether it is that of an abort of
// another small transfer, which was over in between.
func (l *ownerLane) goesOn() bool {
	return l.clearInterrupt() && (l.current == nil || l.current.endReason() == nil)
}

// clearInterrupt clears a deadline for reading which has passed to interrupt a transfer that is over. It reports
// false if the deadline was for something else.
func (l *ownerLane) clearInterrupt() bool {
	o := l.owner
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.leaving || l.retiring || !l.endBy.IsZero() && !time.Now().Before(l.endBy) {
		return false
	}
	return l.conn.SetReadDeadline(l.endBy) == nil // zero is none
}

func (l *ownerLane) isLeaving() bool {
	l.owner.mu.Lock()
	defer l.owner.mu.Unlock()
	return l.owner.mu.leaving
}
