package rpc

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"strings"
	"time"

	"penstock/core/fault"
)

// HTTPConfig configures a request plane over HTTP/2.
type HTTPConfig struct {
	// Listen is the host:port of a server that is given no address; port 0
	// chooses a free one. Empty is "127.0.0.1:0".
	Listen string
	// Advertise is the host, or host:port, at which others reach a server of this
	// process. Empty is where it listens, which must then be one host's address.
	Advertise string
	// ServerTLS makes servers speak TLS; their addresses begin with "https://".
	// ClientTLS is for calls to such addresses, and then there are calls to no
	// others; nil trusts the system's roots.
	ServerTLS, ClientTLS *tls.Config
	// Token is what callers show and servers ask for; those who are to reach each
	// other have the same. Empty is none. Without TLS it travels in clear.
	Token string
	// KeepAlive is how long a connection may be silent: a peer that does not
	// answer a ping in the second half of it is dead. 0 is 10 s: a busy peer
	// answers after all that it was sent before.
	KeepAlive time.Duration
	// MaxCalls is how many calls a server has in progress at once; a further one
	// is Overloaded. 0 is 16384.
	MaxCalls int
	// MaxBodies is how many bytes of bodies a server holds at once; a further one
	// is Overloaded. 0 is 512 MiB.
	MaxBodies int64
	// Log gets what handlers keep from their callers. Nil discards it.
	Log *slog.Logger
}

// The defaults that planes over a network share.
const (
	defaultKeepAlive = 10 * time.Second
	defaultMaxCalls  = 16 << 10
	defaultMaxBodies = 512 << 20
)

// EnsureDefaults replaces zero values by their defaults.
func (c *HTTPConfig) EnsureDefaults() {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = defaultKeepAlive
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = defaultMaxCalls
	}
	if c.MaxBodies == 0 {
		c.MaxBodies = defaultMaxBodies
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Validate reports everything that is wrong with c.
func (c *HTTPConfig) Validate() error {
	var errs []error
	errs = append(errs, validateListen(c.Listen, c.Advertise))
	if strings.ContainsFunc(c.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		errs = append(errs, fault.New(fault.Invalid, "rpc token: use printable ASCII without spaces"))
	}
	if c.KeepAlive < 2*time.Millisecond {
		errs = append(errs, fault.New(fault.Invalid, "rpc keep-alive: have %v, use at least 2ms", c.KeepAlive))
	}
	return errors.Join(append(errs, validateLimits(c.MaxCalls, c.MaxBodies))...)
}

// validateLimits reports what is wrong with the limits of a server.
func validateLimits(calls int, bodies int64) error {
	var errs []error
	if calls < 1 {
		errs = append(errs, fault.New(fault.Invalid, "rpc calls at once: have %d, use at least one", calls))
	}
	if bodies < MaxBody {
		errs = append(errs, fault.New(fault.Invalid, "rpc bodies at once: have %d bytes, use at least the %d of one", bodies, MaxBody))
	}
	return errors.Join(errs...)
}
