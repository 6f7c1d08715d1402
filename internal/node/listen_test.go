package node

import (
	"strings"
	"testing"
)

// TestListenElsewhere: the error of an address that no interface has says so, with a remedy.
func TestListenElsewhere(t *testing.T) {
	ln, err := listenHTTP("192.0.2.1:0") // of TEST-NET-1: no machine has it
	if err == nil {
		ln.Close()
		t.Skip("this machine takes addresses that it does not have")
	}
	if !strings.Contains(err.Error(), "is not an address of this machine") || !strings.Contains(err.Error(), "--http-addr") {
		t.Errorf("error %q", err)
	}
}
