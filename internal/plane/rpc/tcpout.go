package rpc

import (
	"errors"
	"net"
	"runtime"
	"sync"
	"time"
)

const (
	// outFull is how many bytes may wait to be written before senders wait too.
	outFull = 256 << 10
	// outTurn is how many of them may be of one long body or frame, so that tokens
	// of others are never behind more of it than that.
	outTurn = 64 << 10
	// outOver is where a connection is given up: what is sent without waiting has
	// come to so much because the peer does not read.
	outOver = 4 << 20
)

var errBacklog = errors.New("the peer does not read")

// tcpOut is the writing half of a connection. Senders append frames to a buffer;
// one goroutine takes all of it and writes it at once, so a write carries the
// frames of as many calls as came up during the one before. Nothing in it
// allocates once the two buffers have grown.
type tcpOut struct {
	wake chan struct{} // for the writer, when idle was set
	mu   struct {
		sync.Mutex
		buf   []byte
		taken uint64        // bytes that the writer took before buf
		turns uint64        // how often it took
		space chan struct{} // closed when the writer takes or stops; nil while nobody waits
		idle  bool          // the writer waits for wake
		pong  bool          // a ping is to be answered
		ping  [pingSize]byte
		err   error // set when nothing more is written
	}
	written uint64 // bytes that the operating system took; of the writer
}

// init makes w ready; first goes out before everything else.
func (w *tcpOut) init(first []byte) {
	w.wake = make(chan struct{}, 1)
	w.mu.buf = first
}

// frame appends a frame whose payload is a, then b; it waits while the buffer is
// full, until stop is closed.
func (w *tcpOut) frame(stop <-chan struct{}, t frameType, id uint32, a, b []byte) error {
	for {
		_, space, err := w.try(t, id, a, b)
		if err != nil || space == nil {
			return err
		}
		select {
		case <-space:
		case <-stop:
			return errOver()
		}
	}
}

// try appends a frame and returns where in the stream of bytes it begins. If the
// buffer is full it appends nothing and returns a channel that is closed when it
// may be worth another try.
func (w *tcpOut) try(t frameType, id uint32, a, b []byte) (at uint64, space <-chan struct{}, err error) {
	w.mu.Lock()
	if w.mu.err != nil {
		w.mu.Unlock()
		return 0, nil, w.mu.err
	}
	if len(w.mu.buf) >= outFull {
		space = w.waitLocked()
		w.mu.Unlock()
		return 0, space, nil
	}
	at = w.mu.taken + uint64(len(w.mu.buf))
	w.mu.buf = append(append(appendFrameHeader(w.mu.buf, t, id, len(a)+len(b)), a...), b...)
	w.unlockAndWake()
	return at, nil, nil
}

// now appends a frame without waiting. It is for frames whose number is bounded
// otherwise; when there are too many all the same, the peer does not read.
func (w *tcpOut) now(t frameType, id uint32, payload []byte) error {
	w.mu.Lock()
	if w.mu.err != nil {
		w.mu.Unlock()
		return w.mu.err
	}
	if len(w.mu.buf) >= outOver {
		w.mu.Unlock()
		return errBacklog
	}
	w.mu.buf = append(appendFrameHeader(w.mu.buf, t, id, len(payload)), payload...)
	w.unlockAndWake()
	return nil
}

// pong has the last ping answered. A peer cannot make more of it than one frame
// in each write.
func (w *tcpOut) pong(ping []byte) {
	w.mu.Lock()
	w.mu.pong = true
	copy(w.mu.ping[:], ping)
	w.unlockAndWake()
}

// long appends b in frames of type t, outTurn bytes each time that the writer
// comes round, until stop is closed.
func (w *tcpOut) long(stop <-chan struct{}, t frameType, id uint32, b []byte) error {
	turn := ^uint64(0) // none yet
	for len(b) > 0 {
		w.mu.Lock()
		if w.mu.err != nil {
			w.mu.Unlock()
			return w.mu.err
		}
		if turn == w.mu.turns || len(w.mu.buf) >= outFull {
			space := w.waitLocked()
			w.mu.Unlock()
			select {
			case <-space:
			case <-stop:
				return errOver()
			}
			continue
		}
		turn = w.mu.turns
		for most := outTurn; most > 0 && len(b) > 0; {
			n := min(len(b), tcpPayload)
			w.mu.buf = append(appendFrameHeader(w.mu.buf, t, id, n), b[:n]...)
			b = b[n:]
			most -= n
		}
		w.unlockAndWake()
	}
	return nil
}

// waitLocked returns the channel of those who wait for space. w.mu is held.
func (w *tcpOut) waitLocked() <-chan struct{} {
	if w.mu.space == nil {
		w.mu.space = make(chan struct{})
	}
	return w.mu.space
}

// unlockAndWake releases w.mu after something was appended.
func (w *tcpOut) unlockAndWake() {
	idle := w.mu.idle
	w.mu.idle = false
	w.mu.Unlock()
	if idle {
		w.wake <- struct{}{} // never blocks: the writer waits, or is about to
	}
}

// close ends the writer and all senders. What was not written is dropped.
func (w *tcpOut) close(err error) {
	w.mu.Lock()
	if w.mu.err == nil {
		w.mu.err = err
		w.freeLocked()
	}
	w.unlockAndWake()
}

// freeLocked tells those who wait for space to try again. w.mu is held.
func (w *tcpOut) freeLocked() {
	if w.mu.space != nil {
		close(w.mu.space)
		w.mu.space = nil
	}
}

// run writes until close or an error. A write that the peer does not take within
// limit is one.
func (w *tcpOut) run(conn net.Conn, limit time.Duration) error {
	var buf []byte
	for {
		var err error
		if buf, err = w.take(buf); err != nil {
			return err
		}
		if err := conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
		n, err := conn.Write(buf)
		w.written += uint64(n)
		if err != nil {
			return err
		}
	}
}

// take waits for bytes and exchanges them for an empty buffer.
func (w *tcpOut) take(empty []byte) ([]byte, error) {
	for {
		w.mu.Lock()
		if w.mu.err != nil {
			w.mu.Unlock()
			return nil, w.mu.err
		}
		if w.mu.pong {
			w.mu.pong = false
			w.mu.buf = append(appendFrameHeader(w.mu.buf, framePong, 0, pingSize), w.mu.ping[:]...)
		}
		if len(w.mu.buf) > 0 {
			full := w.mu.buf
			w.mu.buf = empty[:0]
			w.mu.taken += uint64(len(full))
			w.mu.turns++
			w.freeLocked()
			w.mu.Unlock()
			return full, nil
		}
		w.mu.idle = true
		w.mu.Unlock()
		<-w.wake
		// Whoever woke the writer is rarely alone: those who are ready to send get
		// the processor first, and their frames go out in the same write.
		runtime.Gosched()
	}
}
