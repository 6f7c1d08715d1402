package doctor

import (
	"context"
	"slices"

	"penstock/internal/node/planes"

	"penstock/internal/config"
	"penstock/internal/plane/disco"
)

// checkEventPlane checks that every process which publishes over ZeroMQ can be reached from here, and reports
// what ZeroMQ does not provide.
func (d *examiner) checkEventPlane(ctx context.Context, p *planes.Set, cfg *config.Loaded) {
	const check = "event plane"
	peers, err := planes.FixedPeers(cfg)
	if err != nil {
		d.reportFailure(check, "correct --event-peers", "%v", err)
		return
	}
	loopbacks := map[string]disco.Instance{} // of other hosts, by address
	if cfg.Fleet.Discovery != config.DiscoveryStatic {
		set, known := d.listInstances(ctx, p.Registry, planes.KindEvents)
		if !known {
			d.reportFailure(check, "look at the store, and at the network between", "discovery did not name the publishers within %v", d.questionTimeout())
			return
		}
		for _, in := range set {
			if onOtherHost(&in) && isLoopbackURL(in.Addr) {
				loopbacks[in.Addr] = in
			}
		}
		peers = append(planes.RegisteredPeers(set, disco.Instance{Namespace: cfg.Fleet.Namespace}, d.log), peers...)
	}
	deaf := 0
	for i, peer := range peers {
		if slices.Contains(peers[:i], peer) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, d.questionTimeout())
		err := peer.Check(ctx)
		cancel()
		if err == nil {
			continue
		}
		deaf++
		if in, ok := loopbacks[peer.Events.String()]; ok {
			d.reportFailure("events at "+in.Addr, reachableRemedy("event-addr"), "%s (pid %d) tells others a loopback address, which other hosts cannot reach", in.Host, in.PID)
		} else {
			d.reportFailure("events at "+peer.Events.String(), "look whether the process runs, and at its --event-addr and --event-advertise and the network between; one that died leaves discovery by itself", "%v", err)
		}
	}
	switch {
	case len(peers) == 0:
		d.reportWarning(check, "start a process with --event-plane zmq in the same --namespace", "no process publishes over ZeroMQ in namespace %s", cfg.Fleet.Namespace)
	case deaf == 0:
		d.reportOK(check, "all %d processes that publish over ZeroMQ are heard; there are no snapshots over it: a router that starts asks each for what it keeps", len(peers))
	}
}
