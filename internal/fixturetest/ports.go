package fixturetest

import (
	"net"
	"net/netip"
	"testing"
)

// ReservePorts returns an address of this machine, with the first of n ports in a row at which the test may listen later,
// and again. No process gets them by chance until the test ends: they are held at 127.0.0.1, where systems pick ports, and
// are returned at another address.
func ReservePorts(t testing.TB, n int) netip.AddrPort {
	t.Helper()
	for {
		held, first := holdPorts(t, n)
		if len(held) == n {
			t.Cleanup(func() { closeAll(held) })
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 2}), first)
		}
		closeAll(held)
	}
}

// holdPorts listens at n ports in a row, or at fewer if another process has one of them.
func holdPorts(t testing.TB, n int) (held []net.Listener, first uint16) {
	t.Helper()
	addr := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
	for len(held) < n {
		l, err := net.ListenTCP("tcp4", addr)
		if err != nil && len(held) == 0 {
			t.Fatal(err)
		}
		if err != nil {
			break
		}
		held = append(held, l)
		addr = &net.TCPAddr{IP: addr.IP, Port: l.Addr().(*net.TCPAddr).Port + 1}
	}
	return held, uint16(addr.Port - len(held))
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		_ = l.Close()
	}
}
