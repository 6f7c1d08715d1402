package load

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
)

// errorKind returns a word for why there is no complete response.
func errorKind(err error) string {
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case errors.Is(err, errOverloaded):
		return "overloaded"
	case errors.Is(err, errFailed):
		return "error_event"
	case errors.Is(err, errJSON), errors.Is(err, errEvent):
		return "malformed_stream"
	case errors.Is(err, errMalformed):
		return "malformed_http"
	case errors.Is(err, errStream):
		return "not_a_stream"
	case errors.Is(err, errCompressed):
		return "compressed"
	case errors.Is(err, errTooLong):
		return "too_long"
	case errors.Is(err, errEmpty):
		return "empty"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return "timeout"
	case errors.As(err, &dns):
		return "no_such_host"
	case errors.As(err, &certificate), errors.As(err, &record), errors.As(err, &alert):
		return "tls"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "truncated"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.EADDRNOTAVAIL):
		return "no_socket"
	}
	return "connection"
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// statusKind names a response which is not 200.
func statusKind(status int) string {
	if status == 503 || status == 529 {
		return "overloaded"
	}
	return "status_" + strconv.Itoa(status)
}
