package node

import (
	"crypto/x509"
	"net"
	"testing"
)

// TestOtherName: a client gets a host name which the certificate covers, unless it covers the address.
func TestOtherName(t *testing.T) {
	for _, tt := range []struct {
		leaf       x509.Certificate
		host, want string
	}{
		{x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, "127.0.0.1", ""},
		{x509.Certificate{DNSNames: []string{"localhost"}}, "localhost", ""},
		{x509.Certificate{DNSNames: []string{"llm.example.com"}}, "127.0.0.1", "llm.example.com"},
		{x509.Certificate{DNSNames: []string{"*.example.com"}}, "127.0.0.1", "penstock.example.com"},
		{x509.Certificate{IPAddresses: []net.IP{net.IPv4(10, 0, 0, 5)}}, "localhost", "10.0.0.5"},
	} {
		got := alternateName(&tt.leaf, tt.host)
		if got != tt.want || got != "" && tt.leaf.VerifyHostname(got) != nil {
			t.Errorf("%v at %s: %q, want %q", tt.leaf.DNSNames, tt.host, got, tt.want)
		}
	}
	if got := (Access{Name: "llm.example.com"}).URLOf("https://127.0.0.1:8443"); got != "https://llm.example.com:8443" {
		t.Errorf("the URL is %s", got)
	}
}
