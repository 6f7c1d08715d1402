package node

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// listenHTTP opens the HTTP address. Its errors say what to do if the address is in use.
func listenHTTP(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("http-addr %s is in use by another process; stop it or choose another with --http-addr, for example 127.0.0.1:0 for a free port", addr)
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return nil, fmt.Errorf("http-addr %s is not an address of this machine; choose one that is with --http-addr, or 0.0.0.0 for all of them", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("http-addr: %w", err)
	}
	return ln, nil
}

// reachableAddr returns the host and port at which this machine reaches a listener: one that listens on every
// address has no host of its own.
func reachableAddr(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}
	return net.JoinHostPort("localhost", strconv.Itoa(tcp.Port))
}
