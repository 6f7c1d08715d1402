package natsd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/internal/fixturetest"
)

// fixture is a stream "S" of subjects s.* on a server of its own.
type fixture struct {
	server *Server
	nc     *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	s := start(t, Config{})
	nc, js := connect(t, s)
	st, err := js.CreateStream(fixturetest.PatientContext(t), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.*"}})
	if err != nil {
		t.Fatal(err)
	}
	return fixture{s, nc, js, st}
}

func (f fixture) publish(t *testing.T, subject string, data string) {
	t.Helper()
	if _, err := f.js.Publish(fixturetest.PatientContext(t), subject, []byte(data)); err != nil {
		t.Fatal(err)
	}
}

// consumers returns how many there are.
func (f fixture) consumers(t *testing.T) int {
	t.Helper()
	info, err := f.stream.Info(fixturetest.PatientContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Consumers
}

func TestTail(t *testing.T) {
	f := newFixture(t)
	const before, after = 3*512/2 + 1, 512
	for i := range before {
		f.publish(t, "s.a", fmt.Sprint(i))
	}
	ctx, cancel := context.WithCancel(fixturetest.PatientContext(t))
	var n, caughtUpAt int
	from := TailStart{Subjects: []string{"s.*"}, Seq: 11}
	err := Tail(ctx, f.nc, f.js, "S", from, func(m Msg) error {
		if want := fmt.Sprint(n + 10); string(m.Data) != want || m.Seq != uint64(n+11) || m.Subject != "s.a" {
			return fmt.Errorf("message %d is %+v, want %s", n, m, want)
		}
		if n++; n == before-10+after {
			cancel()
		}
		return nil
	}, func() {
		caughtUpAt = n
		for i := range after {
			f.publish(t, "s.a", fmt.Sprint(before+i))
		}
	})
	if err != nil || n != before-10+after || caughtUpAt != before-10 {
		t.Errorf("error %v, %d messages, caught up after %d", err, n, caughtUpAt)
	}
	if c := f.consumers(t); c != 0 {
		t.Errorf("%d consumers left behind", c)
	}
}

func TestTailLastPerSubject(t *testing.T) {
	f := newFixture(t)
	for i := range 3 {
		for _, s := range []string{"s.a", "s.b", "s.c"} {
			f.publish(t, s, fmt.Sprint(i))
		}
	}
	ctx, cancel := context.WithCancel(fixturetest.PatientContext(t))
	var got []string
	err := Tail(ctx, f.nc, f.js, "S", TailStart{Subjects: []string{"s.a", "s.c"}}, func(m Msg) error {
		got = append(got, m.Subject+"="+string(m.Data))
		return nil
	}, cancel)
	if want := "s.a=2 s.c=2"; err != nil || strings.Join(got, " ") != want {
		t.Errorf("error %v, got %q, want %q", err, got, want)
	}
}

func TestTailOfNothing(t *testing.T) {
	f := newFixture(t)
	f.publish(t, "s.b", "other")
	for _, from := range []TailStart{{Subjects: []string{"s.a"}, Seq: 1}, {Subjects: []string{"s.a"}}, {Subjects: []string{"s.*"}, Seq: 100}} {
		ctx, cancel := context.WithCancel(fixturetest.PatientContext(t))
		err := Tail(ctx, f.nc, f.js, "S", from, func(m Msg) error { return fmt.Errorf("got %+v", m) }, cancel)
		if err != nil {
			t.Errorf("%+v: %v", from, err)
		}
	}
}

// What was pending at the start is removed before it could be sent.
func TestTailCatchesUpWithTheRemoved(t *testing.T) {
	f := newFixture(t)
	f.publish(t, "s.a", "x")
	cons, err := f.js.CreateConsumer(fixturetest.PatientContext(t), "S", consumerConfig(TailStart{Subjects: []string{"s.*"}, Seq: 1}))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.stream.Purge(fixturetest.PatientContext(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(fixturetest.PatientContext(t))
	r := newTailReader("S", cons, nil, cancel)
	r.checkInterval = 10 * time.Millisecond
	if err := r.readMessages(ctx, f.nc); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of caughtUp's cancellation", err)
	}
}

func TestTailSinkFails(t *testing.T) {
	f := newFixture(t)
	for range 100 {
		f.publish(t, "s.a", "x")
	}
	enough := errors.New("enough")
	n := 0
	err := Tail(fixturetest.PatientContext(t), f.nc, f.js, "S", TailStart{Subjects: []string{"s.*"}, Seq: 1}, func(Msg) error {
		n++
		return enough
	}, func() {})
	if err != enough || n != 1 {
		t.Errorf("error %v after %d messages, want the sink's after one", err, n)
	}
	if c := f.consumers(t); c != 0 {
		t.Errorf("%d consumers left behind", c)
	}
}

func TestTailInterrupted(t *testing.T) {
	for name, breakIt := range map[string]func(*testing.T, fixture) error{
		"connection lost": func(_ *testing.T, f fixture) error { return f.nc.ForceReconnect() },
		"connection closed": func(_ *testing.T, f fixture) error {
			f.nc.Close()
			return nil
		},
		"stream deleted": func(t *testing.T, f fixture) error { return f.js.DeleteStream(fixturetest.PatientContext(t), "S") },
		"consumer deleted": func(t *testing.T, f fixture) error {
			for c := range f.stream.ListConsumers(fixturetest.PatientContext(t)).Info() {
				return f.js.DeleteConsumer(fixturetest.PatientContext(t), "S", c.Name)
			}
			return errors.New("no consumer to delete")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // two of them wait for a check
			f := newFixture(t)
			err := Tail(fixturetest.PatientContext(t), f.nc, f.js, "S", TailStart{Subjects: []string{"s.*"}, Seq: 1}, func(Msg) error { return nil }, func() {
				if err := breakIt(t, f); err != nil {
					t.Error(err)
				}
			})
			if !errors.Is(err, ErrInterrupted) {
				t.Errorf("error %v, want ErrInterrupted", err)
			}
		})
	}
}

// The loss of the connection ends a pull request that is under way, without
// waiting for heartbeats to stay away.
func TestTailInterruptedWhileWaiting(t *testing.T) {
	f := newFixture(t)
	f.publish(t, "s.a", "x")
	err := Tail(fixturetest.PatientContext(t), f.nc, f.js, "S", TailStart{Subjects: []string{"s.*"}, Seq: 1}, func(Msg) error {
		return f.nc.ForceReconnect()
	}, func() {})
	if !errors.Is(err, ErrInterrupted) || !strings.Contains(err.Error(), "no connection") { // not that heartbeats are missing
		t.Errorf("error %v, want ErrInterrupted by the loss of the connection", err)
	}
}

func TestWhileConnected(t *testing.T) {
	f := newFixture(t)
	ctx, stop := WhileConnected(t.Context(), f.nc)
	if ctx.Err() != nil {
		t.Fatalf("ended at once: %v", context.Cause(ctx))
	}
	stop()
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), ErrInterrupted) {
		t.Errorf("after stop the cause is %v", context.Cause(ctx))
	}
	ctx, stop = WhileConnected(t.Context(), f.nc)
	if err := f.nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	stop()
	if !errors.Is(context.Cause(ctx), ErrInterrupted) {
		t.Errorf("after the connection was lost the cause is %v", context.Cause(ctx))
	}
	f.nc.Close()
	ctx, stop = WhileConnected(t.Context(), f.nc)
	<-ctx.Done()
	stop()
	if !errors.Is(context.Cause(ctx), ErrInterrupted) {
		t.Errorf("without a connection the cause is %v", context.Cause(ctx))
	}
}

// A missing message must never go unnoticed.
func TestTailSeesGap(t *testing.T) {
	f := newFixture(t)
	f.publish(t, "s.a", "x")
	err := Tail(fixturetest.PatientContext(t), f.nc, f.js, "S", TailStart{Subjects: []string{"s.*"}, Seq: 1}, func(Msg) error { return nil }, func() {
		// Another reader of the same consumer takes a message away.
		f.publish(t, "s.a", "stolen")
		for c := range f.stream.ListConsumers(fixturetest.PatientContext(t)).Info() {
			cons, err := f.js.Consumer(fixturetest.PatientContext(t), "S", c.Name)
			if err != nil {
				t.Fatal(err)
			}
			stolen := false
			for !stolen {
				b, err := cons.FetchNoWait(1)
				if err != nil {
					t.Fatal(err)
				}
				for range b.Messages() {
					stolen = true
				}
				f.publish(t, "s.a", "more")
			}
		}
	})
	if !errors.Is(err, ErrInterrupted) {
		t.Errorf("error %v, want ErrInterrupted", err)
	}
}

func TestTailMissingStream(t *testing.T) {
	f := newFixture(t)
	err := Tail(fixturetest.PatientContext(t), f.nc, f.js, "T", TailStart{Subjects: []string{"t"}, Seq: 1}, func(Msg) error { return nil }, func() {})
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("error %v, want ErrStreamNotFound", err)
	}
}
