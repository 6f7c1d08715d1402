package natsd

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
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
