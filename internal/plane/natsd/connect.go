package natsd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Connect connects to the server at urls: one URL, or several separated by commas. The connection
// reconnects by itself whenever it breaks. opts, for credentials, TLS and the time of an attempt, override the
// defaults.
// The caller must close the connection. A server that is too old returns ErrTooOld.
func Connect(urls, name string, log *slog.Logger, opts ...nats.Option) (*nats.Conn, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	opts = append(append(connOptions(name, log), opts...), closeDroppedSockets)
	nc, err := nats.Connect(urls, opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w; %s", redactURLs(urls), err, connectHint(err))
	}
	if err := checkVersion(nc.ConnectedServerVersion()); err != nil {
		nc.Close()
		return nil, fmt.Errorf("connect to %s: %w", redactURLs(urls), err)
	}
	return nc, nil
}

// connOptions returns the options of all our connections.
func connOptions(name string, log *slog.Logger) []nats.Option {
	return []nats.Option{
		nats.Name(name),
		nats.Timeout(dialTimeout),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, time.Second),
		nats.IgnoreAuthErrorAbort(), // credentials may be rotated during operation
		// A publication during an interruption fails at once, instead of arriving late after its
		// publisher has retried.
		nats.ReconnectBufSize(-1),
		// An unresponsive server is detected within about 10 s.
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil when we closed it
				log.Warn("nats connection lost", "name", name, "err", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			if err := checkVersion(nc.ConnectedServerVersion()); err != nil {
				log.Error("nats connection restored to a server that cannot work", "name", name, "err", err)
				return
			}
			log.Info("nats connection restored", "name", name)
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			log.Warn("nats error", "name", name, "subject", subject, "err", err)
		}),
	}
}

// redactURLs returns urls without passwords and tokens.
func redactURLs(urls string) string {
	list := strings.Split(urls, ",")
	for i, s := range list {
		u, err := url.Parse(strings.TrimSpace(s))
		if err != nil {
			list[i] = "(unreadable URL)"
			continue
		}
		if u.User != nil {
			u.User = url.User("xxxxx") // a user without a password is a token
		}
		list[i] = u.String()
	}
	return strings.Join(list, ",")
}

// MinServerVersion is the oldest supported NATS server: discovery needs per-key TTLs, which 2.11
// introduced.
const MinServerVersion = "2.11"

// ErrTooOld is in the chain of Connect's error when the server is older than MinServerVersion. A
// retry does not help.
var ErrTooOld = errors.New("the NATS server is too old")

// checkVersion returns ErrTooOld with advice for a version below MinServerVersion. It accepts a
// version that it cannot parse.
func checkVersion(version string) error {
	major, minor, ok := parseVersion(version)
	leastMajor, leastMinor, _ := parseVersion(MinServerVersion)
	if !ok || major > leastMajor || major == leastMajor && minor >= leastMinor {
		return nil
	}
	return fmt.Errorf("%w: it has version %s, and Penstock needs %s or newer; upgrade it, or embed one in a process of the fleet with --nats-listen",
		ErrTooOld, version, MinServerVersion)
}

// parseVersion parses the first two numbers of a version such as 2.11.0-RC.1.
func parseVersion(version string) (major, minor int, ok bool) {
	first, rest, ok := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	return major, minor, ok && err1 == nil && err2 == nil
}

// dialTimeout bounds one attempt to open a connection, and then the handshake with the server.
const dialTimeout = 2 * time.Second

// closeDroppedSockets sets the dialer of a connection, which takes the timeout of the options before it.
func closeDroppedSockets(o *nats.Options) error {
	o.CustomDialer = &closingDialer{timeout: o.Timeout}
	return nil
}

// IsUnanswered reports whether no server answered an attempt to connect, or the client was so slow that the server pinged
// it meanwhile: a later attempt may succeed.
func IsUnanswered(err error) bool {
	return err != nil && strings.Contains(err.Error(), "expected 'PONG', got 'PING'") || // which nats.go gives no type
		errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, os.ErrDeadlineExceeded) || // of the handshake
		errors.Is(err, context.DeadlineExceeded) // of the dialer
}

// closingDialer opens the sockets of one [nats.Conn], which uses one at a time. It closes the
// previous socket before it opens the next one: when a server accepts a connection and closes it
// before its first line, nats.go drops the socket without closing it, and it stays in CLOSE_WAIT
// until the garbage collector finds it.
type closingDialer struct {
	timeout time.Duration
	mu      struct {
		sync.Mutex
		last net.Conn
	}
}

// Dial implements nats.CustomDialer.
func (d *closingDialer) Dial(network, address string) (net.Conn, error) {
	d.mu.Lock()
	if d.mu.last != nil {
		_ = d.mu.last.Close() // already closed, unless nats.go dropped it
		d.mu.last = nil
	}
	d.mu.Unlock()
	conn, err := (&net.Dialer{Timeout: d.timeout}).Dial(network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.mu.last = conn
	d.mu.Unlock()
	return conn, nil
}

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

// IsStoreNotCreated reports whether JetStream could not create the files of a stream.
func IsStoreNotCreated(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == codeStoreNotCreated
}

// IsStreamFull reports whether a stream with the discard policy "new" refused a message because it has as many as
// it may have. The server has one code for all reasons for which it does not store a message.
func IsStreamFull(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == codeStoreFailed && strings.Contains(api.Description, "maximum messages exceeded")
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
