package rpc

import (
	"cmp"
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"penstock/core/fault"
	"penstock/internal/plane/endpoint"
)

// TCPConfig configures a request plane over TCP: its server side, its client side, and the bounds
// of both.
type TCPConfig struct {
	// Listen is the address at which Serve listens if it is given none: "host:port". Port 0 selects
	// a free port.
	Listen string
	// Advertise is the address at which others reach this server: "host" or "host:port". Empty
	// means the listener's own address, which must then name a host.
	Advertise string
	// ServerTLS and ClientTLS, if not nil, are the TLS settings for accepted and dialled
	// connections. They decide whether peer certificates are verified.
	ServerTLS, ClientTLS *tls.Config
	// Token, if not empty, is the secret that servers require of clients. Without TLS it is sent in
	// clear.
	Token string
	// Log receives refused connections and handler failures. Nil discards them.
	Log *slog.Logger

	// Dial bounds connecting, including the greeting. Handshake bounds how long a client may take
	// to greet.
	Dial, Handshake time.Duration
	// Ping is the silence after which the peer of a call is pinged. Dead is the silence after which
	// the connection is closed. Both are 20 times as long while no call is in progress.
	Ping, Dead time.Duration
	// WriteTimeout is how long a peer may leave a write unread.
	WriteTimeout time.Duration
	// Idle is how long a connection without calls is kept open.
	Idle time.Duration

	// Conns bounds the connections of a server, and Calls the calls in progress on each. Beyond
	// that, connections and calls are refused.
	Conns, Calls int
	// ConnBodies and Bodies bound the bodies of calls in progress, in bytes, per connection and per
	// server. A call that does not fit is Overloaded.
	ConnBodies, Bodies int64
	// Answers bounds the answers received on one connection but not yet taken by the callers, in
	// bytes. A call that exceeds it is Overloaded.
	Answers int64
}

// EnsureDefaults replaces zero values by their defaults.
func (c *TCPConfig) EnsureDefaults() {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:0")
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	for _, d := range []struct {
		to    *time.Duration
		value time.Duration
	}{
		{&c.Dial, 2 * time.Second},
		{&c.Handshake, 5 * time.Second},
		{&c.Ping, 500 * time.Millisecond},
		{&c.Dead, 2 * time.Second},
		{&c.WriteTimeout, 10 * time.Second},
		{&c.Idle, 5 * time.Minute},
	} {
		if *d.to == 0 {
			*d.to = d.value
		}
	}
	c.Conns = cmp.Or(c.Conns, 4096)
	c.Calls = cmp.Or(c.Calls, 16384)
	c.ConnBodies = cmp.Or(c.ConnBodies, 256<<20)
	c.Bodies = cmp.Or(c.Bodies, 1<<30)
	c.Answers = cmp.Or(c.Answers, 512<<20)
}

// Validate reports all problems of c. Call EnsureDefaults first.
func (c *TCPConfig) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fault.New(fault.Invalid, "tcp: "+format, args...))
	}
	errs = append(errs, endpoint.ValidateListen("rpc", c.Listen, c.Advertise))
	if c.ServerTLS != nil && len(c.ServerTLS.Certificates) == 0 && c.ServerTLS.GetCertificate == nil && c.ServerTLS.GetConfigForClient == nil {
		bad("a server with TLS needs a certificate")
	}
	if len(c.Token) > maxToken {
		bad("the token has %d bytes, at most %d are allowed", len(c.Token), maxToken)
	}
	if min(c.Dial, c.Handshake, c.WriteTimeout, c.Idle) <= 0 {
		bad("every time limit must be positive")
	}
	if c.Ping < 2*time.Millisecond || c.Dead < 2*c.Ping {
		bad("a connection is dead after at least two pings, not %v and %v", c.Dead, c.Ping)
	}
	if c.Conns < 1 || c.Calls < 1 || uint64(c.Calls) > lastCall {
		bad("connections and calls must be positive, not %d and %d", c.Conns, c.Calls)
	}
	if c.ConnBodies < MaxBody || c.Bodies < c.ConnBodies || c.Answers < tcpWindow+MaxFrame {
		bad("the bounds of memory must hold one body of %d bytes, a server's what a connection may, and one frame of %d", MaxBody, MaxFrame)
	}
	return errors.Join(errs...)
}
