package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"penstock/test/fleet"
)

// Frames of a writer of bulk data (docs/format/xfer.md), as far as they matter here: a BEGIN has the size of its
// transfer, and bytes follow a CHUNK and a WHOLE.
const (
	bulkMagic  = 8
	frameHead  = 5
	frameSum   = 4
	frameMax   = 65_544
	bulkBegin  = 2
	bulkChunk  = 3
	bulkEnd    = 4
	bulkAbort  = 5
	bulkWhole  = 10
	tapReceive = 64 << 10 // bytes which a tap's socket takes in advance
)

// bulkTap stands between prefill workers and the memory of decode workers, on TCP. It knows how far each transfer
// has come, and holds transfers back at a frame: so a writer is known to be in the middle of a transfer, or to have
// sent all but the END, which tells the decode worker that the blocks are there.
type bulkTap struct {
	wg sync.WaitGroup
	mu struct {
		sync.Mutex
		listeners []net.Listener
		conns     map[net.Conn]bool
		closed    bool
		transfers []*tapTransfer // since the last reset
		at        tapPoint
		room      int           // how many more transfers are held
		released  chan struct{} // closed when held transfers may go on
		since     time.Time     // when the first transfer was held; zero if none is
		held      time.Duration // for how long some were, since the last reset
	}
}

// tapPoint is where transfers are held back.
type tapPoint struct {
	// frame is the type of the frame before which it is held, after so many bytes of chunks.
	frame byte
	bytes int64
}

// tapTransfer is a transfer which passes, guarded by the tap's lock.
type tapTransfer struct {
	from   string // the address of its writer, without the port
	to     uint64 // the decode worker
	size   int64
	passed int64 // bytes of chunks
	held   bool
	ended  bool // its END has passed
	cut    chan struct{}
	isCut  bool
}

func newBulkTap() *bulkTap {
	t := &bulkTap{}
	t.mu.conns = map[net.Conn]bool{}
	t.mu.released = make(chan struct{})
	return t
}

// listen forwards what comes to addr to target, the memory of a decode worker.
func (t *bulkTap) listen(addr, target string, worker uint64) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.mu.listeners = append(t.mu.listeners, ln)
	t.mu.Unlock()
	t.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return // closed
			}
			t.wg.Go(func() { t.serveConn(c, target, worker) })
		}
	})
	return nil
}

// closeAll ends everything, and waits.
func (t *bulkTap) closeAll() {
	t.release()
	t.mu.Lock()
	t.mu.closed = true
	for _, ln := range t.mu.listeners {
		_ = ln.Close()
	}
	for c := range t.mu.conns {
		_ = c.Close()
	}
	t.mu.Unlock()
	t.wg.Wait()
}

// addConn registers a connection for closeAll; false after it.
func (t *bulkTap) addConn(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.conns[c] = true
	return !t.mu.closed
}

func (t *bulkTap) dropConn(c net.Conn) {
	_ = c.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.conns, c)
}

// serveConn forwards a connection until one of its directions ends: writer and owner close both at once.
func (t *bulkTap) serveConn(in net.Conn, target string, worker uint64) {
	defer t.dropConn(in)
	if tcp, ok := in.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(tapReceive) // a writer is not to be far ahead of what has passed
	}
	out, err := net.DialTimeout("tcp", target, dialPatience)
	if err != nil {
		return
	}
	defer t.dropConn(out)
	if !t.addConn(in) || !t.addConn(out) {
		return
	}
	var back sync.WaitGroup
	defer back.Wait()
	back.Go(func() {
		_, _ = io.Copy(in, out)
		_ = in.Close()
		_ = out.Close()
	})
	from, _, _ := net.SplitHostPort(in.RemoteAddr().String())
	_ = t.forwardFrames(bufio.NewReaderSize(in, tapReceive), out, from, worker) // its error is the end of a connection
	_ = in.Close()
	_ = out.Close()
}

// forwardFrames forwards a writer's frames until its connection ends, or its transfer is cut.
func (t *bulkTap) forwardFrames(in *bufio.Reader, out io.Writer, from string, worker uint64) error {
	if _, err := io.CopyN(out, in, bulkMagic); err != nil {
		return err
	}
	var current *tapTransfer
	frame := make([]byte, frameHead+frameMax+frameSum)
	for {
		if _, err := io.ReadFull(in, frame[:frameHead]); err != nil {
			return err
		}
		n := int(binary.LittleEndian.Uint32(frame))
		if n > frameMax {
			return fmt.Errorf("a frame of %d bytes", n)
		}
		whole, kind := frame[:frameHead+n+frameSum], frame[4]
		if _, err := io.ReadFull(in, whole[frameHead:]); err != nil {
			return err
		}
		payload, bytes := whole[frameHead:frameHead+n], int64(0)
		switch {
		case kind == bulkBegin && n >= 32:
			current = t.begin(from, worker, int64(binary.LittleEndian.Uint64(payload[24:])))
		case kind == bulkChunk && n >= 12:
			bytes = int64(binary.LittleEndian.Uint32(payload[8:]))
		case kind == bulkWhole && n >= 28:
			bytes = int64(binary.LittleEndian.Uint32(payload[24:]))
		}
		if current != nil && !t.mayPass(current, kind) {
			return fmt.Errorf("the transfer was cut")
		}
		if _, err := out.Write(whole); err != nil {
			return err
		}
		if _, err := io.CopyN(out, in, bytes); err != nil {
			return err
		}
		if current != nil {
			t.count(current, kind, bytes)
		}
		if kind == bulkEnd || kind == bulkAbort {
			current = nil
		}
	}
}

func (t *bulkTap) begin(from string, worker uint64, size int64) *tapTransfer {
	x := &tapTransfer{from: from, to: worker, size: size, cut: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.transfers = append(t.mu.transfers, x)
	return x
}

func (t *bulkTap) count(x *tapTransfer, kind byte, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x.passed += bytes
	x.ended = x.ended || kind == bulkEnd
}

// mayPass waits as long as a transfer is held back before a frame. It reports false if the transfer was cut.
func (t *bulkTap) mayPass(x *tapTransfer, kind byte) bool {
	t.mu.Lock()
	if t.mu.room == 0 || t.mu.at.frame != kind || x.passed < t.mu.at.bytes {
		defer t.mu.Unlock()
		return !x.isCut
	}
	t.mu.room--
	x.held = true
	if t.mu.since.IsZero() {
		t.mu.since = time.Now()
	}
	released := t.mu.released
	t.mu.Unlock()
	select {
	case <-released:
	case <-x.cut:
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	x.held = false
	return !x.isCut
}

// holdAt holds the next n transfers which reach a point, and forgets the transfers so far.
func (t *bulkTap) holdAt(p tapPoint, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.at, t.mu.room, t.mu.transfers, t.mu.held = p, n, nil, 0
}

// release lets all transfers go on. It returns for how long some were held back since holdAt.
func (t *bulkTap) release() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.room = 0
	if !t.mu.since.IsZero() {
		t.mu.held += time.Since(t.mu.since)
		t.mu.since = time.Time{}
	}
	close(t.mu.released)
	t.mu.released = make(chan struct{})
	return t.mu.held
}

// cutWhere ends transfers as the end of a host does: what is held back of them is lost.
func (t *bulkTap) cutWhere(where func(x *tapTransfer) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.mu.transfers {
		if where(x) && !x.ended && !x.isCut {
			x.isCut = true
			close(x.cut)
		}
	}
}

// list returns the transfers since holdAt, as they are now.
func (t *bulkTap) list() []tapTransfer {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]tapTransfer, len(t.mu.transfers))
	for i, x := range t.mu.transfers {
		all[i] = *x
	}
	return all
}

// listHeld returns the transfers which are held back.
func (t *bulkTap) listHeld() []tapTransfer {
	return slices.DeleteFunc(t.list(), func(x tapTransfer) bool { return !x.held })
}

// awaitHeld waits until n transfers are held back, and returns them.
func (t *bulkTap) awaitHeld(ctx context.Context, n int) (held []tapTransfer, err error) {
	_, err = fleet.WaitUntil(ctx, time.Millisecond, returnPatience, func(context.Context) error {
		if held = t.listHeld(); len(held) < n {
			return fmt.Errorf("%d transfers are held back, not %d, of %d", len(held), n, len(t.list()))
		}
		return nil
	})
	return held, err
}
