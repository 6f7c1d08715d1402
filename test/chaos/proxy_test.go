package main

import (
	"errors"
	"io"
	"math/bits"
	"net"
	"os"
	"testing"
	"time"

	"penstock/internal/fixturetest"
)

// echo answers each connection with what it says, after its name, until it ends.
func echo(t *testing.T, name string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(name))
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	return ln
}

// dial opens a connection whose reads end after a moment if expect is nothing.
func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func read(t *testing.T, c net.Conn, want string) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v, want %q", got, err, want)
	}
}

// silent demands that nothing comes, not even an end.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v, of a connection that is cut", n, err)
	}
}

// TestCut: nothing passes while a proxy is cut, in either direction, no end
// either, and all of it afterwards.
func TestCut(t *testing.T) {
	target := echo(t, ">")
	p, err := newCutProxyConn("127.0.0.1:0", target.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.closeAll()
	c := dial(t, p.listenAddr())
	read(t, c, ">")
	if _, err := c.Write([]byte("one")); err != nil {
		t.Fatal(err)
	}
	read(t, c, "one")

	p.cutTraffic()
	p.cutTraffic() // again makes no difference
	if _, err := c.Write([]byte("two")); err != nil {
		t.Fatal(err)
	}
	silent(t, c)
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	silent(t, c) // the far end would close it now

	p.restoreTraffic()
	read(t, c, "two")
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d bytes, %v, want the end", n, err)
	}

	p.cutTraffic()
	late := dial(t, p.listenAddr()) // taken, and left without an answer
	silent(t, late)
	p.restoreTraffic()
	read(t, late, ">")
}

// TestBalancer: connections go round, past servers which do not listen, and bytes go
// through unchanged.
func TestBalancer(t *testing.T) {
	a, b := echo(t, "a"), echo(t, "b")
	lb, err := newConnBalancer("127.0.0.1:0", a.Addr().String(), fixturetest.ReserveAddr(t), b.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer lb.closeAll()
	seen := map[string]int{}
	for range 6 {
		c := dial(t, lb.ln.Addr().String())
		name := make([]byte, 1)
		if _, err := io.ReadFull(c, name); err != nil {
			t.Fatal(err)
		}
		seen[string(name)]++
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		read(t, c, "x")
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if refused, lost := lb.retryCounts(); seen["a"] == 0 || seen["b"] == 0 || refused != 2 || lost != 0 {
		t.Errorf("%v, %d refused, %d lost", seen, refused, lost)
	}
}

// TestNoServerListens: a connection that no process takes is closed.
func TestNoServerListens(t *testing.T) {
	lb, err := newConnBalancer("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lb.closeAll()
	c := dial(t, lb.ln.Addr().String())
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d bytes, %v", n, err)
	}
	if _, lost := lb.retryCounts(); lost != 1 {
		t.Errorf("%d lost", lost)
	}
}

func TestChoose(t *testing.T) {
	all, err := chooseScenarios(nil, options{})
	if err != nil || len(all) != len(scenarios()) {
		t.Errorf("%d scenarios, %v", len(all), err)
	}
	short, err := chooseScenarios(nil, options{short: true})
	if err != nil || len(short) == 0 || len(short) >= len(all) {
		t.Errorf("the short form has %d scenarios, %v", len(short), err)
	}
	named, err := chooseScenarios([]string{"netns", "kill"}, options{short: true})
	if err != nil || len(named) != 2 || named[0].name != "netns" {
		t.Errorf("%v, %v", named, err)
	}
	if _, err := chooseScenarios([]string{"quake"}, options{}); err == nil {
		t.Error("no error for a scenario that does not exist")
	}
}

// A flipper that was not started damages nothing; one that was flips one bit at a time, as
// often as it says.
func TestFlipper(t *testing.T) {
	var f bitFlipper
	b := make([]byte, 10*flipEvery)
	f.damageBytes(b)
	if n := f.flipCount(); n != 0 {
		t.Errorf("%d bits before it began", n)
	}
	f.startFlipping(1, flipEvery)
	for i := 0; i < len(b); i += 100 {
		f.damageBytes(b[i : i+100])
	}
	wrong := 0
	for _, c := range b {
		wrong += bits.OnesCount8(c)
	}
	if n := f.flipCount(); n != wrong || n < 4 || n > 40 {
		t.Errorf("%d bits are wrong and %d counted, want about 10", wrong, n)
	}
}
