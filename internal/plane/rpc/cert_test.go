package rpc

import (
	"crypto/tls"
	"testing"

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
