package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"penstock/test/fleet"
)

// natsCommand is the argument with which this program runs as one NATS server of a cluster.
const natsCommand = "serve-nats"

// serveNATS runs a NATS server until ctx ends. args are its name, its directory, the address for clients, that for the
// other servers, and their addresses, separated by commas.
func serveNATS(ctx context.Context, args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("%s: want NAME DIR CLIENTS CLUSTER PEERS", natsCommand)
	}
	o := &natsserver.Options{ServerName: args[0], StoreDir: args[1], JetStream: true, NoSigs: true, Logtime: true}
	o.Cluster.Name = "chaos"
	for _, of := range []struct {
		addr string
		host *string
		port *int
	}{{args[2], &o.Host, &o.Port}, {args[3], &o.Cluster.Host, &o.Cluster.Port}} {
		host, port, _ := strings.Cut(of.addr, ":")
		*of.host = host
		if _, err := fmt.Sscan(port, of.port); err != nil {
			return fmt.Errorf("%s: %q: %w", natsCommand, of.addr, err)
		}
	}
	for peer := range strings.SplitSeq(args[4], ",") {
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: peer})
	}
	s, err := natsserver.NewServer(o)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// clusterPatience bounds the time in which servers elect a leader, on a busy machine.
const clusterPatience = 2 * time.Minute

// natsCluster are three NATS servers which are one.
type natsCluster struct {
	urls    string // of all
	servers map[string]*fleet.Process
}

// startNATSCluster starts servers which listen at a host.
func (e *testEnv) startNATSCluster(ctx context.Context, self, host string) (_ *natsCluster, err error) {
	const servers = 3
	e.fleets++
	var clients, peers, urls []string
	for range servers {
		for _, to := range []*[]string{&clients, &peers} {
			addr, err := e.ports.ReserveAddr(host)
			if err != nil {
				return nil, err
			}
			*to = append(*to, addr)
		}
	}
	c := &natsCluster{servers: map[string]*fleet.Process{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stopAll())
		}
	}()
	for i, addr := range clients {
		name := fmt.Sprintf("nats-%d", i+1)
		dir := filepath.Join(e.dir, fmt.Sprintf("%02d-%s-nats", e.fleets, e.name))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		p := fleet.NewProcess(name, filepath.Join(dir, name+".log"), self, natsCommand, name, filepath.Join(dir, name), addr, peers[i], strings.Join(peers, ","))
		if err := p.Start(); err != nil {
			return nil, err
		}
		c.servers[name] = p
		urls = append(urls, "nats://"+addr)
	}
	c.urls = strings.Join(urls, ",")
	// An empty list of streams is answered once there is a leader.
	_, err = fleet.WaitUntil(ctx, 100*time.Millisecond, clusterPatience, func(ctx context.Context) error {
		return fleet.ReplicateStreams(ctx, c.urls, servers)
	})
	return c, err
}

// stopAll stops the servers.
func (c *natsCluster) stopAll() error {
	var errs []error
	for _, p := range c.servers {
		errs = append(errs, p.CheckDied(), p.Stop(returnPatience))
	}
	return errors.Join(errs...)
}
