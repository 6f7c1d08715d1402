package fetch

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"penstock/core/fault"
)

// maxURL is how long a URL that is fetched may be, in bytes.
const maxURL = 8 << 10

// invalid returns an error about a URL that its client can read: it names what is wrong
// and not the URL, which may have a signature in it.
func invalid(cause error, message string) error {
	return &fault.Error{Code: fault.Invalid, Message: "media URL: " + message, Err: cause}
}

// unwelcome is what a client reads of an address. It is the same of all, so that it does not tell
// where a name leads.
const unwelcome = "none that may be fetched from: those of private networks and of the server itself are only with --media-allow-private"

// parse returns a URL that may be fetched, as far as it can be told from the text.
func (c *Config) parse(s string) (*url.URL, error) {
	if len(s) > maxURL {
		return nil, invalid(nil, "it is longer than 8 KiB")
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, invalid(nil, "it is not written as a URL is")
	}
	return u, c.check(u)
}

// check refuses URLs that may not be fetched: those of clients and those of redirects.
func (c *Config) check(u *url.URL) error {
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return invalid(nil, "its scheme is none of http and https")
	case u.Opaque != "" || host == "":
		return invalid(nil, "it names no host")
	case u.User != nil:
		return invalid(nil, "it carries a user name or password: send a URL that needs none")
	}
	for _, r := range []byte(host) {
		if r <= ' ' || r >= 0x7F || r == '%' {
			return invalid(nil, "its host has characters that host names have not: write names of other scripts in their xn-- form")
		}
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if err := c.judge(a); err != nil {
			return invalid(err, "its address is "+unwelcome)
		}
	} else if numeric(host) {
		return invalid(nil, "its host is an address in an unusual form: write four decimal numbers")
	}
	switch {
	case !goodPort(u.Port()):
		return invalid(nil, "its port is no number from 1 to 65535")
	case len(c.AllowHosts) > 0 && !slices.ContainsFunc(c.AllowHosts, func(p string) bool { return matches(host, p) }):
		return invalid(nil, "its host is none of those that may be fetched from (--media-allow-hosts)")
	}
	return nil
}

// numeric reports whether some resolvers would take a name for an IPv4 address: its last
// label is a decimal, octal or hexadecimal number.
func numeric(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// goodPort reports whether a URL may have that port, "" being its scheme's.
func goodPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return s == "" || err == nil && n > 0
}

// matches reports whether a host is the one that a pattern names or, if that begins with a
// dot, below it.
func matches(host, pattern string) bool {
	pattern = strings.ToLower(pattern)
	if name, ok := strings.CutPrefix(pattern, "."); ok {
		return host == name || strings.HasSuffix(host, pattern)
	}
	return host == strings.TrimSuffix(pattern, ".")
}
