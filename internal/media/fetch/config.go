package fetch

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"penstock/internal/media/probe"
)

// Config configures what a Fetcher may fetch, and its limits.
type Config struct {
	// AllowPrivate allows addresses of private networks and of this machine. Cloud metadata
	// services, link-local and reserved addresses stay forbidden.
	AllowPrivate bool
	// AllowNets are always allowed, overriding all other rules.
	AllowNets []netip.Prefix
	// AllowHosts are the only allowed hosts: "example.com" is that host only, ".example.com"
	// includes its subdomains. Empty allows every host.
	AllowHosts []string

	// MaxBytes bounds a file, in bytes.
	MaxBytes int64 // default 64 MiB
	// MaxPixels bounds the pixels of a picture, according to its header.
	MaxPixels int64 // default probe.DefaultMaxPixels
	// MaxRedirects bounds the redirects which are followed; negative means none.
	MaxRedirects int // default 3
	// MaxFlights bounds the concurrent fetches and probes; a further one is Overloaded.
	MaxFlights int // default 256

	// Timeout bounds a whole fetch, including redirects and waiting for memory; DialTimeout a
	// connection attempt; HeaderTimeout the time from a request to the end of the response's
	// header; IdleTimeout the time between two reads of a body.
	Timeout       time.Duration // default 10 s
	DialTimeout   time.Duration // default 3 s
	HeaderTimeout time.Duration // default 5 s
	IdleTimeout   time.Duration // default 3 s

	// MinRate is the minimum rate of a body, in bytes per second, over each IdleTimeout; 0
	// means none.
	MinRate *int64 // default 16 KiB

	// CacheBytes bounds the memory of downloads in progress, files in use, and cached files, which
	// are cached for CacheTTL. The downloads in progress from one host, or of one client
	// ([WithClient]), take at most half of it, or as much as one of them needs. Also at most half
	// of MaxFlights belongs to one host or one client.
	CacheBytes int64         // default 256 MiB
	CacheTTL   time.Duration // default 5 min
	// Dimensions bounds the cached results of Size, which are cached for DimensionsTTL; failures
	// for a minute.
	Dimensions    int           // default 100,000
	DimensionsTTL time.Duration // default 24 h

	// RootCAs are the certificate authorities for hosts; nil means the system's.
	RootCAs *x509.CertPool
	// Resolver resolves host names; nil means the system's.
	Resolver *net.Resolver
	// Now is the clock for cache expiry; nil means the system's.
	Now func() time.Time

	// dialled, which tests set, is an additional check of allowed addresses.
	dialled func(netip.Addr) error
}

// EnsureDefaults replaces zero values by their defaults.
func (c *Config) EnsureDefaults() {
	c.MaxBytes = cmp.Or(c.MaxBytes, 64<<20)
	c.MaxPixels = cmp.Or(c.MaxPixels, probe.DefaultMaxPixels)
	c.MaxRedirects = cmp.Or(c.MaxRedirects, 3)
	c.MaxFlights = cmp.Or(c.MaxFlights, 256)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.DialTimeout = cmp.Or(c.DialTimeout, 3*time.Second)
	c.HeaderTimeout = cmp.Or(c.HeaderTimeout, 5*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 3*time.Second)
	c.MinRate = cmp.Or(c.MinRate, new(int64(16<<10)))
	c.CacheBytes = cmp.Or(c.CacheBytes, 256<<20)
	c.CacheTTL = cmp.Or(c.CacheTTL, 5*time.Minute)
	c.Dimensions = cmp.Or(c.Dimensions, 100_000)
	c.DimensionsTTL = cmp.Or(c.DimensionsTTL, 24*time.Hour)
	if c.Now == nil {
		c.Now = time.Now
	}
}

// Validate reports all problems of c. Call EnsureDefaults first.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("fetch config: "+format, args...)) }
	for _, h := range c.AllowHosts {
		if strings.Trim(h, ".") == "" || strings.ContainsAny(h, "/:*@ ") {
			bad("allowed host %q is no host name: write example.com, or .example.com for all below it", h)
		}
	}
	for _, n := range c.AllowNets {
		if !n.IsValid() {
			bad("an allowed network is not valid")
		}
	}
	if c.MaxBytes < 1 || c.MaxBytes > 1<<34 {
		bad("max bytes %d is not between 1 and 16 GiB", c.MaxBytes)
	}
	if c.CacheBytes < downloadMemory(c.MaxBytes) {
		bad("cache bytes %d have no room for one download of up to %d bytes: at least %d are needed", c.CacheBytes, c.MaxBytes, downloadMemory(c.MaxBytes))
	}
	for _, n := range []struct {
		name string
		ok   bool
	}{
		{"max pixels", c.MaxPixels > 0},
		{"max flights", c.MaxFlights > 0},
		{"dimensions", c.Dimensions > 0},
		{"timeout", c.Timeout > 0},
		{"dial timeout", c.DialTimeout > 0},
		{"header timeout", c.HeaderTimeout > 0},
		{"idle timeout", c.IdleTimeout > 0},
		{"cache TTL", c.CacheTTL > 0},
		{"dimensions TTL", c.DimensionsTTL > 0},
	} {
		if !n.ok {
			bad("%s must be above 0", n.name)
		}
	}
	return errors.Join(errs...)
}

// downloadMemory returns the peak memory of a download of at most n bytes: the buffer is copied
// when it grows to its full size, from half of it.
func downloadMemory(n int64) int64 { return n + (n+1)/2 }

// shareOf returns the share of all which one host or one client may use, where one download needs
// up to least.
func shareOf(all, least int64) int64 { return max(all/2, least) }
