package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// stoppedConn is a connection of a process that is stopped while it waits: each of its
// first reads ends so much after the deadline, and does not see what has come by then.
// The next one finds a frame, if one is there.
type stoppedConn struct {
	net.Conn
	late     []time.Duration
	frame    []byte
	deadline time.Time
	closed   chan struct{}
}

func (c *stoppedConn) SetDeadline(time.Time) error      { return nil }
func (c *stoppedConn) SetWriteDeadline(time.Time) error { return nil }
func (c *stoppedConn) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return nil
}
func (c *stoppedConn) Write(b []byte) (int, error) { return len(b), nil }
func (c *stoppedConn) Close() error                { close(c.closed); return nil }

func (c *stoppedConn) Read(b []byte) (int, error) {
	var late time.Duration
	if len(c.late) > 0 {
		late, c.late = c.late[0], c.late[1:]
	} else if c.frame != nil {
		n := copy(b, c.frame)
		c.frame = nil
		return n, nil
	}
	select {
	case <-time.After(time.Until(c.deadline) + late):
		return 0, os.ErrDeadlineExceeded
	case <-c.closed:
		return 0, io.EOF
	}
}

// A process that was stopped, or gets no processor, does not take its peers for dead
// before it has read what they sent.
func TestTCPStoppedProcess(t *testing.T) {
	const look = 250 * time.Millisecond
	heard := errors.New("a frame came")
	repeat := func(n int, d time.Duration) (all []time.Duration) {
		for range n {
			all = append(all, d)
		}
		return all
	}
	for _, c := range []struct {
		name  string
		late  []time.Duration
		frame bool
		want  error
		took  time.Duration // at most
	}{
		{"no processor", repeat(40, 300*time.Millisecond), true, heard, 40 * 600 * time.Millisecond},
		{"stopped at the last look but one", append(repeat(6, 0), 5*time.Second), true, heard, 10 * time.Second},
		{"stopped at the last look", append(repeat(7, 0), 5*time.Second), true, heard, 10 * time.Second},
		{"bytes waited at the last look but one", repeat(7, 0), true, heard, 2 * time.Second},
		{"the peer is silent", nil, false, errSilent, 7 * look},
		{"the peer is silent, and there is no processor", repeat(1000, 300*time.Millisecond), false, errSilent, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &stoppedConn{late: c.late, closed: make(chan struct{})}
				if c.frame {
					conn.frame = appendFrameHeader(nil, frameCancel, 1, 0)
				}
				cfg := TCPConfig{}
				cfg.EnsureDefaults()
				l := &tcpLink{conn: conn, cfg: &cfg, onFrame: func(frameType, uint32, []byte) error { return heard }}
				l.out.init(framing{}, nil)
				l.calls.Store(1)
				start := time.Now()
				if err := l.run(make([]byte, tcpBuffer)); err != c.want {
					t.Errorf("after %v: %v, want %v", time.Since(start), err, c.want)
				}
				if took := time.Since(start); took > c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
			})
		})
	}
}

// TestTCPShowsLife: a side that has much to read, or is slow to work it off, and has nothing to
// say lets its peer know in time that it is there, also where the peer's pings wait behind what it
// sends.
func TestTCPShowsLife(t *testing.T) {
	for _, c := range []struct {
		name  string
		batch int           // frames in one write of the peer
		work  time.Duration // for each of them
		pause time.Duration // of the peer, after each batch
	}{
		{"much to read", 1, 0, 50 * time.Millisecond},
		{"slow to work it off", 400, 25 * time.Millisecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mine, peer := net.Pipe()
				cfg := TCPConfig{}
				cfg.EnsureDefaults()
				l := &tcpLink{conn: mine, cfg: &cfg, onFrame: func(frameType, uint32, []byte) error {
					time.Sleep(c.work) // virtual
					return nil
				}}
				l.out.init(framing{}, nil)
				l.calls.Store(1)
				done := make(chan error, 1)
				go func() { done <- l.run(make([]byte, tcpBuffer)) }()
				var silence time.Duration // the longest
				read := make(chan struct{})
				go func() {
					defer close(read)
					buf, last := make([]byte, 4096), time.Now()
					for {
						_, err := peer.Read(buf)
						silence, last = max(silence, time.Since(last)), time.Now()
						if err != nil {
							return
						}
					}
				}()
				for range 400 / c.batch { // 10 s and more, no ping among them
					var frames []byte
					for range c.batch {
						frames = appendFrameHeader(frames, frameCancel, 1, 0)
					}
					if _, err := peer.Write(frames); err != nil {
						t.Fatal(err)
					}
					time.Sleep(c.pause) // virtual
				}
				time.Sleep(time.Duration(c.batch) * c.work)
				peer.Close()
				<-read
				<-done
				if silence == 0 || silence > cfg.Dead/2 {
					t.Errorf("nothing came for %v, and a peer waits for %v", silence, cfg.Dead)
				}
			})
		})
	}
}

func TestAfterAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		called := make(chan time.Time, 2)
		start := time.Now()
		stop := afterAwake(2*time.Second, func() { called <- time.Now() })
		if took := (<-called).Sub(start); took != 2*time.Second || stop() {
			t.Errorf("called after %v, want 2s, and it can be stopped no more", took)
		}
		stop = afterAwake(2*time.Second, func() { called <- time.Now() })
		time.Sleep(1900 * time.Millisecond)
		if !stop() || stop() {
			t.Error("it cannot be stopped once")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		select {
		case <-called:
			t.Error("called after it was stopped")
		case <-ctx.Done():
		}
	})
}
