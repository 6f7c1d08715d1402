//go:build ucx && cgo

package ucx

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"
)

// received is a message whose data waits in memory of UCX, or of malloc.
type received struct {
	data unsafe.Pointer
	held C.uint32_t
	left []byte // of its data
}

// Buffers of a connection: each has a message until UCX does not need it any more.
const (
	bufferData  = 64 // where the data begins; the header is before it
	bufferSize  = bufferData + maxMessage
	bufferCount = 8
)

// Messages without data have a memory of their own, each one at a time: their tags follow the tags of buffers.
const (
	tagTaken = bufferCount + iota
	tagEnd
	tagCount
)

// Conn is a connection: a stream of bytes in either direction. One goroutine may read while another writes.
//
//	state   event                                                    next
//	new     Connect                                                  open
//	open    Close                                                    closed: messages of the peer are dropped
//	closed  the peer has taken all that was sent, or takes no more   over: the peer is told
//	closed  closeWait, or the peer fails                             over
//	over    UCX does not use memory of it any more                   it is forgotten
type Conn struct {
	worker         *Worker
	id             uint64     // by which the peer names it; random, since a late message may be of another
	control        net.Conn   // its end is that of the peer
	reading        sync.Mutex // held by Read
	writing        sync.Mutex // held by WriteBuffers
	readable       chan struct{}
	writable       chan struct{}
	readBy, endsBy deadline

	// Guarded by the worker's mu.
	peer   *peer                    // nil until Connect
	peerID uint64                   // of the connection, there
	memory [tagCount]unsafe.Pointer // of malloc, nil until it is needed
	busy   [tagCount]bool           // UCX needs it
	out    sendWindow
	in     receiveWindow[received]
	told   uint64 // messages of the peer of which it knows that they were taken
	untold int    // bytes of the others which were taken
	deaf   bool   // the peer takes no more
	ended  bool   // no more is sent
	endDue bool   // the message which says so is to be sent
	closed bool
	over   bool
	timer  *time.Timer // ends a closed connection
	err    error       // why it broke
}

var _ net.Conn = (*Conn)(nil)

func newConn(w *Worker, control net.Conn) *Conn {
	var id [8]byte
	_, _ = rand.Read(id[:])                                                             // never fails
	c := &Conn{worker: w, id: binary.LittleEndian.Uint64(id[:]) >> 8, control: control} // sending has room for 56 bits
	c.readable, c.writable = make(chan struct{}, 1), make(chan struct{}, 1)
	c.readBy.changed, c.endsBy.changed = make(chan struct{}), make(chan struct{})
	return c
}

// ID returns the number by which the peer names the connection.
func (c *Conn) ID() uint64 { return c.id }

// Connect connects to the peer's connection id of the worker at address. It does not wait for the peer. The
// address must be that of a trusted peer: UCX reads it.
func (c *Conn) Connect(id uint64, address []byte) error {
	if len(address) == 0 {
		return errors.New("connect: an empty address")
	}
	_ = c.control.SetDeadline(time.Time{}) // it has served for greetings
	w := c.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.peerID = id
	if err := w.joinPeerLocked(c, address); err != nil {
		return err
	}
	w.watchers.Go(c.watch)
	w.pushLocked()
	return nil
}

// watch waits for the end of the peer.
func (c *Conn) watch() {
	var b [1]byte
	_, err := c.control.Read(b[:])
	if err == nil {
		err = errors.New("bytes came beside it")
	}
	w := c.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	if !c.over {
		c.failLocked(fmt.Errorf("the connection of the peer ended: %w", err))
	}
}

// receiveLocked handles a message. It reports whether it keeps its data.
func (c *Conn) receiveLocked(m received, h messageHeader, size int, err error) bool {
	if c.err != nil || c.over {
		return false
	}
	kept := false
	switch {
	case err != nil:
	case h.kind == messageData:
		err = c.in.accept(h.number, m, size)
		if kept = err == nil; kept && c.closed { // there is no reader
			c.dropReceivedLocked()
		}
		tell(c.readable)
	case h.kind == messageTaken:
		err = c.out.takenBy(h.number)
		tell(c.writable)
		c.finishLocked()
	case h.kind == messageEnd, h.kind == messageClose:
		err = c.in.finish(h.number)
		c.deaf = c.deaf || h.kind == messageClose
		tell(c.readable)
		tell(c.writable)
		c.tellTakenLocked()
		c.finishLocked()
	} // other kinds are additions of later builds
	if err != nil {
		c.failLocked(fmt.Errorf("the peer violates the protocol: %w", err))
	}
	return kept
}

// dropReceivedLocked takes the messages which have come, so that the peer does not wait for that.
func (c *Conn) dropReceivedLocked() {
	for m, ok := c.in.first(); ok; m, ok = c.in.first() {
		c.untold += c.in.pop()
		c.worker.releaseLocked(m)
	}
	c.tellTakenLocked()
}

// sentLocked is told that UCX does not need a memory any more.
func (c *Conn) sentLocked(tag int, err error) {
	c.busy[tag] = false
	switch {
	case c.over:
		c.finishLocked()
		return
	case err != nil:
		c.failLocked(err)
		return
	case tag == tagTaken:
		c.tellTakenLocked()
	case tag == tagEnd:
		c.tellEndLocked()
		c.finishLocked()
	}
	tell(c.writable)
}

// failLocked ends both directions.
func (c *Conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	tell(c.readable)
	tell(c.writable)
	c.finishLocked()
}

// memoryLocked returns memory for tag, nil if there is none.
func (c *Conn) memoryLocked(tag, size int) []byte {
	if c.memory[tag] == nil {
		c.memory[tag] = C.malloc(C.size_t(size))
	}
	return bytesAt(c.memory[tag], size)
}

// sendLocked sends the message in the memory of tag, with size bytes of data.
func (c *Conn) sendLocked(tag int, h messageHeader, size int) {
	p := c.memory[tag]
	h.put(bytesAt(p, headerSize))
	var data unsafe.Pointer
	if size > 0 {
		data = unsafe.Add(p, bufferData)
	}
	status := C.px_send(c.worker.mu.c, c.peer.ep, p, headerSize, data, C.size_t(size), C.uint64_t(c.id), C.uint64_t(tag))
	c.busy[tag] = status > 0
	if err := statusError(status); err != nil {
		c.failLocked(err)
	}
}

// tellTakenLocked tells the peer which messages were taken, if it may need to know: a quarter of the window is
// free again, or the peer has sent its last one.
func (c *Conn) tellTakenLocked() {
	news := c.in.taken - c.told
	if news == 0 || news < windowMessages/4 && c.untold < windowBytes/4 && !c.in.ended {
		return
	}
	if c.peer != nil && c.err == nil && !c.over && !c.busy[tagTaken] && c.memoryLocked(tagTaken, headerSize) != nil {
		c.told, c.untold = c.in.taken, 0
		c.sendLocked(tagTaken, messageHeader{c.peerID, c.told, messageTaken}, 0)
	}
}

// tellEndLocked tells the peer that no more is sent, and whether more is read.
func (c *Conn) tellEndLocked() {
	if !c.endDue || c.peer == nil || c.err != nil || c.over || c.busy[tagEnd] || c.memoryLocked(tagEnd, headerSize) == nil {
		return
	}
	c.endDue = false
	kind := messageEnd
	if c.closed {
		kind = messageClose
	}
	c.sendLocked(tagEnd, messageHeader{c.peerID, c.out.sent, kind}, 0)
}

// finishLocked ends a closed connection, once nothing is to be waited for.
func (c *Conn) finishLocked() {
	isTold := c.out.taken == c.out.sent && !c.busy[tagEnd] && !c.endDue
	if c.closed && (c.over || c.peer == nil || c.err != nil || c.deaf || isTold) {
		c.endLocked()
	}
}

// endLocked ends a closed connection, and forgets it once UCX does not use its memory any more.
func (c *Conn) endLocked() {
	w := c.worker
	if !c.over {
		c.over = true
		if c.timer != nil {
			c.timer.Stop()
		}
		_ = c.control.Close()
		for _, m := range c.in.drain() {
			w.releaseLocked(m)
		}
	}
	if slices.Contains(c.busy[:], true) || w.mu.conns[c.id] != c {
		return
	}
	delete(w.mu.conns, c.id)
	if c.peer != nil {
		delete(c.peer.conns, c)
	}
	for i, p := range c.memory {
		C.free(p)
		c.memory[i] = nil
	}
	if w.mu.closing {
		C.px_signal(w.mu.c)
	}
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		changed, expired := c.readBy.look()
		if expired {
			return 0, os.ErrDeadlineExceeded
		}
		if n, err := c.readNow(p); n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		c.readBy.wait(c.readable, changed)
	}
}

// readNow reads what has come of the first message.
func (c *Conn) readNow(p []byte) (int, error) {
	w := c.worker
	w.mu.Lock()
	m, ok := c.in.first()
	over, err, closed := c.in.isOver(), c.err, c.closed
	w.mu.Unlock()
	switch {
	case closed:
		return 0, net.ErrClosed
	case !ok && over:
		return 0, io.EOF
	case !ok && err != nil:
		return 0, err
	case !ok:
		return 0, nil
	}
	n := copy(p, m.left)
	w.mu.Lock()
	defer w.mu.Unlock()
	if n < len(m.left) {
		slot := &c.in.slots[c.in.taken%windowMessages]
		slot.message.left = m.left[n:]
		return n, nil
	}
	c.untold += c.in.pop()
	w.releaseLocked(m)
	c.tellTakenLocked()
	return n, nil
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.write(net.Buffers{p})
	return int(n), err
}

// WriteBuffers writes all of list as one row of bytes, in as few messages as possible. It changes list.
func (c *Conn) WriteBuffers(list net.Buffers) error {
	_, err := c.write(list)
	return err
}

func (c *Conn) write(list net.Buffers) (done int64, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	left := 0
	for _, b := range list {
		left += len(b)
	}
	for left > 0 {
		changed, expired := c.endsBy.look()
		if expired {
			return done, os.ErrDeadlineExceeded
		}
		tag, data, err := c.reserve(left)
		if err != nil {
			return done, err
		}
		if data == nil {
			c.endsBy.wait(c.writable, changed)
			continue
		}
		for at := 0; at < len(data); {
			n := copy(data[at:], list[0])
			if list[0] = list[0][n:]; len(list[0]) == 0 {
				list = list[1:]
			}
			at += n
		}
		if err := c.send(tag, len(data)); err != nil {
			return done, err
		}
		left -= len(data)
		done += int64(len(data))
	}
	return done, nil
}

// reserve returns memory for the next message, of at most size bytes; nil if there is no room for it now.
func (c *Conn) reserve(size int) (tag int, data []byte, err error) {
	w := c.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case c.err != nil:
		return 0, nil, c.err
	case c.peer == nil || c.closed || c.ended || c.deaf:
		return 0, nil, net.ErrClosed
	}
	size = min(size, maxMessage)
	if c.out.room() < size { // a smaller message would be more work
		return 0, nil, nil
	}
	for tag := range bufferCount {
		if c.busy[tag] {
			continue
		}
		b := c.memoryLocked(tag, bufferSize)
		if b == nil {
			return 0, nil, fmt.Errorf("no memory for %d bytes", bufferSize)
		}
		c.busy[tag] = true
		return tag, b[bufferData : bufferData+size], nil
	}
	return 0, nil, nil
}

// send sends the message of a reserved memory.
func (c *Conn) send(tag, size int) error {
	w := c.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.err == nil {
		c.sendLocked(tag, messageHeader{c.peerID, c.out.add(size), messageData}, size)
		if w.progressLocked(); c.busy[tag] {
			w.pushLocked()
		}
	}
	return c.err
}

// CloseWrite ends the peer's reading, after what was written.
func (c *Conn) CloseWrite() error {
	w := c.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.ended || c.err != nil {
		return c.err
	}
	c.ended, c.endDue = true, true
	c.tellEndLocked()
	w.pushLocked()
	return c.err
}

// Close implements net.Conn. It waits for Read and Write, which it ends, and not for the peer.
func (c *Conn) Close() error {
	w := c.worker
	w.mu.Lock()
	was := c.closed
	c.closed, c.ended, c.endDue = true, true, true
	w.mu.Unlock()
	if was {
		return nil
	}
	tell(c.readable)
	tell(c.writable)
	c.reading.Lock() // no call uses the memory of messages any more
	defer c.reading.Unlock()
	c.writing.Lock()
	defer c.writing.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	c.dropReceivedLocked()
	c.tellEndLocked()
	c.finishLocked()
	if !c.over {
		c.timer = time.AfterFunc(closeWait, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			c.endLocked()
		})
	}
	if w.mu.c != nil {
		w.pushLocked()
	}
	return nil
}

// IsQuiet reports whether the connection is open and has nothing to read.
func (c *Conn) IsQuiet() bool {
	w := c.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	return c.err == nil && !c.closed && !c.in.ended && c.in.bytes == 0
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.control.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.control.RemoteAddr() }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.readBy.set(t)
	c.endsBy.set(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.readBy.set(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.endsBy.set(t)
	return nil
}

// deadline bounds waiting in one direction.
type deadline struct {
	mu      sync.Mutex
	at      time.Time
	changed chan struct{} // closed when at changes
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = t
	close(d.changed)
	d.changed = make(chan struct{})
}

// look returns what is closed when the deadline changes, and whether it has passed.
func (d *deadline) look() (changed chan struct{}, expired bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed, !d.at.IsZero() && !time.Now().Before(d.at)
}

// wait waits for a value of ready, until the deadline or its change.
func (d *deadline) wait(ready, changed chan struct{}) {
	d.mu.Lock()
	at := d.at
	d.mu.Unlock()
	var over <-chan time.Time
	if !at.IsZero() {
		timer := time.NewTimer(time.Until(at))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-ready:
	case <-changed:
	case <-over:
	}
}
