package fetch

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// errRefused means that fetching from an address is not allowed.
var errRefused = errors.New("the address is none that may be fetched from")

// Networks from which fetching is never allowed: they never host public files. Sources: RFC 6890
// and the IANA registries of special-purpose addresses.
var forbiddenNets = parsePrefixes(
	"0.0.0.0/8",          // this network
	"169.254.0.0/16",     // link-local, with the metadata service of most clouds
	"100.100.100.200/32", // metadata service of Alibaba Cloud
	"168.63.129.16/32",   // platform services of Azure
	"192.0.0.0/24",       // protocol assignments, with the metadata service of Oracle Cloud
	"192.0.2.0/24",       // documentation
	"192.88.99.0/24",     // 6to4 relays
	"198.51.100.0/24",    // documentation
	"203.0.113.0/24",     // documentation
	"224.0.0.0/4",        // multicast
	"240.0.0.0/4",        // reserved, and broadcast
	"::/128",             // unspecified
	"64:ff9b:1::/48",     // NAT64 with local prefixes
	"100::/64",           // discard-only
	"2001::/23",          // protocol assignments, including Teredo
	"2001:db8::/32",      // documentation
	"3fff::/20",          // documentation
	"5f00::/16",          // segment routing
	"fd00:ec2::/32",      // metadata service of AWS
	"fd20:ce::/32",       // metadata service of Google Cloud
	"fe80::/10",          // link-local
	"ff00::/8",           // multicast
)

// Private networks, from which fetching is allowed only with AllowPrivate.
var privateNets = parsePrefixes(
	"10.0.0.0/8",
	"100.64.0.0/10", // carrier-grade NAT
	"127.0.0.0/8",
	"172.16.0.0/12",
	"192.168.0.0/16",
	"198.18.0.0/15", // benchmarking
	"::1/128",
	"fc00::/7",
	"fec0::/10", // site-local (deprecated)
)

// IPv6 networks which embed an IPv4 address, and its byte offset: the embedded address is checked.
var embeddedIPv4 = []struct {
	net netip.Prefix
	at  int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12}, // NAT64
	{netip.MustParsePrefix("2002::/16"), 2},     // 6to4
	{netip.MustParsePrefix("::/96"), 12},        // IPv4-compatible (deprecated)
}

// globalUnicast contains the public IPv6 addresses.
var globalUnicast = netip.MustParsePrefix("2000::/3")

// parsePrefixes parses a table of networks.
func parsePrefixes(list ...string) []netip.Prefix {
	nets := make([]netip.Prefix, len(list))
	for i, s := range list {
		nets[i] = netip.MustParsePrefix(s)
	}
	return nets
}

// containsAddr reports whether one of nets contains a.
func containsAddr(nets []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(nets, func(n netip.Prefix) bool { return n.Contains(a) })
}

// checkAddress returns an error unless connections to a are allowed.
func (c *Config) checkAddress(a netip.Addr) error {
	a = a.Unmap()
	switch {
	case !a.IsValid() || a.Zone() != "":
		return errRefused
	case containsAddr(c.AllowNets, a):
		return nil
	case containsAddr(forbiddenNets, a):
		return errRefused
	case containsAddr(privateNets, a):
		if c.AllowPrivate {
			return nil
		}
		return errRefused
	case a.Is4():
		return nil
	}
	for _, t := range embeddedIPv4 {
		if t.net.Contains(a) {
			b := a.As16()
			return c.checkAddress(netip.AddrFrom4([4]byte(b[t.at : t.at+4])))
		}
	}
	b := a.As16()
	if (b[8] == 0 || b[8] == 2) && b[9] == 0 && b[10] == 0x5E && b[11] == 0xFE { // ISATAP
		return c.checkAddress(netip.AddrFrom4([4]byte(b[12:])))
	}
	if !globalUnicast.Contains(a) {
		return errRefused
	}
	return nil
}

// checkDial checks each address at the moment of connecting to it. So earlier DNS answers,
// redirects and unusual forms of literal addresses cannot bypass the check: every connection passes
// here.
func (c *Config) checkDial(network, address string, _ syscall.RawConn) error {
	if network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("fetch dial %s: %w", network, errRefused)
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("fetch dial: %w", errRefused)
	}
	if err := c.checkAddress(ap.Addr()); err != nil || c.dialled == nil {
		return err
	}
	return c.dialled(ap.Addr())
}
