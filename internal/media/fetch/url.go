package fetch

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"penstock/core/fault"
)

// maxURL bounds a fetched URL, in bytes.
const maxURL = 8 << 10

// invalidURL returns an error about a URL for its client. It names the problem but not the URL,
// which may contain a signature.
func invalidURL(cause error, message string) error {
	return &fault.Error{Code: fault.Invalid, Message: "media URL: " + message, Err: cause}
}

// forbiddenAddress is the message for a forbidden address. It is the same for all, so that it does
// not reveal what a name resolves to.
const forbiddenAddress = "none that may be fetched from: those of private networks and of the server itself are only with --media-allow-private"

// parseURL parses and checks a URL, as far as its text tells.
func (c *Config) parseURL(s string) (*url.URL, error) {
	if len(s) > maxURL {
		return nil, invalidURL(nil, "it is longer than 8 KiB")
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, invalidURL(nil, "it is not written as a URL is")
	}
	return u, c.checkURL(u)
}

// checkURL checks whether fetching a URL is allowed, for the URLs of clients and of redirects.
func (c *Config) checkURL(u *url.URL) error {
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return invalidURL(nil, "its scheme is none of http and https")
	case u.Opaque != "" || host == "":
		return invalidURL(nil, "it names no host")
	case u.User != nil:
		return invalidURL(nil, "it carries a user name or password: send a URL that needs none")
	}
	for _, r := range []byte(host) {
		if r <= ' ' || r >= 0x7F || r == '%' {
			return invalidURL(nil, "its host has characters that host names have not: write names of other scripts in their xn-- form")
		}
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if err := c.checkAddress(a); err != nil {
			return invalidURL(err, "its address is "+forbiddenAddress)
		}
	} else if looksNumeric(host) {
		return invalidURL(nil, "its host is an address in an unusual form: write four decimal numbers")
	}
	switch {
	case !isValidPort(u.Port()):
		return invalidURL(nil, "its port is no number from 1 to 65535")
	case len(c.AllowHosts) > 0 && !slices.ContainsFunc(c.AllowHosts, func(p string) bool { return matchesHost(host, p) }):
		return invalidURL(nil, "its host is none of those that may be fetched from (--media-allow-hosts)")
	}
	return nil
}

// looksNumeric reports whether some resolvers would parse a name as an IPv4 address: its last label
// is a decimal, octal or hexadecimal number.
func looksNumeric(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// isValidPort reports whether s is a valid port of a URL; "" is the scheme's default.
func isValidPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return s == "" || err == nil && n > 0
}

// matchesHost reports whether a host is the one that a pattern names or, if the pattern begins with
// a dot, a subdomain of it.
func matchesHost(host, pattern string) bool {
	pattern = strings.ToLower(pattern)
	if name, ok := strings.CutPrefix(pattern, "."); ok {
		return host == name || strings.HasSuffix(host, pattern)
	}
	return host == strings.TrimSuffix(pattern, ".")
}
