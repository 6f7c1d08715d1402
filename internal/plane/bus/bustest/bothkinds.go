package bustest

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"penstock/core/fault"
	"penstock/internal/fixturetest"
	"penstock/internal/plane/bus"
)

func testAnyKey(t *testing.T, b bus.Bus) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	keys := []string{
		"", "worker", "123/0", "a.b", "*", ">", "a b", "=", "==", "=41", "A", "ключ", "\x00", "\xff\xfe",
		string(all[:128]), string(all[128:]), strings.Repeat(".", bus.MaxKey),
	}
	forBothKinds(t, func(t *testing.T, topic bus.Topic) {
		s := startSubscriber(t, b, topic, 0).awaitReady()
		for _, k := range keys {
			publishMessage(t, b, topic, k, "of "+k)
		}
		for i, m := range s.awaitMessages(len(keys)) {
			if m.key != keys[i] || m.data != "of "+keys[i] {
				t.Errorf("key %q came as %q with data %q", keys[i], m.key, m.data)
			}
		}
		err := b.Publish(fixturetest.PatientContext(t), topic, strings.Repeat("k", bus.MaxKey+1), nil)
		if fault.CodeOf(err) != fault.Invalid {
			t.Errorf("oversize key: error %v, want Invalid", err)
		}
	})
}

func testSizes(t *testing.T, b bus.Bus) {
	forBothKinds(t, func(t *testing.T, topic bus.Topic) {
		s := startSubscriber(t, b, topic, 0).awaitReady()
		sizes := []int{0, 1, 1 << 16, bus.MaxData}
		for _, n := range sizes {
			publishMessage(t, b, topic, "k", strings.Repeat("d", n))
		}
		for i, m := range s.awaitMessages(len(sizes)) {
			if m.data != strings.Repeat("d", sizes[i]) {
				t.Errorf("message %d has %d bytes, want %d", i, len(m.data), sizes[i])
			}
		}
		err := b.Publish(fixturetest.PatientContext(t), topic, "k", make([]byte, bus.MaxData+1))
		if fault.CodeOf(err) != fault.TooLarge {
			t.Errorf("oversize data: error %v, want TooLarge", err)
		}
	})
}

// testDataIsCopied overwrites the publisher's slice after Publish, and each subscriber's slice
// within its sink.
func testDataIsCopied(t *testing.T, b bus.Bus) {
	forBothKinds(t, func(t *testing.T, topic bus.Topic) {
		type result struct {
			data string
			err  error
		}
		const subscribers = 3
		results := make(chan result, subscribers)
		for range subscribers {
			ready := make(chan struct{})
			go func() {
				var data string
				err := b.Subscribe(t.Context(), topic, 0, func(m bus.Message) error {
					data = string(m.Data)
					clear(m.Data)
					return errDone
				}, func() { close(ready) })
				results <- result{data, err}
			}()
			<-ready
		}
		data := bytes.Repeat([]byte("d"), 1000)
		if err := b.Publish(fixturetest.PatientContext(t), topic, "k", data); err != nil {
			t.Fatal(err)
		}
		clear(data)
		for range subscribers {
			if r := <-results; r.err != errDone || r.data != strings.Repeat("d", 1000) {
				t.Errorf("error %v, data %.20q…", r.err, r.data)
			}
		}
	})
}

// testTopicsApart uses topic names which contain each other.
func testTopicsApart(t *testing.T, b bus.Bus) {
	names := []string{"a", "a.b", "a.b.c", "a_b", "a-b", "b", "A"}
	for _, lasting := range []bool{false, true} {
		topic := func(name string) bus.Topic {
			if lasting {
				name += ".log"
			}
			return bus.Topic{Name: name, Durable: lasting, MaxBytes: 1 << 20}
		}
		var subs []*subscriber
		for _, n := range names {
			subs = append(subs, startSubscriber(t, b, topic(n), 0).awaitReady())
		}
		for _, n := range names {
			for range 3 {
				publishMessage(t, b, topic(n), "b", n)
			}
		}
		for i, s := range subs {
			for _, m := range s.awaitMessages(3) {
				if m.data != names[i] {
					t.Errorf("topic %s got a message of %s", names[i], m.data)
				}
			}
			if got := s.received(); len(got) != 3 {
				t.Errorf("topic %s got %d messages, want 3", names[i], len(got))
			}
		}
	}
}

func testSinkFails(t *testing.T, b bus.Bus) {
	forBothKinds(t, func(t *testing.T, topic bus.Topic) {
		n := 0
		err := b.Subscribe(t.Context(), topic, 0, func(bus.Message) error {
			n++
			return errDone
		}, func() {
			for range 10 {
				publishMessage(t, b, topic, "k", "x")
			}
		})
		if err != errDone || n != 1 {
			t.Errorf("Subscribe returned %v after %d messages, want the sink's error after one", err, n)
		}
	})
}

func testContextEnds(t *testing.T, b bus.Bus) {
	forBothKinds(t, func(t *testing.T, topic bus.Topic) {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		err := b.Subscribe(ctx, topic, 0, func(bus.Message) error {
			n++
			cancel()
			return nil
		}, func() {
			for range 10 {
				publishMessage(t, b, topic, "k", "x")
			}
		})
		if err != nil || n != 1 {
			t.Errorf("Subscribe returned %v after %d messages, want nil after one", err, n)
		}
		if err := b.Publish(ctx, topic, "k", nil); err != context.Canceled {
			t.Errorf("Publish returned %v, want context.Canceled", err)
		}
		if err := b.Subscribe(ctx, topic, 0, func(bus.Message) error { return errDone }, nil); err != nil {
			t.Errorf("Subscribe returned %v, want nil", err)
		}
	})
}

// testSinkPublishes publishes an answer to each message from within the sink.
func testSinkPublishes(t *testing.T, b bus.Bus) {
	forBothKinds(t, func(t *testing.T, topic bus.Topic) {
		echo := topic
		echo.Name += ".echo"
		answers := startSubscriber(t, b, echo, 0).awaitReady()
		n := 0
		err := b.Subscribe(t.Context(), topic, 0, func(m bus.Message) error {
			if err := b.Publish(fixturetest.PatientContext(t), echo, m.Key, m.Data); err != nil {
				return err
			}
			if n++; n == 3 {
				return errDone
			}
			return b.Publish(fixturetest.PatientContext(t), topic, m.Key, m.Data)
		}, func() { publishMessage(t, b, topic, "k", "x") })
		if err != errDone {
			t.Fatal(err)
		}
		answers.awaitMessages(3)
	})
}

func testBadTopics(t *testing.T, b bus.Bus) {
	sink := func(bus.Message) error { return errDone }
	check := func(topic bus.Topic, want fault.Code) {
		t.Helper()
		if err := b.Publish(fixturetest.PatientContext(t), topic, "k", nil); fault.CodeOf(err) != want {
			t.Errorf("publish to %+v: error %v, want %v", topic, err, want)
		}
		if err := b.Subscribe(t.Context(), topic, 0, sink, nil); fault.CodeOf(err) != want {
			t.Errorf("subscribe to %+v: error %v, want %v", topic, err, want)
		}
	}
	for _, name := range []string{"", ".", "a.", ".a", "a..b", "a b", "a*", ">", "é", "a\n", "a/b", strings.Repeat("a", bus.MaxName+1)} {
		check(bus.Topic{Name: name}, fault.Invalid)
		check(bus.Topic{Name: name, Durable: true}, fault.Invalid)
	}
	check(bus.Topic{Name: "a", Durable: true, MaxBytes: -1}, fault.Invalid)
	check(bus.Topic{Name: "a", Durable: true, MaxBytes: 1}, fault.Invalid)
	check(bus.Topic{Name: "a", Durable: true, MaxAge: -1}, fault.Invalid)

	publishMessage(t, b, gossip, "k", "x")
	publishMessage(t, b, durable, "k", "x")
	check(bus.Topic{Name: gossip.Name, Durable: true}, fault.Conflict)
	check(bus.Topic{Name: durable.Name}, fault.Conflict)
	check(bus.Topic{Name: durable.Name, Durable: true, MaxBytes: durable.MaxBytes + 1}, fault.Conflict)
}
