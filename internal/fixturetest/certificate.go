package fixturetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// CertOptions describes a certificate.
type CertOptions struct {
	Name string // of its subject
	// From and Until bound its validity. Zero From means 1970, which is also in the past in
	// synctest bubbles; zero Until means an hour from now.
	From, Until time.Time
}

// Pair is a certificate for 127.0.0.1 and its key. It is its own CA, for servers and clients.
type Pair struct {
	TLS       tls.Certificate
	Pool      *x509.CertPool // trusts the certificate
	Cert, Key []byte         // in PEM
}

// NewPair returns a new pair.
func NewPair(t testing.TB, f CertOptions) *Pair {
	t.Helper()
	if f.From.IsZero() {
		f.From = time.Unix(0, 0)
	}
	if f.Until.IsZero() {
		f.Until = time.Now().Add(time.Hour)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: f.Name},
		NotBefore: f.From, NotAfter: f.Until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	p := &Pair{
		TLS:  tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		Pool: x509.NewCertPool(),
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}
	p.Pool.AddCert(signed)
	return p
}
