// Package natsd embeds a NATS server with JetStream, connects to that one or to
// any other, and reads streams. The planes over NATS build on it.
package natsd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
)

// Config configures an embedded server.
type Config struct {
	// DataDir holds the JetStream files; it is created if it is missing, and one
	// server at a time may use it. Empty means a temporary directory that Close
	// removes, or else the next server that is started with one.
	DataDir string
	// Listen is the host:port for other processes; port 0 chooses a free one.
	// Empty means none: only this process can connect.
	Listen string
	// Token, if not empty, is what others must show to connect.
	Token string
	// TLS, if not nil, is what others must speak to connect; this process need not.
	TLS *tls.Config
	// MaxStore bounds the files of all streams together and MaxMemory their
	// memory, in bytes. 0 is 8 GiB and 64 MiB.
	MaxStore, MaxMemory int64
	// Log gets the server's own log: its notices at debug level, its warnings
	// and errors as they are. Nil discards it.
	Log *slog.Logger
}

// EnsureDefaults replaces zero values by their defaults.
func (c *Config) EnsureDefaults() {
	if c.MaxStore == 0 {
		c.MaxStore = 8 << 30
	}
	if c.MaxMemory == 0 {
		c.MaxMemory = 64 << 20
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Validate reports everything that is wrong with c.
func (c *Config) Validate() error {
	var errs []error
	if c.Listen != "" {
		if _, _, err := c.hostPort(); err != nil {
			errs = append(errs, fmt.Errorf("listen address %.100q: %w; use HOST:PORT", c.Listen, err))
		}
	}
	if c.MaxStore < 0 || c.MaxMemory < 0 {
		errs = append(errs, fmt.Errorf("limits of %d bytes of store and %d of memory: must not be negative", c.MaxStore, c.MaxMemory))
	}
	return errors.Join(errs...)
}

func (c *Config) hostPort() (host string, port int, err error) {
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
