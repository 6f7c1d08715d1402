package xfer

import (
	"cmp"
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/endpoint"
)

// Config has the bounds of a plane, and what it reports to.
type Config struct {
	// Transfers bounds the open transfers of an owner. Beyond it Expect is Overloaded.
	Transfers int
	// Serve bounds the connections which an owner serves; beyond it idle ones are closed, then writers
	// wait. In shared memory each has a region of 1 MiB and 136 KiB for frames.
	Serve int
	// Lanes bounds the connections of this process to one owner for transfers of Open, which waits
	// beyond it. Small transfers have one more.
	Lanes int
	// Idle is how long a connection without a transfer is kept, with its region.
	Idle time.Duration
	// Handshake bounds connecting and greeting.
	Handshake time.Duration
	// Silence is how long a writer waits for an owner that neither takes bytes nor answers, and an owner for a
	// writer which does not read its outcomes.
	Silence time.Duration
	// Token, if not empty, is the secret which owners require of writers. Over TCP without TLS it
	// is sent in clear.
	Token string
	// Observer receives a report of every transfer. Nil discards them.
	Observer Observer
	// Log receives refused connections. Nil discards them.
	Log *slog.Logger
}

// EnsureDefaults replaces zero values by their defaults.
func (c *Config) EnsureDefaults() {
	c.Transfers = cmp.Or(c.Transfers, 4096)
	c.Serve = cmp.Or(c.Serve, 256)
	c.Lanes = cmp.Or(c.Lanes, 32)
	c.Idle = cmp.Or(c.Idle, 10*time.Second)
	c.Handshake = cmp.Or(c.Handshake, 5*time.Second)
	c.Silence = cmp.Or(c.Silence, 30*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.Observer == nil {
		c.Observer = discardObserver{}
	}
}

// Validate reports all problems of c. Call EnsureDefaults first.
func (c *Config) Validate() error {
	var errs []error
	if c.Transfers < 1 || c.Serve < 1 || c.Lanes < 1 {
		errs = append(errs, fault.New(fault.Invalid, "xfer: transfers and connections must be positive, not %d, %d and %d", c.Transfers, c.Serve, c.Lanes))
	}
	if min(c.Idle, c.Handshake, c.Silence) < time.Millisecond {
		errs = append(errs, fault.New(fault.Invalid, "xfer: every time limit must be at least 1ms"))
	}
	if len(c.Token) > maxToken {
		errs = append(errs, fault.New(fault.Invalid, "xfer: the token has %d bytes, at most %d are allowed", len(c.Token), maxToken))
	}
	return errors.Join(errs...)
}

// TCPConfig configures a TCPPlane.
type TCPConfig struct {
	Config
	// Listen is the address at which Run listens: "host:port". Port 0 selects a free port.
	Listen string
	// Advertise is the address at which writers reach this process: "host" or "host:port". Empty
	// means the listener's own address, which must then name a host.
	Advertise string
	// ServerTLS and ClientTLS, if not nil, are the TLS settings for accepted and dialled
	// connections. They decide whether peer certificates are verified.
	ServerTLS, ClientTLS *tls.Config
}

// EnsureDefaults replaces zero values by their defaults.
func (c *TCPConfig) EnsureDefaults() {
	c.Config.EnsureDefaults()
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:0")
}

// Validate reports all problems of c. Call EnsureDefaults first.
func (c *TCPConfig) Validate() error {
	errs := []error{c.Config.Validate(), endpoint.ValidateListen("xfer", c.Listen, c.Advertise)}
	if c.ServerTLS != nil && len(c.ServerTLS.Certificates) == 0 && c.ServerTLS.GetCertificate == nil && c.ServerTLS.GetConfigForClient == nil {
		errs = append(errs, fault.New(fault.Invalid, "xfer: a server with TLS needs a certificate"))
	}
	return errors.Join(errs...)
}
