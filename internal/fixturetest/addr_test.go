package fixturetest

import (
	"net"
	"strings"
	"testing"
)

// TestReserveAddr: a test can listen at its address again and again, and the system cannot give its port to another.
func TestReserveAddr(t *testing.T) {
	addr := ReserveAddr(t)
	for range 3 {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	other, ok := strings.CutPrefix(addr, "127.0.0.2")
	if !ok {
		return // a system without that address
	}
	for _, host := range []string{"127.0.0.1", ""} {
		if l, err := net.Listen("tcp4", host+other); err == nil {
			l.Close()
			t.Errorf("the port is free at %q", host)
		}
	}
}
