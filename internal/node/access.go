package node

import (
	"crypto/x509"
	"net"
	"net/url"
	"strings"
)

// Access is what a client on this machine needs in addition to the URL of the HTTP API.
type Access struct {
	// CertFile is the server's certificate file, which a client can trust directly; "" without TLS.
	CertFile string
	// Name is a host name that the certificate covers; "" if it covers the URL's host.
	Name string
	// KeyFile is the API key file, from which a request presents one key; "" without keys.
	KeyFile string
}

// clientAccess returns what clients of this process need.
func (p *process) clientAccess() Access {
	a := Access{KeyFile: p.cfg.HTTP.APIKeyFile}
	if p.listener == nil || p.endpoint.cert == nil {
		return a
	}
	a.CertFile = p.cfg.HTTP.TLSCert
	cert, err := p.endpoint.cert.Get(nil)
	if u, bad := url.Parse(p.httpURL()); bad == nil && err == nil && cert.Leaf != nil {
		a.Name = alternateName(cert.Leaf, u.Hostname())
	}
	return a
}

// alternateName returns a host name which the certificate covers; "" if it covers host.
func alternateName(leaf *x509.Certificate, host string) string {
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

// URLOf returns the URL by which a client reaches server, with the host name that the certificate covers.
func (a Access) URLOf(server string) string {
	u, err := url.Parse(server)
	if err != nil || a.Name == "" {
		return server
	}
	u.Host = net.JoinHostPort(a.Name, u.Port())
	return u.String()
}
