package rpc

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
)

// silent dials n and sends only first. It reads what arrives, so that the peer does not block on
// that.
func silent(t *testing.T, n *pipeNet, first []byte) net.Conn {
	t.Helper()
	conn, err := n.dial()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(first); err != nil {
		t.Fatal(err)
	}
	n.pumps.Go(func() { _, _ = io.Copy(io.Discard, conn) })
	synctest.Wait()
	return conn
}

// Bodies that were announced and do not come take the room of others for a
// while, not for ever, however alive their client is.
func TestTCPAnnouncedBodiesGiveWay(t *testing.T) {
	inBubble(t, func(context.Context, string, []byte, func([]byte) error) error { return nil }, func(t *testing.T, n *pipeNet, p *TCPPlane) {
		first := encodeGreeting(&hello{minVersion: 1, maxVersion: 1})
		for id := uint32(1); id <= 4; id++ {
			head := appendCallHead(nil, &callHeader{size: MaxBody, method: "m"})
			first = append(appendFrameHeader(first, frameCall, id, len(head)), head...)
		}
		var conns []net.Conn
		for range 4 { // a gigabyte in all
			conns = append(conns, silent(t, n, first))
		}
		if err := p.Call(t.Context(), "tcp://pipe:1", "m", []byte("x"), discard); fault.CodeOf(err) != fault.Overloaded {
			t.Errorf("beside bodies that fill the server: %v, want Overloaded", err)
		}
		ping := append(appendFrameHeader(nil, framePing, 0, pingSize), make([]byte, pingSize)...)
		for start := time.Now(); time.Since(start) <= bodyTimeout; <-time.After(time.Second) {
			for _, conn := range conns {
				if _, err := conn.Write(ping); err != nil {
					t.Fatalf("cut off after %v: %v", time.Since(start), err)
				}
			}
		}
		if err := p.Call(t.Context(), "tcp://pipe:1", "m", []byte("x"), discard); err != nil {
			t.Errorf("when their time is up: %v", err)
		}
		for _, conn := range conns {
			conn.Close()
		}
	})
}

// Silent connections displace each other, not connections which greet.
func TestTCPSilentConnectionsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPipeNet()
		server, client := planeOn(t, n, TCPConfig{Conns: 8}), planeOn(t, n, TCPConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- server.Serve(ctx, "pipe:1", func(context.Context, string, []byte, func([]byte) error) error { return nil }, nil)
		}()
		var conns []net.Conn
		for range 20 {
			conns = append(conns, silent(t, n, []byte("pen")))
		}
		if err := client.Call(t.Context(), "tcp://pipe:1", "m", nil, discard); err != nil {
			t.Errorf("a call beside silent connections: %v", err)
		}
		if _, err := conns[0].Write([]byte("s")); err == nil {
			t.Error("the oldest silent connection is open still")
		}
		client.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		for _, conn := range conns {
			conn.Close()
		}
		n.pumps.Wait()
	})
}
