package fixturetest

import (
	"fmt"
	"net"
	"runtime"
	"testing"
)

// UnusedAddr returns a TCP address of this machine, HOST:PORT, which is one of UnusedPorts.
func UnusedAddr(t testing.TB) string {
	t.Helper()
	host, port := UnusedPorts(t, 1)
	return fmt.Sprintf("%s:%d", host, port)
}

// UnusedPorts returns the first of count consecutive TCP ports of a host, which is this machine. Nothing listens at them
// until the test does, and no other process gets them meanwhile, as it might get ports which had just been closed: until
// the end of the test they are held at 127.0.0.1, and host is 127.0.0.2, where no port is picked at random.
func UnusedPorts(t testing.TB, count int) (host string, first int) {
	t.Helper()
	for {
		held := make([]net.Listener, 0, count)
		closeAll := func() {
			for _, l := range held {
				_ = l.Close()
			}
		}
		for next := 0; len(held) < count; next = first + len(held) {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", next))
			if err != nil {
				break
			}
			held = append(held, l)
			first = held[0].Addr().(*net.TCPAddr).Port
		}
		switch {
		case len(held) == 0:
			t.Fatal("no port is free")
		case len(held) < count:
			closeAll()
		case runtime.GOOS != "linux": // others have no further address of this kind
			closeAll()
			return "127.0.0.1", first
		default:
			t.Cleanup(closeAll)
			return "127.0.0.2", first
		}
	}
}
