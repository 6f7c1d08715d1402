//go:build ucx && cgo

package ucx

// #cgo LDFLAGS: -ldl
// #cgo CFLAGS: -O2 -Wall -Werror
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// load loads the library once for the process.
var load = sync.OnceValue(func() error {
	runtime.LockOSThread() // dlerror is of the thread
	defer runtime.UnlockOSThread()
	if text := C.px_load(); text != nil {
		return fmt.Errorf("the library of UCX cannot be loaded (Debian's libucx0 has it): %s", C.GoString(text))
	}
	return nil
})

// Load loads the library. It fails if it is not there.
func Load() error { return load() }

// StatusError is a status of UCX.
type StatusError int

// Error implements error.
func (e StatusError) Error() string { return "UCX: " + C.GoString(C.px_status(C.int(e))) }

// statusError returns the error of a status, nil for success and for what is in progress.
func statusError(status C.int) error {
	if status >= 0 {
		return nil
	}
	return StatusError(status)
}

// Worker has connections. One goroutine has UCX do what is due, and sleeps while nothing is; every other
// goroutine which uses UCX holds the lock.
type Worker struct {
	wake     syscall.RawConn // of the descriptor by which UCX wakes
	file     *os.File
	address  []byte
	done     chan struct{} // the goroutine has ended
	watchers sync.WaitGroup
	mu       struct {
		sync.Mutex
		c       *C.px_worker
		conns   map[uint64]*Conn
		peers   map[string]*peer // by address, unless they have failed
		links   map[uint64]*peer // by id, until their endpoint is closed
		last    uint64           // id of a peer
		closing bool
	}
}

// peer is another worker. One endpoint has all connections to it: UCX matches the endpoints of both sides in
// their order, so that with several the end of one would be that of a connection of another. It stays when the
// last connection has gone, since the peer may begin one at the same time.
type peer struct {
	id     uint64
	key    string
	ep     unsafe.Pointer
	conns  map[*Conn]struct{}
	closes bool // px_close was called
}

// NewWorker starts a worker. The caller must close it.
func NewWorker() (*Worker, error) {
	if err := Load(); err != nil {
		return nil, err
	}
	w := &Worker{done: make(chan struct{})}
	w.mu.conns, w.mu.peers, w.mu.links = make(map[uint64]*Conn), make(map[string]*peer), make(map[uint64]*peer)
	var fd C.int
	if err := statusError(C.px_open(&w.mu.c, &fd)); err != nil {
		return nil, fmt.Errorf("open a worker: %w", err)
	}
	w.address = C.GoBytes(unsafe.Pointer(w.mu.c.address), C.int(w.mu.c.address_length))
	err := w.watch(int(fd))
	if err != nil {
		C.px_destroy(w.mu.c)
		return nil, fmt.Errorf("open a worker: %w", err)
	}
	go w.run()
	return w, nil
}

// watch makes a descriptor of the Go runtime of that by which UCX wakes.
func (w *Worker) watch(fd int) error {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(own, true); err != nil {
		_ = unix.Close(own)
		return err
	}
	w.file = os.NewFile(uintptr(own), "ucx")
	w.wake, err = w.file.SyscallConn()
	return err
}

// run has UCX do what is due until the worker is closed and has no connection any more.
func (w *Worker) run() {
	defer close(w.done)
	for {
		w.mu.Lock()
		busy := w.progressLocked()
		if w.mu.closing && w.endLocked() {
			C.px_destroy(w.mu.c)
			w.mu.c = nil
			w.mu.Unlock()
			_ = w.file.Close()
			w.watchers.Wait()
			return
		}
		busy = busy || C.px_arm(w.mu.c) != 0
		w.mu.Unlock()
		if !busy {
			_ = w.wake.Read(isReady) // fails only if the descriptor is closed
		}
	}
}

// endLocked closes the endpoints, once no connection is in use. It reports whether all are closed.
func (w *Worker) endLocked() bool {
	for _, c := range w.mu.conns {
		if !c.over {
			return false
		}
	}
	for _, p := range w.mu.links {
		w.closePeerLocked(p, errClosed)
	}
	w.handleEventsLocked()
	return len(w.mu.links) == 0 && len(w.mu.conns) == 0
}

// joinPeerLocked adds a connection to the endpoint of the worker at address, which may be new.
func (w *Worker) joinPeerLocked(c *Conn, address []byte) error {
	p := w.mu.peers[string(address)]
	if p == nil {
		w.mu.last++
		p = &peer{id: w.mu.last, key: string(address), conns: make(map[*Conn]struct{})}
		copied := C.CBytes(address)
		defer C.free(copied)
		if err := statusError(C.px_connect(w.mu.c, copied, C.uint64_t(p.id), &p.ep)); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		w.mu.peers[p.key], w.mu.links[p.id] = p, p
	}
	c.peer = p
	p.conns[c] = struct{}{}
	return nil
}

// closePeerLocked closes an endpoint, and ends its connections with err.
func (w *Worker) closePeerLocked(p *peer, err error) {
	if p.closes {
		return
	}
	p.closes = true
	if w.mu.peers[p.key] == p {
		delete(w.mu.peers, p.key)
	}
	for c := range p.conns {
		c.failLocked(err)
	}
	if C.px_close(w.mu.c, p.ep, C.uint64_t(p.id)) <= 0 {
		w.removePeerLocked(p)
	}
}

// removePeerLocked forgets a peer whose endpoint is closed: UCX does not use memory for it any more.
func (w *Worker) removePeerLocked(p *peer) {
	w.handleEventsLocked() // what was sent
	delete(w.mu.links, p.id)
	for c := range p.conns {
		clear(c.busy[:])
		c.finishLocked()
	}
}

// isReady reports whether fd can be read.
func isReady(fd uintptr) bool {
	list := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(list, 0)
	return n > 0 || err != nil && err != unix.EINTR
}

// roundsAtOnce bounds how long the lock is held.
const roundsAtOnce = 32

// progressLocked has UCX do what is due, and handles what it did. It reports whether more may be due.
func (w *Worker) progressLocked() bool {
	more := C.px_progress(w.mu.c, roundsAtOnce) != 0
	return w.handleEventsLocked() || more
}

// handleEventsLocked handles the events so far. It reports whether there were any.
func (w *Worker) handleEventsLocked() bool {
	had := false
	for w.mu.c.count > 0 { // handling one may cause others
		had = true
		list := append([]C.px_event(nil), unsafe.Slice(w.mu.c.events, w.mu.c.count)...)
		w.mu.c.count = 0
		for i := range list {
			w.handleEventLocked(&list[i])
		}
	}
	if w.mu.c.failed != 0 { // an event is lost, so what happened is unknown
		w.mu.c.failed = 0
		for _, c := range w.mu.conns {
			c.failLocked(errors.New("there was no memory"))
		}
	}
	return had
}

func (w *Worker) handleEventLocked(e *C.px_event) {
	switch e.kind {
	case C.PX_RECEIVED:
		m := received{data: e.data, held: e.held, left: bytesAt(e.data, int(e.length))}
		if !w.deliverLocked(m, C.GoBytes(unsafe.Pointer(&e.header[0]), C.int(e.header_length)), int(e.length)) {
			w.releaseLocked(m)
		}
	case C.PX_SENT:
		if c := w.mu.conns[uint64(e.id)]; c != nil {
			c.sentLocked(int(e.tag), statusError(C.int(e.status)))
		}
	case C.PX_FAILED:
		if p := w.mu.links[uint64(e.id)]; p != nil {
			w.closePeerLocked(p, statusError(C.int(e.status)))
		}
	case C.PX_CLOSED:
		if p := w.mu.links[uint64(e.id)]; p != nil {
			w.removePeerLocked(p)
		}
	}
}

// deliverLocked gives a message to its connection. It reports whether its data is kept.
func (w *Worker) deliverLocked(m received, header []byte, size int) bool {
	h, err := decodeHeader(header, size)
	c := w.mu.conns[h.stream]
	return c != nil && c.receiveLocked(m, h, size, err) // one of a connection which is over comes late
}

// bytesAt returns n bytes of memory which is not Go's.
func bytesAt(p unsafe.Pointer, n int) []byte {
	if p == nil {
		return nil
	}
	return unsafe.Slice((*byte)(p), n)
}

func (w *Worker) releaseLocked(m received) {
	if m.data != nil {
		C.px_release(w.mu.c, m.data, m.held)
	}
}

// pushLocked lets UCX begin what a call has asked for; what is left is the worker's goroutine's.
func (w *Worker) pushLocked() {
	w.progressLocked()
	C.px_signal(w.mu.c)
}

// errClosed says that the worker is closed.
var errClosed = fmt.Errorf("the worker of UCX is closed: %w", net.ErrClosed)

// Address returns the address of the worker, which a peer needs to connect to it.
func (w *Worker) Address() []byte { return w.address }

// NewConn returns a connection which is to be connected to a peer. The peers must tell each other ID and Address by
// control, a connection between them, which Conn owns from now on: its end is that of the connection. Nothing
// else may read or write there.
func (w *Worker) NewConn(control net.Conn) (*Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closing {
		control.Close()
		return nil, errClosed
	}
	c := newConn(w, control)
	w.mu.conns[c.id] = c
	return c, nil
}

// Close ends the worker when all its connections are closed. It waits for that, unless one is in use. Later
// NewConns fail.
func (w *Worker) Close() error {
	w.mu.Lock()
	w.mu.closing = true
	used := false
	for _, c := range w.mu.conns {
		used = used || !c.closed
	}
	if w.mu.c != nil {
		C.px_signal(w.mu.c)
	}
	w.mu.Unlock()
	if !used {
		<-w.done
	}
	return nil
}

// tell puts a value into a channel with capacity 1, unless it has one.
func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// closeWait bounds how long a closed connection waits until its peer has taken what was sent.
const closeWait = time.Second
