package natsd

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"penstock/internal/fixturetest"
)

// TestDialerClosesDroppedSockets: a server which accepts connections and closes them before
// its first line, as one that starts or stops does, sees each of them closed by the client as
// soon as the client dials again.
func TestDialerClosesDroppedSockets(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nc, err := Connect("nats://"+l.Addr().String(), "test", nil, nats.RetryOnFailedConnect(true))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var dropped []*net.TCPConn
	for range 6 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		dropped = append(dropped, conn.(*net.TCPConn))
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range dropped[:len(dropped)-1] {
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Minute)) // far longer than it takes
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("the client did not close its socket: %v", err)
		}
	}
}

// TestUnanswered: a server which is not there, or is late, may answer a later attempt; one which refuses a client has
// answered. The timeout of the options is the dialer's too.
func TestUnanswered(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts no connection
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	guarded := start(t, Config{Listen: "127.0.0.1:0", Token: "a-token"})
	pings := serveText(t, "INFO {}\r\nPING\r\n")
	for _, c := range []struct {
		name, url  string
		timeout    time.Duration
		op         string // of the net.OpError in the chain; "" is any, or none
		unanswered bool
	}{
		{"no server", "nats://" + fixturetest.ReserveAddr(t), fixturetest.TimeLeft(t), "", true},
		{"late to be dialed", "nats://" + l.Addr().String(), time.Nanosecond, "dial", true},
		{"late, at any step", "nats://" + l.Addr().String(), 20 * time.Millisecond, "", true},
		{"pings before the client has finished", "nats://" + pings, fixturetest.TimeLeft(t), "", true},
		{"refused", guarded.URL(), fixturetest.TimeLeft(t), "", false},
	} {
		nc, err := Connect(c.url, "test", nil, nats.Timeout(c.timeout))
		if err == nil {
			nc.Close()
		}
		var failed *net.OpError
		if err == nil || IsUnanswered(err) != c.unanswered || c.op != "" && (!errors.As(err, &failed) || failed.Op != c.op) {
			t.Errorf("%s: unanswered: %t, %v", c.name, IsUnanswered(err), err)
		}
	}
}

// serveText returns an address at which each connection is sent a text.
func serveText(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, text) // of a client which is gone nothing is expected
			defer conn.Close()                // when the listener closes
		}
	}()
	return l.Addr().String()
}
