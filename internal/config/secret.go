package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
)

// ErrNotReady is returned when something did not become ready within the time of its setting.
var ErrNotReady = errors.New("not ready in time")

// maxSecret bounds a token, in bytes.
const maxSecret = 4 << 10

// ReadSecret reads the token in a file, without surrounding white space; "" if the setting is empty.
func ReadSecret(setting, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", AsSettingError(fmt.Errorf("%s: %w", setting, err))
	}
	token := strings.TrimSpace(string(data))
	if token == "" || len(token) > maxSecret || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", AsSettingError(fmt.Errorf("%s: %s must hold one token: 1 to %d printable characters without spaces, such as the output of \"openssl rand -hex 32\"", setting, path, maxSecret))
	}
	return token, nil
}

// LoadCertificate reads a certificate and its key; none if the setting is empty.
func LoadCertificate(setting, cert, key string) ([]tls.Certificate, error) {
	if cert == "" {
		return nil, nil
	}
	c, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, AsSettingError(fmt.Errorf("%s %s with key %s: %w", setting, cert, key, err))
	}
	return []tls.Certificate{c}, nil
}

// LoadAuthorities reads the CA certificates for verifying peers; nil if the setting is empty.
func LoadAuthorities(setting, path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, AsSettingError(fmt.Errorf("%s: %w", setting, err))
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, AsSettingError(fmt.Errorf("%s: %s holds no certificate in PEM form", setting, path))
	}
	return pool, nil
}
