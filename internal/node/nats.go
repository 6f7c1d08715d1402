package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"penstock/internal/config"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/plane/natsd"
)

// natsPlanes are the embedded server and the planes over it. Fields are nil
// where starting stopped.
type natsPlanes struct {
	server   *natsd.Server
	conn     *nats.Conn
	events   *bus.NATS
	registry *disco.NATS
}

// forgetTimeout bounds the removal of old registrations, in the same process.
const forgetTimeout = 10 * time.Second

// startNATS starts the server and opens the planes. On an error the caller
// closes what there is, as otherwise.
func startNATS(ctx context.Context, cfg *config.Config, log *slog.Logger) (*natsPlanes, error) {
	p := &natsPlanes{}
	var err error
	p.server, err = natsd.Start(natsd.Config{DataDir: cfg.DataDir, Listen: cfg.NATSListen, Log: obs.Component(log, "nats")})
	if err != nil {
		return p, err
	}
	if cfg.NATSListen != "" && !loopback(cfg.NATSListen) {
		log.Warn("the NATS server listens beyond this machine without TLS and without credentials: who reaches it can read and forge events", "addr", cfg.NATSListen)
	}
	if p.conn, err = p.server.Connect("penstock"); err != nil {
		return p, err
	}
	if p.events, err = bus.NewNATS(p.conn, bus.NATSConfig{Log: obs.Component(log, "bus")}); err != nil {
		return p, err
	}
	if p.registry, err = disco.NewNATS(p.conn, disco.NATSConfig{Log: obs.Component(log, "disco")}); err != nil {
		return p, err
	}
	// A data directory belongs to one process at a time: the workers that the
	// process before it left there, when it was killed, are dead.
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	return p, p.registry.Forget(ctx)
}

// measure shows what the planes lost or could not read.
func (p *natsPlanes) measure(m *obs.Metrics) {
	m.CounterFunc("bus_dropped_total", "Messages of topics that are not durable, lost by subscribers that fell behind.", p.events.Dropped)
	m.CounterFunc("bus_malformed_total", "Messages of the event plane whose key could not be read.", p.events.Malformed)
	m.CounterFunc("disco_malformed_total", "Records of the discovery plane that could not be read.", p.registry.Malformed)
}

// Close closes what was opened, the last first.
func (p *natsPlanes) Close() error {
	if p.registry != nil {
		p.registry.Close()
	}
	if p.conn != nil {
		p.conn.Close()
	}
	if p.server != nil {
		return p.server.Close()
	}
	return nil
}
