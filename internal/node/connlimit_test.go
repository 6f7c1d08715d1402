package node

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"penstock/internal/obs"
)

// TestCrowd: the allowed number of connections is served, one more is closed, and a closed one makes room,
// once.
func TestCrowd(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	ln := &limitedListener{Listener: inner, limit: 2, throttle: obs.NewThrottle(slog.New(slog.NewTextHandler(&out, nil)), time.Minute)}
	accepted, ended := make(chan net.Conn), make(chan error, 1)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	refused := func() {
		t.Helper()
		conn := dial()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if n, err := io.Copy(io.Discard, conn); n != 0 || err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("one too many reads %d bytes, %v", n, err)
		}
	}
	dial()
	first := <-accepted
	dial()
	second := <-accepted
	refused()
	refused()
	first.Close()
	first.Close() // counts once
	dial()
	third := <-accepted
	refused()
	second.Close()
	third.Close()
	inner.Close()
	<-ended
	if n := ln.open.Load(); n != 0 {
		t.Errorf("%d are inside", n)
	}
	if text := out.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "max_connections=2") {
		t.Errorf("logged %q", text)
	}
}
