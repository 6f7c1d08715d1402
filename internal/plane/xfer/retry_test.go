package xfer_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/xfer"
)

// lateListener is a way to a TCPPlane which is closed at first: connections to its address are refused.
type lateListener struct {
	t       *testing.T
	addr    string // at which the owner is believed to be
	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		conns    []net.Conn
		accepted int
	}
}

// newLateListener draws an address.
func newLateListener(t *testing.T) *lateListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	return &lateListener{t: t, addr: l.Addr().String()}
}

// open begins to listen, and passes connections on to another address until the end of the test.
func (d *lateListener) open(to string) {
	l, err := net.Listen("tcp", d.addr)
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
			late, free := newLateListener(t), newLateListener(t)
			owner := newTCP(t, xfer.TCPConfig{Listen: free.addr, Advertise: late.addr})
			run(t, owner)
			into := make([]byte, size)
			transfer, err := owner.Expect(xfer.Incoming{Into: [][]byte{into}})
			if err != nil {
				t.Fatal(err)
			}
			refused, opened := 0, 0
			p := &xfer.RetryPlane{Plane: newTCP(t, xfer.TCPConfig{}), Within: time.Minute, OnAttempt: func(err error) {
				if err == nil {
					opened++
				} else if refused++; refused == 2 {
					late.open(free.addr)
				}
			}}
			sent := fillPattern(make([]byte, size), 3)
			if err := xfer.Write(t.Context(), p, transfer.Descriptor(), []byte("note"), sent); err != nil {
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

// failingPlane fails to open transfers, or, with opens, opens transfers whose writes fail.
type failingPlane struct {
	xfer.Plane
	err   error
	opens bool
	began []time.Time
}

func (p *failingPlane) Open(context.Context, xfer.Descriptor) (xfer.TransferWriter, error) {
	p.began = append(p.began, time.Now())
	if p.opens {
		return failingWriter{err: p.err}, nil
	}
	return nil, p.err
}

type failingWriter struct {
	xfer.TransferWriter
	err error
}

func (w failingWriter) Write([]byte) error { return w.err }

// TestNoRetryOnceOpen: a transfer which was opened is not repeated, since the owner may have bytes of it.
func TestNoRetryOnceOpen(t *testing.T) {
	f := &failingPlane{err: fault.New(fault.Unavailable, "the connection is lost"), opens: true}
	err := xfer.Write(t.Context(), &xfer.RetryPlane{Plane: f, Within: time.Minute}, xfer.Descriptor{}, nil, []byte("bytes"))
	if !errors.Is(err, f.err) || len(f.began) != 1 {
		t.Errorf("%d attempts, and then %v", len(f.began), err)
	}
}

// TestRetryEnds: attempts begin within the time which they have, and only failures are repeated which another attempt
// can mend.
func TestRetryEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		err      error
		repeated bool
	}{
		"unreachable":   {fault.New(fault.Unavailable, "refused"), true},
		"full":          {fault.New(fault.Overloaded, "no room"), true},
		"unknown":       {fault.New(fault.NotFound, "the transfer is over"), false},
		"another life":  {fault.New(fault.Conflict, "stale"), false},
		"a wrong token": {fault.New(fault.Invalid, "token"), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &failingPlane{err: tt.err}
				began := time.Now()
				_, err := (&xfer.RetryPlane{Plane: f, Within: 10 * time.Second}).Open(t.Context(), xfer.Descriptor{})
				took := time.Since(began)
				if !errors.Is(err, tt.err) {
					t.Errorf("%v", err)
				}
				if !tt.repeated && len(f.began) == 1 && took == 0 {
					return
				}
				// The longest wait is 1 s, and half of it more.
				if !tt.repeated || len(f.began) < 7 || took > 10*time.Second || took < 8*time.Second {
					t.Errorf("%d attempts in %v", len(f.began), took)
				}
			})
		})
	}
}

// TestRetryIsCancelled: the end of the context ends the wait between two attempts.
func TestRetryIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failingPlane{err: fault.New(fault.Unavailable, "refused")}
		ctx, cancel := context.WithCancel(t.Context())
		p := &xfer.RetryPlane{Plane: f, Within: time.Minute, OnAttempt: func(error) {
			if len(f.began) == 3 {
				time.AfterFunc(time.Millisecond, cancel) // virtual: in the wait which follows
			}
		}}
		if _, err := p.Open(ctx, xfer.Descriptor{}); !errors.Is(err, context.Canceled) || len(f.began) != 3 {
			t.Errorf("%d attempts, and then %v", len(f.began), err)
		}
	})
}
