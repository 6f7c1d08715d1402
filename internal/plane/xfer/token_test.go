package xfer_test

import (
	"crypto/tls"
	"strings"
	"testing"

	"penstock/internal/fixturetest"
	"penstock/internal/plane/xfer"
)

// TestTokens: an owner with a token refuses writers without it, and says why.
func TestTokens(t *testing.T) {
	for _, transport := range transports() {
		open := func(token string) xfer.Plane { return newPlane(t, transport, xfer.Config{Token: token}) }
		owner := open("secret")
		run(t, owner)
		for token, good := range map[string]bool{"secret": true, "": false, "other": false} {
			tr, err := owner.Expect(xfer.Incoming{Into: [][]byte{make([]byte, 1)}})
			if err != nil {
				t.Fatal(err)
			}
			err = xfer.Write(t.Context(), open(token), tr.Descriptor(), nil, []byte{1})
			if (err == nil) != good || !good && (xfer.OutcomeOf(err) != xfer.Invalid || !strings.Contains(err.Error(), "token")) {
				t.Errorf("%s: a writer with token %q got %v", transport, token, err)
			}
		}
	}
}

// TestTLSMismatch: a writer does not send to an owner whose certificate it does not trust, and one
// without TLS learns nothing.
func TestTLSMismatch(t *testing.T) {
	pair, other := fixturetest.NewPair(t, fixturetest.CertOptions{Name: "owner"}), fixturetest.NewPair(t, fixturetest.CertOptions{Name: "other"})
	owner := newTCP(t, xfer.TCPConfig{ServerTLS: &tls.Config{Certificates: []tls.Certificate{pair.TLS}}})
	run(t, owner)
	for name, cfg := range map[string]*tls.Config{"other": {RootCAs: other.Pool}, "none": nil} {
		into := make([]byte, 1)
		tr, err := owner.Expect(xfer.Incoming{Into: [][]byte{into}})
		if err != nil {
			t.Fatal(err)
		}
		if err := xfer.Write(t.Context(), newTCP(t, xfer.TCPConfig{ClientTLS: cfg}), tr.Descriptor(), nil, []byte{1}); err == nil || into[0] != 0 {
			t.Errorf("%s: the bytes were sent", name)
		}
	}
}
