package fetch

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"penstock/core/media/probe"
)

// Config says what a Fetcher may fetch, and how much of it.
type Config struct {
	// AllowPrivate lets addresses of private networks and of this machine be fetched from. Those
	// of cloud metadata services, link-local and reserved ones stay refused.
	AllowPrivate bool
	// AllowNets are networks that may be fetched from, whatever else is said of them.
	AllowNets []netip.Prefix
	// AllowHosts are the only hosts that may be fetched from: "example.com" is that very host,
	// ".example.com" it and all below it. Empty: every host.
	AllowHosts []string

	// MaxBytes is how large a file may be.
	MaxBytes int64 // default 64 MiB
	// MaxPixels is how many pixels a picture may have by its header.
	MaxPixels int64 // default probe.DefaultMaxPixels
	// MaxRedirects is how many redirects are followed; negative for none.
	MaxRedirects int // default 3
	// MaxFlights is how many files are fetched or probed at a time; above it is Overloaded.
	MaxFlights int // default 256

	// Timeout is for all of one fetch, redirects and waiting for memory included; DialTimeout for
	// a connection, HeaderTimeout from a request to the end of its answer's header, IdleTimeout
	// between two pieces of a body.
	Timeout       time.Duration // default 10 s
	DialTimeout   time.Duration // default 3 s
	HeaderTimeout time.Duration // default 5 s
	IdleTimeout   time.Duration // default 3 s

	// MinRate is how many bytes a second of a body must come, over each IdleTimeout of it; negative
	// for any.
	MinRate int64 // default 16 KiB

	// CacheBytes bounds the memory of downloads: of those that are under way, of those in use and
	// of those that are kept because somebody may ask again, which lasts for CacheTTL. The downloads
	// under way from one host, or of one client ([WithClient]), take at most half of it, or as much
	// as one of them needs; likewise at most half of MaxFlights is one host's or one client's.
	CacheBytes int64         // default 256 MiB
	CacheTTL   time.Duration // default 5 min
	// Dimensions is how many answers of Size are kept, for DimensionsTTL; those that no size can
	// be had for a minute.
	Dimensions    int           // default 100,000
	DimensionsTTL time.Duration // default 24 h

	// RootCAs are those whose certificates hosts may have; nil for the system's.
	RootCAs *x509.CertPool
	// Resolver finds the addresses of hosts; nil for the system's.
	Resolver *net.Resolver
	// Now is the clock by which entries of the caches expire; nil for the system's.
	Now func() time.Time

	// dialled, if tests set it, has the last word on addresses that were judged well.
	dialled func(netip.Addr) error
}

// EnsureDefaults sets what was left at zero.
func (c *Config) EnsureDefaults() {
	or(&c.MaxBytes, 64<<20)
	or(&c.MaxPixels, probe.DefaultMaxPixels)
	or(&c.MaxRedirects, 3)
	or(&c.MaxFlights, 256)
	or(&c.Timeout, 10*time.Second)
	or(&c.DialTimeout, 3*time.Second)
	or(&c.HeaderTimeout, 5*time.Second)
	or(&c.IdleTimeout, 3*time.Second)
	or(&c.MinRate, 16<<10)
	or(&c.CacheBytes, 256<<20)
	or(&c.CacheTTL, 5*time.Minute)
	or(&c.Dimensions, 100_000)
	or(&c.DimensionsTTL, 24*time.Hour)
	if c.Now == nil {
		c.Now = time.Now
	}
}

// or sets what is zero to its default.
func or[T comparable](p *T, d T) {
	var zero T
	if *p == zero {
		*p = d
	}
}

// Validate reports all that is wrong with c, after EnsureDefaults.
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
	if c.CacheBytes < reserve(c.MaxBytes) {
		bad("cache bytes %d have no room for one download of up to %d bytes: at least %d are needed", c.CacheBytes, c.MaxBytes, reserve(c.MaxBytes))
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

// reserve returns the memory that a download of n bytes at most takes: what is there is copied when its
// room grows to the whole, from half of it.
func reserve(n int64) int64 { return n + (n+1)/2 }

// shareOf returns how much of what all share one host or one client may have, if one download needs
// least.
func shareOf(all, least int64) int64 { return max(all/2, least) }
