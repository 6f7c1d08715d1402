package natsd

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Connect connects to the server at urls: one URL, or several separated by commas. The connection
// reconnects by itself whenever it breaks. opts, for credentials and TLS, override the defaults.
// The caller must close the connection. A server that is too old returns ErrTooOld.
func Connect(urls, name string, log *slog.Logger, opts ...nats.Option) (*nats.Conn, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	nc, err := nats.Connect(urls, append(connOptions(name, log), opts...)...)
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
		nats.SetCustomDialer(&closingDialer{timeout: dialTimeout}),
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
