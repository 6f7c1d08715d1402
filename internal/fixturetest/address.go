package fixturetest

import (
	"fmt"
	"net"
	"runtime"
	"testing"
)

// ReserveAddr returns an address at which a test can listen, stop and listen again. Its port is in use at 127.0.0.1 until
// the end of the test, so that the system gives it to no other listener; the address is 127.0.0.2, at which it chooses no
// port by itself. Systems other than Linux do not have that address, so there the port is only free at the moment.
func ReserveAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "linux" {
		l.Close()
		return l.Addr().String()
	}
	t.Cleanup(func() { l.Close() })
	return fmt.Sprint("127.0.0.2:", l.Addr().(*net.TCPAddr).Port)
}
