package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"penstock/core/kv"
)

// The choices of Discovery, RequestPlane and EventPlane.
const (
	DiscoveryNATS   = "nats"
	DiscoveryFile   = "file"
	DiscoveryStatic = "static"

	PlaneTCP  = "tcp"
	PlaneHTTP = "http"
	PlaneNATS = "nats"

	PlaneZMQ = "zmq" // only for EventPlane
)

// checkFleet checks the settings by which processes find and reach each other.
func (p *problems) checkFleet(c *Config) {
	p.checkNATSURLs(c.NATS.URLs)
	p.checkEventPlane(c)
	if strings.ContainsAny(c.RPC.Advertise, "/ ") {
		p.report("rpc-advertise", fmt.Sprintf("%.100q is not HOST or HOST:PORT", c.RPC.Advertise))
	}
	if c.Fleet.WorkerID > uint64(kv.MaxWorkerID) {
		p.report("worker-id", fmt.Sprintf("%d is not below 2^53", c.Fleet.WorkerID))
	}
	if c.Fleet.WorkerName != "" {
		p.checkName("worker-name", strings.ReplaceAll(c.Fleet.WorkerName, ".", "-")) // host names have dots
	}
	for _, addr := range c.Fleet.StaticWorkers {
		if u, err := url.Parse(addr); err != nil || u.Host == "" || !slices.Contains([]string{"tcp", "http", "https", "nats"}, u.Scheme) {
			p.report("static-workers", fmt.Sprintf("%.100q is not the address of a worker, for example tcp://10.0.0.7:7000", addr))
		}
	}
	p.requirePair("nats-tls-cert", c.NATS.TLSCert, "nats-tls-key", c.NATS.TLSKey)
	p.requirePair("rpc-tls-cert", c.RPC.TLSCert, "rpc-tls-key", c.RPC.TLSKey)
}

// checkEventPlane checks the settings of the event plane.
func (p *problems) checkEventPlane(c *Config) {
	if strings.ContainsAny(c.Events.Advertise, "/: ") && net.ParseIP(c.Events.Advertise) == nil {
		p.report("event-advertise", fmt.Sprintf("%.100q is not HOST", c.Events.Advertise))
	}
	for _, addr := range c.Events.Peers {
		if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" || port == "0" {
			p.report("event-peers", fmt.Sprintf("%.100q is not HOST:PORT, for example 10.0.0.7:5600", addr))
		}
	}
	if c.Events.Plane != PlaneZMQ && len(c.Events.Peers) > 0 {
		p.report("event-peers", "belongs to --event-plane zmq")
	}
}

// IsAllInterfaces reports whether the listen address addr, HOST:PORT, stands for every interface of the host.
// It is false for "".
func IsAllInterfaces(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "" || ip != nil && ip.IsUnspecified())
}

// IsLoopback reports whether only this machine can reach addr, HOST:PORT. It assumes that others can reach a
// name other than localhost.
func IsLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// EventHost returns the host at which others reach event-addr; "" if no setting names one.
func (c *Config) EventHost() string {
	if c.Events.Advertise != "" || c.RPC.Advertise == "" {
		return c.Events.Advertise
	}
	if host, _, err := net.SplitHostPort(c.RPC.Advertise); err == nil {
		return host
	}
	return c.RPC.Advertise
}

// checkNATSURLs checks URLs separated by commas. Its message does not repeat them, because they may contain a
// password.
func (p *problems) checkNATSURLs(urls string) {
	if urls == "" {
		return
	}
	for one := range strings.SplitSeq(urls, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil || u.Host == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			p.report("nats", "want URLs like nats://10.0.0.5:4222, separated by commas")
			return
		}
	}
}

func (p *problems) requirePair(a, av, b, bv string) {
	if (av == "") != (bv == "") {
		p.report(a, fmt.Sprintf("goes together with %s; give both or neither", b))
	}
}

// validateCommand reports settings which do not fit together in a process of the command.
func (c *Config) validateCommand(command Command) error {
	var p problems
	if (command == Up || command == Frontend) && c.HTTP.Addr == "" {
		p.report("http-addr", fmt.Sprintf("%s needs an address to serve at, for example 127.0.0.1:8000", command))
	}
	p.requireNotFile("data-dir", c.DataDir)
	if strings.Contains(c.Disagg.Policy, ",") {
		p.report("disagg-policy", fmt.Sprintf("%.60q: %s takes one policy; replay compares several", c.Disagg.Policy, command))
	}
	if command == Worker {
		p.checkWorkerEngine(c)
	}
	switch command {
	case Up:
		if c.Planner.Enabled {
			p.checkPlannerInUp(c)
		}
	case PlannerCommand:
		p.checkPlannerCommand(c)
	default:
		p.checkConnection(command, c)
	}
	return errors.Join(p...)
}

// checkEventPeers checks that processes on a ZeroMQ event plane can find each other.
func (p *problems) checkEventPeers(c *Config) {
	if c.Events.Plane != PlaneZMQ {
		return
	}
	noRoute := c.NATS.URLs == "" && c.NATS.Listen == "" // the process cannot learn its own address
	switch {
	case c.Fleet.Discovery == DiscoveryStatic && len(c.Events.Peers) == 0:
		p.report("event-peers", "zmq with discovery static needs the addresses at which all processes publish, for example --event-peers 10.0.0.7:5600")
	case c.Fleet.Discovery != DiscoveryStatic && c.EventHost() == "" && noRoute && IsAllInterfaces(c.Events.Addr):
		p.report("event-advertise", "event-addr is all interfaces: say at which host others reach this process, for example --event-advertise 10.0.0.7")
	}
}

// checkConnection checks that a process which needs others can reach them.
func (p *problems) checkConnection(command Command, c *Config) {
	switch {
	case c.NATS.URLs != "" && c.NATS.Listen != "":
		p.report("nats", "a process embeds a NATS server (nats-listen) or uses another's (nats); give one of them")
	case c.NATS.URLs == "" && c.NATS.Listen == "" && c.Fleet.Discovery == DiscoveryNATS:
		p.report("nats", fmt.Sprintf("%s needs the fleet's NATS server: name it with --nats nats://HOST:PORT, or embed it here with --nats-listen 127.0.0.1:4222", command))
	case c.NATS.URLs == "" && c.NATS.Listen == "" && c.RPC.Plane == PlaneNATS && command != Frontend:
		p.report("request-plane", "nats needs a NATS server: give --nats or --nats-listen, or choose tcp")
	}
	p.checkEventPeers(c)
	switch c.Fleet.Discovery {
	case DiscoveryFile:
		if c.Fleet.DiscoveryDir == "" {
			p.report("discovery-dir", "discovery file needs the directory that all share")
		}
		p.requireNotFile("discovery-dir", c.Fleet.DiscoveryDir)
	case DiscoveryStatic:
		if len(c.Fleet.StaticWorkers) == 0 && command != Worker {
			p.report("static-workers", "discovery static needs the addresses of the workers, for example --static-workers tcp://10.0.0.7:7000")
		}
	}
}
