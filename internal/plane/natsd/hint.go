package natsd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// connectHint returns advice for an error of connecting.
func connectHint(err error) string {
	var unknown *tls.CertificateVerificationError
	var name x509.HostnameError
	var alert tls.AlertError
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return "give the credentials it asks for: USER:PASSWORD@ in --nats, --nats-creds or --nats-token-file"
	case errors.Is(err, nats.ErrSecureConnWanted):
		return "the server does not speak TLS: write nats:// in place of tls:// and leave out the nats-tls settings, or give the server a certificate"
	case errors.Is(err, nats.ErrSecureConnRequired):
		return "the server speaks TLS only: name the certificates that sign its own with --nats-tls-ca"
	case errors.As(err, &name):
		return "the TLS certificate of the server is not for the host in the URL: write a host that it is for, or have one made for this host"
	case errors.As(err, &unknown):
		return "the TLS certificate of the server is not trusted here: name the certificates that sign it with --nats-tls-ca"
	case errors.As(err, &alert), errors.Is(err, nats.ErrTLS), strings.Contains(err.Error(), "remote error: tls: "):
		return "the server refuses this process's TLS certificate, or wants one: give one that it trusts with --nats-tls-cert and --nats-tls-key"
	}
	return "check that a NATS server runs there"
}

// JetStream error codes for lack of resources: of the account, of the server, of its memory, of its
// files, and of the stream or its disk.
const (
	codeAccountResources jetstream.ErrorCode = 10002
	codeNoResources      jetstream.ErrorCode = 10023
	codeMemoryResources  jetstream.ErrorCode = 10028
	codeStorageResources jetstream.ErrorCode = 10047
	codeStoreNotCreated  jetstream.ErrorCode = 10049
	codeStoreFailed      jetstream.ErrorCode = 10077
)

// isOutOfRoom reports whether JetStream refused a request for lack of resources.
func isOutOfRoom(err error) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}
	switch api.ErrorCode {
	case codeAccountResources, codeNoResources, codeMemoryResources, codeStorageResources, codeStoreNotCreated, codeStoreFailed:
		return true
	}
	return false
}

// operationHint returns advice for an error of an operation on the server.
func operationHint(err error) string {
	switch {
	case isOutOfRoom(err):
		return "JetStream has no room: free disk space at the NATS server, remove streams that are not used, or give its account or server more"
	case errors.Is(err, context.DeadlineExceeded): // also the answer of a server which cannot write
		return "check the connection to the NATS server, and the free space on its disk"
	}
	return "check the connection to the NATS server"
}
