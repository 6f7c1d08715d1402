package natsd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"penstock/internal/fixturetest"
)

// lateConns connects to a server within the process over connections on which
// everything after a pull request comes late.
type lateConns struct {
	server *Server
	late   time.Duration
	pulls  atomic.Int32 // pull requests that were sent
}

func (l *lateConns) InProcessConn() (net.Conn, error) {
	conn, err := l.server.InProcessConn()
	return &lateConn{Conn: conn, of: l}, err
}

type lateConn struct {
	net.Conn
	of   *lateConns
	hold atomic.Bool // the next read waits
}

func (c *lateConn) Write(b []byte) (int, error) {
	if n := bytes.Count(b, []byte("$JS.API.CONSUMER.MSG.NEXT")); n > 0 {
		c.of.pulls.Add(int32(n))
		c.hold.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *lateConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.hold.Swap(false) {
		time.Sleep(c.of.late)
	}
	return n, err
}

// What a reader has asked for and gets late, because its connection or its process is
// slow, must not be lost, and least of all count as read.
func TestTailLateMessages(t *testing.T) {
	f := newFixture(t)
	const n = 100
	for i := range n {
		f.publish(t, "s.a", fmt.Sprint(i))
	}
	late := &lateConns{server: f.server, late: 1500 * time.Millisecond}
	nc, err := nats.Connect("", append(connOptions("late", f.server.log), nats.InProcessServer(late), nats.Timeout(fixturetest.TimeLeft(t)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(fixturetest.PatientContext(t))
	got, caughtUpAt := 0, -1
	err = Tail(ctx, nc, js, "S", TailStart{Subjects: []string{"s.*"}, Seq: 1}, func(m Msg) error {
		if string(m.Data) != fmt.Sprint(got) {
			t.Errorf("message %d is %q", got, m.Data)
		}
		got++
		return nil
	}, func() { caughtUpAt = got; cancel() })
	if err != nil || caughtUpAt != n {
		t.Errorf("caught up after %d messages of %d, error %v", caughtUpAt, n, err)
	}
	if late.pulls.Load() == 0 {
		t.Error("no pull request was seen: nothing came late")
	}
}

// A message that was sent and never comes is missing, also when it is the last one:
// the reader has not caught up.
func TestTailSeesThatTheEndIsMissing(t *testing.T) {
	f := newFixture(t)
	f.publish(t, "s.a", "x")
	cons, err := f.js.CreateConsumer(fixturetest.PatientContext(t), "S", consumerConfig(TailStart{Subjects: []string{"s.*"}, Seq: 1}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cons.Next(); err != nil { // as if it had been lost on the way
		t.Fatal(err)
	}
	r := newTailReader("S", cons, nil, func() { t.Error("it counts as caught up") })

	r.checkInterval = 10 * time.Millisecond
	if err := r.readMessages(fixturetest.PatientContext(t), f.nc); !errors.Is(err, ErrInterrupted) {
		t.Errorf("error %v, want ErrInterrupted", err)
	}
}
