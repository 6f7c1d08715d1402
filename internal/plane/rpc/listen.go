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

// errListen explains why listening at addr failed.
func errListen(addr string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fault.New(fault.Conflict, "serve %q: another process serves there; stop it or choose another port: %w", addr, err)
	}
	return fault.New(fault.Invalid, "serve %q: %w; choose an address of this machine", addr, err)
}

// validateListen validates a listen address and an advertised address.
func validateListen(listen, advertise string) error {
	var errs []error
	if _, _, err := net.SplitHostPort(listen); err != nil {
		errs = append(errs, fault.New(fault.Invalid, "rpc listen address %.100q: %w; use HOST:PORT", listen, err))
	}
	if advertise != "" {
		_, err := advertiseAddress(advertise, &net.TCPAddr{Port: 1})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// advertiseAddress returns the address to advertise, without the scheme. want is "host" or
// "host:port"; a missing port is that of the listener address at. If want is empty, the result is
// at itself. Only tests listen on something other than TCP.
func advertiseAddress(want string, at net.Addr) (string, error) {
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
		host = strings.TrimSuffix(h, "]") // an IPv6 address, if it has no port
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
	if ip := net.ParseIP(host); err != nil || ip == nil && !isHostName(host) {
		return "", fault.New(fault.Invalid, "advertise %q: it must be host or host:port", want)
	}
	return net.JoinHostPort(host, port), nil
}

// isHostName reports whether host can be a host name: it has no character which would make an
// address ambiguous.
func isHostName(host string) bool {
	for _, c := range []byte(host) {
		if c <= ' ' || c >= 0x7f || c == ':' || c == '/' || c == '[' || c == ']' || c == '@' {
			return false
		}
	}
	return true
}
