package reload

import (
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"time"
)

// Certificate is a certificate chain with its private key, from PEM files. It follows changes of
// them while its Files run.
type Certificate struct {
	*Files
	pair atomic.Pointer[tls.Certificate]
}

// OpenCertificate reads a chain, which starts with the server's own certificate, and its key.
func OpenCertificate(certPath, keyPath string) (*Certificate, error) {
	c := &Certificate{}
	var err error
	c.Files, err = Open("TLS certificate", func(contents [][]byte) error { return c.storePair(contents[0], contents[1]) }, certPath, keyPath)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Certificate) storePair(cert, key []byte) error {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	if late := pair.Leaf.NotAfter; time.Now().After(late) {
		return fmt.Errorf("the certificate ended at %s: get a new one", late.UTC().Format(time.RFC3339))
	}
	c.pair.Store(&pair)
	return nil
}

// Get returns the current pair, for [tls.Config.GetCertificate].
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Load(), nil }
