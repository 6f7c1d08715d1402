package planes

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"penstock/internal/config"
	"penstock/internal/obs"
	"penstock/internal/plane/bus"
	"penstock/internal/plane/disco"
	"penstock/internal/zmtp"
)

// KindEvents is the registration kind of processes which publish over ZeroMQ.
const KindEvents disco.Kind = "events"

// zmqMeta is the Meta of such a registration, whose Addr is where the process publishes.
type zmqMeta struct {
	Replay string `json:"replay"` // where its past messages are requested
}

// openZMQ opens the event plane over ZeroMQ. It keeps no snapshots: messages have no common numbering, so
// there is no position to resume from.
func (p *Set) openZMQ(cfg *config.Loaded, log *slog.Logger) error {
	at, err := p.choosePlaneAddr(cfg, "event-addr", planeAddr{cfg.Events.Addr, cfg.EventHost()}, log)
	if err != nil {
		return err
	}
	events, replay, err := zmqEndpoints(at.listen)
	if err != nil {
		return fmt.Errorf("event-addr: %w", err)
	}
	b, err := bus.NewZMQBus(bus.ZMQBusConfig{Events: events, Replay: replay, Log: obs.Component(log, "bus")})
	if err != nil {
		return err
	}
	p.eventHost = at.advertise
	p.Events, p.mesh, p.dropped, p.malformed, p.holes = b, b, b.Dropped, b.Malformed, b.Gaps
	p.closers = append(p.closers, b.Close)
	if !config.IsLoopback(at.listen) {
		log.Warn("the event plane listens beyond this machine, and ZeroMQ here knows neither TLS nor tokens: every machine which reaches it can read what caches hold", "addr", at.listen)
	}
	if cfg.Router.SnapshotThreshold > 0 && cfg.Command != config.Worker {
		log.Info("routers leave no snapshots over ZeroMQ: one that starts asks every process for the events that it keeps")
	}
	return nil
}

// zmqEndpoints are the endpoints for publishing and for replaying past messages: HOST:PORT and the next port,
// or two which the system chooses.
func zmqEndpoints(addr string) (events, replay zmtp.Endpoint, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return events, replay, err
	}
	if host == "" {
		host = "*"
	}
	if events, err = zmtp.ParseEndpoint("tcp://" + net.JoinHostPort(host, port)); err != nil {
		return events, replay, err
	}
	if port == "0" {
		return events, events, nil
	}
	if replay = events.RankEndpoint(1); replay.IsZero() {
		return events, replay, fmt.Errorf("%s: what was published before is asked for at the port behind it, and there is none", addr)
	}
	return events, replay, nil
}

// openMesh connects the event plane over ZeroMQ to its peers: event-peers, and peers registered in
// discovery, where this process registers too.
func (p *Set) openMesh(ctx context.Context, cfg *config.Loaded, log *slog.Logger) error {
	if p.mesh == nil {
		return nil
	}
	fixed, err := FixedPeers(cfg)
	if err != nil {
		return err
	}
	p.mesh.SetPeers(fixed)
	if cfg.Fleet.Discovery == config.DiscoveryStatic {
		return nil // a list of workers contains no other peers
	}
	self, err := zmqInstance(cfg, p.eventHost, p.mesh.LocalPeer())
	if err != nil {
		return err
	}
	lease, err := p.Registry.Register(ctx, self)
	if err != nil {
		return fmt.Errorf("event plane: %w", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	watching.Go(func() {
		log := obs.Component(log, "bus")
		err := p.Registry.Watch(ctx, KindEvents, func(set []disco.Instance) {
			p.mesh.SetPeers(append(RegisteredPeers(set, self, log), fixed...))
		})
		if err != nil {
			log.Error("the event plane no longer hears which processes come and go", "err", err)
		}
	})
	p.closers = append(p.closers, func() error {
		cancel()
		watching.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), deregisterTimeout)
		defer cancel()
		_ = lease.Release(ctx) // if it fails, the lease expires
		return nil
	})
	return nil
}

// FixedPeers returns the peers which the settings name.
func FixedPeers(cfg *config.Loaded) (fixed []bus.ZMQPeer, err error) {
	for _, addr := range cfg.Events.Peers {
		events, replay, err := zmqEndpoints(addr)
		if err != nil {
			return nil, fmt.Errorf("event-peers: %w", err)
		}
		fixed = append(fixed, bus.ZMQPeer{Events: events, Replay: replay})
	}
	return fixed, nil
}

// zmqInstance is this process's registration for its peers: the host which they can reach, "" for the listen
// host, and its ports.
func zmqInstance(cfg *config.Loaded, advertise string, at bus.ZMQPeer) (disco.Instance, error) {
	if advertise == "" && at.Events.IsWildcard() {
		return disco.Instance{}, fmt.Errorf("event-addr %s is all interfaces: say at which host others reach this process, for example --event-advertise 10.0.0.7", cfg.Events.Addr)
	}
	if advertise != "" {
		var err error
		if at.Events, err = replaceHost(at.Events, advertise); err != nil {
			return disco.Instance{}, err
		}
		if at.Replay, err = replaceHost(at.Replay, advertise); err != nil {
			return disco.Instance{}, err
		}
	}
	meta, err := json.Marshal(zmqMeta{at.Replay.String()})
	if err != nil {
		return disco.Instance{}, err
	}
	host, _ := os.Hostname() // for people to read
	return disco.Instance{
		Kind: KindEvents, ID: disco.DrawID(), Epoch: uint64(time.Now().UnixMilli()), Namespace: cfg.Fleet.Namespace, Component: cfg.Fleet.Component,
		Endpoint: "events", Addr: at.Events.String(), Host: host, PID: os.Getpid(), Meta: meta,
	}, nil
}

func replaceHost(e zmtp.Endpoint, host string) (zmtp.Endpoint, error) {
	at, err := zmtp.ParseEndpoint("tcp://" + net.JoinHostPort(host, strconv.Itoa(e.Port())))
	if err != nil {
		return at, fmt.Errorf("event-advertise: %w", err)
	}
	return at, nil
}

// RegisteredPeers parses the registrations of other processes of the namespace.
func RegisteredPeers(set []disco.Instance, self disco.Instance, log *slog.Logger) (peers []bus.ZMQPeer) {
	for _, in := range set {
		if in.ID == self.ID || in.Namespace != self.Namespace {
			continue
		}
		var meta zmqMeta
		err := json.Unmarshal(in.Meta, &meta)
		var peer bus.ZMQPeer
		if err == nil {
			peer.Events, err = zmtp.ParseEndpoint(in.Addr)
		}
		if err == nil {
			peer.Replay, err = zmtp.ParseEndpoint(meta.Replay)
		}
		if err != nil {
			log.Warn("a registration of the event plane cannot be read", "instance", in.ID, "host", in.Host, "err", err)
			continue
		}
		peers = append(peers, peer)
	}
	return peers
}
