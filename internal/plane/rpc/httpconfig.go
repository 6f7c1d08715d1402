package rpc

import (
	"cmp"
	"crypto/tls"
	"errors"
	"log/slog"
	"strings"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/endpoint"
)

// HTTPConfig configures a request plane over HTTP/2.
type HTTPConfig struct {
	// Listen is the host:port at which a server listens if it is given no address. Port 0 selects a
	// free port. Empty means "127.0.0.1:0".
	Listen string
	// Advertise is the host, or host:port, at which others reach a server of this process. Empty
	// means the listener's address, which must then name one host.
	Advertise string
	// ServerTLS enables TLS for servers; their addresses then begin with "https://". ClientTLS
	// configures calls to such addresses, and then calls to other addresses fail. If it is nil,
	// calls trust the system's roots.
	ServerTLS, ClientTLS *tls.Config
	// Token is the secret which callers send and servers require. All processes which call each
	// other have the same. Empty means none. Without TLS it is sent in clear.
	Token string
	// KeepAlive is how long a connection may be silent: a peer which does not answer a ping in the
	// second half of it is considered dead. 0 means 10 s, because a busy peer answers only after
	// everything it was sent before.
	KeepAlive time.Duration
	// Dial bounds an attempt to connect, including TLS; so does KeepAlive. 0 means 2 s.
	Dial time.Duration
	// MaxCalls bounds a server's calls in progress; a further call is Overloaded. 0 means 16384.
	MaxCalls int
	// MaxBodies bounds the bodies that a server holds at once, in bytes; a call beyond it is
	// Overloaded. 0 means 512 MiB.
	MaxBodies int64
	// Log receives the details of handler errors which callers do not get. Nil discards them.
	Log *slog.Logger
}

// Defaults which the network planes share.
const (
	defaultKeepAlive = 10 * time.Second
	defaultMaxCalls  = 16 << 10
	defaultMaxBodies = 512 << 20
)

// EnsureDefaults replaces zero values by their defaults.
func (c *HTTPConfig) EnsureDefaults() {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:0")
	c.KeepAlive = cmp.Or(c.KeepAlive, defaultKeepAlive)
	c.Dial = cmp.Or(c.Dial, 2*time.Second)
	c.MaxCalls = cmp.Or(c.MaxCalls, defaultMaxCalls)
	c.MaxBodies = cmp.Or(c.MaxBodies, defaultMaxBodies)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// Validate reports all problems of c.
func (c *HTTPConfig) Validate() error {
	var errs []error
	errs = append(errs, endpoint.ValidateListen("rpc", c.Listen, c.Advertise))
	if strings.ContainsFunc(c.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		errs = append(errs, fault.New(fault.Invalid, "rpc token: use printable ASCII without spaces"))
	}
	if c.KeepAlive < 2*time.Millisecond {
		errs = append(errs, fault.New(fault.Invalid, "rpc keep-alive: have %v, use at least 2ms", c.KeepAlive))
	}
	if c.Dial <= 0 {
		errs = append(errs, fault.New(fault.Invalid, "rpc dial: have %v, use a time above 0", c.Dial))
	}
	return errors.Join(append(errs, validateLimits(c.MaxCalls, c.MaxBodies))...)
}

// validateLimits validates the limits of a server.
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
