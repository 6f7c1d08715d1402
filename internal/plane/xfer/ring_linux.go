package xfer

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Frames in shared memory go through two rings of bytes, one for each direction. Each end has a memory
// which it alone writes and the other end only reads:
//
//	offset  word, u64
//	0       bytes which this end has written to its ring so far
//	64      bytes which it has taken from the peer's ring so far
//	128     odd while it sleeps until bytes come
//	192     odd while it sleeps until the peer has taken bytes
//	4096    its ring
//
// An end which finds the peer asleep sends one byte on the socket of the connection.
const (
	wordWritten, wordTaken        = 0, 64
	wordWantsBytes, wordWantsRoom = 128, 192
	ringAt                        = 4096
	ringMemory                    = ringAt + ringBytes
)

var (
	errDamagedRing = errors.New("the peer's numbers of bytes in shared memory are impossible")
	errFullRing    = errors.New("the peer has answered frames which it has not taken")
)

// ringMem is one end's memory.
type ringMem []byte

func (m ringMem) word(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&m[at])) }

// ringConn is a connection whose bytes go through shared memory. The socket wakes sleeping ends, and its
// end is that of the connection. One goroutine may read while others, in turns, write what there is room
// for: one at a time may sleep.
type ringConn struct {
	net.Conn
	ours, peers ringMem
	raw         syscall.RawConn // of Conn
	poll        *poller
	taken       uint64 // of the peer's ring
	written     uint64 // to ours
	rungBytes   uint64 // the peer's sleeps from which it was woken
	rungRoom    uint64
	expired     struct{ read, write atomic.Bool } // the deadline is over
	doorbells   [64]byte
}

var (
	_ net.Conn    = (*ringConn)(nil)
	_ burstReader = (*ringConn)(nil)
)

// newRingConn returns a connection over a unix socket, without its rings.
func newRingConn(conn net.Conn, poll *poller) (*ringConn, error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errNoSharedMemory
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &ringConn{Conn: conn, raw: raw, poll: poll}, nil
}

// hasBytes reports whether reading does not block.
func (c *ringConn) hasBytes() bool {
	return c.peers.word(wordWritten).Load() != c.taken || c.expired.read.Load()
}

// hasRoom reports whether writing does not block.
func (c *ringConn) hasRoom() bool {
	return c.written-c.peers.word(wordTaken).Load() != ringBytes || c.expired.write.Load()
}

// Read implements net.Conn.
func (c *ringConn) Read(p []byte) (int, error) {
	for {
		if n, err := c.tryRead(p, nil); err != errWouldWait {
			return n, err
		}
		// Bytes which were written before the peer closed the connection are still there.
		if err := c.sleep(wordWantsBytes, c.hasBytes); err != nil && !c.hasBytes() {
			return 0, err
		}
	}
}

// tryRead implements burstReader. It reads nothing into q.
func (c *ringConn) tryRead(p, _ []byte) (int, error) {
	if c.expired.read.Load() {
		return 0, os.ErrDeadlineExceeded
	}
	n, err := c.take(p)
	if n == 0 && err == nil {
		err = errWouldWait
	}
	return n, err
}

// pollRead implements burstReader.
func (c *ringConn) pollRead(p []byte) (int, error) {
	c.poll.await(c.hasBytes)
	return c.tryRead(p, nil)
}

// take copies what is in the peer's ring, and makes room in it.
func (c *ringConn) take(p []byte) (int, error) {
	n := c.peers.word(wordWritten).Load() - c.taken
	if n > ringBytes {
		return 0, errDamagedRing
	}
	p = p[:min(uint64(len(p)), n)]
	if len(p) == 0 {
		return 0, nil
	}
	at := c.taken % ringBytes
	k := copy(p, c.peers[ringAt+at:])
	copy(p[k:], c.peers[ringAt:])
	c.taken += uint64(len(p))
	c.ours.word(wordTaken).Store(c.taken)
	return len(p), c.wake(wordWantsRoom, &c.rungRoom)
}

// Write implements net.Conn.
func (c *ringConn) Write(p []byte) (int, error) {
	done := 0
	for {
		if c.expired.write.Load() {
			return done, os.ErrDeadlineExceeded
		}
		n, err := c.put(p[done:])
		if done += n; err != nil || done == len(p) {
			return done, err
		}
		if c.poll.await(c.hasRoom) {
			continue
		}
		if err := c.sleep(wordWantsRoom, c.hasRoom); err != nil {
			return done, err
		}
	}
}

// writeNow writes all of p, for which there must be room: it never waits for the peer.
func (c *ringConn) writeNow(p []byte) error {
	n, err := c.put(p)
	if err == nil && n < len(p) {
		err = errFullRing
	}
	return err
}

// put copies what there is room for to our ring, and wakes the peer.
func (c *ringConn) put(p []byte) (int, error) {
	used := c.written - c.peers.word(wordTaken).Load()
	if used > ringBytes {
		return 0, errDamagedRing
	}
	p = p[:min(uint64(len(p)), ringBytes-used)]
	if len(p) == 0 {
		return 0, nil
	}
	at := c.written % ringBytes
	k := copy(c.ours[ringAt+at:], p)
	copy(c.ours[ringAt:], p[k:])
	c.written += uint64(len(p))
	c.ours.word(wordWritten).Store(c.written)
	return len(p), c.wake(wordWantsBytes, &c.rungBytes)
}

// wake wakes the peer if it sleeps for what word says, once for each sleep.
func (c *ringConn) wake(word int, rung *uint64) error {
	sleeps := c.peers.word(word).Load()
	if sleeps&1 == 0 || sleeps == *rung {
		return nil
	}
	*rung = sleeps
	return c.raw.Write(sendDoorbell)
}

// sendDoorbell sends one byte on a socket, and never waits: one that is full has bytes which wake the peer. The end of
// the connection is noticed when reading.
func sendDoorbell(fd uintptr) bool {
	_, _ = unix.SendmsgN(int(fd), doorbell, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return true
}

var doorbell = []byte{0}

// sleep waits for a byte on the socket, unless ready. word tells the peer.
func (c *ringConn) sleep(word int, ready func() bool) error {
	asleep := c.ours.word(word)
	asleep.Add(1)
	defer asleep.Add(1)
	if ready() { // the peer may have looked at word before
		return nil
	}
	_, err := c.Conn.Read(c.doorbells[:])
	return err
}

// SetDeadline implements net.Conn.
func (c *ringConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn. A time in the past takes effect at once, another one only while
// reading sleeps.
func (c *ringConn) SetReadDeadline(t time.Time) error {
	c.expired.read.Store(isPast(t))
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn, as SetReadDeadline. A writer which sleeps for room reads the socket,
// so it obeys the deadline for reading.
func (c *ringConn) SetWriteDeadline(t time.Time) error {
	c.expired.write.Store(isPast(t))
	return c.Conn.SetWriteDeadline(t)
}

func isPast(t time.Time) bool { return !t.IsZero() && !t.After(time.Now()) }

// CloseWrite ends the peer's reading, after what was written.
func (c *ringConn) CloseWrite() error {
	u, ok := c.Conn.(*net.UnixConn)
	if !ok {
		return errNoSharedMemory
	}
	return u.CloseWrite()
}

// Close closes the socket and unmaps the rings. No other method may be in progress or follow, except
// methods which set deadlines.
func (c *ringConn) Close() error {
	err := c.Conn.Close()
	c.unmap()
	return err
}

func (c *ringConn) unmap() {
	for _, m := range []*ringMem{&c.ours, &c.peers} {
		if *m != nil {
			_ = unix.Munmap(*m)
			*m = nil
		}
	}
}

// IsQuiet reports whether the connection is open and has nothing to read. It takes stale wake-ups.
func (c *ringConn) IsQuiet() bool {
	if c.hasBytes() {
		return false
	}
	open := false
	err := c.raw.Control(func(fd uintptr) {
		for {
			n, _, err := unix.Recvfrom(int(fd), c.doorbells[:], unix.MSG_DONTWAIT)
			if n > 0 {
				continue
			}
			open = errors.Is(err, unix.EAGAIN)
			return
		}
	})
	return err == nil && open
}
