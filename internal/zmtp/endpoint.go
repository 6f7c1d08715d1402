package zmtp

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
)

// Endpoint is an address in ZeroMQ syntax: "ipc://path", or "tcp://host:port", where host is a
// name, an IPv4 address, an IPv6 address in brackets, or "*" for all interfaces. The zero value is
// no endpoint.
type Endpoint struct {
	network string // "tcp" or "unix"
	host    string // of tcp: without brackets; "*" means all interfaces
	port    int    // of tcp; 0 lets the system choose, for listening only
	path    string // of ipc; a leading "@" means Linux's abstract namespace
}

// ParseEndpoint parses an endpoint. Its errors explain the syntax.
func ParseEndpoint(s string) (Endpoint, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	switch {
	case !ok:
		return Endpoint{}, fmt.Errorf("endpoint %q: no scheme; write tcp://host:port or ipc://path", s)
	case scheme == "ipc" && rest == "":
		return Endpoint{}, fmt.Errorf("endpoint %q: no path after ipc://", s)
	case scheme == "ipc" && len(rest) > maxIPCPath:
		return Endpoint{}, fmt.Errorf("endpoint %q: the path of a Unix socket has at most %d bytes", s, maxIPCPath)
	case scheme == "ipc" && strings.IndexByte(rest, 0) >= 0:
		return Endpoint{}, fmt.Errorf("endpoint %q: a zero byte in the path", s)
	case scheme == "ipc":
		return Endpoint{network: "unix", path: rest}, nil
	case scheme != "tcp":
		return Endpoint{}, fmt.Errorf("endpoint %q: scheme %q is not supported; tcp and ipc are", s, scheme)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return Endpoint{}, fmt.Errorf("endpoint %q: %w; write tcp://host:port, an IPv6 address in brackets", s, err)
	}
	if host == "" || strings.ContainsAny(host, "/;@ ") {
		return Endpoint{}, fmt.Errorf("endpoint %q: %q is no host; * means all interfaces", s, host)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if port == "*" {
		n, err = 0, nil
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("endpoint %q: %q is no port (0 to 65535)", s, port)
	}
	return Endpoint{network: "tcp", host: host, port: int(n)}, nil
}

// maxIPCPath is the capacity of a socket address on Linux, without its final zero, in bytes.
const maxIPCPath = 107

// IsZero reports whether e is no endpoint.
func (e Endpoint) IsZero() bool { return e == Endpoint{} }

// IsWildcard reports whether e means all interfaces of a machine, or a port that the system
// chooses. It is possible to listen there, but not to dial it.
func (e Endpoint) IsWildcard() bool {
	if e.network != "tcp" {
		return false
	}
	ip := net.ParseIP(e.host)
	return e.host == "*" || e.port == 0 || ip != nil && ip.IsUnspecified()
}

// IsLoopback reports whether only this machine reaches e: an address of the loopback network, or a path.
func (e Endpoint) IsLoopback() bool {
	ip := net.ParseIP(e.host)
	return e.network == "unix" || e.host == "localhost" || ip != nil && ip.IsLoopback()
}

// RankEndpoint returns the endpoint of data-parallel rank i, where e is that of rank 0, as engines
// assign them: the port plus i. Beyond the last port, and for a path, which has no ranks, the
// result is the zero endpoint unless i is 0.
func (e Endpoint) RankEndpoint(i int) Endpoint {
	switch {
	case i == 0:
		return e
	case e.network != "tcp" || i < 0 || e.port == 0 || i > 65535-e.port:
		return Endpoint{}
	}
	e.port += i
	return e
}

// String returns e in the syntax of ParseEndpoint, "" for no endpoint.
func (e Endpoint) String() string {
	switch e.network {
	case "tcp":
		return "tcp://" + net.JoinHostPort(e.host, strconv.Itoa(e.port))
	case "unix":
		return "ipc://" + e.path
	}
	return ""
}

// Network returns "tcp" or "unix", and "" for no endpoint.
func (e Endpoint) Network() string { return e.network }

// Port returns the port of a TCP endpoint, 0 for others.
func (e Endpoint) Port() int { return e.port }

// EndpointOf returns the endpoint of a listener's address.
func EndpointOf(a net.Addr) Endpoint {
	switch a := a.(type) {
	case *net.TCPAddr:
		ip := a.IP
		host := ip.String()
		if len(ip) == 0 || ip.IsUnspecified() {
			host = "*"
		} else if a.Zone != "" {
			host += "%" + a.Zone
		}
		return Endpoint{network: "tcp", host: host, port: a.Port}
	case *net.UnixAddr:
		return Endpoint{network: "unix", path: a.Name}
	}
	return Endpoint{}
}

// Listen opens e for peers that dial, as ListenPub and ListenRouter do, for SubscribeListen. It
// removes the socket file of a dead owner.
func Listen(e Endpoint) (net.Listener, error) {
	if e.IsZero() {
		return nil, errors.New("listen: no endpoint")
	}
	if e.network == "unix" {
		removeStale(e.path)
	}
	ln, err := net.Listen(e.network, e.netAddress())
	if err != nil {
		return nil, fmt.Errorf("listen %s: %w", e, err)
	}
	return ln, nil
}

// removeStale removes a socket file on which no process listens, which a killed process leaves
// behind.
func removeStale(path string) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return
	}
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close()
		return
	}
	_ = os.Remove(path)
}

func (e Endpoint) netAddress() string {
	switch {
	case e.network == "unix":
		return e.path
	case e.host == "*":
		return ":" + strconv.Itoa(e.port)
	}
	return net.JoinHostPort(e.host, strconv.Itoa(e.port))
}

// checkDialable returns an error if e cannot be dialled.
func (e Endpoint) checkDialable() error {
	switch {
	case e.IsZero():
		return errors.New("dial: no endpoint")
	case e.IsWildcard():
		return fmt.Errorf("dial %s: one can listen there and not dial it; write the address and port of the peer", e)
	}
	return nil
}
