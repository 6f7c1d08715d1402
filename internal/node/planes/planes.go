// Package planes opens the planes which the settings name: NATS, the event plane, the request plane, discovery.
package planes

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"penstock/internal/config"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/natsd"
	"penstock/internal/plane/rpc"
	"penstock/internal/plane/xfer"
	"penstock/internal/serve/worker"
)

// Set are the connections of a process to others. Fields not reached before an error are zero.
type Set struct {
	Server   *natsd.Server // nil unless NATS is embedded
	Conn     *nats.Conn    // nil without NATS
	Events   bus.Bus
	Archive  bus.Archive // nil without NATS, and with events over ZeroMQ
	Queues   bus.Queues  // the same
	mesh     *bus.ZMQBus // the same as events, if they travel over ZeroMQ
	Registry disco.Registry
	RPC      rpc.Plane
	Addr     string // where to serve on rpc; "" lets the plane choose
	// Bulk carries bulk data; nil if this process neither sends nor receives any. The process runs it.
	Bulk xfer.Plane
	// eventHost is the host at which others reach the mesh; "" is the listen address.
	eventHost string

	// What the planes lost or could not read; nil for planes that lose nothing.
	dropped, malformed, unreadable, holes func() uint64
	transfers                             *transferMetrics
	closers                               []func() error
}

// deregisterTimeout bounds the removal of registrations.
const deregisterTimeout = 10 * time.Second

// Open opens what the settings name. The caller closes the planes even after an error.
func Open(ctx context.Context, cfg *config.Loaded, log *slog.Logger) (*Set, error) {
	p := &Set{}
	if cfg.Command == config.PlannerCommand {
		return p, p.openStore(ctx, cfg, log)
	}
	if err := p.openNATS(ctx, cfg, log); err != nil {
		return p, err
	}
	if err := p.openBus(cfg, log); err != nil {
		return p, err
	}
	if err := p.OpenRPC(cfg, log); err != nil {
		return p, err
	}
	if err := p.OpenRegistry(cfg, log); err != nil {
		return p, err
	}
	if err := p.openMesh(ctx, cfg, log); err != nil {
		return p, err
	}
	return p, p.removeStaleRegistrations(ctx, cfg)
}

// openNATS starts the embedded server or connects to the fleet's. Without either there is no connection. It
// also takes the lock of the data directory.
func (p *Set) openNATS(ctx context.Context, cfg *config.Loaded, log *slog.Logger) error {
	switch {
	case cfg.Command == config.Up || cfg.NATS.Listen != "":
		return p.startEmbeddedNATS(cfg, log)
	case cfg.DataDir != "":
		if err := p.lockDataDir(cfg.DataDir); err != nil {
			return err
		}
	}
	if cfg.NATS.URLs == "" {
		return nil
	}
	return p.dialNATS(ctx, cfg, log)
}

// openStore opens what a planner needs, which neither calls nor is called: the lock of the data directory, and NATS if its
// decisions go there.
func (p *Set) openStore(ctx context.Context, cfg *config.Loaded, log *slog.Logger) error {
	if cfg.DataDir != "" {
		if err := p.lockDataDir(cfg.DataDir); err != nil {
			return err
		}
	}
	if cfg.NATS.URLs == "" || cfg.Planner.Connector != config.ConnectorVirtual || !cfg.Planner.Apply {
		return nil
	}
	return p.dialNATS(ctx, cfg, log)
}

// lockDataDir takes the lock of a data directory, until the planes are closed.
func (p *Set) lockDataDir(dir string) error {
	lock, err := natsd.Lock(dir)
	if err == nil {
		p.closers = append(p.closers, lock.Close)
	}
	return err
}

func (p *Set) startEmbeddedNATS(cfg *config.Loaded, log *slog.Logger) error {
	token, err := config.ReadSecret("nats-token-file", cfg.NATS.TokenFile)
	if err != nil {
		return err
	}
	secure, _, err := loadTLS("nats", cfg.NATS.TLSCert, cfg.NATS.TLSKey, cfg.NATS.TLSCA, tls.VersionTLS12)
	if err != nil {
		return err
	}
	listen := cfg.NATS.Listen
	if listen == "" && cfg.Command == config.Up && !cfg.IsOneProcess() {
		listen = "127.0.0.1:0" // for the processes on this machine which it starts
	}
	p.Server, err = natsd.Start(natsd.Config{DataDir: cfg.DataDir, Listen: listen, Token: token, TLS: secure, Log: obs.Component(log, "nats")})
	if err != nil {
		return err
	}
	p.closers = append(p.closers, p.Server.Close)
	switch {
	case cfg.NATS.Listen == "" || config.IsLoopback(cfg.NATS.Listen):
	case secure != nil && (token != "" || secure.ClientCAs != nil):
	case secure != nil:
		log.Warn("the NATS server listens beyond this machine without a token (--nats-token-file) and without asking for certificates (--nats-tls-ca): every machine which reaches it can read and forge events", "addr", cfg.NATS.Listen)
	case token == "":
		log.Warn("the NATS server listens beyond this machine without TLS and without a token (--nats-token-file): every machine which reaches it can read and forge events", "addr", cfg.NATS.Listen)
	default:
		log.Warn("the NATS server listens beyond this machine without TLS (--nats-tls-cert): events and the token can be read on the network", "addr", cfg.NATS.Listen)
	}
	if p.Conn, err = p.Server.Connect("penstock"); err != nil {
		return err
	}
	p.onClose(p.Conn.Close)
	return nil
}

// openBus opens the event plane. Without NATS and ZeroMQ it stays within this process: routing then uses the
// router's own decisions and the workers' answers to pings.
func (p *Set) openBus(cfg *config.Loaded, log *slog.Logger) error {
	if cfg.Events.Plane == config.PlaneZMQ && cfg.Command != config.Up {
		return p.openZMQ(cfg, log)
	}
	if p.Conn == nil {
		events := bus.NewMemBus()
		p.Events, p.dropped = events, events.Dropped
		return nil
	}
	events, err := bus.NewNATSBus(p.Conn, bus.NATSBusConfig{Log: obs.Component(log, "bus")})
	if err != nil {
		return err
	}
	p.Events, p.Queues, p.dropped, p.malformed = events, events, events.Dropped, events.Malformed
	p.Archive, err = bus.NewNATSArchive(p.Conn, bus.ArchiveConfig{})
	return err
}

// OpenRegistry opens discovery.
func (p *Set) OpenRegistry(cfg *config.Loaded, log *slog.Logger) error {
	log = obs.Component(log, "disco")
	discovery := cfg.Fleet.Discovery
	if cfg.Command == config.Up {
		discovery = config.DiscoveryNATS
	}
	switch discovery {
	case config.DiscoveryNATS:
		registry, err := disco.NewNATSRegistry(p.Conn, disco.NATSRegistryConfig{Log: log})
		if err != nil {
			return err
		}
		p.Registry, p.unreadable = registry, registry.Malformed
		p.onClose(registry.Close)
	case config.DiscoveryFile:
		registry, err := disco.NewFileRegistry(disco.FileConfig{Dir: cfg.Fleet.DiscoveryDir, Log: log})
		if err != nil {
			return err
		}
		p.Registry, p.unreadable = registry, registry.Malformed
		p.onClose(registry.Close)
	case config.DiscoveryStatic:
		registry, err := disco.NewStaticRegistry(disco.StaticConfig{Addrs: cfg.Fleet.StaticWorkers, Ask: worker.DescribeFunc(p.RPC), Log: log})
		if err != nil {
			return err
		}
		p.Registry = registry
	default:
		return fmt.Errorf("discovery %s: there is none of that name", discovery)
	}
	return nil
}

// removeStaleRegistrations removes the registrations of the previous process with this data directory: if it
// was killed, its workers died with it. It leaves a server which others reach alone, because other workers
// may be alive: their leases decide.
func (p *Set) removeStaleRegistrations(ctx context.Context, cfg *config.Loaded) error {
	registry, ok := p.Registry.(*disco.NATSRegistry)
	if !ok || p.Server == nil || cfg.NATS.Listen != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, deregisterTimeout)
	defer cancel()
	return registry.PurgeInstances(ctx)
}

// NATSURL is where others reach the embedded NATS server; "" if they cannot.
func (p *Set) NATSURL() string {
	if p.Server == nil {
		return ""
	}
	return p.Server.URL()
}

// RegisterMetrics registers the counters of what the planes lost or could not read.
func (p *Set) RegisterMetrics(m *obs.Metrics) {
	count := func(name, help string, lost func() uint64) {
		if lost == nil {
			lost = func() uint64 { return 0 }
		}
		m.CounterFunc(name, help, lost)
	}
	count("bus_dropped_total", "Messages of topics that are not durable, lost by subscribers that fell behind.", p.dropped)
	count("bus_malformed_total", "Messages of the event plane whose key could not be read.", p.malformed)
	count("bus_holes_total", "Times that messages of a peer of --event-plane zmq were lost for good: it no longer had them.", p.holes)
	count("disco_malformed_total", "Records of the discovery plane that could not be read.", p.unreadable)
	if p.transfers == nil { // without a request plane there are no transfers
		p.transfers = newTransferMetrics()
	}
	p.transfers.register(m)
}

// onClose has Close call closer, which cannot fail.
func (p *Set) onClose(closer func()) {
	p.closers = append(p.closers, func() error { closer(); return nil })
}

// Close closes what was opened, in reverse order.
func (p *Set) Close() error {
	var errs []error
	for i := len(p.closers) - 1; i >= 0; i-- {
		errs = append(errs, p.closers[i]())
	}
	p.closers = nil
	return errors.Join(errs...)
}
