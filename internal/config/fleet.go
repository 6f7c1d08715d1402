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
	p.checkNATSURLs(c.NATS)
	p.requireOneOf("discovery", c.Discovery, DiscoveryNATS, DiscoveryFile, DiscoveryStatic)
	p.requireOneOf("request-plane", c.RequestPlane, PlaneTCP, PlaneHTTP, PlaneNATS)
	p.checkEventPlane(c)
	p.requirePositive("nats-wait", c.NATSWait)
	p.checkName("router-component", c.RouterName)
	p.checkOptionalAddress("rpc-addr", c.RPCAddr)
	if strings.ContainsAny(c.RPCAdvertise, "/ ") {
		p.report("rpc-advertise", fmt.Sprintf("%.100q is not HOST or HOST:PORT", c.RPCAdvertise))
	}
	if c.WorkerID > uint64(kv.MaxWorkerID) {
		p.report("worker-id", fmt.Sprintf("%d is not below 2^53", c.WorkerID))
	}
	if c.WorkerName != "" {
		p.checkName("worker-name", strings.ReplaceAll(c.WorkerName, ".", "-")) // host names have dots
	}
	for _, addr := range c.StaticWorkers {
		if u, err := url.Parse(addr); err != nil || u.Host == "" || !slices.Contains([]string{"tcp", "http", "https", "nats"}, u.Scheme) {
			p.report("static-workers", fmt.Sprintf("%.100q is not the address of a worker, for example tcp://10.0.0.7:7000", addr))
		}
	}
	p.requirePair("nats-tls-cert", c.NATSTLSCert, "nats-tls-key", c.NATSTLSKey)
	p.requirePair("rpc-tls-cert", c.RPCTLSCert, "rpc-tls-key", c.RPCTLSKey)
}

// checkEventPlane checks the settings of the event plane.
func (p *problems) checkEventPlane(c *Config) {
	p.requireOneOf("event-plane", c.EventPlane, PlaneNATS, PlaneZMQ)
	p.checkOptionalAddress("event-addr", c.EventAddr)
	if strings.ContainsAny(c.EventAdvertise, "/: ") && net.ParseIP(c.EventAdvertise) == nil {
		p.report("event-advertise", fmt.Sprintf("%.100q is not HOST", c.EventAdvertise))
	}
	for _, addr := range c.EventPeers {
		if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" || port == "0" {
			p.report("event-peers", fmt.Sprintf("%.100q is not HOST:PORT, for example 10.0.0.7:5600", addr))
		}
	}
	if c.EventPlane != PlaneZMQ && len(c.EventPeers) > 0 {
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

// EventHost returns the host at which others reach event-addr; "" if no setting names one.
func (c *Config) EventHost() string {
	if c.EventAdvertise != "" || c.RPCAdvertise == "" {
		return c.EventAdvertise
	}
	if host, _, err := net.SplitHostPort(c.RPCAdvertise); err == nil {
		return host
	}
	return c.RPCAdvertise
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
	if (command == Up || command == Frontend) && c.HTTPAddr == "" {
		p.report("http-addr", fmt.Sprintf("%s needs an address to serve at, for example 127.0.0.1:8000", command))
	}
	p.requireNotFile("data-dir", c.DataDir)
	if command == Worker {
		p.checkWorkerEngine(c)
	}
	if command != Up {
		p.checkConnection(command, c)
	}
	return errors.Join(p...)
}

// checkEventPeers checks that processes on a ZeroMQ event plane can find each other.
func (p *problems) checkEventPeers(c *Config) {
	if c.EventPlane != PlaneZMQ {
		return
	}
	noRoute := c.NATS == "" && c.NATSListen == "" // the process cannot learn its own address
	switch {
	case c.Discovery == DiscoveryStatic && len(c.EventPeers) == 0:
		p.report("event-peers", "zmq with discovery static needs the addresses at which all processes publish, for example --event-peers 10.0.0.7:5600")
	case c.Discovery != DiscoveryStatic && c.EventHost() == "" && noRoute && IsAllInterfaces(c.EventAddr):
		p.report("event-advertise", "event-addr is all interfaces: say at which host others reach this process, for example --event-advertise 10.0.0.7")
	}
}

// checkConnection checks that a process which needs others can reach them.
func (p *problems) checkConnection(command Command, c *Config) {
	switch {
	case c.NATS != "" && c.NATSListen != "":
		p.report("nats", "a process embeds a NATS server (nats-listen) or uses another's (nats); give one of them")
	case c.NATS == "" && c.NATSListen == "" && c.Discovery == DiscoveryNATS:
		p.report("nats", fmt.Sprintf("%s needs the fleet's NATS server: name it with --nats nats://HOST:PORT, or embed it here with --nats-listen 127.0.0.1:4222", command))
	case c.NATS == "" && c.NATSListen == "" && c.RequestPlane == PlaneNATS && command != Frontend:
		p.report("request-plane", "nats needs a NATS server: give --nats or --nats-listen, or choose tcp")
	}
	p.checkEventPeers(c)
	switch c.Discovery {
	case DiscoveryFile:
		if c.DiscoveryDir == "" {
			p.report("discovery-dir", "discovery file needs the directory that all share")
		}
		p.requireNotFile("discovery-dir", c.DiscoveryDir)
	case DiscoveryStatic:
		if len(c.StaticWorkers) == 0 && command != Worker {
			p.report("static-workers", "discovery static needs the addresses of the workers, for example --static-workers tcp://10.0.0.7:7000")
		}
	}
}
