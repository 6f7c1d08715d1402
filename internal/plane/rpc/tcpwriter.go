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
	// maxBuffered is how many bytes may wait to be written before senders block.
	maxBuffered = 256 << 10
	// admitBytes is how many buffered bytes may come from blocked senders.
	admitBytes = maxBuffered / 16
	// turnBytes is how much of one long body or frame goes into one write, and turnsPerWrite is how
	// many long ones share a write. Together they bound how much long data can delay a token.
	turnBytes, turnsPerWrite = 64 << 10, 4
	// maxBacklog is the buffer size at which the connection is closed: data that is sent without
	// blocking has accumulated because the peer does not read.
	maxBacklog = 4 << 20
)

var errBacklog = errors.New("the peer does not read")

// tcpWriter is the writing half of a connection. Senders append frames to a buffer. One goroutine
// takes the whole buffer and writes it at once, so one write carries the frames of all calls which
// arrived during the previous write. A sender that finds the buffer full queues its frame, and the
// writer takes the frames from the queue in order: no wakeup is wasted and no sender starves.
// tcpWriter does not allocate once its two buffers have grown.
type tcpWriter struct {
	framing
	wake chan struct{} // wakes the writer if idle was set
	mu   struct {
		sync.Mutex
		buf    []byte
		taken  uint64        // bytes that the writer took before buf
		shorts sendQueue     // frames for which buf had no room
		longs  sendQueue     // long data, sent in turns
		space  chan struct{} // closed when the writer takes bytes or stops; nil without waiters
		idle   bool          // the writer waits for wake
		pong   bool          // a ping must be answered
		ping   [pingSize]byte
		err    error // set when nothing more is written
	}
	writing  sync.Mutex    // held during a write; free between two frames
	progress atomic.Uint64 // bytes that the writer has taken so far
	// The remaining fields belong to the writer's goroutine.
	written uint64        // bytes that the operating system has accepted
	served  []*queuedSend // sends whose wait is over
}

// queuedSend is a blocked sender and its data. One goroutine uses it, for one wait after another.
type queuedSend struct {
	next, prev *queuedSend
	queue      *sendQueue // nil when it is in no queue; guarded by tcpWriter.mu
	t          frameType
	id         uint32
	a, b       []byte
	done       chan struct{} // receives one value when the wait is over
	err        error         // why the data was not sent
}

// sendQueue is a FIFO list of blocked senders.
type sendQueue struct {
	first, last *queuedSend
	n           int
}

func (q *sendQueue) push(w *queuedSend) {
	w.queue, w.prev, w.next = q, q.last, nil
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.n++
}

func (q *sendQueue) remove(w *queuedSend) {
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
	w.queue, w.prev, w.next = nil, nil, nil
	q.n--
}

// init prepares w. first is sent before all other data; f is the format of frames.
func (w *tcpWriter) init(f framing, first []byte) {
	w.framing = f
	w.wake = make(chan struct{}, 1)
	w.mu.buf = first
}

// sendFrame appends a frame whose payload is a followed by b. While the buffer is full it blocks,
// using wait, until stop is closed.
func (w *tcpWriter) sendFrame(stop <-chan struct{}, wait *queuedSend, t frameType, id uint32, a, b []byte) error {
	w.mu.Lock()
	if w.mu.err != nil {
		w.mu.Unlock()
		return w.mu.err
	}
	if len(w.mu.buf) < maxBuffered {
		w.mu.buf = w.appendFrame(w.mu.buf, t, id, a, b)
		w.unlockAndWake()
		return nil
	}
	wait.t, wait.id, wait.a, wait.b = t, id, a, b
	return w.awaitTurn(stop, wait, &w.mu.shorts)
}

// sendInTurns appends b in frames of type t, turnBytes per write, until stop is closed. It blocks,
// using wait, until the writer has taken the last of them.
func (w *tcpWriter) sendInTurns(stop <-chan struct{}, wait *queuedSend, t frameType, id uint32, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	w.mu.Lock()
	if w.mu.err != nil {
		w.mu.Unlock()
		return w.mu.err
	}
	wait.t, wait.id, wait.a, wait.b = t, id, nil, b
	return w.awaitTurn(stop, wait, &w.mu.longs)
}

// awaitTurn queues wait in q and waits for its turn. The caller holds w.mu; awaitTurn releases it.
func (w *tcpWriter) awaitTurn(stop <-chan struct{}, wait *queuedSend, q *sendQueue) error {
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
	if wait.queue != nil {
		wait.queue.remove(wait)
		w.mu.Unlock()
		return errCallOver()
	}
	w.mu.Unlock()
	<-wait.done // it was served at the same moment
	return wait.err
}

// trySendFrame appends a frame and returns its offset in the stream of bytes. If the buffer is full
// it appends nothing and returns a channel which is closed when a retry may succeed. Its limit is
// twice that of sendFrame, so it has room when other senders block.
func (w *tcpWriter) trySendFrame(t frameType, id uint32, a, b []byte) (at uint64, space <-chan struct{}, err error) {
	w.mu.Lock()
	if w.mu.err != nil {
		w.mu.Unlock()
		return 0, nil, w.mu.err
	}
	if len(w.mu.buf) >= 2*maxBuffered {
		if w.mu.space == nil {
			w.mu.space = make(chan struct{})
		}
		space = w.mu.space
		w.mu.Unlock()
		return 0, space, nil
	}
	at = w.mu.taken + uint64(len(w.mu.buf))
	w.mu.buf = w.appendFrame(w.mu.buf, t, id, a, b)
	w.unlockAndWake()
	return at, nil, nil
}

// sendFrameNow appends a frame without blocking. It is for frames whose number is bounded
// elsewhere. If too many accumulate anyway, the peer does not read.
func (w *tcpWriter) sendFrameNow(t frameType, id uint32, payload []byte) error {
	w.mu.Lock()
	if w.mu.err != nil {
		w.mu.Unlock()
		return w.mu.err
	}
	if len(w.mu.buf) >= maxBacklog {
		w.mu.Unlock()
		return errBacklog
	}
	w.mu.buf = w.appendFrame(w.mu.buf, t, id, payload, nil)
	w.unlockAndWake()
	return nil
}

// sendPing writes a ping to conn ahead of all buffered data: with thousands of goroutines ready to
// run, the writer may get a CPU only seconds later. While the writer writes, it sends nothing.
func (w *tcpWriter) sendPing(conn net.Conn, limit time.Duration) error {
	if !w.writing.TryLock() {
		return nil
	}
	defer w.writing.Unlock()
	if err := conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	_, err := conn.Write(w.appendFrame(nil, framePing, 0, randomBytes(pingSize), nil))
	return err
}

// queuePong schedules the answer to the most recent ping. However many pings a peer sends, each
// write carries at most one answer.
func (w *tcpWriter) queuePong(ping []byte) {
	w.mu.Lock()
	w.mu.pong = true
	copy(w.mu.ping[:], ping)
	w.unlockAndWake()
}

// unlockAndWake releases w.mu and wakes the writer if it is idle.
func (w *tcpWriter) unlockAndWake() {
	idle := w.mu.idle
	w.mu.idle = false
	w.mu.Unlock()
	if idle {
		w.wake <- struct{}{} // never blocks: the writer waits, or is about to
	}
}

// closeSenders stops the writer and all senders. Unwritten data is dropped.
func (w *tcpWriter) closeSenders(err error) {
	w.mu.Lock()
	if w.mu.err == nil {
		w.mu.err = err
		w.signalSpaceLocked()
		for _, q := range []*sendQueue{&w.mu.shorts, &w.mu.longs} {
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

// signalSpaceLocked makes the waiters for space try again.
func (w *tcpWriter) signalSpaceLocked() {
	if w.mu.space != nil {
		close(w.mu.space)
		w.mu.space = nil
	}
}

// runWriter writes until closeSenders or an error. A write that the peer does not read within limit
// is an error.
func (w *tcpWriter) runWriter(conn net.Conn, limit time.Duration) error {
	var buf []byte
	for {
		var err error
		if buf, err = w.takeBytes(buf); err != nil {
			return err
		}
		n, err := w.writeBytes(conn, limit, buf)
		w.written += uint64(n)
		if err != nil {
			return err
		}
	}
}

func (w *tcpWriter) writeBytes(conn net.Conn, limit time.Duration, b []byte) (n int, err error) {
	w.writing.Lock()
	defer w.writing.Unlock()
	if err := conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return 0, err
	}
	return conn.Write(b)
}

// takeBytes waits for bytes and exchanges them for an empty buffer.
func (w *tcpWriter) takeBytes(empty []byte) ([]byte, error) {
	for {
		w.mu.Lock()
		if w.mu.err != nil {
			w.mu.Unlock()
			return nil, w.mu.err
		}
		w.appendDueLocked()
		if len(w.mu.buf) > 0 {
			full := w.mu.buf
			w.mu.taken += uint64(len(full))
			w.progress.Store(w.mu.taken)
			w.mu.buf = empty[:0]
			w.admitWaitingLocked()
			w.signalSpaceLocked()
			w.mu.Unlock()
			for i, wait := range w.served {
				wait.done <- struct{}{} // never blocks: one value per wait
				w.served[i] = nil
			}
			w.served = w.served[:0]
			return full, nil
		}
		w.mu.idle = true
		w.mu.Unlock()
		<-w.wake
		// The sender that woke the writer is rarely alone. Gosched lets the other ready senders run
		// first, so that their frames go out in the same write.
		runtime.Gosched()
	}
}

// appendDueLocked appends the data which is due with the next write: the answer to a ping, and one
// turn of the first long sends in the queue.
func (w *tcpWriter) appendDueLocked() {
	if w.mu.pong {
		w.mu.pong = false
		w.mu.buf = w.appendFrame(w.mu.buf, framePong, 0, w.mu.ping[:], nil)
	}
	for range min(w.mu.longs.n, turnsPerWrite) {
		wait := w.mu.longs.first
		w.mu.longs.remove(wait)
		for most := turnBytes; most > 0 && len(wait.b) > 0; {
			n := min(len(wait.b), tcpPayload)
			w.mu.buf = w.appendFrame(w.mu.buf, wait.t, wait.id, wait.b[:n], nil)
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

// admitWaitingLocked appends frames of blocked senders, in order, up to admitBytes. The rest of the
// buffer is for their next frames: a sender which was blocked can send several frames, which its
// receiver then gets at once.
func (w *tcpWriter) admitWaitingLocked() {
	for w.mu.shorts.first != nil && len(w.mu.buf) < admitBytes {
		wait := w.mu.shorts.first
		w.mu.shorts.remove(wait)
		w.mu.buf = w.appendFrame(w.mu.buf, wait.t, wait.id, wait.a, wait.b)
		w.served = append(w.served, wait)
	}
}
