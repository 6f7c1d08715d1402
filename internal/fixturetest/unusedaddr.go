package fixturetest

import (
	"fmt"
	"net"
	"testing"
)

// UnusedAddr returns an address at which no process listens before the test does: another address of this machine than
// that of a listener, and the port of the listener, which stays open until the test ends. A port which is closed again is
// given to the next process which asks for any.
func UnusedAddr(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return fmt.Sprint("127.0.0.2:", ln.Addr().(*net.TCPAddr).Port)
}
