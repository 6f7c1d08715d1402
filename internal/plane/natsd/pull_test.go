package natsd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/internal/fixturetest"
)

// newWorkers adds a durable consumer to the stream of f.
func (f fixture) newWorkers(t *testing.T) jetstream.Consumer {
	t.Helper()
	c, err := f.stream.CreateConsumer(fixturetest.PatientContext(t), jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// awaitPullRequest waits until the server keeps a request for a message.
func awaitPullRequest(t *testing.T, c jetstream.Consumer) {
	t.Helper()
	ctx := fixturetest.PatientContext(t)
	for {
		info, err := c.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if info.NumWaiting > 0 {
			return
		}
	}
}

func refuseMessage(t *testing.T) func(*nats.Msg) {
	return func(m *nats.Msg) { t.Errorf("message %q came too late", m.Data) }
}

// A message is delivered at once, or when there is one.
func TestPullMessage(t *testing.T) {
	f := newFixture(t)
	c := f.newWorkers(t)
	f.publish(t, "s.a", "0")
	m, err := PullMessage(fixturetest.PatientContext(t), f.nc, "S", "workers", refuseMessage(t))
	if err != nil || string(m.Data) != "0" {
		t.Fatalf("message %v, error %v", m, err)
	}
	got := make(chan string)
	go func() {
		m, err := PullMessage(fixturetest.PatientContext(t), f.nc, "S", "workers", refuseMessage(t))
		if err != nil {
			t.Error(err)
			m = &nats.Msg{}
		}
		got <- string(m.Data)
	}()
	awaitPullRequest(t, c)
	f.publish(t, "s.a", "1")
	if s := <-got; s != "1" {
		t.Errorf("got %q", s)
	}
	if n := f.nc.NumSubscriptions(); n > 1 { // the library's own for the answers to requests
		t.Errorf("%d subscriptions are left", n)
	}
}

// Every message goes to a puller or is given back, whenever contexts end.
func TestPullMessageContextEnds(t *testing.T) {
	f := newFixture(t)
	c := f.newWorkers(t)
	for i := range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		var pulled, givenBack int
		done := make(chan struct{})
		go func() {
			defer close(done)
			m, err := PullMessage(ctx, f.nc, "S", "workers", func(m *nats.Msg) {
				givenBack++
				if err := m.Nak(); err != nil {
					t.Error(err)
				}
			})
			if err == nil {
				pulled++
				if err := m.AckSync(nats.Context(fixturetest.PatientContext(t))); err != nil {
					t.Error(err)
				}
			} else if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
		awaitPullRequest(t, c)
		if i%2 == 0 {
			go cancel()
			f.publish(t, "s.a", "x")
		} else {
			cancel()
			<-done
			f.publish(t, "s.a", "x")
		}
		<-done
		cancel()
		if pulled > 0 {
			continue
		}
		if i%2 == 1 && givenBack > 0 {
			t.Error("a message was delivered after the subscription")
		}
		// It is the server's again, else this would wait for an hour.
		m, err := PullMessage(fixturetest.PatientContext(t), f.nc, "S", "workers", refuseMessage(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.AckSync(nats.Context(fixturetest.PatientContext(t))); err != nil {
			t.Fatal(err)
		}
	}
}

// Without a consumer, or without its stream, a pull fails at once.
func TestPullMessageNoConsumer(t *testing.T) {
	f := newFixture(t)
	for _, stream := range []string{"S", "none"} {
		if _, err := PullMessage(fixturetest.PatientContext(t), f.nc, stream, "workers", refuseMessage(t)); !errors.Is(err, ErrInterrupted) {
			t.Errorf("consumer of %s: error %v", stream, err)
		}
	}
}

// A consumer which is deleted ends a pull.
func TestPullMessageConsumerDeleted(t *testing.T) {
	f := newFixture(t)
	c := f.newWorkers(t)
	failed := make(chan error)
	go func() {
		_, err := PullMessage(fixturetest.PatientContext(t), f.nc, "S", "workers", refuseMessage(t))
		failed <- err
	}()
	awaitPullRequest(t, c)
	if err := f.stream.DeleteConsumer(fixturetest.PatientContext(t), "workers"); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, ErrInterrupted) {
		t.Errorf("error %v", err)
	}
}
