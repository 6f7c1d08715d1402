package zmtp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"penstock/internal/fixturetest"
)

func numbered(topic string, n int, size int) [][]byte {
	return [][]byte{[]byte(topic), binary.BigEndian.AppendUint64(nil, uint64(n)), make([]byte, size)}
}

// expectNumbers expects messages of numbered from first to last, in order.
func expectNumbers(t *testing.T, r *received, topic string, first, last, size int) {
	t.Helper()
	for n := first; n <= last; n++ {
		m := r.next(t)
		if len(m) != 3 || string(m[0]) != topic || binary.BigEndian.Uint64(m[1]) != uint64(n) || len(m[2]) != size {
			t.Fatalf("got %d frames, %q, number %x with %d bytes, want %d", len(m), m[0], m[1], len(m[2]), n)
		}
	}
}

func listenPub(t *testing.T, ep Endpoint, o Options) *Pub {
	t.Helper()
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, patience)
	p, err := ListenPub(ep, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func subscribe(t *testing.T, ep Endpoint, prefixes []string, o Options) *received {
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, patience)
	return background(t, func(ctx context.Context, recv func([][]byte) error) error {
		return Subscribe(ctx, ep, prefixes, o, recv)
	})
}

func await(t *testing.T, p *Pub, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.AwaitSubscribers(ctx, n); err != nil {
		t.Fatalf("%d subscribers, waiting for %d: %v", p.Subscribers(), n, err)
	}
}

func TestMessagesOfAllSizes(t *testing.T) {
	for _, ep := range []Endpoint{loopback(t), endpoint(t, "ipc://"+filepath.Join(t.TempDir(), "s"))} {
		p := listenPub(t, ep, Options{})
		r := subscribe(t, p.Addr(), nil, Options{})
		await(t, p, 1)
		sizes := []int{0, 1, 255, 256, 65535, 65536, 1 << 20, 8 << 20, 20_000, 3}
		for i, size := range sizes {
			p.Send(numbered("t", i, size)...)
		}
		for i, size := range sizes {
			expectNumbers(t, r, "t", i, i, size)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestPrefixes(t *testing.T) {
	p := listenPub(t, loopback(t), Options{})
	a := subscribe(t, p.Addr(), []string{"a"}, Options{})
	st := newStates()
	ab := subscribe(t, p.Addr(), []string{"b", "ab"}, Options{OnState: st.tell})
	await(t, p, 2)
	st.await(t, Connected) // a subscriber of two prefixes counts from the first on
	for i, topic := range []string{"a", "ab", "abc", "b", "c", ""} {
		p.Send([]byte(topic), []byte{byte(i)})
	}
	p.Send([]byte("abend")) // matches both
	for _, c := range []struct {
		r    *received
		want string
	}{{a, "a ab abc abend"}, {ab, "ab abc b abend"}} {
		for want := range strings.FieldsSeq(c.want) {
			if m := c.r.next(t); string(m[0]) != want {
				t.Errorf("got %q, want %q", m[0], want)
			}
		}
	}
	if d := p.Dropped(); d != 0 {
		t.Errorf("%d dropped", d)
	}
}

// TestSubscribed holds that what is published once a subscription is known to be
// in force arrives, connection after connection.
func TestSubscribed(t *testing.T) {
	for range 20 {
		p := listenPub(t, loopback(t), Options{})
		st := newStates()
		r := subscribe(t, p.Addr(), []string{"t"}, Options{OnState: st.tell})
		st.await(t, Connected)
		p.Send(numbered("t", 0, 10)...)
		expectNumbers(t, r, "t", 0, 0, 10)
	}
}

// TestNotYetSubscribed holds that a subscriber is connected when the publisher has
// its subscriptions, not before: when it answers, or sends something.
func TestNotYetSubscribed(t *testing.T) {
	pong := appendCommand(nil, "PONG", afterSubscriptions)
	for _, c := range []struct {
		said []byte // by the publisher
		then ConnStateKind
	}{{pong, Connected}, {appendMessage(nil, strs("x")), Connected}, {appendCommand(nil, "PONG"), Refused}, {nil, Refused}} {
		ln, err := Listen(loopback(t))
		if err != nil {
			t.Fatal(err)
		}
		st := newStates()
		r := subscribe(t, EndpointOf(ln.Addr()), []string{"t"}, Options{OnState: st.tell})
		conn, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(append(appendGreeting(nil), appendReady(nil, typePub, "")...)); err != nil {
			t.Fatal(err)
		}
		announced := appendCommand(appendCommand(nil, "SUBSCRIBE", "t"), "PING", "\x00\x00"+afterSubscriptions)
		got := make([]byte, greetingSize+len(appendReady(nil, typeSub, ""))+len(announced))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.HasSuffix(got, announced) {
			t.Fatalf("%q, %v", got, err)
		}
		if len(st) > 0 {
			t.Errorf("before the publisher said anything: %v", (<-st).Kind)
		}
		if _, err := conn.Write(c.said); err != nil {
			t.Fatal(err)
		}
		if c.then == Refused {
			_ = conn.Close()
		}
		if got := <-st; got.Kind != c.then {
			t.Errorf("after %q it is %v", c.said, got.Kind)
		}
		_, _ = conn.Close(), ln.Close()
		r.stop(t)
	}
}

// TestUnwanted: messages which match no subscription are not passed on.
func TestUnwanted(t *testing.T) {
	ln, err := Listen(loopback(t))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	r := subscribe(t, EndpointOf(ln.Addr()), []string{"t"}, Options{})
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw(t, c, typePub)
	if _, err := c.Write(append(appendMessage(nil, strs("other")), appendMessage(nil, strs("topic"))...)); err != nil {
		t.Fatal(err)
	}
	if m := r.next(t); string(m[0]) != "topic" {
		t.Errorf("got %q", m[0])
	}
}

// TestPublishersDial has one subscriber listen to many publishers.
func TestPublishersDial(t *testing.T) {
	ln, err := Listen(loopback(t))
	if err != nil {
		t.Fatal(err)
	}
	r := background(t, func(ctx context.Context, recv func([][]byte) error) error {
		return SubscribeListen(ctx, ln, []string{"t"}, Options{}, recv)
	})
	const publishers, each = 5, 2000
	for i := range publishers {
		p, err := DialPub(t.Context(), EndpointOf(ln.Addr()), Options{Linger: patience})
		if err != nil {
			t.Fatal(err)
		}
		await(t, p, 1)
		for n := range each {
			p.Send(numbered(fmt.Sprintf("t%d", i), n, n)...)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if d := p.Dropped(); d > 0 {
			t.Errorf("%d dropped", d)
		}
	}
	next := map[string]uint64{}
	for range publishers * each {
		m := r.next(t)
		if n := binary.BigEndian.Uint64(m[1]); n != next[string(m[0])] || len(m[2]) != int(n) {
			t.Fatalf("%s: number %d after %d", m[0], n, next[string(m[0])])
		}
		next[string(m[0])]++
	}
}

// TestEndWhileListening ends a subscription that listens: the end closes the listener too, and the
// error is that of the context whichever is seen first.
func TestEndWhileListening(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	done := make(chan struct{})
	close(done)
	for range 100 {
		err := newSubscription(nil).serveTurns(ctx, nil, done, nil)
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

func TestReconnect(t *testing.T) {
	o := Options{ReconnectMin: time.Millisecond, ReconnectMax: 10 * time.Millisecond}
	ep := endpoint(t, "tcp://"+fixturetest.ReserveAddr(t))
	p := listenPub(t, ep, o)
	st := newStates()
	so := o
	so.OnState = st.tell
	r := subscribe(t, ep, nil, so)
	for life := range 3 {
		await(t, p, 1)
		st.await(t, Connected)
		p.Send(numbered("t", life, 10)...)
		expectNumbers(t, r, "t", life, life, 10)
		_ = p.Close()
		if lost := st.await(t, Lost); !errors.Is(lost.Err, io.EOF) || lost.Peer != ep.String() {
			t.Errorf("lost %s: %v", lost.Peer, lost.Err)
		}
		st.await(t, Refused) // no process listens
		p = listenPub(t, ep, o)
	}
}

// TestRecvEndsASubscription holds that recv's error comes back as it is.
func TestRecvEndsASubscription(t *testing.T) {
	enough := errors.New("enough")
	recv := func([][]byte) error { return enough }
	p := listenPub(t, loopback(t), Options{})
	done := make(chan error, 1)
	go func() { done <- Subscribe(t.Context(), p.Addr(), nil, Options{}, recv) }()
	await(t, p, 1)
	p.Send([]byte("x"))
	if err := <-done; err != enough {
		t.Errorf("Subscribe: %v", err)
	}
	ln, err := Listen(loopback(t))
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- SubscribeListen(t.Context(), ln, nil, Options{}, recv) }()
	d, err := DialPub(t.Context(), EndpointOf(ln.Addr()), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	await(t, d, 1)
	d.Send([]byte("x"))
	if err := <-done; err != enough {
		t.Errorf("SubscribeListen: %v", err)
	}
	if err := Subscribe(t.Context(), endpoint(t, "tcp://*:1"), nil, Options{}, recv); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("all interfaces were dialled: %v", err)
	}
}

// TestSlowSubscriber: a subscriber which does not read loses messages, which are counted, and does
// not delay others.
func TestSlowSubscriber(t *testing.T) {
	// A subscriber which does not read answers no PING either.
	p := listenPub(t, loopback(t), Options{HighWater: 100, QueueBytes: 10 << 20, Heartbeat: -1})
	stuck := make(chan struct{})
	slow := make(chan uint64, 1<<16)
	background(t, func(ctx context.Context, _ func([][]byte) error) error {
		return Subscribe(ctx, p.Addr(), nil, Options{}, func(frames [][]byte) error {
			<-stuck
			slow <- binary.BigEndian.Uint64(frames[1])
			return nil
		})
	})
	await(t, p, 1)
	const n, size = 2000, 50_000 // 100 MB: more than sockets hold
	for i := range n {
		p.Send(numbered("t", i, size)...)
	}
	lost := p.Dropped()
	if lost == 0 || lost > n-100 {
		t.Errorf("%d of %d lost", lost, n)
	}
	quick := subscribe(t, p.Addr(), nil, Options{})
	await(t, p, 2)
	p.Send(numbered("t", n, 10)...)
	expectNumbers(t, quick, "t", n, n, 10)
	close(stuck)
	last := -1
	for range n - int(lost) {
		got := <-slow
		if int(got) <= last {
			t.Fatalf("%d after %d", got, last)
		}
		last = int(got)
	}
}

// TestALargeMessageAlone holds that a message over QueueBytes goes when nothing
// else waits.
func TestALargeMessageAlone(t *testing.T) {
	p := listenPub(t, loopback(t), Options{QueueBytes: 1000})
	r := subscribe(t, p.Addr(), nil, Options{})
	await(t, p, 1)
	p.Send(numbered("t", 0, 1<<20)...)
	expectNumbers(t, r, "t", 0, 0, 1<<20)
}

// TestOversized holds that a publisher that sends too much is left, and dialled
// again.
func TestOversized(t *testing.T) {
	st := newStates()
	p := listenPub(t, loopback(t), Options{})
	o := Options{MaxMessage: 1000, OnState: st.tell, ReconnectMin: time.Millisecond, ReconnectMax: time.Millisecond}
	r := subscribe(t, p.Addr(), nil, o)
	await(t, p, 1)
	st.await(t, Connected)
	p.Send(numbered("t", 0, 2000)...)
	if lost := st.await(t, Lost); !errors.Is(lost.Err, ErrTooLarge) {
		t.Errorf("lost: %v", lost.Err)
	}
	st.await(t, Connected)
	for p.Subscribers() != 1 { // the old connection goes, the new one has come
		await(t, p, 1)
	}
	p.Send(numbered("t", 1, 900)...)
	expectNumbers(t, r, "t", 1, 1, 900)
}

// TestGarbagePeers holds that whatever dials a listening socket and talks nonsense
// is refused, told to OnState, and no bother to others.
func TestGarbagePeers(t *testing.T) {
	st := newStates()
	p := listenPub(t, loopback(t), Options{OnState: st.tell, MaxPeers: 3})
	for _, said := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", strings.Repeat("\x00", 64), "\xff" + strings.Repeat("\x00", 63), "\x16\x03\x01"} {
		c, err := net.Dial("tcp", p.Addr().netAddress())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte(said))
		if len(said) < signatureSize {
			_ = c.(*net.TCPConn).CloseWrite() // it says no more
		}
		if s := st.await(t, Refused); s.Err == nil {
			t.Error("refused for no reason")
		}
		_ = c.Close()
	}
	r := subscribe(t, p.Addr(), nil, Options{})
	await(t, p, 1)
	// More connections than there may be: the ones too many are closed.
	for range 3 {
		c, err := net.Dial("tcp", p.Addr().netAddress())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if s := st.await(t, Refused); !strings.Contains(s.Err.Error(), "3 connections already") {
		t.Errorf("refused: %v", s.Err)
	}
	p.Send(numbered("t", 0, 1)...)
	expectNumbers(t, r, "t", 0, 0, 1)
}

// TestCloseSendsWhatIsQueued holds that a publisher may send and go.
func TestCloseSendsWhatIsQueued(t *testing.T) {
	p := listenPub(t, loopback(t), Options{Linger: patience})
	r := subscribe(t, p.Addr(), nil, Options{})
	await(t, p, 1)
	for i := range 5000 {
		p.Send(numbered("t", i, 2000)...)
	}
	_ = p.Close()
	_ = p.Close()
	expectNumbers(t, r, "t", 0, 4999, 2000)
}

// raw does a handshake as a peer by hand and returns the connection.
func raw(t *testing.T, c net.Conn, socket string) net.Conn {
	t.Helper()
	go func() { _, _ = c.Write(append(appendGreeting(nil), appendReady(nil, socket, "")...)) }()
	rd := frameReader{src: c, maxMessage: 1 << 20, maxFrames: 10}
	if _, err := rd.peekBytes(greetingSize); err != nil {
		t.Fatal(err)
	}
	rd.r += greetingSize
	for {
		kind, _, err := rd.nextToken()
		if err != nil || kind == tokenMessage {
			t.Fatal(kind, err)
		}
		if kind == tokenCommand {
			return c
		}
		if err := rd.fillBuffer(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSilentPeer holds, in virtual time, that a peer that says nothing is asked
// for a sign of life and then given up, and that one which answers is not.
func TestSilentPeer(t *testing.T) {
	for _, answers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ln := newPipes()
			st := newStates()
			p := servePub(ln, Options{OnState: st.tell, Heartbeat: 10 * time.Second, HeartbeatTimeout: 3 * time.Second})
			c := raw(t, ln.dial(), typeSub)
			began := time.Now()
			var pings atomic.Int64
			go func() {
				ping := make([]byte, 9)
				for {
					if _, err := io.ReadFull(c, ping); err != nil {
						return
					}
					if n := pings.Add(1); answers && n < 100 {
						_, _ = c.Write(appendCommand(nil, "PONG"))
					}
				}
			}()
			st.await2(Connected)
			s := st.await2(Lost)
			lived := time.Since(began)
			if !errors.Is(s.Err, ErrSilent) {
				t.Errorf("lost: %v", s.Err)
			}
			switch {
			case !answers && (pings.Load() != 1 || lived != 13*time.Second):
				t.Errorf("given up after %v and %d questions", lived, pings.Load())
			case answers && (pings.Load() != 100 || lived < 1000*time.Second):
				t.Errorf("given up after %v and %d questions", lived, pings.Load())
			}
			_ = p.Close()
			_ = c.Close()
		})
	}
}

// await2 is await in virtual time.
func (s states) await2(kind ConnStateKind) ConnState {
	for st := range s {
		if st.Kind == kind {
			return st
		}
	}
	return ConnState{}
}

// TestHandshakeTimeout holds, in virtual time, that a peer which never finishes its
// greeting is given up.
func TestHandshakeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		st := newStates()
		r := serveRouter(ln, Options{OnState: st.tell, HandshakeTimeout: 4 * time.Second})
		c := ln.dial()
		go func() { _, _ = io.Copy(io.Discard, c) }()
		began := time.Now()
		_, _ = c.Write(appendGreeting(nil)[:40])
		s := st.await2(Refused)
		if d := time.Since(began); d != 4*time.Second || s.Err == nil {
			t.Errorf("refused after %v: %v", d, s.Err)
		}
		_ = r.Close()
		_ = c.Close()
	})
}

// TestSilentServer: the error for a port with a different service, which waits for more input,
// says so and does not merely report the closed connection.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := handshakeContext(ctx, ours, dialled, typeSub, &Options{HandshakeTimeout: 20 * time.Millisecond, MaxMessage: 1 << 10, MaxFrames: 4})
		if err == nil || !strings.Contains(err.Error(), "does not speak ZeroMQ") {
			t.Error(err)
		}
		_ = theirs.Close()
	})
}

// TestSendDoesNotAllocate: Send allocates nothing for a message to subscribers' queues once they
// have grown.
func TestSendDoesNotAllocate(t *testing.T) {
	p := newPub(Options{}, nil)
	s := &pubPeer{out: newOutbox(&p.o)}
	s.filter.Store(&prefixFilter{all: true})
	p.subs.Store(&[]*pubPeer{s})
	frames := numbered("t", 1, 2000)
	n := testing.AllocsPerRun(1000, func() {
		p.Send(frames...)
		c, ok, _ := s.out.pop()
		if !ok {
			t.Fatal("nothing was queued")
		}
		s.out.recycleChunk(c)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
