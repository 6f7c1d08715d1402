package natsd

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"penstock/internal/fixturetest"
)

// TestTLSHints: an error of TLS names TLS and the setting that mends it, and does not send the
// user to look whether a server runs.
func TestTLSHints(t *testing.T) {
	cert, other := fixturetest.NewPair(t, fixturetest.CertOptions{}), fixturetest.NewPair(t, fixturetest.CertOptions{})
	open := start(t, Config{Listen: "127.0.0.1:0"}).URL()
	own := tls.Config{Certificates: []tls.Certificate{cert.TLS}}
	secure := start(t, Config{Listen: "127.0.0.1:0", TLS: &own}).URL()
	asking := own.Clone()
	asking.ClientAuth, asking.ClientCAs = tls.RequireAndVerifyClientCert, cert.Pool
	mutual := start(t, Config{Listen: "127.0.0.1:0", TLS: asking}).URL()
	for _, tt := range []struct {
		name, url string
		tls       *tls.Config
		want      string
	}{
		{"not trusted", secure, nil, "--nats-tls-ca"},
		{"another authority", secure, &tls.Config{RootCAs: other.Pool}, "--nats-tls-ca"},
		{"another host", strings.Replace(secure, "127.0.0.1", "localhost", 1), &tls.Config{RootCAs: cert.Pool}, "not for the host in the URL"},
		{"no certificate of its own", mutual, &tls.Config{RootCAs: cert.Pool}, "--nats-tls-cert"},
		{"a strange certificate of its own", mutual, &tls.Config{RootCAs: cert.Pool, Certificates: []tls.Certificate{other.TLS}}, "--nats-tls-cert"},
		{"a server without TLS", strings.Replace(open, "nats://", "tls://", 1), nil, "does not speak TLS"},
		{"a server without TLS, by its settings", open, &tls.Config{RootCAs: cert.Pool}, "does not speak TLS"},
	} {
		var opts []nats.Option
		if tt.tls != nil {
			opts = append(opts, nats.Secure(tt.tls))
		}
		nc, err := connectTo(t, tt.url, opts...)
		if err == nil {
			nc.Close()
			t.Errorf("%s: connected", tt.name)
			continue
		}
		if !strings.Contains(err.Error(), "TLS") || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "check that a NATS server runs") {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
	}
}

// TestCredentialsHint: a server that refuses the credentials runs; the error names the settings
// that give them.
func TestCredentialsHint(t *testing.T) {
	guarded := start(t, Config{Listen: "127.0.0.1:0", Token: "a-token-of-the-server"}).URL()
	for name, opts := range map[string][]nats.Option{"no token": nil, "another token": {nats.Token("another-token")}} {
		nc, err := connectTo(t, guarded, opts...)
		if err == nil {
			nc.Close()
			t.Errorf("%s: connected", name)
			continue
		}
		if !strings.Contains(err.Error(), "--nats-token-file") || strings.Contains(err.Error(), "check that a NATS server runs") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
