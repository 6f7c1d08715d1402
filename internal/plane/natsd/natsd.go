// Package natsd embeds a NATS server with JetStream, connects to it or to any other server, and
// reads streams. The NATS planes build on it.
package natsd

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
)

// Config configures an embedded server.
type Config struct {
	// DataDir holds the JetStream files. It is created if it is missing, and only one server at a
	// time may use it. Empty means a temporary directory, which Close removes, or after a crash the
	// next server with a temporary directory.
	DataDir string
	// Listen is the host:port for other processes; port 0 selects a free port. Empty means that
	// only this process can connect.
	Listen string
	// Token, if not empty, is required of other processes that connect.
	Token string
	// TLS, if not nil, is required of other processes that connect, but not of this process.
	TLS *tls.Config
	// MaxStore bounds the files of all streams together, and MaxMemory their memory, in bytes. 0
	// means 8 GiB and 64 MiB.
	MaxStore, MaxMemory int64
	// Log receives the server's log: notices at debug level, warnings and errors at their own
	// level. Nil discards it.
	Log *slog.Logger
}

// EnsureDefaults replaces zero values by their defaults.
func (c *Config) EnsureDefaults() {
	c.MaxStore = cmp.Or(c.MaxStore, 8<<30)
	c.MaxMemory = cmp.Or(c.MaxMemory, 64<<20)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
}

// Validate reports all problems of c.
func (c *Config) Validate() error {
	var errs []error
	if c.Listen != "" {
		if _, _, err := c.listenHostPort(); err != nil {
			errs = append(errs, fmt.Errorf("listen address %.100q: %w; use HOST:PORT", c.Listen, err))
		}
	}
	if c.MaxStore < 0 || c.MaxMemory < 0 {
		errs = append(errs, fmt.Errorf("limits of %d bytes of store and %d of memory: must not be negative", c.MaxStore, c.MaxMemory))
	}
	return errors.Join(errs...)
}

func (c *Config) listenHostPort() (host string, port int, err error) {
	host, p, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("port %.100q is not a number from 0 to 65535", p)
	}
	return host, int(n), nil
}
