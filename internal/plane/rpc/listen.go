package rpc

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"penstock/core/fault"
)

// errListen is why nothing can be served at an address of this machine.
func errListen(addr string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fault.New(fault.Conflict, "serve %q: another process serves there; stop it or choose another port: %w", addr, err)
	}
	return fault.New(fault.Invalid, "serve %q: %w; choose an address of this machine", addr, err)
}

// validateListen reports what is wrong with where a plane listens and with what it
// tells others.
func validateListen(listen, advertise string) error {
	var errs []error
	if _, _, err := net.SplitHostPort(listen); err != nil {
		errs = append(errs, fault.New(fault.Invalid, "rpc listen address %.100q: %w; use HOST:PORT", listen, err))
	}
	if advertise != "" {
		_, err := advertised(advertise, &net.TCPAddr{Port: 1})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// advertised returns the address to tell others, without the scheme: want, "host"
// or "host:port", with the port of the listener at at if it has none, or at itself
// if want is empty. A listener that is none of TCP is of a test.
func advertised(want string, at net.Addr) (string, error) {
	tcp, ok := at.(*net.TCPAddr)
	if !ok {
		return at.String(), nil
	}
	port := fmt.Sprint(tcp.Port)
	if want == "" {
		if tcp.IP.IsUnspecified() {
			return "", fault.New(fault.Invalid, "serve %v: it listens on every address of this host; say with rpc-advertise which of them others should use, for example 10.0.0.7", at)
		}
		return at.String(), nil
	}
	host := want
	if h, ok := strings.CutPrefix(want, "["); ok {
		host = strings.TrimSuffix(h, "]") // an address of IPv6, if it has no port
	}
	if h, p, err := net.SplitHostPort(want); err == nil {
		host = h
		if p != "0" && p != "" {
			port = p
		}
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return "", fault.New(fault.Invalid, "advertise %q: it must name a host that others can reach", want)
	}
	_, err := strconv.ParseUint(port, 10, 16)
	if ip := net.ParseIP(host); err != nil || ip == nil && !isName(host) {
		return "", fault.New(fault.Invalid, "advertise %q: it must be host or host:port", want)
	}
	return net.JoinHostPort(host, port), nil
}

// isName reports whether host may be the name of one: nothing that would make an
// address ambiguous.
func isName(host string) bool {
	for _, c := range []byte(host) {
		if c <= ' ' || c >= 0x7f || c == ':' || c == '/' || c == '[' || c == ']' || c == '@' {
			return false
		}
	}
	return true
}
