// Package doctor checks the settings of a process, its machine, and the processes which it shares a fleet with,
// and says for each problem what to do. It changes nothing. A running process checks its own limits with it.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"penstock/internal/node/engines"

	"penstock/internal/config"
	"penstock/internal/edge/keys"
)

// The outcomes of a check.
const (
	CheckOK   = "ok"
	CheckWarn = "warn" // it works, but something should be corrected
	CheckFail = "fail" // it does not work
)

// CheckConfig is the check of the settings themselves.
const CheckConfig = "config"

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	Status string `json:"status"` // CheckOK, CheckWarn or CheckFail
	Detail string `json:"detail"`
	// Remedy says what to do; "" if nothing is wrong.
	Remedy string `json:"remedy"`
}

// Examination is the input of Examine.
type Examination struct {
	// Config holds the settings of the process which is, or is to be, started; nil if they are invalid, for
	// the reason Invalid.
	Config  *config.Loaded
	Invalid error
	// Server is the URL of a running process with HTTP; "" is the process at the HTTP address of the
	// settings, if one runs.
	Server string
	// HTTP sends requests to running processes, with Key as the bearer token unless it is "". Nil is a client
	// without special trust.
	HTTP *http.Client
	Key  string
	// Timeout bounds each question to another process; 0 is DefaultTimeout.
	Timeout time.Duration
}

// DefaultTimeout bounds each question to another process.
const DefaultTimeout = 3 * time.Second

// Examine checks the settings, this machine, and the running processes which the settings and Server lead to,
// and proposes remedies. It changes nothing: it creates, registers and publishes nothing.
func Examine(ctx context.Context, e Examination) []Finding {
	d := &examiner{cfg: e.Config, log: slog.New(slog.DiscardHandler), key: e.Key, openAdapter: engines.OpenAdapter, host: newHostProbe(), timeout: e.Timeout}
	if e.HTTP != nil {
		d.http = *e.HTTP
	}
	d.http.Timeout = d.questionTimeout()
	defer d.http.CloseIdleConnections()
	d.checkSettings(e.Invalid)
	d.checkMachine()
	if d.cfg != nil {
		d.checkPorts(ctx)
		d.checkMemory(ctx)
		d.checkEngines(ctx)
		d.checkFleet(ctx)
	}
	d.checkServer(ctx, e.Server)
	return d.findings
}

// examiner collects findings. Checks set its fields as they learn of them.
type examiner struct {
	cfg  *config.Loaded
	log  *slog.Logger
	http http.Client
	key  string // presented to running processes
	// ownKey is from the settings, and used only for the process of the settings.
	ownKey      string
	openAdapter engines.AdapterOpener // to engines which run outside Penstock
	host        hostProbe
	timeout     time.Duration // of a question to another process; 0 is DefaultTimeout
	findings
}

func (d *examiner) questionTimeout() time.Duration { return cmp.Or(d.timeout, DefaultTimeout) }

// findings are the results of checks.
type findings []Finding

func (f *findings) reportOK(check, format string, args ...any) {
	*f = append(*f, Finding{check, CheckOK, fmt.Sprintf(format, args...), ""})
}

func (f *findings) reportWarning(check, remedy, format string, args ...any) {
	*f = append(*f, Finding{check, CheckWarn, fmt.Sprintf(format, args...), remedy})
}

func (f *findings) reportFailure(check, remedy, format string, args ...any) {
	*f = append(*f, Finding{check, CheckFail, fmt.Sprintf(format, args...), remedy})
}

// checkSettings checks the configuration itself. A configuration that was loaded is valid.
func (d *examiner) checkSettings(invalid error) {
	const remedy = "correct the file, variable or flag that the message names; penstock config show tells where each value comes from"
	if d.cfg == nil {
		if invalid == nil {
			invalid = errors.New("there are no settings")
		}
		d.reportFailure(CheckConfig, remedy, "%s", joinLines(invalid))
		return
	}
	if err := errors.Join(d.checkSecrets(), d.checkCertificates()); err != nil {
		d.reportFailure(CheckConfig, remedy, "%s", joinLines(err))
		return
	}
	d.reportOK(CheckConfig, "the settings of %s are valid", d.cfg.Command)
}

// checkSecrets reads the tokens and keys which the settings name.
func (d *examiner) checkSecrets() error {
	_, nats := config.ReadSecret("nats-token-file", d.cfg.NATS.TokenFile)
	_, rpc := config.ReadSecret("rpc-token-file", d.cfg.RPC.TokenFile)
	if d.cfg.HTTP.APIKeyFile == "" {
		return errors.Join(nats, rpc)
	}
	_, err := keys.Open(d.cfg.HTTP.APIKeyFile)
	if err == nil {
		d.ownKey, _ = keys.ReadSecret(d.cfg.HTTP.APIKeyFile) // a file may have only user keys
	}
	if err != nil {
		err = fmt.Errorf("api-key-file %s: %w", d.cfg.HTTP.APIKeyFile, err)
	}
	return errors.Join(nats, rpc, err)
}

// certificateWarningPeriod is the remaining validity below which a certificate gets a warning.
const certificateWarningPeriod = 14 * 24 * time.Hour

// checkCertificates reads the certificates in the settings, and reports the ones which expire soon.
func (d *examiner) checkCertificates() error {
	cfg := d.cfg
	var errs []error
	for _, c := range []struct{ setting, cert, key string }{
		{"tls-cert", cfg.HTTP.TLSCert, cfg.HTTP.TLSKey},
		{"nats-tls-cert", cfg.NATS.TLSCert, cfg.NATS.TLSKey},
		{"rpc-tls-cert", cfg.RPC.TLSCert, cfg.RPC.TLSKey},
	} {
		own, err := config.LoadCertificate(c.setting, c.cert, c.key)
		if err != nil || len(own) == 0 {
			errs = append(errs, err)
			continue
		}
		const remedy = "have a new one made, and replace the file"
		switch leaf := own[0].Leaf; {
		case time.Now().After(leaf.NotAfter) || time.Now().Before(leaf.NotBefore):
			d.reportFailure(c.setting, remedy, "%s holds from %s to %s", c.cert, leaf.NotBefore.Format(time.DateOnly), leaf.NotAfter.Format(time.DateOnly))
		case time.Until(leaf.NotAfter) < certificateWarningPeriod:
			d.reportWarning(c.setting, remedy, "%s holds until %s", c.cert, leaf.NotAfter.Format(time.DateOnly))
		default:
			d.reportOK(c.setting, "%s holds until %s", c.cert, leaf.NotAfter.Format(time.DateOnly))
		}
	}
	_, nats := config.LoadAuthorities("nats-tls-ca", cfg.NATS.TLSCA)
	_, rpc := config.LoadAuthorities("rpc-tls-ca", cfg.RPC.TLSCA)
	return errors.Join(append(errs, nats, rpc)...)
}

// checkPorts checks that this process could listen where its settings say.
func (d *examiner) checkPorts(ctx context.Context) {
	cfg := d.cfg
	d.checkPort(ctx, "http-addr", cfg.HTTP.Addr)
	d.checkPort(ctx, "nats-listen", cfg.NATS.Listen)
	if cfg.RPC.Plane != config.PlaneNATS {
		d.checkPort(ctx, "rpc-addr", cfg.RPC.Addr)
	}
	d.checkPort(ctx, "bulk-addr", cfg.RPC.BulkAddr)
	if cfg.Events.Plane == config.PlaneZMQ && cfg.Command != config.Up {
		d.checkPort(ctx, "event-addr", cfg.Events.Addr)
	}
}

// checkPort checks one address. An address held by a Penstock process is assumed to belong to the process
// being examined.
func (d *examiner) checkPort(ctx context.Context, setting, addr string) {
	if addr == "" {
		return
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err == nil {
		at := ln.Addr().String()
		if err := ln.Close(); err != nil {
			d.reportWarning(setting, "", "%s: %v", at, err)
			return
		}
		d.reportOK(setting, "%s is free", addr)
		return
	}
	if !isAddrInUse(err) {
		d.reportFailure(setting, fmt.Sprintf("give an address of this machine with --%s, and a port above 1023 unless it runs as root", setting), "%v", err)
		return
	}
	_, port, _ := net.SplitHostPort(addr) // Listen has parsed it
	holder := holderOf(port)
	switch {
	case holder.ours:
		d.reportOK(setting, "%s is taken by a running Penstock (pid %d)", addr, holder.pid)
	case setting == "http-addr" && d.isPenstock(ctx, d.httpURL(addr)):
		d.reportOK(setting, "%s is taken by a running Penstock", addr)
	default:
		d.reportFailure(setting, fmt.Sprintf("stop that process, or choose another address with --%s; port 0 picks a free one", setting), "%s is in use by %s", addr, holder)
	}
}

// portHolder is a process that listens on a port.
type portHolder struct {
	pid  int // 0 if unknown
	name string
	ours bool // it runs the same program as this process
}

func (h portHolder) String() string {
	if h.pid == 0 {
		return "another process"
	}
	return fmt.Sprintf("%s (pid %d)", h.name, h.pid)
}

// joinLines returns an error's text on one line: an error may report several problems.
func joinLines(err error) string {
	var out []byte
	for _, c := range []byte(err.Error()) {
		if c == '\n' {
			out = append(out, "; "...)
			continue
		}
		out = append(out, c)
	}
	return string(out)
}
