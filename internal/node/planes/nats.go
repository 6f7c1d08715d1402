package planes

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"penstock/internal/backoff"
	"penstock/internal/config"
	"penstock/internal/obs"
	"penstock/internal/plane/natsd"
)

// dialNATS connects to the fleet's NATS server. It retries while the server does not answer yet, because the
// processes of a fleet start together. Once connected, the connection reconnects without limit.
func (p *Set) dialNATS(ctx context.Context, cfg *config.Loaded, log *slog.Logger) error {
	log = obs.Component(log, "nats")
	late := time.Now().Add(time.Duration(cfg.NATS.Wait))
	wait := backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second}
	for said := false; ; said = true {
		err := p.ConnectNATS(cfg, cfg.NATS.URLs, "penstock "+string(cfg.Command), log)
		switch {
		case err == nil || !natsd.IsUnanswered(err):
			return err
		case !time.Now().Before(late):
			return fmt.Errorf("%w: %w (tried for %v, see --nats-wait), or embed one in a process of the fleet with --nats-listen", config.ErrNotReady, err, time.Duration(cfg.NATS.Wait))
		case !said:
			log.Warn("the NATS server does not answer yet, trying on", "error", err)
		}
		if err := wait.Wait(ctx); err != nil {
			return err
		}
	}
}

// ConnectNATS connects to a NATS server with the credentials of the settings. name is for the server's log.
func (p *Set) ConnectNATS(cfg *config.Loaded, url, name string, log *slog.Logger, more ...nats.Option) error {
	opts, err := natsOptions(cfg)
	if err != nil {
		return err
	}
	if p.Conn, err = natsd.Connect(url, name, log, append(opts, more...)...); err != nil {
		return err
	}
	p.onClose(p.Conn.Close)
	return nil
}

// natsOptions are the credentials of a connection.
func natsOptions(cfg *config.Loaded) ([]nats.Option, error) {
	token, err := config.ReadSecret("nats-token-file", cfg.NATS.TokenFile)
	if err != nil {
		return nil, err
	}
	var opts []nats.Option
	if token != "" {
		opts = append(opts, nats.Token(token))
	}
	if cfg.NATS.Creds != "" {
		if _, err := os.Stat(cfg.NATS.Creds); err != nil {
			return nil, config.AsSettingError(fmt.Errorf("nats-creds: %w", err))
		}
		opts = append(opts, nats.UserCredentials(cfg.NATS.Creds))
	}
	_, secure, err := loadTLS("nats", cfg.NATS.TLSCert, cfg.NATS.TLSKey, cfg.NATS.TLSCA, tls.VersionTLS12)
	if err != nil {
		return nil, err
	}
	if secure != nil {
		opts = append(opts, nats.Secure(secure))
	}
	return opts, nil
}
