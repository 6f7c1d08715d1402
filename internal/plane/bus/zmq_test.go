package bus

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock/internal/fixturetest"
	"penstock/internal/zmtp"
)

func zmqAt(t testing.TB, s string) zmtp.Endpoint {
	t.Helper()
	ep, err := zmtp.ParseEndpoint(s)
	if err != nil {
		t.Fatal(err)
	}
	return ep
}

// OpenZMQ opens a bus that ends with the test.
func OpenZMQ(t testing.TB, self ZMQPeer) *ZMQBus {
	t.Helper()
	if self == (ZMQPeer{}) {
		self = ZMQPeer{zmqAt(t, "tcp://127.0.0.1:0"), zmqAt(t, "tcp://127.0.0.1:0")}
	}
	const patience = 5 * time.Minute // for peers, which only a failure reaches
	b, err := NewZMQBus(ZMQBusConfig{Events: self.Events, Replay: self.Replay, PeerTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	b.replayLimit = patience
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// reservedPeer returns addresses at which a bus can be opened again, and no other listens meanwhile.
func reservedPeer(t *testing.T) ZMQPeer {
	t.Helper()
	return ZMQPeer{zmqAt(t, "tcp://"+fixturetest.ReserveAddr(t)), zmqAt(t, "tcp://"+fixturetest.ReserveAddr(t))}
}

// Pair is a bus of two processes: one publishes, the other does all else.
type Pair struct{ Here, There *ZMQBus }

// OpenPair opens two that know each other.
func OpenPair(t testing.TB) *Pair {
	p := &Pair{OpenZMQ(t, ZMQPeer{}), OpenZMQ(t, ZMQPeer{})}
	all := []ZMQPeer{p.Here.LocalPeer(), p.There.LocalPeer()}
	p.Here.SetPeers(all)
	p.There.SetPeers(all)
	return p
}

// Publish implements Bus. Both hold the topic against what they know of it.
func (p *Pair) Publish(ctx context.Context, t Topic, key string, data []byte) error {
	if err := p.Here.Publish(ctx, t, key, data); err != nil {
		return err
	}
	_, err := p.There.local.lookupTopic(t)
	return err
}

// Subscribe implements Bus.
func (p *Pair) Subscribe(ctx context.Context, t Topic, from uint64, sink func(Message) error, ready func()) error {
	return p.There.Subscribe(ctx, t, from, sink, ready)
}

// DescribeTopic implements Bus.
func (p *Pair) DescribeTopic(ctx context.Context, t Topic) (TopicState, error) {
	return p.There.DescribeTopic(ctx, t)
}

// Purge implements Bus.
func (p *Pair) Purge(ctx context.Context, t Topic, below uint64) error {
	return p.There.Purge(ctx, t, below)
}

var (
	zmqLog    = Topic{Name: "ns.log", Durable: true}
	zmqGossip = Topic{Name: "ns.gossip"}
)

// zmqReader collects what a subscription gets.
type zmqReader struct {
	messages chan string
	ready    chan struct{}
}

func zmqSubscribe(t *testing.T, b Bus, topic Topic) *zmqReader {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &zmqReader{make(chan string, 1<<16), make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		done <- b.Subscribe(ctx, topic, 0, func(m Message) error {
			r.messages <- m.Key + "=" + string(m.Data)
			return nil
		}, func() { close(r.ready) })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *zmqReader) awaitReady(t *testing.T) *zmqReader {
	t.Helper()
	await(t, "ready", r.ready)
	return r
}

func (r *zmqReader) next(t *testing.T) string {
	t.Helper()
	return await(t, "a message", r.messages)
}

func publish(t *testing.T, b Bus, topic Topic, key string, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		if err := b.Publish(t.Context(), topic, key, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestZMQMesh has some processes publish and all of them hear all.
func TestZMQMesh(t *testing.T) {
	const n, each = 4, 300
	var all []*ZMQBus
	var peers []ZMQPeer
	for range n {
		b := OpenZMQ(t, ZMQPeer{})
		all, peers = append(all, b), append(peers, b.LocalPeer())
	}
	var early []*zmqReader
	for i, b := range all {
		publish(t, b, zmqLog, fmt.Sprint(i), 1, each) // before the peers know each other
		early = append(early, zmqSubscribe(t, b, zmqLog))
	}
	for _, b := range all {
		b.SetPeers(peers)
	}
	var wg sync.WaitGroup
	for i, b := range all {
		wg.Go(func() { publish(t, b, zmqLog, fmt.Sprint(i), each+1, 2*each) })
	}
	wg.Wait()
	for i, b := range all {
		late := zmqSubscribe(t, b, zmqLog).awaitReady(t)
		for _, r := range []*zmqReader{early[i], late} {
			next := map[string]int{}
			for range 2 * n * each {
				key, number, _ := strings.Cut(r.next(t), "=")
				if next[key]++; number != fmt.Sprint(next[key]) {
					t.Fatalf("message %s of %s, want %d", number, key, next[key])
				}
			}
		}
		if b.Gaps() != 0 || b.Malformed() != 0 {
			t.Errorf("%d holes, %d malformed", b.Gaps(), b.Malformed())
		}
	}
	// Gossip reaches all subscribers.
	var gossip []*zmqReader
	for _, b := range all {
		gossip = append(gossip, zmqSubscribe(t, b, zmqGossip).awaitReady(t))
	}
	publish(t, all[1], zmqGossip, "k", 7, 7)
	for _, r := range gossip {
		if got := r.next(t); got != "k=7" {
			t.Errorf("got %s", got)
		}
	}
}

// TestZMQRestart stops a publisher and starts another incarnation at its address: the retained
// messages are lost, and new ones are received from the first on.
func TestZMQRestart(t *testing.T) {
	reader := OpenZMQ(t, ZMQPeer{})
	self := reservedPeer(t)
	writer := OpenZMQ(t, self)
	reader.SetPeers([]ZMQPeer{self, reader.LocalPeer()})
	publish(t, writer, zmqLog, "first", 1, 50)
	r := zmqSubscribe(t, reader, zmqLog).awaitReady(t)
	_ = writer.Close()
	writer = OpenZMQ(t, self)
	publish(t, writer, zmqLog, "second", 1, 100) // most before the reader is back
	for i := 1; i <= 50; i++ {
		if got := r.next(t); got != fmt.Sprintf("first=%d", i) {
			t.Fatalf("got %s, want first=%d", got, i)
		}
	}
	for i := 1; i <= 100; i++ {
		if got := r.next(t); got != fmt.Sprintf("second=%d", i) {
			t.Fatalf("got %s, want second=%d", got, i)
		}
	}
	if h := reader.Gaps(); h != 0 {
		t.Errorf("%d holes", h)
	}
}

// TestZMQPeerGoes: subscribers drop a peer which no longer exists, and a peer which never answers
// delays others no longer than the limit.
func TestZMQPeerGoes(t *testing.T) {
	reader, writer := OpenZMQ(t, ZMQPeer{}), OpenZMQ(t, ZMQPeer{})
	gone := reservedPeer(t)
	_ = OpenZMQ(t, gone).Close()
	reader.SetPeers([]ZMQPeer{writer.LocalPeer(), gone})
	publish(t, writer, zmqLog, "k", 1, 3)
	r := zmqSubscribe(t, reader, zmqLog).awaitReady(t)
	for i := 1; i <= 3; i++ {
		if got := r.next(t); got != fmt.Sprintf("k=%d", i) {
			t.Fatalf("got %s", got)
		}
	}
	reader.SetPeers(nil)
	if s, err := reader.DescribeTopic(t.Context(), zmqLog); err != nil || s.Last != 3 {
		t.Errorf("%+v, %v", s, err)
	}
	reader.mu.Lock()
	defer reader.mu.Unlock()
	if len(reader.mu.peers) != 0 {
		t.Errorf("%d peers are left", len(reader.mu.peers))
	}
}

// TestZMQSelf holds that a process which is told of itself by another name hears
// itself once.
func TestZMQSelf(t *testing.T) {
	b := OpenZMQ(t, ZMQPeer{})
	other := func(e zmtp.Endpoint) zmtp.Endpoint {
		return zmqAt(t, strings.Replace(e.String(), "127.0.0.1", "[::ffff:127.0.0.1]", 1))
	}
	self := ZMQPeer{other(b.LocalPeer().Events), other(b.LocalPeer().Replay)}
	if err := self.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetPeers([]ZMQPeer{self})
	publish(t, b, zmqLog, "early", 1, 10)
	r := zmqSubscribe(t, b, zmqLog).awaitReady(t)
	for i := 1; i <= 10; i++ {
		if got := r.next(t); got != fmt.Sprintf("early=%d", i) {
			t.Errorf("got %s, want early=%d", got, i)
		}
	}
	if s, err := b.DescribeTopic(t.Context(), zmqLog); err != nil || s.Last != 10 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, topic := range []Topic{zmqLog, zmqGossip} {
		q := zmqSubscribe(t, b, topic).awaitReady(t)
		l := newZMQLink(b, self, mustTopic(t, b, topic), nil)
		l.handleMessage(t.Context(), zmqMessage{topic: topic.Name, key: "mine", seq: 11, incarnation: b.incarnation})
		publish(t, b, topic, "last", 1, 1)
		for got := ""; got != "last=1"; {
			if got = q.next(t); got == "mine=" {
				t.Error("it heard itself")
			}
		}
	}
}

// TestZMQHole has a peer forget messages before they are heard: the rest comes, and
// the loss is counted once.
func TestZMQHole(t *testing.T) {
	p := OpenPair(t)
	small := Topic{Name: "small", Durable: true, MaxBytes: 64 << 10}
	big := func(i int) []byte { return fmt.Appendf(nil, "%d %s", i, strings.Repeat("x", 1000)) }
	if err := p.Here.Publish(t.Context(), small, "k", big(1)); err != nil {
		t.Fatal(err)
	}
	r := zmqSubscribe(t, p, small).awaitReady(t)
	r.next(t)
	p.There.SetPeers(nil) // it hears nothing for a while
	for i := 2; i <= 500; i++ {
		if err := p.Here.Publish(t.Context(), small, "k", big(i)); err != nil {
			t.Fatal(err)
		}
	}
	// A new link has no history: no message counts as lost.
	p.There.SetPeers([]ZMQPeer{p.Here.LocalPeer()})
	for {
		if got := r.next(t); strings.HasPrefix(got, "k=500 ") {
			break
		}
	}
	if h := p.There.Gaps(); h != 0 {
		t.Errorf("%d holes", h)
	}
	// One that does is told.
	l := newZMQLink(p.There, p.Here.LocalPeer(), p.There.joinTopic(mustTopic(t, p.There, small))[0].topic, nil)
	l.incarnation, l.next = p.Here.incarnation, 3
	if err := l.catchUp(t.Context(), 1); err != nil || p.There.Gaps() != 1 || l.next != 501 {
		t.Errorf("%v, %d holes, the next is %d", err, p.There.Gaps(), l.next)
	}
}

func mustTopic(t *testing.T, b *ZMQBus, topic Topic) *memTopic {
	t.Helper()
	mt, err := b.local.lookupTopic(topic)
	if err != nil {
		t.Fatal(err)
	}
	return mt
}

// TestZMQForeignPeers has something else answer at a peer's addresses.
func TestZMQForeignPeers(t *testing.T) {
	pub, err := zmtp.ListenPub(zmqAt(t, "tcp://127.0.0.1:0"), zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	router, err := zmtp.ListenRouter(zmqAt(t, "tcp://127.0.0.1:0"), zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		for n := 0; ; n++ {
			id, _, err := router.Recv(context.Background())
			if err != nil {
				return
			}
			end := zmqMessage{topic: zmqLog.Name, seq: zmqEnd, incarnation: 1, data: encodeZMQNumbers(1, 100)}
			_ = router.Send(id, [][][]byte{
				{[]byte("hello")},
				{nil, []byte("no topic"), encodeZMQNumbers(1, 1), nil},
				encodeZMQPageEnd("another", 1, 1, 0),
				append([][]byte{nil}, end.encodeFrames()...), // never comes further
			}[n%4]...)
		}
	}()
	defer func() { _ = router.Close(); <-answered }()
	b := OpenZMQ(t, ZMQPeer{})
	b.SetPeers([]ZMQPeer{{pub.Addr(), router.Addr()}})
	r := zmqSubscribe(t, b, zmqLog).awaitReady(t)
	if err := pub.AwaitSubscribers(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	pub.Send([]byte("ns.log\x00k"), []byte("short"), []byte("x"))
	pub.Send([]byte("ns.log\x00k"), encodeZMQNumbers(0, 1), []byte("x"))
	pub.Send([]byte("ns.log\x00"+strings.Repeat("k", MaxKey+1)), encodeZMQNumbers(1, 1), []byte("x"))
	pub.Send([]byte("ns.log\x00k"), encodeZMQNumbers(5, 9), []byte("good"))
	if got := r.next(t); got != "k=good" || b.Malformed() != 3 {
		t.Errorf("got %s, %d malformed", got, b.Malformed())
	}
}

func FuzzZMQ(f *testing.F) {
	m := zmqMessage{topic: "a.b", key: "7/0", seq: 1, incarnation: 2, data: []byte("x")}.encodeFrames()
	f.Add(m[0], m[1], m[2])
	r := zmqRequest{"a.b", 3, 4}.encodeFrames()
	f.Add(r[0], r[1], r[2])
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		if m, err := decodeZMQMessage([][]byte{a, b, c}); err == nil && fmt.Sprintf("%x", m.encodeFrames()) != fmt.Sprintf("%x", [][]byte{a, b, c}) {
			t.Errorf("%x %x %x is read as %+v", a, b, c, m)
		}
		if r, err := decodeZMQRequest([][]byte{a, b, c}); err == nil && fmt.Sprintf("%x", r.encodeFrames()) != fmt.Sprintf("%x", [][]byte{a, b, c}) {
			t.Errorf("%x %x %x is read as %+v", a, b, c, r)
		}
		if next, last, ok := decodeZMQPageEnd(c); ok && (next != binary.BigEndian.Uint64(c) || next > last+1) {
			t.Errorf("%x is a page to %d of %d", c, next, last)
		}
	})
}
