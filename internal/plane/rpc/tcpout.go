package rpc

import (
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// outFull is how many bytes may wait to be written before senders wait too.
	outFull = 256 << 10
	// outAdmit is how many of them are taken from those who wait.
	outAdmit = outFull / 16
	// outTurn is how much of one long body or frame goes into one write, and
	// outTurns how many of them share it, so that tokens are never behind more of
	// them than that.
	outTurn, outTurns = 64 << 10, 4
	// outOver is where a connection is given up: what is sent without waiting has
	// come to so much because the peer does not read.
	outOver = 4 << 20
)

var errBacklog = errors.New("the peer does not read")

// tcpOut is the writing half of a connection. Senders append frames to a buffer;
// one goroutine takes all of it and writes it at once, so a write carries the
// frames of as many calls as came up during the one before. A sender that finds
// the buffer full queues with its frame, which the writer takes from it in its
// turn: nobody is woken in vain, and nobody waits for ever. Nothing in it allocates
// once the two buffers have grown.
type tcpOut struct {
	framing
	wake chan struct{} // for the writer, when idle was set
	mu   struct {
		sync.Mutex
		buf    []byte
		taken  uint64        // bytes that the writer took before buf
		shorts outQueue      // frames that found buf full
		longs  outQueue      // what is sent in turns
		space  chan struct{} // closed when the writer takes or stops; nil while nobody waits
		idle   bool          // the writer waits for wake
		pong   bool          // a ping is to be answered
		ping   [pingSize]byte
		err    error // set when nothing more is written
	}
	writing  sync.Mutex    // held while bytes are written: between two frames it is free
	progress atomic.Uint64 // bytes that the writer took so far
	// Of the writer alone.
	written uint64     // bytes that the operating system took
	served  []*outWait // those whose wait is over
}

// outWait is a sender that waits, with what it sends. One goroutine uses it, for
// one wait after another.
type outWait struct {
	next, prev *outWait
	in         *outQueue // nil when it is in none; of tcpOut.mu
	t          frameType
	id         uint32
	a, b       []byte
	done       chan struct{} // gets one when the wait is over
	err        error         // why, if it was in vain
}

// outQueue is a list of them, in the order in which they came.
type outQueue struct {
	first, last *outWait
	n           int
}

func (q *outQueue) push(w *outWait) {
	w.in, w.prev, w.next = q, q.last, nil
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.n++
}

func (q *outQueue) remove(w *outWait) {
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.in, w.prev, w.next = nil, nil, nil
	q.n--
}

// init makes w ready; first goes out before everything else, and frames are as f has them.
func (w *tcpOut) init(f framing, first []byte) {
	w.framing = f
	w.wake = make(chan struct{}, 1)
	w.mu.buf = first
}

// frame appends a frame whose payload is a, then b. While the buffer is full it
// waits, as wait, until stop is closed.
func (w *tcpOut) frame(stop <-chan struct{}, wait *outWait, t frameType, id uint32, a, b []byte) error {
	w.mu.Lock()
	if w.mu.err != nil {
		w.mu.Unlock()
		return w.mu.err
	}
	if len(w.mu.buf) < outFull {
		w.mu.buf = w.append(w.mu.buf, t, id, a, b)
		w.unlockAndWake()
		return nil
	}
	wait.t, wait.id, wait.a, wait.b = t, id, a, b
	return w.await(stop, wait, &w.mu.shorts)
}

// long appends b in frames of type t, outTurn bytes for each write, until stop is
// closed. It waits, as wait, until the last of them is taken.
func (w *tcpOut) long(stop <-chan struct{}, wait *outWait, t frameType, id uint32, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	w.mu.Lock()
	if w.mu.err != nil {
		w.mu.Unlock()
		return w.mu.err
	}
	wait.t, wait.id, wait.a, wait.b = t, id, nil, b
	return w.await(stop, wait, &w.mu.longs)
}

// await queues wait in q and waits for its turn. w.mu is held, and released.
func (w *tcpOut) await(stop <-chan struct{}, wait *outWait, q *outQueue) error {
	if wait.done == nil {
		wait.done = make(chan struct{}, 1)
	}
	wait.err = nil
	q.push(wait)
	w.unlockAndWake()
	select {
	case <-wait.done:
		return wait.err
	case <-stop:
	}
	w.mu.Lock()
	if wait.in != nil {
		wait.in.remove(wait)
		w.mu.Unlock()
		return errOver()
	}
	w.mu.Unlock()
	<-wait.done // it was served at the same moment
	return wait.err
}

// try appends a frame and returns where in the stream of bytes it begins. If the
// buffer is full it appends nothing and returns a channel that is closed when it
// may be worth another try. There is room for such frames where others wait.
func (w *tcpOut) try(t frameType, id uint32, a, b []byte) (at uint64, space <-chan struct{}, err error) {
	w.mu.Lock()
	if w.mu.err != nil {
		w.mu.Unlock()
		return 0, nil, w.mu.err
	}
	if len(w.mu.buf) >= 2*outFull {
		if w.mu.space == nil {
			w.mu.space = make(chan struct{})
		}
		space = w.mu.space
		w.mu.Unlock()
		return 0, space, nil
	}
	at = w.mu.taken + uint64(len(w.mu.buf))
	w.mu.buf = w.append(w.mu.buf, t, id, a, b)
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
	w.mu.buf = w.append(w.mu.buf, t, id, payload, nil)
	w.unlockAndWake()
	return nil
}

// ping sends a ping on conn, before all that waits: where thousands of goroutines are ready,
// it may be seconds before the writer gets a processor. While the writer writes it sends none.
func (w *tcpOut) ping(conn net.Conn, limit time.Duration) error {
	if !w.writing.TryLock() {
		return nil
	}
	defer w.writing.Unlock()
	if err := conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	_, err := conn.Write(w.append(nil, framePing, 0, random(pingSize), nil))
	return err
}

// pong has the last ping answered. A peer cannot make more of it than one frame
// in each write.
func (w *tcpOut) pong(ping []byte) {
	w.mu.Lock()
	w.mu.pong = true
	copy(w.mu.ping[:], ping)
	w.unlockAndWake()
}

// unlockAndWake releases w.mu when there is something for the writer.
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
		for _, q := range []*outQueue{&w.mu.shorts, &w.mu.longs} {
			for q.first != nil {
				wait := q.first
				q.remove(wait)
				wait.err = err
				wait.done <- struct{}{}
			}
		}
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
		n, err := w.write(conn, limit, buf)
		w.written += uint64(n)
		if err != nil {
			return err
		}
	}
}

func (w *tcpOut) write(conn net.Conn, limit time.Duration, b []byte) (n int, err error) {
	w.writing.Lock()
	defer w.writing.Unlock()
	if err := conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return 0, err
	}
	return conn.Write(b)
}

// take waits for bytes and exchanges them for an empty buffer.
func (w *tcpOut) take(empty []byte) ([]byte, error) {
	for {
		w.mu.Lock()
		if w.mu.err != nil {
			w.mu.Unlock()
			return nil, w.mu.err
		}
		w.completeLocked()
		if len(w.mu.buf) > 0 {
			full := w.mu.buf
			w.mu.taken += uint64(len(full))
			w.progress.Store(w.mu.taken)
			w.mu.buf = empty[:0]
			w.admitLocked()
			w.freeLocked()
			w.mu.Unlock()
			for i, wait := range w.served {
				wait.done <- struct{}{} // never blocks: one for each wait
				w.served[i] = nil
			}
			w.served = w.served[:0]
			return full, nil
		}
		w.mu.idle = true
		w.mu.Unlock()
		<-w.wake
		// The sender that woke the writer is rarely alone: the others which are ready
		// to send get the processor first, and their frames go out in the same write.
		runtime.Gosched()
	}
}

// completeLocked appends what goes out with the frames that are there: the answer
// to a ping, and a turn of the long ones whose turn it is.
func (w *tcpOut) completeLocked() {
	if w.mu.pong {
		w.mu.pong = false
		w.mu.buf = w.append(w.mu.buf, framePong, 0, w.mu.ping[:], nil)
	}
	for range min(w.mu.longs.n, outTurns) {
		wait := w.mu.longs.first
		w.mu.longs.remove(wait)
		for most := outTurn; most > 0 && len(wait.b) > 0; {
			n := min(len(wait.b), tcpPayload)
			w.mu.buf = w.append(w.mu.buf, wait.t, wait.id, wait.b[:n], nil)
			wait.b = wait.b[n:]
			most -= n
		}
		if len(wait.b) > 0 {
			w.mu.longs.push(wait)
		} else {
			w.served = append(w.served, wait)
		}
	}
}

// admitLocked appends frames of those who found the buffer full, in their order,
// up to a part of it. The rest is for what they send next: a sender who had to
// wait gets to send a few frames, and its receiver to take them at once.
func (w *tcpOut) admitLocked() {
	for w.mu.shorts.first != nil && len(w.mu.buf) < outAdmit {
		wait := w.mu.shorts.first
		w.mu.shorts.remove(wait)
		w.mu.buf = w.append(w.mu.buf, wait.t, wait.id, wait.a, wait.b)
		w.served = append(w.served, wait)
	}
}
