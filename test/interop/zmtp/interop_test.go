package zmtp

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"penstock/internal/zmtp"
)

// sizes are bytes of messages that both ways must carry.
var sizes = []int{0, 1, 200, 255, 256, 2000, 20_000, 65_536, 1 << 20, 8 << 20}

// sub is one of our subscriptions.
type sub struct {
	t        *testing.T
	messages chan [][]byte
	states   chan zmtp.ConnState
}

// subscribe runs f in the background until the test ends.
func subscribe(t *testing.T, o zmtp.Options, f func(ctx context.Context, o zmtp.Options, recv func([][]byte) error) error) *sub {
	s := &sub{t, make(chan [][]byte, 1<<20), make(chan zmtp.ConnState, 1000)}
	o.OnState = func(st zmtp.ConnState) { s.states <- st }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- f(ctx, o, func(frames [][]byte) error {
			own := make([][]byte, len(frames))
			for i := range frames {
				own[i] = slices.Clone(frames[i])
			}
			s.messages <- own
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the subscription ended with %v", err)
		}
	})
	return s
}

func dialSub(t *testing.T, endpoint string, o zmtp.Options, prefixes ...string) *sub {
	ep := parse(t, endpoint)
	return subscribe(t, o, func(ctx context.Context, o zmtp.Options, recv func([][]byte) error) error {
		return zmtp.Subscribe(ctx, ep, prefixes, o, recv)
	})
}

func listenSub(t *testing.T, endpoint string, prefixes ...string) (*sub, string) {
	ln, err := zmtp.Listen(parse(t, endpoint))
	if err != nil {
		t.Fatal(err)
	}
	return subscribe(t, zmtp.Options{}, func(ctx context.Context, o zmtp.Options, recv func([][]byte) error) error {
		return zmtp.SubscribeListen(ctx, ln, prefixes, o, recv)
	}), zmtp.EndpointOf(ln.Addr()).String()
}

func (s *sub) next() [][]byte {
	s.t.Helper()
	select {
	case m := <-s.messages:
		return m
	case <-time.After(within):
		s.t.Fatal("no message")
		return nil
	}
}

func (s *sub) expect(want ...string) {
	s.t.Helper()
	m := s.next()
	got := make([]string, len(m))
	for i := range m {
		got[i] = string(m[i])
	}
	if !slices.Equal(got, want) {
		s.t.Fatalf("got %q, want %q", got, want)
	}
}

func (s *sub) collect(topic string, first, n, size int) {
	s.t.Helper()
	for i := first; i < first+n; i++ {
		m := s.next()
		if len(m) != 3 || string(m[0]) != topic || binary.BigEndian.Uint64(m[1]) != uint64(i) || len(m[2]) != size {
			s.t.Fatalf("got %d frames, %q, %x, want number %d with %d bytes", len(m), m[0], m[1], i, size)
		}
	}
}

func (s *sub) await(kind zmtp.ConnStateKind) zmtp.ConnState {
	s.t.Helper()
	for {
		select {
		case st := <-s.states:
			if st.Kind == kind {
				return st
			}
		case <-time.After(within):
			s.t.Fatalf("never %v", kind)
		}
	}
}

func parse(t *testing.T, s string) zmtp.Endpoint {
	t.Helper()
	ep, err := zmtp.ParseEndpoint(s)
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

func listenPub(t *testing.T, endpoint string, o zmtp.Options) *zmtp.Pub {
	t.Helper()
	p, err := zmtp.ListenPub(parse(t, endpoint), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func awaitSubscribers(t *testing.T, p *zmtp.Pub, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := p.AwaitSubscribers(ctx, n); err != nil {
		t.Fatalf("%d subscribers: %v", p.Subscribers(), err)
	}
}

func burst(p *zmtp.Pub, first, n, size int) {
	for i := first; i < first+n; i++ {
		p.Send([]byte("t"), binary.BigEndian.AppendUint64(nil, uint64(i)), make([]byte, size))
	}
}

// endpoints are a TCP and a Unix address to listen at.
func endpoints(t *testing.T) []string {
	return []string{"tcp://127.0.0.1:*", "ipc://" + filepath.Join(t.TempDir(), "s")}
}

// TestVersion only says which libzmq this is.
func TestVersion(t *testing.T) {
	v := startPeer(t).ask("version", nil)
	t.Logf("libzmq %s, pyzmq %s", v.Libzmq, v.Pyzmq)
}

// The kinds that may publish, over both transports, to our SUB that dials.
func TestSubDialsPublisher(t *testing.T) {
	for _, kind := range []string{"PUB", "XPUB"} {
		for _, ep := range endpoints(t) {
			p := startPeer(t)
			pub := p.socket(kind, options{"SNDHWM": 0})
			s := dialSub(t, pub.bind(ep), zmtp.Options{}, "t", "kv@")
			s.await(zmtp.Connected)
			awaitSubscribed(pub, kind, s)
			pub.send("kv@pod", "\x00\x00\x00\x00\x00\x00\x00\x01", "payload")
			pub.send("other", "not wanted")
			pub.send("t", "", "", "", "five frames")
			pub.send("t")
			s.expect("kv@pod", "\x00\x00\x00\x00\x00\x00\x00\x01", "payload")
			s.expect("t", "", "", "", "five frames")
			s.expect("t")
			for _, size := range sizes {
				pub.ask("burst", args{"first": 0, "n": 3, "size": size})
				s.collect("t", 0, 3, size)
			}
			pub.ask("burst", args{"first": 0, "n": 50_000, "size": 200})
			s.collect("t", 0, 50_000, 200)
		}
	}
}

// awaitSubscribed waits until the publisher knows what s wants: an XPUB says so, to
// a PUB one sends until something arrives.
func awaitSubscribed(pub *socket, kind string, s *sub) {
	if kind == "XPUB" {
		pub.expect("\x01t")
		pub.expect("\x01kv@")
		return
	}
	for {
		pub.send("t", "are you there?")
		select {
		case <-s.messages:
			pub.send("t", "good")
			for string(s.next()[1]) != "good" {
			}
			return
		case <-time.After(20 * time.Millisecond): // it asks again
		}
	}
}

// TestXPubHearsTheEnd has an XPUB see our subscription come and go.
func TestXPubHearsTheEnd(t *testing.T) {
	p := startPeer(t)
	pub := p.socket("XPUB", nil)
	ep := parse(t, pub.bind("tcp://127.0.0.1:*"))
	enough := errors.New("enough")
	done := make(chan error, 1)
	go func() {
		done <- zmtp.Subscribe(t.Context(), ep, []string{"kv@"}, zmtp.Options{}, func([][]byte) error { return enough })
	}()
	pub.expect("\x01kv@")
	pub.send("kv@x")
	if err := <-done; !errors.Is(err, enough) {
		t.Fatal(err)
	}
	pub.expect("\x00kv@")
}

// TestPublisherDialsSub has publishers of libzmq connect to our SUB that listens.
func TestPublisherDialsSub(t *testing.T) {
	for _, at := range endpoints(t) {
		p := startPeer(t)
		s, ep := listenSub(t, at, "t")
		var pubs []*socket
		for _, kind := range []string{"XPUB", "XPUB", "PUB"} {
			pub := p.socket(kind, options{"SNDHWM": 0})
			pub.connect(ep)
			if kind == "XPUB" {
				pub.expect("\x01t")
			} else {
				awaitSubscribed(pub, kind, s)
			}
			pubs = append(pubs, pub)
		}
		for i, pub := range pubs {
			pub.ask("burst", args{"first": i, "n": 2000, "size": 2000})
			s.collect("t", i, 2000, 2000)
		}
		for _, size := range sizes {
			pubs[0].ask("burst", args{"first": 7, "n": 1, "size": size})
			s.collect("t", 7, 1, size)
		}
	}
}

// Our PUB that listens, to the kinds that subscribe.
func TestPubToSubscribers(t *testing.T) {
	for _, at := range endpoints(t) {
		peer := startPeer(t)
		p := listenPub(t, at, zmtp.Options{HighWater: 1_000_000, QueueBytes: 1 << 30})
		sub := peer.socket("SUB", options{"SUBSCRIBE": "t", "RCVHWM": 0})
		sub.connect(p.Addr().String())
		awaitSubscribers(t, p, 1)
		xsub := peer.socket("XSUB", options{"RCVHWM": 0})
		xsub.connect(p.Addr().String())
		xsub.send("\x01x")
		awaitSubscribers(t, p, 2)

		p.Send([]byte("no subscriber wants this"))
		p.Send([]byte("x"), []byte("for XSUB"))
		xsub.expect("x", "for XSUB")
		p.Send([]byte("t"), nil, nil, []byte("four frames"))
		sub.expect("t", "", "", "four frames")
		for _, size := range sizes {
			burst(p, 0, 3, size)
			sub.ask("collect", args{"first": 0, "n": 3, "size": size})
		}
		burst(p, 0, 50_000, 200)
		sub.ask("collect", args{"first": 0, "n": 50_000, "size": 200})
		if d := p.Dropped(); d != 0 {
			t.Errorf("%d dropped", d)
		}
		// A subscription more, and all gone.
		sub.ask("set", args{"name": "SUBSCRIBE", "value": "later"})
		xsub.send("\x00x")
		awaitGone(t, p, 1)
		p.Send([]byte("x"), []byte("for no subscriber"))
		sub.ask("set", args{"name": "UNSUBSCRIBE", "value": "t"})
		sub.ask("set", args{"name": "UNSUBSCRIBE", "value": "later"})
		awaitGone(t, p, 0)
		if !xsub.ask("quiet", args{"ms": 100}).Quiet {
			t.Error("XSUB got what it no longer wants")
		}
	}
}

// awaitGone waits until no more than n peers have a subscription.
func awaitGone(t *testing.T, p *zmtp.Pub, n int) {
	t.Helper()
	deadline := time.After(within)
	for p.Subscribers() > n {
		select {
		case <-deadline:
			t.Fatalf("still %d subscribers", p.Subscribers())
		case <-time.After(time.Millisecond): // nothing tells of subscribers that go
		}
	}
}

// TestPubDialsSub has our PUB connect to a SUB of libzmq that listens.
func TestPubDialsSub(t *testing.T) {
	for _, at := range endpoints(t) {
		peer := startPeer(t)
		sub := peer.socket("SUB", options{"SUBSCRIBE": "t", "RCVHWM": 0})
		p, err := zmtp.DialPub(t.Context(), parse(t, sub.bind(at)), zmtp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		// A socket of libzmq that listens subscribes when it is next used.
		sub.tell("collect", args{"first": 0, "n": 5000, "size": 2000})
		awaitSubscribers(t, p, 1)
		burst(p, 0, 5000, 2000)
		peer.answer("collect")
		burst(p, 0, 1000, 20_000)
		if err := p.Close(); err != nil { // which sends what is queued
			t.Fatal(err)
		}
		sub.ask("collect", args{"first": 0, "n": 1000, "size": 20_000})
	}
}

// TestDealerAsksRouter asks a ROUTER of libzmq for a replay, as of an engine.
func TestDealerAsksRouter(t *testing.T) {
	for _, at := range endpoints(t) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		peer := startPeer(t)
		router := peer.socket("ROUTER", options{"SNDHWM": 0})
		ep := parse(t, router.bind(at))
		for _, identity := range []string{"", "penstock"} {
			d, err := zmtp.DialDealer(ctx, ep, zmtp.Options{Identity: identity})
			if err != nil {
				t.Fatal(err)
			}
			const last = 5000
			router.tell("serve", args{"n": last, "size": 2000})
			if err := d.Send(ctx, nil, binary.BigEndian.AppendUint64(nil, 10)); err != nil {
				t.Fatal(err)
			}
			for want := uint64(10); ; want++ {
				m, err := d.Recv(ctx)
				if err != nil {
					t.Fatal(err)
				}
				n := binary.BigEndian.Uint64(m[2])
				if n == 1<<64-1 && want == last && len(m) == 4 && len(m[3]) == 0 {
					break
				}
				if len(m) != 4 || len(m[0]) != 0 || string(m[1]) != "t" || n != want || len(m[3]) != 2000 {
					t.Fatalf("got %d frames, number %d, want %d", len(m), n, want)
				}
			}
			if got := peer.answer("serve"); got.First != 10 {
				t.Errorf("the router was asked for %d", got.First)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		d, err := zmtp.DialDealer(ctx, ep, zmtp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		router.ask("close", nil)
		if _, err := d.Recv(ctx); !errors.Is(err, io.EOF) {
			t.Errorf("the router closed: %v", err)
		}
		_ = d.Close()
	}
}

// TestRouterAnswers has sockets of libzmq ask our ROUTER.
func TestRouterAnswers(t *testing.T) {
	for _, at := range endpoints(t) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		peer := startPeer(t)
		r, err := zmtp.ListenRouter(parse(t, at), zmtp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ep := r.Addr().String()
		named := peer.socket("DEALER", options{"ROUTING_ID": "me"})
		anonymous := peer.socket("DEALER", nil)
		req := peer.socket("REQ", nil)
		for _, s := range []*socket{named, anonymous, req} {
			s.connect(ep)
			if s == req {
				s.send("question")
			} else {
				s.send("", "question")
			}
			id, frames, err := r.Recv(ctx)
			if err != nil || len(frames) != 2 || string(frames[1]) != "question" {
				t.Fatal(frames, err)
			}
			if s == named && string(id) != "me" || s != named && (len(id) != 5 || id[0] != 0) {
				t.Errorf("the identity is %q", id)
			}
			if s == req {
				if err := r.Send(id, nil, []byte("answer")); err != nil {
					t.Fatal(err)
				}
				s.expect("answer")
				continue
			}
			for n := range 1000 {
				if err := r.Send(id, []byte("t"), binary.BigEndian.AppendUint64(nil, uint64(n)), make([]byte, 2000)); err != nil {
					t.Fatal(err)
				}
			}
			s.ask("collect", args{"first": 0, "n": 1000, "size": 2000})
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		named.awaitEvent("connected")
		named.awaitEvent("disconnected")
	}
}

// TestTheirHeartbeats has a publisher of libzmq ask us for signs of life while
// nothing is published, and while we are in the middle of something.
func TestTheirHeartbeats(t *testing.T) {
	peer := startPeer(t)
	pub := peer.socket("XPUB", options{"HEARTBEAT_IVL": 50, "HEARTBEAT_TIMEOUT": 300, "HEARTBEAT_TTL": 1000, "SNDHWM": 0})
	s := dialSub(t, pub.bind("tcp://127.0.0.1:*"), zmtp.Options{}, "t")
	pub.expect("\x01t")
	pub.awaitEvent("connected")
	if e := pub.ask("event", args{"ms": 1500}).Event; e != "" {
		t.Fatalf("libzmq gave us up: %s", e)
	}
	pub.ask("burst", args{"first": 0, "n": 50_000, "size": 2000}) // longer than a heartbeat
	s.collect("t", 0, 50_000, 2000)
	if e := pub.ask("event", args{"ms": 10}).Event; e != "" {
		t.Fatalf("libzmq gave us up: %s", e)
	}
	if len(s.messages) > 0 {
		t.Errorf("a heartbeat was handed over: %q", <-s.messages)
	}
	// The same of a subscriber and a dealer, whose heartbeats our PUB and ROUTER answer.
	p := listenPub(t, "tcp://127.0.0.1:*", zmtp.Options{})
	sub := peer.socket("SUB", options{"SUBSCRIBE": "", "HEARTBEAT_IVL": 50, "HEARTBEAT_TIMEOUT": 300})
	sub.connect(p.Addr().String())
	awaitSubscribers(t, p, 1)
	sub.awaitEvent("connected")
	if e := sub.ask("event", args{"ms": 1000}).Event; e != "" {
		t.Errorf("libzmq gave our PUB up: %s", e)
	}
}

// TestOurHeartbeats asks libzmq for signs of life, and gives up one that stopped.
func TestOurHeartbeats(t *testing.T) {
	peer := startPeer(t)
	pub := peer.socket("XPUB", nil)
	o := zmtp.Options{Heartbeat: 50 * time.Millisecond, HeartbeatTimeout: 300 * time.Millisecond}
	s := dialSub(t, pub.bind("tcp://127.0.0.1:*"), o, "t")
	pub.expect("\x01t")
	s.await(zmtp.Connected)
	pub.awaitEvent("connected")
	if e := pub.ask("event", args{"ms": 1500}).Event; e != "" || len(s.states) > 0 {
		t.Fatalf("the connection did not outlive silence: %q", e)
	}
	if err := peer.process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if lost := s.await(zmtp.Lost); !errors.Is(lost.Err, zmtp.ErrSilent) {
		t.Errorf("lost: %v", lost.Err)
	}
	if err := peer.process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.await(zmtp.Connected)
}

// TestPublisherRestarts has a publisher go and come back at its address.
func TestPublisherRestarts(t *testing.T) {
	peer := startPeer(t)
	pub := peer.socket("XPUB", nil)
	ep := pub.bind("tcp://127.0.0.1:*")
	s := dialSub(t, ep, zmtp.Options{ReconnectMin: 10 * time.Millisecond, ReconnectMax: 50 * time.Millisecond}, "t")
	for life := range 3 {
		pub.expect("\x01t")
		s.await(zmtp.Connected)
		pub.ask("burst", args{"first": life, "n": 100, "size": 200})
		s.collect("t", life, 100, 200)
		pub.ask("close", nil)
		s.await(zmtp.Lost)
		s.await(zmtp.Refused)
		pub = peer.socket("XPUB", nil)
		pub.bind(ep)
	}
	pub.expect("\x01t")
	// The same with a process that is killed, and another in its place.
	if err := peer.process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.await(zmtp.Lost)
	pub = startPeer(t).socket("XPUB", nil)
	pub.bind(ep)
	pub.expect("\x01t")
	pub.send("t", "again")
	s.expect("t", "again")
}

// TestSubscriberRestarts has a subscriber of libzmq find our PUB again.
func TestSubscriberRestarts(t *testing.T) {
	peer := startPeer(t)
	p := listenPub(t, "tcp://127.0.0.1:*", zmtp.Options{})
	sub := peer.socket("SUB", options{"SUBSCRIBE": "", "RECONNECT_IVL": 10})
	at := p.Addr()
	sub.connect(at.String())
	for n := range 3 {
		// A socket of libzmq that was connected again subscribes when it is next used.
		sub.tell("collect", args{"first": n, "n": 10, "size": 200})
		awaitSubscribers(t, p, 1)
		burst(p, n, 10, 200)
		peer.answer("collect")
		_ = p.Close()
		sub.awaitEvent("disconnected")
		p = listenPub(t, at.String(), zmtp.Options{})
	}
}

// TestSlowSubscriber has a process stop reading: our PUB drops, counts, and serves
// others.
func TestSlowSubscriber(t *testing.T) {
	slow, quick := startPeer(t), startPeer(t)
	p := listenPub(t, "tcp://127.0.0.1:*", zmtp.Options{HighWater: 100})
	sub := slow.socket("SUB", options{"SUBSCRIBE": "", "RCVHWM": 10})
	sub.connect(p.Addr().String())
	awaitSubscribers(t, p, 1)
	if err := slow.process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	burst(p, 0, 2000, 50_000)
	lost := p.Dropped()
	if lost == 0 {
		t.Error("100 MB were queued for a process that is stopped")
	}
	other := quick.socket("SUB", options{"SUBSCRIBE": ""})
	other.connect(p.Addr().String())
	awaitSubscribers(t, p, 2)
	p.Send([]byte("hello"))
	other.expect("hello")
	if err := slow.process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := sub.recv(); len(got) != 3 {
		t.Errorf("the slow subscriber goes on with %d frames", len(got))
	}
}

// TestOtherMechanism holds that a peer with encryption is refused, with words.
func TestOtherMechanism(t *testing.T) {
	peer := startPeer(t)
	peer.ask("socket", args{"id": "curve", "type": "PUB", "curve": true})
	pub := &socket{peer, "curve"}
	s := dialSub(t, pub.bind("tcp://127.0.0.1:*"), zmtp.Options{})
	if refused := s.await(zmtp.Refused); !errors.Is(refused.Err, zmtp.ErrProtocol) || !strings.Contains(refused.Err.Error(), `"CURVE"`) {
		t.Errorf("refused: %v", refused.Err)
	}
}

// TestWrongSockets holds that sockets which do not talk with each other say so.
func TestWrongSockets(t *testing.T) {
	peer := startPeer(t)
	push := peer.socket("PUSH", nil)
	s := dialSub(t, push.bind("tcp://127.0.0.1:*"), zmtp.Options{})
	if refused := s.await(zmtp.Refused); !errors.Is(refused.Err, zmtp.ErrProtocol) && !strings.Contains(refused.Err.Error(), "is it the port of a PUB?") {
		t.Errorf("refused: %v", refused.Err) // libzmq says what it is, or just leaves
	}
}
