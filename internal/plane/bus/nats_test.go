package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/natsd/natsdtest"
)

// startServer starts a server that ends with the test, unless it ended before.
func startServer(t *testing.T, cfg natsd.Config) *natsd.Server {
	t.Helper()
	s, err := natsd.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newBus(t *testing.T, nc *nats.Conn, cfg NATSBusConfig) *NATSBus {
	t.Helper()
	b, err := NewNATSBus(nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// logLines passes each log record's message on.
type logLines struct {
	slog.Handler
	lines chan string
}

func (l logLines) Handle(_ context.Context, r slog.Record) error {
	l.lines <- r.Message
	return nil
}

func newLog() (*slog.Logger, <-chan string) {
	lines := make(chan string, 1000)
	h := slog.NewTextHandler(nil, nil) // never written to
	return slog.New(logLines{h, lines}), lines
}

// follow subscribes and returns the messages as "seq:data".
func follow(t *testing.T, b Bus, topic Topic, from uint64) (got <-chan string, ready <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, r, done := make(chan string, 100_000), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		err := b.Subscribe(ctx, topic, from, func(m Message) error {
			out <- fmt.Sprintf("%d:%s", m.Seq, m.Data)
			return nil
		}, func() { close(r) })
		if err != nil {
			t.Errorf("Subscribe: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return out, r
}

func await[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(5 * time.Minute):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

var testTopic = Topic{Name: "kv-events", Durable: true, MaxBytes: 16 << 20}

// A server that restarts with its data loses nothing and repeats nothing.
func TestNATSServerRestart(t *testing.T) {
	cfg := natsd.Config{DataDir: t.TempDir(), Listen: fixturetest.ReserveAddr(t)}
	s := startServer(t, cfg)
	log, lines := newLog()
	b := newBus(t, natsdtest.Connect(t, s), NATSBusConfig{Log: log})
	got, _ := follow(t, b, testTopic, 0)
	publish := func(i int) error {
		return b.Publish(fixturetest.PatientContext(t), testTopic, "k", []byte(strconv.Itoa(i)))
	}
	for i := range 100 {
		if err := publish(i); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		if m := await(t, "a message before the restart", got); m != fmt.Sprintf("%d:%d", i+1, i) {
			t.Fatalf("message %d is %s", i, m)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if l := await(t, "the log of the interruption", lines); l != "event stream interrupted" {
		t.Errorf("log says %q", l)
	}
	if err := publish(100); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("publish without a server: error %v, want Unavailable", err)
	}
	startServer(t, cfg)
	if l := await(t, "the log of the resumption", lines); l != "event stream resumed" {
		t.Errorf("log says %q", l)
	}
	for i := 100; i < 200; i++ {
		if err := publish(i); err != nil {
			t.Fatal(err)
		}
	}
	for i := 100; i < 200; i++ {
		if m := await(t, "a message after the restart", got); m != fmt.Sprintf("%d:%d", i+1, i) {
			t.Fatalf("message %d is %s", i, m)
		}
	}
}

// A server that comes back empty begins a new life of the topic.
func TestNATSServerLosesData(t *testing.T) {
	cfg := natsd.Config{Listen: fixturetest.ReserveAddr(t)}
	s := startServer(t, cfg)
	log, lines := newLog()
	b := newBus(t, natsdtest.Connect(t, s), NATSBusConfig{Log: log})
	got, _ := follow(t, b, testTopic, 0)
	for range 10 {
		if err := b.Publish(fixturetest.PatientContext(t), testTopic, "k", []byte("old")); err != nil {
			t.Fatal(err)
		}
		await(t, "an old message", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	startServer(t, cfg)
	for await(t, "the log of the resumption", lines) != "event stream resumed" {
	}
	if err := b.Publish(fixturetest.PatientContext(t), testTopic, "k", []byte("new")); err != nil {
		t.Fatal(err)
	}
	if m := await(t, "the first message of the new life", got); m != "1:new" {
		t.Errorf("got %s, want 1:new", m)
	}
}

// A stream that was replaced by a longer one is read from its beginning, though
// it has the number that the reader wanted next.
func TestNATSStreamReplaced(t *testing.T) {
	nc := natsdtest.Connect(t, startServer(t, natsd.Config{}))
	b, writer := newBus(t, nc, NATSBusConfig{}), newBus(t, nc, NATSBusConfig{})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	publish := func(what string, n int) {
		for i := range n {
			if err := writer.Publish(fixturetest.PatientContext(t), testTopic, "k", fmt.Appendf(nil, "%s%d", what, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish("old", 5)
	var got []string
	done := errors.New("done")
	err = b.Subscribe(fixturetest.PatientContext(t), testTopic, 0, func(m Message) error {
		got = append(got, fmt.Sprintf("%d:%s", m.Seq, m.Data))
		switch len(got) {
		case 5:
			if err := js.DeleteStream(fixturetest.PatientContext(t), "penstock_kv-events"); err != nil {
				return err
			}
			publish("new", 10)
		case 15:
			return done
		}
		return nil
	}, nil)
	want := "[1:old0 2:old1 3:old2 4:old3 5:old4 1:new0 2:new1 3:new2 4:new3 5:new4 6:new5 7:new6 8:new7 9:new8 10:new9]"
	if err != done || fmt.Sprint(got) != want {
		t.Errorf("error %v, got %v", err, got)
	}
}

// The stream is deleted under a publisher: the next message creates it again.
func TestNATSStreamDeleted(t *testing.T) {
	nc := natsdtest.Connect(t, startServer(t, natsd.Config{}))
	b := newBus(t, nc, NATSBusConfig{})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		if err := b.Publish(fixturetest.PatientContext(t), testTopic, "k", []byte("x")); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if err := js.DeleteStream(fixturetest.PatientContext(t), "penstock_kv-events"); err != nil {
			t.Fatal(err)
		}
	}
}

// Connections that break during a replay cost time, not messages.
func TestNATSReconnectsDuringReplay(t *testing.T) {
	s := startServer(t, natsd.Config{Listen: "127.0.0.1:0"})
	b := newBus(t, natsdtest.Connect(t, s), NATSBusConfig{})
	const n = 3000
	for i := range n {
		if err := b.Publish(fixturetest.PatientContext(t), testTopic, "k", []byte(strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	nc := natsdtest.Connect(t, s)
	reader := newBus(t, nc, NATSBusConfig{})
	seen, readyAt := 0, 0
	err := reader.Subscribe(fixturetest.PatientContext(t), testTopic, 0, func(m Message) error {
		if want := strconv.Itoa(seen); string(m.Data) != want || m.Seq != uint64(seen+1) {
			return fmt.Errorf("message %d has number %d and data %s", seen, m.Seq, m.Data)
		}
		seen++
		if seen%1000 == 300 {
			if err := nc.ForceReconnect(); err != nil {
				return err
			}
		}
		return nil
	}, func() {
		readyAt = seen
		go nc.Close() // ends the subscription; not from within its own callback
	})
	if fault.CodeOf(err) != fault.Unavailable || seen != n || readyAt != n {
		t.Errorf("error %v after %d messages, ready after %d; want Unavailable after %d", err, seen, readyAt, n)
	}
}

func TestNATSConnectionClosed(t *testing.T) {
	for _, topic := range []Topic{testTopic, {Name: "load"}} {
		nc := natsdtest.Connect(t, startServer(t, natsd.Config{}))
		b := newBus(t, nc, NATSBusConfig{})
		err := b.Subscribe(fixturetest.PatientContext(t), topic, 0, func(Message) error { return nil }, nc.Close)
		if fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("%s: Subscribe returned %v, want Unavailable", topic.Name, err)
		}
		if err := b.Publish(fixturetest.PatientContext(t), topic, "k", nil); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("%s: Publish returned %v, want Unavailable", topic.Name, err)
		}
	}
}

// Subscriptions to topics that are not durable return with the connection too.
func TestNATSGossipAfterReconnect(t *testing.T) {
	s := startServer(t, natsd.Config{Listen: "127.0.0.1:0"})
	nc := natsdtest.Connect(t, s)
	b, other := newBus(t, nc, NATSBusConfig{}), newBus(t, natsdtest.Connect(t, s), NATSBusConfig{})
	topic := Topic{Name: "load"}
	got, ready := follow(t, b, topic, 0)
	await(t, "ready", ready)
	back := nc.StatusChanged(nats.CONNECTED)
	defer nc.RemoveStatusListener(back)
	if err := nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	await(t, "the connection", back)
	if err := nc.FlushTimeout(5 * time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := other.Publish(fixturetest.PatientContext(t), topic, "k", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if m := await(t, "a message", got); m != "0:x" {
		t.Errorf("got %s", m)
	}
}

// A stream's limits follow the topic; what else an operator set stays.
func TestNATSLimits(t *testing.T) {
	nc := natsdtest.Connect(t, startServer(t, natsd.Config{}))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	config := func() jetstream.StreamConfig {
		s, err := js.Stream(fixturetest.PatientContext(t), "cluster-1+x_a+b")
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().Config
	}
	topic := Topic{Name: "a.b", Durable: true}
	if err := newBus(t, nc, NATSBusConfig{Prefix: "cluster-1.x"}).Publish(fixturetest.PatientContext(t), topic, "k", nil); err != nil {
		t.Fatal(err)
	}
	c := config()
	if c.MaxBytes != DefaultMaxBytes || c.MaxAge != DefaultMaxAge || c.Storage != jetstream.FileStorage ||
		c.Discard != jetstream.DiscardOld || fmt.Sprint(c.Subjects) != "[cluster-1.x.a.b.*]" {
		t.Errorf("created with %+v", c)
	}
	c.Description = "the operator's"
	if _, err := js.UpdateStream(fixturetest.PatientContext(t), c); err != nil {
		t.Fatal(err)
	}
	topic.MaxBytes, topic.MaxAge = 1<<20, time.Minute
	if err := newBus(t, nc, NATSBusConfig{Prefix: "cluster-1.x"}).Publish(fixturetest.PatientContext(t), topic, "k", nil); err != nil {
		t.Fatal(err)
	}
	if c = config(); c.MaxBytes != 1<<20 || c.MaxAge != time.Minute || c.Description != "the operator's" {
		t.Errorf("changed to %+v", c)
	}
}

// A topic that the server refuses is an error, not a silent wait.
func TestNATSRefused(t *testing.T) {
	b := newBus(t, natsdtest.Connect(t, startServer(t, natsd.Config{MaxStore: 1 << 20})), NATSBusConfig{})
	topic := Topic{Name: "t", Durable: true, MaxBytes: 1 << 30}
	err := b.Subscribe(fixturetest.PatientContext(t), topic, 0, func(Message) error { return nil }, nil)
	if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "storage") {
		t.Errorf("Subscribe returned %v, want Unavailable for want of storage", err)
	}
	if err := b.Publish(fixturetest.PatientContext(t), topic, "k", nil); fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "JetStream has no room: free disk space") {
		t.Errorf("Publish returned %v, want Unavailable with what to do", err)
	}
}

// Messages of others on our subjects are counted and ignored.
func TestNATSMalformedSubject(t *testing.T) {
	nc := natsdtest.Connect(t, startServer(t, natsd.Config{}))
	b := newBus(t, nc, NATSBusConfig{})
	for _, topic := range []Topic{testTopic, {Name: "load"}} {
		before := b.Malformed()
		got, ready := follow(t, b, topic, 0)
		await(t, "ready", ready)
		for _, key := range []string{"=zz", "good"} {
			if err := nc.Publish("penstock."+topic.Name+"."+key, []byte(key)); err != nil {
				t.Fatal(err)
			}
		}
		if m := await(t, "the good message", got); !strings.HasSuffix(m, ":good") {
			t.Errorf("got %s", m)
		}
		if n := b.Malformed() - before; n != 1 {
			t.Errorf("%s: %d malformed messages counted, want 1", topic.Name, n)
		}
	}
}

func TestNATSConfigReportsEverything(t *testing.T) {
	_, err := NewNATSBus(nil, NATSBusConfig{Prefix: "a b", Replicas: 6})
	if err == nil || !strings.Contains(err.Error(), "a b") || !strings.Contains(err.Error(), "6") {
		t.Errorf("error %v, want both problems", err)
	}
}

func BenchmarkNATSReplay(b *testing.B) {
	s, err := natsd.Start(natsd.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	nc, err := s.Connect("bench")
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	nb, err := NewNATSBus(nc, NATSBusConfig{})
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, 512)
	const n = 20_000
	var next atomic.Int64
	b.SetParallelism(16)
	b.RunParallel(func(p *testing.PB) {
		for next.Add(1) <= n {
			if err := nb.Publish(b.Context(), testTopic, "k", data); err != nil {
				b.Error(err)
				return
			}
		}
		for p.Next() {
		}
	})
	b.ResetTimer()
	for range b.N {
		ctx, cancel := context.WithCancel(b.Context())
		if err := nb.Subscribe(ctx, testTopic, 0, func(Message) error { return nil }, cancel); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// A user that leaves while the server creates its stream must not make the server
// leave the stream's files open when it is closed next: goroutines that outlive
// the tests would show it.
func TestNATSLeavingDuringCreation(t *testing.T) {
	for n := range 40 {
		s, err := natsd.Start(natsd.Config{})
		if err != nil {
			t.Fatal(err)
		}
		nc := natsdtest.Connect(t, s)
		b := newBus(t, nc, NATSBusConfig{})
		ctx, leave := context.WithTimeout(t.Context(), time.Duration(n)*25*time.Microsecond)
		_ = b.Publish(ctx, Topic{Name: "left", Durable: true}, "k", nil) // may or may not be in time
		leave()
		nc.Close()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
