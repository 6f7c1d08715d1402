package rpc

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"penstock/core/fault"
)

// TCPConfig configures a request plane over TCP: what it serves with, what it
// calls with, and the bounds of both.
type TCPConfig struct {
	// Listen is where Serve listens if it is given no address: "host:port", port 0
	// for any that is free.
	Listen string
	// Advertise is the address at which others reach what listens: "host" or
	// "host:port". Empty is the listener's own address, which has to name a host
	// then.
	Advertise string
	// ServerTLS and ClientTLS, if not nil, are how connections are accepted and
	// dialled. They ask for certificates of the other side if those who made them
	// said so.
	ServerTLS, ClientTLS *tls.Config
	// Token, if not empty, is a secret that servers want of clients. Without TLS it
	// can be read by whoever can read the connection.
	Token string
	// Log gets refused connections and handlers that failed. Nil discards them.
	Log *slog.Logger

	// Dial bounds the time for a connection to stand, the greeting included, and
	// Handshake the time for a client to greet.
	Dial, Handshake time.Duration
	// Ping is after how much silence the peer of a call is asked whether it is
	// there, and Dead after how much the connection is given up. Both are 20 times
	// as long while no call is in progress.
	Ping, Dead time.Duration
	// WriteTimeout is how long a peer may leave a write unread.
	WriteTimeout time.Duration
	// Idle is how long a connection without calls is kept.
	Idle time.Duration

	// Conns bounds the connections of a server, and Calls the calls in progress on
	// each; one more is refused.
	Conns, Calls int
	// ConnBodies and Bodies bound the bodies of calls in progress, in bytes, on a
	// connection and of a server; a call that does not fit is Overloaded.
	ConnBodies, Bodies int64
	// Answers bounds what has come on one connection and its callers have not
	// taken, in bytes; a call that takes too much of it is Overloaded.
	Answers int64
}

// EnsureDefaults fills in what is not set.
func (c *TCPConfig) EnsureDefaults() {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
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
	if c.Conns == 0 {
		c.Conns = 4096
	}
	if c.Calls == 0 {
		c.Calls = 16384
	}
	if c.ConnBodies == 0 {
		c.ConnBodies = 256 << 20
	}
	if c.Bodies == 0 {
		c.Bodies = 1 << 30
	}
	if c.Answers == 0 {
		c.Answers = 512 << 20
	}
}

// Validate reports every problem of c. Call EnsureDefaults first.
func (c *TCPConfig) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fault.New(fault.Invalid, "tcp: "+format, args...))
	}
	errs = append(errs, validateListen(c.Listen, c.Advertise))
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
