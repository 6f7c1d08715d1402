package fixturetest

import (
	"fmt"
	"net"
	"runtime"
	"testing"
)

// ReserveAddr returns an address, HOST:PORT, at which nothing listens until the test does, also again; see ReservePorts.
func ReserveAddr(t testing.TB) string {
	t.Helper()
	host, port := ReservePorts(t, 1)
	return fmt.Sprintf("%s:%d", host, port)
}

// ReservePorts returns the first of n TCP ports in a row of a host, which is this machine. Nothing listens there until
// the test does. Until the end of the test the ports are in use at 127.0.0.1, so the system gives them to no other
// process. The test uses them at 127.0.0.2, where the system picks no ports. Only Linux has that address by default: on
// other systems the ports are free when they are chosen, and not held.
func ReservePorts(t testing.TB, n int) (host string, first int) {
	t.Helper()
	for {
		held := holdPorts(t, n)
		if len(held) == n {
			first = held[0].Addr().(*net.TCPAddr).Port
			if runtime.GOOS != "linux" {
				closeAll(held)
				return "127.0.0.1", first
			}
			t.Cleanup(func() { closeAll(held) })
			return "127.0.0.2", first
		}
		closeAll(held)
	}
}

// holdPorts listens at n ports in a row, or at fewer if another process has one of them.
func holdPorts(t testing.TB, n int) (held []net.Listener) {
	t.Helper()
	for next := 0; len(held) < n; {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", next))
		if err != nil && len(held) == 0 {
			t.Fatal(err)
		}
		if err != nil {
			break
		}
		held = append(held, l)
		next = l.Addr().(*net.TCPAddr).Port + 1
	}
	return held
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		_ = l.Close()
	}
}
