package rpc

import (
	"cmp"
	"crypto/tls"
	"testing"
	"time"

	"penstock/internal/fixturetest"
)

// Certificates returns what a server and a client need to know each other.
func Certificates(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	p := fixturetest.NewPair(t, fixturetest.CertOptions{})
	pair := []tls.Certificate{p.TLS}
	return &tls.Config{Certificates: pair, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: p.Pool},
		&tls.Config{Certificates: pair, RootCAs: p.Pool}
}

// Patience is for time limits which only a failure reaches, also on a machine which is slow or busy.
const Patience = 10 * time.Minute

// WithPatience returns cfg with Patience for the limits which it leaves to the defaults.
func WithPatience(cfg TCPConfig) TCPConfig {
	for _, d := range []*time.Duration{&cfg.Dial, &cfg.Handshake, &cfg.Dead, &cfg.WriteTimeout} {
		*d = cmp.Or(*d, Patience)
	}
	return cfg
}
