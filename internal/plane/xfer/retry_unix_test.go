//go:build unix

package xfer_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"penstock/internal/plane/xfer"
)

// lateListener is a way to a TCPPlane which is closed at first: connections to its address are refused.
type lateListener struct {
	t       *testing.T
	addr    string // at which the owner is believed to be
	socket  *os.File
	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		conns    []net.Conn
		accepted int
	}
}

// newLateListener draws an address. It has a socket which is bound to it, so that no other process gets it.
func newLateListener(t *testing.T) *lateListener {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.CloseOnExec(fd)
	socket := os.NewFile(uintptr(fd), "late")
	t.Cleanup(func() { socket.Close() })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
	return &lateListener{t: t, addr: addr, socket: socket}
}

// open begins to listen, and passes connections on to another address until the end of the test.
func (d *lateListener) open(to string) {
	if err := unix.Listen(int(d.socket.Fd()), 16); err != nil {
		d.t.Error(err)
		return
	}
	l, err := net.FileListener(d.socket)
	if err != nil {
		d.t.Error(err)
		return
	}
	d.t.Cleanup(func() {
		l.Close()
		d.mu.Lock()
		for _, c := range d.mu.conns {
			c.Close()
		}
		d.mu.Unlock()
		d.running.Wait()
	})
	d.running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			d.mu.Lock()
			d.mu.conns = append(d.mu.conns, near, far)
			d.mu.accepted++
			d.mu.Unlock()
			for _, ends := range [][2]net.Conn{{near, far}, {far, near}} {
				d.running.Go(func() {
					_, _ = io.Copy(ends[0], ends[1])
					ends[0].Close()
				})
			}
		}
	})
}

// TestRetryUntilOwnerListens: a transfer whose owner does not listen at first arrives, whole, once.
func TestRetryUntilOwnerListens(t *testing.T) {
	for name, size := range map[string]int{"small": 64 << 10, "large": 3 << 20} {
		t.Run(name, func(t *testing.T) {
			late, owner := newLateListener(t), newTCP(t, xfer.TCPConfig{})
			run(t, owner)
			into := make([]byte, size)
			transfer, err := owner.Expect(xfer.Incoming{Into: [][]byte{into}})
			if err != nil {
				t.Fatal(err)
			}
			d := transfer.Descriptor()
			to := d.Endpoints[0].Address
			d.Endpoints = []xfer.OwnerAddress{{Transport: xfer.TCP, Address: late.addr}}
			refused, opened := 0, 0
			p := &xfer.RetryPlane{Plane: newTCP(t, xfer.TCPConfig{}), Until: time.Now().Add(time.Minute), OnAttempt: func(err error) {
				if err == nil {
					opened++
				} else if refused++; refused == 2 {
					late.open(to)
				}
			}}
			sent := fillPattern(make([]byte, size), 3)
			if err := xfer.Write(t.Context(), p, d, []byte("note"), sent); err != nil {
				t.Fatal(err)
			}
			if receipt, err := transfer.Wait(t.Context()); err != nil || string(receipt.Note) != "note" || !bytes.Equal(into, sent) {
				t.Errorf("%+v, %v", receipt, err)
			}
			late.mu.Lock()
			defer late.mu.Unlock()
			if refused < 2 || opened != 1 || late.mu.accepted != 1 {
				t.Errorf("%d attempts were refused, %d transfers opened, by %d connections", refused, opened, late.mu.accepted)
			}
		})
	}
}
