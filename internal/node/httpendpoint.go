package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"penstock/internal/config"
	"penstock/internal/edge/keys"
	"penstock/internal/edge/openai"
	"penstock/internal/obs"
	"penstock/internal/reload"
)

// httpEndpoint is the HTTP listener with its certificate and keys. Its zero value is that of a process
// without HTTP.
type httpEndpoint struct {
	listener net.Listener
	cert     *reload.Certificate // nil without TLS
	keys     *keys.Keyring       // nil if access is open
}

// openHTTPEndpoint opens what the settings name. It warns of missing protection if other machines can
// connect.
func openHTTPEndpoint(cfg *config.Loaded, log *slog.Logger) (d httpEndpoint, err error) {
	// Files come first: they are cheap and need no closing.
	if cfg.HTTP.APIKeyFile != "" {
		if d.keys, err = keys.Open(cfg.HTTP.APIKeyFile); err != nil {
			return d, config.AsSettingError(fmt.Errorf("api-key-file %s: %w", cfg.HTTP.APIKeyFile, err))
		}
		if st, err := os.Stat(cfg.HTTP.APIKeyFile); err == nil && st.Mode().Perm()&0o004 != 0 {
			log.Warn("every user of this machine can read the key file: take that right away (chmod 600), or keep hashes of keys in it (sha256)", "path", cfg.HTTP.APIKeyFile)
		}
	}
	if cfg.HTTP.TLSCert != "" {
		if d.cert, err = reload.OpenCertificate(cfg.HTTP.TLSCert, cfg.HTTP.TLSKey); err != nil {
			return d, config.AsSettingError(fmt.Errorf("tls-cert %s, tls-key %s: %w", cfg.HTTP.TLSCert, cfg.HTTP.TLSKey, err))
		}
	}
	if d.listener, err = listenHTTP(cfg.HTTP.Addr); err != nil {
		return d, err
	}
	d.warnIfExposed(d.listener.Addr().String(), log)
	d.listener = &limitedListener{Listener: d.listener, limit: int64(cfg.HTTP.MaxConnections), throttle: obs.NewThrottle(log, time.Minute)}
	if d.cert != nil {
		d.listener = tls.NewListener(d.listener, &tls.Config{
			GetCertificate: d.cert.Get, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		})
	}
	return d, nil
}

// warnIfExposed logs which protections are missing, if other machines can reach addr.
func (d *httpEndpoint) warnIfExposed(addr string, log *slog.Logger) {
	var list []string
	if d.cert == nil {
		list = append(list, "TLS (--tls-cert, --tls-key)")
	}
	if d.keys == nil {
		list = append(list, "keys (--api-key-file)")
	}
	if len(list) > 0 && !config.IsLoopback(addr) {
		log.Warn("the HTTP API accepts connections from other machines, which can use it and read its traffic", "addr", addr, "without", strings.Join(list, " and "))
	}
}

func (d *httpEndpoint) urlScheme() string {
	if d.cert != nil {
		return "https"
	}
	return "http"
}

// startReloading starts the stages which reload changed files.
func (d *httpEndpoint) startReloading(ctx context.Context, stages *stages, log *slog.Logger) {
	if d.keys != nil {
		stages.startStage(ctx, "api-key-file", func(ctx context.Context) error { return d.keys.Run(ctx, log) })
	}
	if d.cert != nil {
		stages.startStage(ctx, "tls-cert", func(ctx context.Context) error { return d.cert.Run(ctx, log) })
	}
}

// requireAdmin lets only administrators through to h, unless there are no keys or access is open.
func (d *httpEndpoint) requireAdmin(h http.Handler, access string) http.Handler {
	if d.keys == nil || access == config.AccessOpen {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, err := d.keys.IdentifyAdmin(r.Header)
		if err == nil {
			h.ServeHTTP(w, r)
			return
		}
		if client == nil {
			keys.SetChallenge(w.Header())
		}
		openai.WriteError(w, err)
	})
}

// accessLog returns the logger of served requests; nil if they are not logged.
func (p *process) accessLog() *slog.Logger {
	if p.cfg.HTTP.AccessLog != config.On {
		return nil
	}
	return p.log
}

// listenHTTP opens the HTTP address. Its errors say what to do if the address is in use.
func listenHTTP(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("http-addr %s is in use by another process; stop it or choose another with --http-addr, for example 127.0.0.1:0 for a free port", addr)
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return nil, fmt.Errorf("http-addr %s is not an address of this machine; choose one that is with --http-addr, or 0.0.0.0 for all of them", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("http-addr: %w", err)
	}
	return ln, nil
}

// reachableAddr returns the host and port at which this machine reaches a listener: one that listens on every
// address has no host of its own.
func reachableAddr(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}
	return net.JoinHostPort("localhost", strconv.Itoa(tcp.Port))
}
