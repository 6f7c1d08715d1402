package node

import (
	"crypto/x509"
	"net"
	"net/url"
	"strings"
)

// Access is what a client on this machine needs beside the URL of the HTTP API.
type Access struct {
	// CertFile is the file of the server's certificate, which a client can name as what it
	// trusts; "" without TLS.
	CertFile string
	// Name is a host that the certificate is for; "" if it is for that of the URL.
	Name string
	// KeyFile is the file with the keys of which a request shows one; "" without keys.
	KeyFile string
}

// access returns what clients of this process need.
func (p *process) access() Access {
	a := Access{KeyFile: p.cfg.APIKeyFile}
	if p.ln == nil || p.door.cert == nil {
		return a
	}
	a.CertFile = p.cfg.TLSCert
	cert, err := p.door.cert.Get(nil)
	if u, bad := url.Parse(p.url()); bad == nil && err == nil && cert.Leaf != nil {
		a.Name = otherName(cert.Leaf, u.Hostname())
	}
	return a
}

// otherName returns a host that the certificate is for, unless it is for the given one.
func otherName(leaf *x509.Certificate, host string) string {
	switch {
	case leaf.VerifyHostname(host) == nil:
		return ""
	case len(leaf.DNSNames) > 0:
		return strings.Replace(leaf.DNSNames[0], "*", "penstock", 1)
	case len(leaf.IPAddresses) > 0:
		return leaf.IPAddresses[0].String()
	}
	return ""
}

// URLOf returns the URL by which a client reaches the server at url: with the name that its
// certificate is for.
func (a Access) URLOf(server string) string {
	u, err := url.Parse(server)
	if err != nil || a.Name == "" {
		return server
	}
	u.Host = net.JoinHostPort(a.Name, u.Port())
	return u.String()
}
