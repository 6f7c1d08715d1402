package zmtp

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

func listenRouter(t *testing.T, o Options) *Router {
	t.Helper()
	o.HandshakeTimeout = patience
	r, err := ListenRouter(loopback(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func dialDealer(t *testing.T, ep Endpoint, o Options) *Dealer {
	t.Helper()
	o.HandshakeTimeout = patience
	d, err := DialDealer(t.Context(), ep, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// TestReplay asks for messages by number, as feeds do, and gets them to the end.
func TestReplay(t *testing.T) {
	ctx := limited(t)
	r := listenRouter(t, Options{})
	served := make(chan error, 1)
	go func() {
		id, frames, err := r.Recv(ctx)
		if err != nil {
			served <- err
			return
		}
		for n := binary.BigEndian.Uint64(frames[1]); n < 5000 && err == nil; n++ {
			err = r.Send(id, numbered("", int(n), 500)...)
		}
		served <- errors.Join(err, r.Send(id, nil, binary.BigEndian.AppendUint64(nil, 1<<64-1), nil))
	}()
	d := dialDealer(t, r.Addr(), Options{})
	if err := d.Send(ctx, nil, binary.BigEndian.AppendUint64(nil, 1000)); err != nil {
		t.Fatal(err)
	}
	for want := uint64(1000); ; want++ {
		m, err := d.Recv(ctx)
		if err != nil {
			t.Fatal(want, err)
		}
		n := binary.BigEndian.Uint64(m[1])
		if n == 1<<64-1 {
			if want != 5000 {
				t.Errorf("the end came before %d", want)
			}
			break
		}
		if n != want || len(m) != 3 || len(m[0]) != 0 || len(m[2]) != 500 {
			t.Fatalf("got %d, want %d", n, want)
		}
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestStuckPeer holds that a peer which does not read fills its own queue and is
// nothing to others.
func TestStuckPeer(t *testing.T) {
	ctx := limited(t)
	// A peer which does not read answers no PING either.
	r := listenRouter(t, Options{HighWater: 50, Linger: -1, Heartbeat: -1})
	c, err := net.Dial("tcp", r.Addr().netAddress())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hello := append(appendGreeting(nil), appendReady(nil, typeDealer, "stuck")...)
	if _, err := c.Write(append(hello, appendMessage(nil, strs("hi"))...)); err != nil {
		t.Fatal(err)
	}
	id, _, err := r.Recv(ctx)
	if err != nil || string(id) != "stuck" {
		t.Fatal(string(id), err)
	}
	full := 0
	for range 1000 {
		switch err := r.Send(id, make([]byte, 100_000)); {
		case errors.Is(err, ErrFull):
			full++
		case err != nil:
			t.Fatal(err)
		}
	}
	if full == 0 {
		t.Error("100 MB are queued for a peer that reads nothing")
	}
	d := dialDealer(t, r.Addr(), Options{Identity: "well"})
	if err := d.Send(ctx, []byte("hi")); err != nil {
		t.Fatal(err)
	}
	if id, _, err = r.Recv(ctx); err != nil || string(id) != "well" {
		t.Fatal(string(id), err)
	}
	if err := r.Send(id, []byte("there")); err != nil {
		t.Fatal(err)
	}
	if m, err := d.Recv(ctx); err != nil || string(m[0]) != "there" {
		t.Error(m, err)
	}
	if err := r.Send([]byte("unknown"), []byte("x")); !errors.Is(err, ErrUnknownPeer) {
		t.Errorf("sent to an unknown peer: %v", err)
	}
}

// TestSameIdentity: a peer which reconnects with the same identity replaces its old connection,
// which is closed.
func TestSameIdentity(t *testing.T) {
	ctx := limited(t)
	r := listenRouter(t, Options{})
	var before *Dealer
	for range 3 {
		d := dialDealer(t, r.Addr(), Options{Identity: "me"})
		if err := d.Send(ctx, []byte("hi")); err != nil {
			t.Fatal(err)
		}
		id, _, err := r.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Send(id, []byte("there")); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Recv(ctx); err != nil {
			t.Fatal(err)
		}
		if before != nil {
			if _, err := before.Recv(ctx); err == nil || ctx.Err() != nil {
				t.Errorf("the old connection got %v", err)
			}
		}
		before = d
	}
}

// TestDealerHoldsLittle: large messages wait in the connection, not in memory.
func TestDealerHoldsLittle(t *testing.T) {
	ctx := limited(t)
	r := listenRouter(t, Options{})
	d := dialDealer(t, r.Addr(), Options{})
	if err := d.Send(ctx, []byte("hi")); err != nil {
		t.Fatal(err)
	}
	id, _, err := r.Recv(ctx)
	if err != nil {
		t.Fatal(err)
	}
	sizes := []int{6 << 20, 6 << 20, 20 << 20, 6 << 20, 1, 6 << 20}
	for _, size := range sizes {
		if err := r.Send(id, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	for i, size := range sizes {
		frames, err := d.Recv(ctx)
		if err != nil || len(frames[0]) != size {
			t.Fatalf("message %d: %v", i, err)
		}
		if held := d.held.Load(); held > 20<<20 {
			t.Errorf("after message %d %d bytes wait", i, held)
		}
	}
	if held := d.held.Load(); held != 0 {
		t.Errorf("%d bytes wait after all", held)
	}
}

// TestDealerEnds holds that all that came is handed over before the reason why no
// more will.
func TestDealerEnds(t *testing.T) {
	ctx := limited(t)
	r := listenRouter(t, Options{Linger: patience})
	d := dialDealer(t, r.Addr(), Options{})
	if err := d.Send(ctx, []byte("hi")); err != nil {
		t.Fatal(err)
	}
	id, _, err := r.Recv(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if err := r.Send(id, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = r.Close()
	}()
	for i := range 500 {
		if _, err := d.Recv(ctx); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, err := d.Recv(ctx); !errors.Is(err, io.EOF) {
		t.Errorf("received %v after the end", err)
	}
	<-closed
	for { // what is queued before the end is known is lost
		if err := d.Send(ctx, []byte("x")); err != nil {
			break
		}
	}
	if _, _, err := r.Recv(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("the router received %v", err)
	}
	_ = d.Close()
	if _, err := d.Recv(ctx); err == nil {
		t.Error("received from a closed dealer")
	}
}

// TestDealerWaitsForRoom holds that Send waits for a ROUTER that does not read, no
// longer than its context.
func TestDealerWaitsForRoom(t *testing.T) {
	r := listenRouter(t, Options{Linger: -1}) // Recv is never called
	d := dialDealer(t, r.Addr(), Options{HighWater: 10, Linger: -1})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var err error
	sent := 0
	for ; err == nil && sent < 100_000; sent++ {
		err = d.Send(ctx, make([]byte, 100_000))
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%d messages of 100 kB were taken, then %v", sent, err)
	}
}

func TestDialDealerFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ep := EndpointOf(ln.Addr())
	_ = ln.Close()
	if _, err := DialDealer(t.Context(), ep, Options{}); err == nil || !strings.Contains(err.Error(), ep.String()) {
		t.Errorf("dialled a closed port: %v", err)
	}
	p := listenPub(t, loopback(t), Options{})
	if _, err := DialDealer(t.Context(), p.Addr(), Options{HandshakeTimeout: patience}); !errors.Is(err, ErrProtocol) {
		t.Errorf("a DEALER talks with a PUB: %v", err)
	}
	if _, err := DialDealer(t.Context(), p.Addr(), Options{Identity: "\x00x"}); err == nil {
		t.Error("an identity that begins with zero is accepted")
	}
}
