package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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

// registryBucket is where the instances of an embedded server register.
const registryBucket = "penstock_discovery"

// forgetTimeout bounds the removal of old registrations, in the same process.
const forgetTimeout = 10 * time.Second

// startNATS starts the server and opens the planes. On an error the caller
// closes what there is, as otherwise.
func startNATS(cfg *config.Config, log *slog.Logger) (*natsPlanes, error) {
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
	if err = forgetInstances(p.conn); err != nil {
		return p, err
	}
	p.registry, err = disco.NewNATS(p.conn, disco.NATSConfig{Bucket: registryBucket, Log: obs.Component(log, "disco")})
	return p, err
}

// forgetInstances removes what was registered before this server started. A data
// directory belongs to one process at a time, so the workers that the process
// before it left there, when it was killed, are dead and their addresses mean
// nothing or somebody else; their leases would keep them in the fleet for a
// while. Processes elsewhere that are alive register again when they find their
// leases gone, as after any loss of the store.
func forgetInstances(conn *nats.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), forgetTimeout)
	defer cancel()
	if err := purge(ctx, conn, "KV_"+registryBucket); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("forget the registrations of the process before: %w", err)
	}
	return nil
}

// purge empties a stream, which keeps its settings.
func purge(ctx context.Context, conn *nats.Conn, name string) error {
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	return stream.Purge(ctx)
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
