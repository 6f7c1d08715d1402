// Package endpoint validates the addresses at which planes listen and are reached, and their tokens.
package endpoint

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"penstock/core/fault"
)

// ListenError explains why listening at addr failed.
func ListenError(addr string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fault.New(fault.Conflict, "serve %q: another process serves there; stop it or choose another port: %w", addr, err)
	}
	return fault.New(fault.Invalid, "serve %q: %w; choose an address of this machine", addr, err)
}

// ValidateListen validates a listen address and an advertised address of a plane, whose name is the
// prefix of its settings.
func ValidateListen(plane, listen, advertise string) error {
	var errs []error
	if _, _, err := net.SplitHostPort(listen); err != nil {
		errs = append(errs, fault.New(fault.Invalid, "%s listen address %.100q: %w; use HOST:PORT", plane, listen, err))
	}
	if advertise != "" {
		_, err := AdvertiseAddress(plane, advertise, &net.TCPAddr{Port: 1})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// AdvertiseAddress returns the address to advertise, without the scheme. want is "host" or
// "host:port"; a missing port is that of the listener address at. If want is empty, the result is
// at itself. Only tests listen on something other than TCP.
func AdvertiseAddress(plane, want string, at net.Addr) (string, error) {
	tcp, ok := at.(*net.TCPAddr)
	if !ok {
		return at.String(), nil
	}
	port := fmt.Sprint(tcp.Port)
	if want == "" {
		if tcp.IP.IsUnspecified() {
			return "", fault.New(fault.Invalid, "serve %v: it listens on every address of this host; say with %s-advertise which of them others should use, for example 10.0.0.7", at, plane)
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

// TokensMatch compares in constant time, which reveals nothing of either token, not even its
// length. A server without a token accepts every client.
func TokensMatch(theirs, ours string) bool {
	if ours == "" {
		return true
	}
	a, b := sha256.Sum256([]byte(theirs)), sha256.Sum256([]byte(ours))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}
