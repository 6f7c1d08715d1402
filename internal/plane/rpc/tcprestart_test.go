package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
)

// A server that comes and goes on one port, while callers go on calling: a call
// that is answered was handled once, one that is not was handled at most once,
// and nothing but Unavailable is seen. Between two lives of the server the first
// call finds the new one.
func TestTCPServerRestarts(t *testing.T) {
	const callers, calls, lives = 8, 400, 25
	p, _ := planeCounting(t, TCPConfig{})
	var handled [callers*calls + 1]atomic.Int32
	h := func(_ context.Context, _ string, body []byte, send func([]byte) error) error {
		id, err := strconv.Atoi(string(body))
		if err != nil {
			return err
		}
		handled[id].Add(1)
		return send(body)
	}
	probe := strconv.Itoa(callers * calls)
	s := startServing(t, p, fixturetest.ReserveAddr(t), h)
	addr := s.addr
	var all sync.WaitGroup
	var answered, refused atomic.Int64
	for c := range callers {
		all.Go(func() {
			for i := range calls {
				id := c*calls + i
				err := p.Call(t.Context(), addr, "m", []byte(strconv.Itoa(id)), discard)
				n := handled[id].Load()
				switch {
				case err == nil && n == 1:
					answered.Add(1)
				case fault.CodeOf(err) == fault.Unavailable && n == 0:
					refused.Add(1)
				default:
					t.Errorf("a call was handled %d times and ended with %v", n, err)
				}
			}
		})
	}
	for range lives {
		s.stop() // what was begun is finished: no answer is lost in a planned restart
		s = startServing(t, p, addr, h)
		if err := p.Call(t.Context(), addr, "m", []byte(probe), discard); err != nil {
			t.Errorf("the first call after a restart: %v", err)
		}
	}
	all.Wait()
	t.Logf("%d calls answered, %d refused, over %d lives", answered.Load(), refused.Load(), lives)
}

// A call without a byte written to the operating system is retried on another connection, and its
// handler runs once.
func TestTCPUnsentCallsAreMadeElsewhere(t *testing.T) {
	p, dialled := planeCounting(t, TCPConfig{})
	dial := p.dial
	var broken atomic.Bool
	p.dial = func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := dial(ctx, addr)
		return &breaking{Conn: conn, broken: &broken}, err
	}
	var handled atomic.Int32
	s := startServing(t, p, "", func(_ context.Context, _ string, body []byte, send func([]byte) error) error {
		handled.Add(1)
		return send(body)
	})
	for i := range 5 {
		broken.Store(i > 0) // the first write on the connection there is fails
		got := ""
		err := p.Call(t.Context(), s.addr, "m", []byte("once"), func(f []byte) error { got += string(f); return nil })
		if err != nil || got != "once" || handled.Load() != int32(i+1) || dialled.Load() != int64(i+1) {
			t.Errorf("round %d: %q, %v, handled %d times over %d connections", i, got, err, handled.Load(), dialled.Load())
		}
	}
}

// breaking is a connection whose next write fails when it is told so.
type breaking struct {
	net.Conn
	broken *atomic.Bool
}

func (b *breaking) Write(p []byte) (int, error) {
	if b.broken.CompareAndSwap(true, false) {
		return 0, errors.New("broken pipe")
	}
	return b.Conn.Write(p)
}

// A call which was sent in part is not retried: it may have been handled.
func TestTCPSentCallsAreNotMadeAgain(t *testing.T) {
	p, dialled := planeCounting(t, TCPConfig{})
	var handled atomic.Int32
	die := make(chan struct{})
	s := startServing(t, p, "", func(ctx context.Context, _ string, _ []byte, _ func([]byte) error) error {
		handled.Add(1)
		close(die)
		<-ctx.Done()
		return nil
	})
	go func() {
		<-die
		p.mu.Lock()
		link := p.mu.peers[s.addr].link
		p.mu.Unlock()
		link.conn.Close()
	}()
	if err := p.Call(t.Context(), s.addr, "m", nil, discard); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("%v, want Unavailable", err)
	}
	if handled.Load() != 1 || dialled.Load() != 1 {
		t.Errorf("handled %d times over %d connections", handled.Load(), dialled.Load())
	}
}

// scripted is a server of a test's own making: it greets, and does what it is
// told with each connection.
func scripted(t *testing.T, each func(n int, c *rawClient)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for n := 0; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				if _, err := readGreeting(conn); err != nil {
					return
				}
				if _, err := conn.Write(encodeGreeting(&hello{minVersion: 1, maxVersion: 1, maxBody: 1000})); err != nil {
					return
				}
				each(n, &rawClient{conn: conn})
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	return tcpScheme + l.Addr().String()
}

// answer answers pings until the end, so that silence is not what ends the
// connection, and calls as onCall does.
func (c *rawClient) answer(onCall func(id uint32)) {
	for {
		typ, id, payload, err := c.next()
		switch {
		case err != nil:
			return
		case typ == framePing:
			c.frame(framePong, 0, payload)
		case typ == frameCall:
			onCall(id)
		}
	}
}

// A server that is leaving names the last call that it began; those after it are
// made again, elsewhere, until there is no elsewhere.
func TestTCPGoaway(t *testing.T) {
	leaving := fault.New(fault.Unavailable, "the server is leaving")
	addr := scripted(t, func(n int, c *rawClient) {
		c.answer(func(id uint32) {
			if n < 2 {
				c.frame(frameGoaway, 0, appendGoaway(nil, id-1, leaving))
				return
			}
			c.frame(frameData, id, []byte("third time"))
			c.frame(frameEnd, id, nil)
		})
	})
	p, dialled := planeCounting(t, TCPConfig{})
	got := ""
	if err := p.Call(t.Context(), addr, "m", nil, func(f []byte) error { got += string(f); return nil }); err != nil || got != "third time" || dialled.Load() != 3 {
		t.Errorf("%q, %v, after %d connections", got, err, dialled.Load())
	}
	addr = scripted(t, func(_ int, c *rawClient) {
		c.answer(func(uint32) { c.frame(frameGoaway, 0, appendGoaway(nil, 0, leaving)) })
	})
	if err := p.Call(t.Context(), addr, "m", nil, discard); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("a server that is always leaving: %v", err)
	}
}

// A server that leaves while a call comes either has begun it, and then waits for
// it, or does not begin it.
func TestTCPLeavingWhileACallComes(t *testing.T) {
	p, _ := planeCounting(t, TCPConfig{})
	head := appendCallHead(nil, &callHeader{method: "m"})
	for range 2000 {
		s := p.newServer(func(ctx context.Context, _ string, _ []byte, _ func([]byte) error) error {
			<-ctx.Done()
			return nil
		})
		l := newServerLink(s, nil, hello{})
		l.conn, _ = net.Pipe()
		var leaving sync.WaitGroup
		leaving.Go(l.sendGoaway)
		if err := l.acceptCall(1, head); err != nil {
			t.Fatal(err)
		}
		leaving.Wait()
		l.mu.Lock()
		calls, linger := len(l.mu.calls), l.mu.linger != nil
		l.mu.Unlock()
		if calls > 0 && linger {
			t.Fatal("the connection is about to be closed under a call that was begun")
		}
		if linger {
			l.mu.linger.Stop()
		}
		if c := l.removeCall(1); c != nil {
			l.endCall(c)
		}
		l.handlers.Wait()
		l.releaseBuf()
	}
}

// A server that has answered cannot say that it did not begin: no frame comes
// twice.
func TestTCPGoawayThatContradictsItself(t *testing.T) {
	addr := scripted(t, func(_ int, c *rawClient) {
		c.answer(func(id uint32) {
			c.frame(frameData, id, []byte("once"))
			c.frame(frameGoaway, 0, appendGoaway(nil, 0, fault.New(fault.Unavailable, "the server is leaving")))
		})
	})
	p, dialled := planeCounting(t, TCPConfig{})
	got := ""
	if err := p.Call(t.Context(), addr, "m", nil, func(f []byte) error { got += string(f); return nil }); fault.CodeOf(err) != fault.Unavailable || got != "once" || dialled.Load() != 1 {
		t.Errorf("%q, %v, after %d connections", got, err, dialled.Load())
	}
}

// A connection whose numbers are used up is followed by another.
func TestTCPNumbersRunOut(t *testing.T) {
	p, dialled := planeCounting(t, TCPConfig{})
	s := startServing(t, p, "", func(_ context.Context, _ string, body []byte, send func([]byte) error) error { return send(body) })
	for i := range 4 {
		if i == 1 {
			link := p.mu.peers[s.addr].link
			link.mu.Lock()
			link.mu.last = lastCall - 2
			link.mu.Unlock()
		}
		got := ""
		if err := p.Call(t.Context(), s.addr, "m", []byte("x"), func(f []byte) error { got += string(f); return nil }); err != nil || got != "x" {
			t.Errorf("call %d: %q, %v", i, got, err)
		}
		if n, want := dialled.Load(), int64(1+i/3); n != want {
			t.Errorf("after call %d there were %d connections, want %d", i, n, want)
		}
	}
}

// What a server may not send ends the connection; what a client does not know is
// passed over.
func TestTCPServersThatMisbehave(t *testing.T) {
	ok := func(c *rawClient, id uint32) {
		c.frame(frameData, id, []byte("fine"))
		c.frame(frameEnd, id, nil)
	}
	hold := make(chan struct{})
	for name, s := range map[string]struct {
		answer func(c *rawClient, id uint32)
		fine   bool
		hold   chan struct{} // the caller takes no frame until it is closed
	}{
		"grease everywhere": {func(c *rawClient, id uint32) {
			for range 50 {
				c.frame(randomGreaseType(), id, randomBytes(20))
				c.frame(randomGreaseType(), 0, nil)
			}
			ok(c, id)
			for range 50 {
				c.frame(randomGreaseType(), id, nil)
			}
		}, true, nil},
		"calls that are over": {func(c *rawClient, id uint32) { ok(c, id+7); ok(c, id) }, true, nil},
		"a reset of a ping":   {func(c *rawClient, id uint32) { c.ping(1); c.ping(2); ok(c, id) }, true, nil},
		"a whole frame in parts": {func(c *rawClient, id uint32) {
			c.frame(frameStart, id, []byte{4, 0, 0, 0})
			c.frame(frameMore, id, []byte("fi"))
			c.frame(frameMore, id, nil)
			c.frame(frameMore, id, []byte("ne"))
			c.frame(frameEnd, id, nil)
		}, true, nil},
		"more than the credit": {func(c *rawClient, id uint32) {
			for range Credit + 1 {
				c.frame(frameData, id, nil)
			}
			c.answer(nil) // until the client has closed
			close(hold)
		}, false, hold},
		"a part of nothing":  {func(c *rawClient, id uint32) { c.frame(frameMore, id, []byte("x")) }, false, nil},
		"a frame in a frame": {func(c *rawClient, id uint32) { c.frame(frameStart, id, []byte{9, 0, 0, 0}); ok(c, id) }, false, nil},
		"too much of a frame": {func(c *rawClient, id uint32) {
			c.frame(frameStart, id, []byte{1, 0, 0, 0, 'a', 'b'})
		}, false, nil},
		"a frame too large":   {func(c *rawClient, id uint32) { c.frame(frameStart, id, []byte{1, 0, 0x80, 0}) }, false, nil},
		"a payload too large": {func(c *rawClient, id uint32) { c.frame(frameData, id, make([]byte, tcpPayload+1)) }, false, nil},
		"a broken end":        {func(c *rawClient, id uint32) { c.frame(frameEnd, id, []byte{1}) }, false, nil},
		"a broken ping":       {func(c *rawClient, id uint32) { c.frame(framePing, 0, []byte{1}) }, false, nil},
		"a broken goaway":     {func(c *rawClient, id uint32) { c.frame(frameGoaway, 0, []byte{1}) }, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			addr := scripted(t, func(_ int, c *rawClient) {
				c.answer(func(id uint32) { s.answer(c, id) })
			})
			p, _ := planeCounting(t, TCPConfig{})
			got := ""
			err := p.Call(t.Context(), addr, "m", nil, func(f []byte) error {
				got += string(f)
				if s.hold != nil {
					<-s.hold
				}
				return nil
			})
			if s.fine && (err != nil || got != "fine") || !s.fine && fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("%q, %v", got, err)
			}
			if err := p.Call(t.Context(), addr, "m", make([]byte, 1001), discard); s.fine && fault.CodeOf(err) != fault.TooLarge {
				t.Errorf("a body that the server does not take: %v, want TooLarge", err)
			}
		})
	}
}

// What a client may not send ends its connection and the handlers of its calls;
// what the server does not know it passes over.
func TestTCPClientsThatMisbehave(t *testing.T) {
	over := make(chan struct{}, 100)
	p, _ := planeCounting(t, TCPConfig{})
	s := startServing(t, p, "", func(ctx context.Context, method string, body []byte, send func([]byte) error) error {
		if method == "echo" {
			return send(body)
		}
		<-ctx.Done()
		over <- struct{}{}
		return nil
	})
	head := &callHeader{size: 4, method: "echo"}
	for name, misbehave := range map[string]func(c *rawClient){
		"the same number again":     func(c *rawClient) { c.call(1, head, nil) },
		"a number that is too high": func(c *rawClient) { c.call(lastCall+1, head, nil) },
		"no head":                   func(c *rawClient) { c.frame(frameCall, 9, nil) },
		"more body than announced":  func(c *rawClient) { c.call(9, head, []byte("12345")) },
		"more of it later":          func(c *rawClient) { c.call(9, head, []byte("123")); c.frame(frameBody, 9, []byte("45")) },
		"a broken credit":           func(c *rawClient) { c.frame(frameCredit, 1, []byte{1}) },
		"a payload too large":       func(c *rawClient) { c.frame(frameBody, 1, make([]byte, tcpPayload+1)) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newRawClient(t, s.addr)
			c.call(1, &callHeader{method: "wait"}, nil)
			misbehave(c)
			for {
				if _, _, _, err := c.next(); err != nil {
					break
				}
			}
			<-over
		})
	}
	c := newRawClient(t, s.addr)
	for range 50 {
		c.frame(randomGreaseType(), 1, randomBytes(20))
		c.frame(frameCredit, 77, appendCredit(nil, 1<<32-1, 1<<32-1))
		c.frame(frameCancel, 77, nil)
		c.frame(frameBody, 77, []byte("of nothing"))
		c.frame(framePong, 0, nil)
	}
	c.call(1, &callHeader{size: MaxBody + 1, method: "echo"}, nil)
	c.call(2, head, []byte("bo"))
	c.frame(randomGreaseType(), 2, randomBytes(20))
	c.frame(frameBody, 2, nil)
	c.frame(frameBody, 2, []byte("dy"))
	got := ""
	for ends := 0; ends < 2; {
		typ, id, payload, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case typ == frameEnd && id == 1:
			if f, err := decodeEnd(payload); err != nil || f == nil || f.Code != fault.TooLarge {
				t.Errorf("a body that is too large: %v, %v", f, err)
			}
			ends++
		case typ == frameEnd:
			ends++
		case typ == frameData && id == 2:
			got += string(payload)
		}
	}
	if got != "body" {
		t.Errorf("the answer is %q", got)
	}
}

// An end of the connection in the middle of a frame is an end.
func TestTCPHalfAFrame(t *testing.T) {
	addr := scripted(t, func(_ int, c *rawClient) {
		for {
			typ, id, _, err := c.next()
			if err != nil {
				return
			}
			if typ == frameCall {
				_, _ = c.conn.Write(appendFrameHeader(nil, frameData, id, 100))
				_, _ = io.WriteString(c.conn, "not a hundred bytes")
				return
			}
		}
	})
	p, _ := planeCounting(t, TCPConfig{})
	if err := p.Call(t.Context(), addr, "m", nil, func([]byte) error { t.Error("a frame came"); return nil }); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("%v, want Unavailable", err)
	}
}

// TestTCPOpenCanceled: time may be up while the greeting fails by itself. The race detector sees
// what both sides of that touch.
func TestTCPOpenCanceled(t *testing.T) {
	p, _ := planeCounting(t, TCPConfig{})
	p.dial = func(context.Context, string) (net.Conn, error) {
		mine, peer := net.Pipe()
		peer.Close()
		return mine, nil
	}
	for range 5000 {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := p.dialAndGreet(ctx, "a"); err == nil {
			t.Fatal("a connection that is closed was opened")
		}
	}
}
