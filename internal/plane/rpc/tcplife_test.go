package rpc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"penstock/core/fault"
)

// inBubble runs test with a server on a pipe network and a plane to call with.
func inBubble(t *testing.T, h Handler, test func(t *testing.T, n *pipeNet, p *TCPPlane)) {
	synctest.Test(t, func(t *testing.T) {
		n := newPipeNet()
		server, client := planeOn(t, n, TCPConfig{}), planeOn(t, n, TCPConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- server.Serve(ctx, "pipe:1", h, nil) }()
		synctest.Wait()
		test(t, n, client)
		client.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		n.pumps.Wait()
	})
}

// A connection on which nothing is said stays as long as both sides are there.
func TestTCPSilenceIsNotDeath(t *testing.T) {
	h := func(ctx context.Context, _ string, _ []byte, send func([]byte) error) error {
		select {
		case <-time.After(time.Hour):
			return send([]byte("an hour later"))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	inBubble(t, h, func(t *testing.T, n *pipeNet, p *TCPPlane) {
		got := ""
		if err := p.Call(t.Context(), "tcp://pipe:1", "m", nil, func(f []byte) error { got = string(f); return nil }); err != nil || got != "an hour later" {
			t.Errorf("%q, %v", got, err)
		}
		if n := n.dialled.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
	})
}

// The clock of a connection is the deadline of its reads, also within TLS, which
// goes on after one that passed.
func TestTCPSilenceWithinTLS(t *testing.T) {
	serverTLS, clientTLS := Certificates(t)
	clientTLS.ServerName = "127.0.0.1"
	synctest.Test(t, func(t *testing.T) {
		n := newPipeNet()
		p := planeOn(t, n, TCPConfig{ServerTLS: serverTLS, ClientTLS: clientTLS})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- p.Serve(ctx, "pipe:1", func(ctx context.Context, _ string, _ []byte, send func([]byte) error) error {
				select {
				case <-time.After(time.Minute):
					return send([]byte("a minute later"))
				case <-ctx.Done():
					return ctx.Err()
				}
			}, nil)
		}()
		synctest.Wait()
		got := ""
		if err := p.Call(t.Context(), "tcp://pipe:1", "m", nil, func(f []byte) error { got = string(f); return nil }); err != nil || got != "a minute later" {
			t.Errorf("%q, %v", got, err)
		}
		if n := n.dialled.Load(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		p.Close()
		n.pumps.Wait()
	})
}

// Both sides notice within two seconds that the other is gone, whenever it goes.
func TestTCPNoticesACutWithinTwoSeconds(t *testing.T) {
	for after := time.Duration(0); after < 2*time.Second; after += 130 * time.Millisecond {
		var over chan time.Time // of the bubble
		quiet := func(ctx context.Context, _ string, _ []byte, _ func([]byte) error) error {
			<-ctx.Done()
			over <- time.Now()
			return ctx.Err()
		}
		inBubble(t, quiet, func(t *testing.T, n *pipeNet, p *TCPPlane) {
			over = make(chan time.Time, 2)
			called := make(chan error, 1)
			var ended time.Time
			go func() {
				err := p.Call(t.Context(), "tcp://pipe:1", "m", nil, discard)
				ended = time.Now()
				called <- err
			}()
			<-time.After(after)
			synctest.Wait()
			n.cut.Store(true)
			cut := time.Now()
			if err := <-called; fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("cut after %v: the call ended with %v, want Unavailable", after, err)
			}
			if d := ended.Sub(cut); d > 2*time.Second {
				t.Errorf("cut after %v: the caller noticed after %v", after, d)
			}
			if d := (<-over).Sub(cut); d > 2*time.Second {
				t.Errorf("cut after %v: the handler was told after %v", after, d)
			}
			n.cut.Store(false)
			// The next call has a connection of its own.
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := p.Call(ctx, "tcp://pipe:1", "m", nil, discard); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("after the cut: %v", err)
			}
			if n := n.dialled.Load(); n != 2 {
				t.Errorf("%d connections, want 2", n)
			}
		})
	}
}

// A connection that was cut while idle costs the call that finds it so no more
// than the two seconds.
func TestTCPCallOnAConnectionCutWhileIdle(t *testing.T) {
	h := func(context.Context, string, []byte, func([]byte) error) error { return nil }
	inBubble(t, h, func(t *testing.T, n *pipeNet, p *TCPPlane) {
		call := func() error { return p.Call(t.Context(), "tcp://pipe:1", "m", nil, discard) }
		if err := call(); err != nil {
			t.Fatal(err)
		}
		<-time.After(7 * time.Second)
		n.cut.Store(true)
		<-time.After(time.Second)
		start := time.Now()
		if err := call(); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("%v, want Unavailable", err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("it took %v", d)
		}
		n.cut.Store(false)
		if err := call(); err != nil {
			t.Errorf("the next call: %v", err)
		}
	})
}

// Without calls a cut is noticed too, in 20 times as long, and the next call does
// not suffer from it.
func TestTCPIdleConnectionsAreWatched(t *testing.T) {
	h := func(context.Context, string, []byte, func([]byte) error) error { return nil }
	inBubble(t, h, func(t *testing.T, n *pipeNet, p *TCPPlane) {
		call := func() error { return p.Call(t.Context(), "tcp://pipe:1", "m", nil, discard) }
		if err := call(); err != nil {
			t.Fatal(err)
		}
		n.cut.Store(true)
		<-time.After(41 * time.Second)
		n.cut.Store(false)
		if err := call(); err != nil {
			t.Errorf("after a cut that was noticed: %v", err)
		}
		if n := n.dialled.Load(); n != 2 {
			t.Errorf("%d connections, want 2", n)
		}
	})
}

func TestTCPIdleConnectionsAreClosed(t *testing.T) {
	h := func(context.Context, string, []byte, func([]byte) error) error { return nil }
	inBubble(t, h, func(t *testing.T, n *pipeNet, p *TCPPlane) {
		call := func(want int64) {
			t.Helper()
			if err := p.Call(t.Context(), "tcp://pipe:1", "m", nil, discard); err != nil {
				t.Fatal(err)
			}
			if got := n.dialled.Load(); got != want {
				t.Errorf("%d connections, want %d", got, want)
			}
		}
		call(1)
		<-time.After(4 * time.Minute)
		call(1)
		<-time.After(6 * time.Minute)
		n.pumps.Wait() // both ends have closed it
		call(2)
	})
}

// A client that does not greet is not waited for, nor a server.
func TestTCPGreetingsAreBounded(t *testing.T) {
	h := func(context.Context, string, []byte, func([]byte) error) error { return nil }
	inBubble(t, h, func(t *testing.T, n *pipeNet, _ *TCPPlane) {
		conn, err := n.dial()
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("the server spoke first")
		}
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("a client that says nothing was cut off after %v, want 5s", d)
		}
		conn.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		n := newPipeNet()
		p := planeOn(t, n, TCPConfig{})
		start := time.Now()
		if err := p.Call(t.Context(), "tcp://pipe:1", "m", nil, discard); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("%v, want Unavailable", err)
		}
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("a server that says nothing was given up after %v, want 2s", d)
		}
		p.Close()
		(<-n.backlog).Close()
		n.pumps.Wait()
	})
}

// A client that sends but does not read is cut off when the write has waited for
// its limit: bytes that come are life, and are not enough.
func TestTCPPeerThatDoesNotRead(t *testing.T) {
	var over chan time.Time // of the bubble
	flood := func(ctx context.Context, _ string, _ []byte, send func([]byte) error) error {
		for send(make([]byte, 1000)) == nil {
		}
		<-ctx.Done()
		over <- time.Now()
		return nil
	}
	inBubble(t, flood, func(t *testing.T, n *pipeNet, _ *TCPPlane) {
		over = make(chan time.Time, 1)
		conn, err := n.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		b := encodeGreeting(&hello{minVersion: 1, maxVersion: 1, frames: 1 << 30, bytes: 1 << 30})
		head := appendCallHead(nil, &callHeader{method: "m"})
		b = append(appendFrameHeader(b, frameCall, 1, len(head)), head...)
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		ping := append(appendFrameHeader(nil, framePing, 0, pingSize), make([]byte, pingSize)...)
		for {
			select {
			case at := <-over:
				if d := at.Sub(start); d < 9*time.Second || d > 11*time.Second {
					t.Errorf("it was cut off after %v, want about 10s", d)
				}
				return
			case <-time.After(300 * time.Millisecond):
				_, _ = conn.Write(ping)
			}
		}
	})
}
