package xfer

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ringPair returns both ends of a connection whose rings are memory of this process.
func ringPair(t *testing.T) (a, b *ringConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*ringConn
	memories := [2]ringMem{make(ringMem, ringMemory), make(ringMem, ringMemory)}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if ends[i], err = newRingConn(c, newPoller()); err != nil {
			t.Fatal(err)
		}
		ends[i].ours, ends[i].peers = memories[i], memories[1-i]
	}
	return ends[0], ends[1]
}

// TestRing: bytes go either way, in order, however they are cut, also when an end sleeps.
func TestRing(t *testing.T) {
	a, b := ringPair(t)
	const total = 4 << 20
	for i, ends := range [][2]*ringConn{{a, b}, {b, a}, {a, b}} {
		var all sync.WaitGroup
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for at := 0; at < total; {
				p := make([]byte, min(1+rng.IntN(100<<10), total-at))
				for k := range p {
					p[k] = byte((at + k) >> 3)
				}
				n, err := ends[0].Write(p)
				if err != nil || n != len(p) {
					t.Errorf("%d of %d bytes were written: %v", n, len(p), err)
					return
				}
				if at += n; rng.IntN(8) == 0 {
					time.Sleep(time.Duration(rng.IntN(200)) * time.Microsecond) // the other end falls asleep
				}
			}
		})
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 2))
			p := make([]byte, 64<<10)
			for at := 0; at < total; {
				n, err := ends[1].Read(p[:1+rng.IntN(len(p))])
				if err != nil || n == 0 {
					t.Errorf("%d bytes at %d: %v", n, at, err)
					return
				}
				for k, v := range p[:n] {
					if v != byte((at+k)>>3) {
						t.Errorf("byte %d is %d", at+k, v)
						return
					}
				}
				at += n
			}
		})
		all.Wait()
	}
}

// TestRingEnds: what was written before the end is read before it.
func TestRingEnds(t *testing.T) {
	a, b := ringPair(t)
	if _, err := a.Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	if !a.IsQuiet() || b.IsQuiet() {
		t.Error("bytes are there for the one end only")
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(b)
	if err != nil || string(got) != "last" {
		t.Errorf("%q %v", got, err)
	}
	if b.IsQuiet() {
		t.Error("an ended connection is quiet")
	}
}

// TestRingDeadlines: a deadline which passes ends reading that sleeps and later reading, also of bytes which are
// there, until another one is set.
func TestRingDeadlines(t *testing.T) {
	a, b := ringPair(t)
	failed := make(chan error)
	go func() {
		_, err := b.Read(make([]byte, 1))
		failed <- err
	}()
	if err := b.SetDeadline(past); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	if _, err := a.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	if _, err := b.Write([]byte("y")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	if err := b.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Error(n, err)
	}
}

// TestSleeplessPeer: a peer which says again and again that it sleeps, and takes no wake-up, holds no writer.
func TestSleeplessPeer(t *testing.T) {
	a, b := ringPair(t)
	for i := range uint64(ringBytes) {
		b.ours.word(wordWantsBytes).Store(2*i + 1)
		if _, err := a.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDamagedRing: impossible numbers of a peer end the connection, and reach no memory beyond the rings.
func TestDamagedRing(t *testing.T) {
	for _, written := range []uint64{ringBytes + 1, 1 << 40, 1 << 63} {
		a, b := ringPair(t)
		a.ours.word(wordWritten).Store(written)
		if _, err := b.Read(make([]byte, 1<<20)); !errors.Is(err, errDamagedRing) {
			t.Errorf("%d bytes are said to be written: %v", written, err)
		}
		a.ours.word(wordTaken).Store(written)
		if _, err := b.Write(bytes.Repeat([]byte{1}, 10)); !errors.Is(err, errDamagedRing) {
			t.Errorf("%d bytes are said to be taken: %v", written, err)
		}
	}
}
