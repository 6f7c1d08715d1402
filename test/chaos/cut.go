package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"penstock/test/fleet"
)

// cutPatience bounds the time from a worker's silence to its quarantine: keep-alives notice the first failure
// in up to two seconds, and the quarantine may take two more.
const cutPatience = 4 * time.Second

// runProxyCut puts a worker behind proxies, for requests and for NATS, which silently drop everything for a
// while.
func runProxyCut(ctx context.Context, e *testEnv, r *scenarioResult) error {
	var rpc, bus *cutProxyConn
	var failed error
	f, err := e.startFleet(ctx, fleet.Config{Workers: 3, Frontends: 1, Each: func(role *fleet.Role) {
		if role.Kind != "worker" || role.ID != 1 {
			return
		}
		var err1, err2 error
		rpc, err1 = e.startProxy(role.RPC)
		bus, err2 = e.startProxy(strings.TrimPrefix(role.NATS, "nats://"))
		if failed = errors.Join(err1, err2); failed == nil {
			role.Advertise, role.NATS = rpc.listenAddr(), "nats://"+bus.listenAddr()
		}
	}})
	for _, p := range []*cutProxyConn{rpc, bus} {
		if p != nil {
			defer p.closeAll()
		}
	}
	if err = errors.Join(failed, err); err != nil {
		return err
	}
	defer e.endFleet(f, r)
	s := partitionScenario{
		e, r, f, f.Workers[0], "cut by a proxy",
		func() error { rpc.cutTraffic(); bus.cutTraffic(); return nil },
		func() error { rpc.restoreTraffic(); bus.restoreTraffic(); return nil },
	}
	return s.runPartition(ctx, longOrShort(e, 25*time.Second, 4*time.Second))
}

func (e *testEnv) startProxy(target string) (*cutProxyConn, error) {
	addr, err := e.ports.ReserveAddr("127.0.0.1")
	if err != nil {
		return nil, err
	}
	return newCutProxyConn(addr, target)
}

// partitionScenario separates a worker from all others for a while.
type partitionScenario struct {
	e            *testEnv
	r            *scenarioResult
	f            *fleet.Fleet
	worker       *fleet.Role
	what         string
	cut, restore func() error
}

// runPartition separates the worker under load, and checks that streams continue elsewhere, that every router
// stops using it, and that it recovers by itself.
func (s partitionScenario) runPartition(ctx context.Context, length time.Duration) error {
	load := s.e.newLoad(s.f.ClientRoles()...).StartClients(ctx, 8)
	defer load.AbandonStreams()
	if err := sleepContext(ctx, 2*time.Second); err != nil {
		return err
	}
	began := time.Now()
	load.MarkWorkerDead(s.worker.ID, began)
	if err := s.cut(); err != nil {
		return err
	}
	s.e.logProgress("%s for %v", s.what, length)
	for _, door := range s.f.DirectRouters() {
		if _, err := fleet.WaitUntil(ctx, 5*time.Millisecond, returnPatience, workerGone(door, s.worker)); err != nil {
			return errors.Join(err, s.restore())
		}
	}
	noticed := time.Since(began)
	s.r.addTime(s.what+": to quarantine in every router", noticed)
	if noticed > cutPatience {
		s.r.addProblem("%s: the worker counted as ready for %v", s.what, noticed)
	}
	if err := sleepContext(ctx, length-noticed); err != nil {
		return errors.Join(err, s.restore())
	}
	if err := s.restore(); err != nil {
		return err
	}
	mended := time.Now()
	if err := s.f.WaitReady(ctx); err != nil {
		return fmt.Errorf("after the end: %w", err)
	}
	s.r.addTime(s.what+": from its end to ready in every router", time.Since(mended))
	if err := s.awaitServing(ctx); err != nil {
		return err
	}
	tally, held := load.FinishLoad()
	s.r.requireFlawless(&tally)
	s.r.addDurations(s.what+": to the next token of its streams", &held)
	s.r.addDurations(s.what+": longest pause of any stream", &tally.Pause)
	return nil
}

// awaitServing waits until the worker gets requests again.
func (s partitionScenario) awaitServing(ctx context.Context) error {
	done := func() (float64, error) {
		m, err := fleet.ReadMetrics(ctx, s.worker.URL())
		return m.SumOf("penstock_worker_requests_total", `outcome="ok"`), err
	}
	before, err := done()
	if err != nil {
		return err
	}
	took, err := fleet.WaitUntil(ctx, 50*time.Millisecond, returnPatience, func(context.Context) error {
		now, err := done()
		if err == nil && now <= before {
			err = fmt.Errorf("%s is given nothing", s.worker.Name())
		}
		return err
	})
	if err != nil {
		return err
	}
	s.r.addTime(s.what+": from ready to an answer of its own", took)
	return nil
}

// runNamespaceCut puts a worker in its own network namespace and takes its link down: packets are silently
// dropped.
func runNamespaceCut(ctx context.Context, e *testEnv, r *scenarioResult) error {
	ns, err := newNetNamespace(e.seed, 0)
	if err != nil {
		return err
	}
	defer ns.removeNamespace()
	f, err := e.startFleet(ctx, fleet.Config{Workers: 3, Frontends: 1, HubHost: ns.host, Each: func(role *fleet.Role) {
		if role.Kind != "worker" || role.ID != 1 {
			return
		}
		// Its addresses are in the namespace, where every port is free.
		role.Prefix = []string{"ip", "netns", "exec", ns.name}
		role.RPC, role.HTTP = ns.inside+":7000", ns.inside+":7001"
	}})
	if err != nil {
		return err
	}
	defer e.endFleet(f, r)
	s := partitionScenario{e, r, f, f.Workers[0], "link down", ns.takeDown, ns.bringUp}
	return s.runPartition(ctx, longOrShort(e, 25*time.Second, 4*time.Second))
}

// netNamespace is a network namespace with one link to the outside.
type netNamespace struct {
	name, link   string
	host, inside string // addresses of the two ends
}

// newNetNamespace makes the nth namespace of this process, from 0; it needs root and the program "ip".
// Processes in it reach every address of the host.
func newNetNamespace(seed uint64, number int) (*netNamespace, error) {
	if os.Geteuid() != 0 {
		return nil, skippedError{"a network namespace takes root"}
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, skippedError{"the program ip (iproute2) is not there"}
	}
	id := os.Getpid()
	addr := func(n int) string { return fmt.Sprintf("10.213.%d.%d", (uint64(id)+seed)%250, 4*number+n) }
	n := &netNamespace{name: fmt.Sprintf("penstock-%d-%d", id, number), link: fmt.Sprintf("ps%d-%d", id, number), host: addr(1), inside: addr(2)}
	err := n.runIP(
		"netns add "+n.name,
		"link add "+n.link+" type veth peer name eth0 netns "+n.name,
		"addr add "+n.host+"/30 dev "+n.link,
		"link set "+n.link+" up",
		"-n "+n.name+" addr add "+n.inside+"/30 dev eth0",
		"-n "+n.name+" link set lo up",
		"-n "+n.name+" link set eth0 up",
		"-n "+n.name+" route add default via "+n.host,
	)
	if err != nil {
		n.removeNamespace()
		return nil, skippedError{fmt.Sprintf("network namespaces cannot be made here: %v", err)}
	}
	return n, nil
}

// takeDown takes the far end's link down. The near end keeps a permanent neighbour entry, so that it goes on
// sending instead of detecting that the peer is gone.
func (n *netNamespace) takeDown() error {
	mac, err := exec.Command("ip", "-n", n.name, "-br", "link", "show", "eth0").Output()
	if err != nil {
		return err
	}
	fields := strings.Fields(string(mac)) // NAME STATE MAC FLAGS
	if len(fields) < 3 {
		return fmt.Errorf("ip link: %q", mac)
	}
	return n.runIP(
		"neigh replace "+n.inside+" lladdr "+fields[2]+" dev "+n.link+" nud permanent",
		"-n "+n.name+" link set eth0 down",
	)
}

func (n *netNamespace) bringUp() error { return n.runIP("-n " + n.name + " link set eth0 up") }

func (n *netNamespace) removeNamespace() {
	// Both go if the namespace was made at all; the link goes with its far end.
	_ = n.runIP("netns del " + n.name)
	_ = exec.Command("ip", "link", "del", n.link).Run()
}

// runIP runs the program ip with each line of arguments.
func (n *netNamespace) runIP(lines ...string) error {
	for _, line := range lines {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// runWorkerPause pauses a worker: its sockets stay open without an answer.
func runWorkerPause(ctx context.Context, e *testEnv, r *scenarioResult, f *fleet.Fleet) error {
	w := f.Workers[0]
	for range longOrShort(e, 3, 1) {
		s := partitionScenario{e, r, f, w, "paused", w.Pause, w.Resume}
		if err := s.runPartition(ctx, 5*time.Second); err != nil {
			return err
		}
	}
	return nil
}
