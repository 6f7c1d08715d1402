package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock/core/fault"
)

// Every bit of a frame is covered, including the length, which is checked before the payload
// arrives.
func TestTCPEachBitIsChecked(t *testing.T) {
	f := framing{checksums: true}
	for _, n := range []int{0, 1, 63, 64, 1000, tcpPayload} {
		frame := f.appendFrame(nil, frameData, 7, randomBytes(n), nil)
		if typ, id, payload, size, err := f.splitFrame(frame); typ != frameData || id != 7 || len(payload) != n || size != len(frame) || err != nil {
			t.Fatalf("%d bytes came back as %d bytes of type %d, call %d, %v", n, len(payload), typ, id, err)
		}
		for bit := range 8 * len(frame) {
			frame[bit/8] ^= 1 << (bit % 8)
			got := frame
			if bit/8 < tcpHeader+checksumSize {
				got = frame[:tcpHeader+checksumSize] // nothing else need come
			}
			if _, _, _, _, err := f.splitFrame(got); err != errDamaged {
				t.Fatalf("bit %d of a frame of %d bytes is wrong: %v", bit, n, err)
			}
			frame[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// flipped is a connection on which one bit is wrong, either of what is read or of what is
// written.
type flipped struct {
	net.Conn
	reads   bool
	at      int // in bits
	read    int // bytes
	written int
}

func (c *flipped) flip(b []byte, seen int) {
	if i := c.at/8 - seen; i >= 0 && i < len(b) {
		b[i] ^= 1 << (c.at % 8)
	}
}

func (c *flipped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.reads {
		c.flip(b[:n], c.read)
	}
	c.read += n
	return n, err
}

func (c *flipped) Write(b []byte) (int, error) {
	b = bytes.Clone(b)
	if !c.reads {
		c.flip(b, c.written)
	}
	n, err := c.Conn.Write(b)
	c.written += n
	return n, err
}

// Whichever bit of a connection is wrong, no call has a wrong answer, and none hangs.
func TestTCPDamageIsNoticed(t *testing.T) {
	cfg := TCPConfig{Dial: 100 * time.Millisecond, Handshake: 100 * time.Millisecond}
	server, _ := planeCounting(t, cfg)
	s := startServing(t, server, "", func(_ context.Context, method string, body []byte, send func([]byte) error) error {
		return send(append([]byte(method+" "), body...))
	})
	const question, answer = "what", "m what"
	failed := 0
	for _, reads := range []bool{false, true} {
		for at := 0; at < 8*160; at += 3 {
			p, _ := planeCounting(t, cfg)
			dial := p.dial
			p.dial = func(ctx context.Context, addr string) (net.Conn, error) {
				conn, err := dial(ctx, addr)
				return &flipped{Conn: conn, reads: reads, at: at}, err
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			got := ""
			err := p.Call(ctx, s.addr, "m", []byte(question), func(f []byte) error { got += string(f); return nil })
			cancel()
			p.Close()
			switch {
			case err == nil && got == answer: // it was a bit of nothing, or not reached
			case fault.CodeOf(err) == fault.Unavailable:
				failed++
			default:
				t.Errorf("bit %d, of what is read: %v: %q, %v", at, reads, got, err)
			}
		}
	}
	if failed < 400 {
		t.Errorf("%d calls failed: too few bits were used", failed)
	}
}

// Damage ends the connection, and the next call has another one.
func TestTCPDamagedConnectionIsReplaced(t *testing.T) {
	p, dialled := planeCounting(t, TCPConfig{})
	var damage atomic.Bool
	dial := p.dial
	p.dial = func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := dial(ctx, addr)
		return &damaging{Conn: conn, damage: &damage}, err
	}
	s := startServing(t, p, "", func(_ context.Context, _ string, body []byte, send func([]byte) error) error { return send(body) })
	for i := range 20 {
		damage.Store(i%2 == 1)
		got := ""
		err := p.Call(t.Context(), s.addr, "m", []byte("body"), func(f []byte) error { got = string(f); return nil })
		switch {
		case i%2 == 0 && (err != nil || got != "body"):
			t.Errorf("call %d: %q, %v", i, got, err)
		case i%2 == 1 && (fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "damaged") || !errors.Is(err, errDamaged)):
			t.Errorf("call %d: %q, %v, want that bytes were damaged", i, got, err)
		}
	}
	if n := dialled.Load(); n != 10 {
		t.Errorf("%d connections, want 10", n)
	}
}

// damaging is a connection which corrupts the last byte of each read while damage is set.
type damaging struct {
	net.Conn
	damage *atomic.Bool
}

func (c *damaging) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.damage.Load() {
		b[n-1] ^= 0x10
	}
	return n, err
}

// An end of a build without checksums is spoken to without, whichever end it is, and one
// with TLS as well.
func TestTCPWithoutChecksums(t *testing.T) {
	serverTLS, clientTLS := Certificates(t)
	for _, c := range []struct {
		name                 string
		oldServer, oldClient bool
		tls                  bool
		sums, unchecked      bool
	}{
		{name: "both know them", sums: true},
		{name: "an old server", oldServer: true, unchecked: true},
		{name: "an old client", oldClient: true, unchecked: true},
		{name: "TLS", tls: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ours, theirs TCPConfig
			if c.tls {
				ours.ClientTLS, theirs.ServerTLS = clientTLS, serverTLS
			}
			server, _ := planeCounting(t, theirs)
			client, _ := planeCounting(t, ours)
			server.noChecksums, client.noChecksums = c.oldServer, c.oldClient
			s := startServing(t, server, "", func(_ context.Context, _ string, body []byte, send func([]byte) error) error {
				for range 3 {
					if err := send(body); err != nil {
						return err
					}
				}
				return nil
			})
			for _, n := range []int{0, 1, tcpPayload, 1 << 20} {
				body := randomBytes(n)
				frames := 0
				err := client.Call(t.Context(), s.addr, "m", body, func(f []byte) error {
					if !bytes.Equal(f, body) {
						return fmt.Errorf("frame %d differs", frames)
					}
					frames++
					return nil
				})
				if err != nil || frames != 3 {
					t.Errorf("a body of %d bytes: %d frames, %v", n, frames, err)
				}
			}
			if sums := client.mu.peers[s.addr].link.out.checksums; sums != c.sums {
				t.Errorf("checksums: %v, want %v", sums, c.sums)
			}
			if got := client.Unchecked(s.addr); got != c.unchecked {
				t.Errorf("unchecked: %v, want %v", got, c.unchecked)
			}
		})
	}
}

// FuzzTCPSums has a reader of frames with checksums read anything: what it takes is
// what would be written.
func FuzzTCPSums(f *testing.F) {
	with := framing{checksums: true}
	for _, n := range []int{0, 1, 100} {
		f.Add(with.appendFrame(nil, frameCall, 3, randomBytes(n), nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		typ, id, payload, size, err := with.splitFrame(b)
		if err != nil || size == 0 {
			return
		}
		if again := with.appendFrame(nil, typ, id, payload, nil); !bytes.Equal(again, b[:size]) {
			t.Errorf("% x is taken and would be written % x", b[:size], again)
		}
	})
}
