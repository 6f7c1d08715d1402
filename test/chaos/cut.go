package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"penstock/test/fleet"
)

// cutPatience bounds the time from a worker's silence to its quarantine: keep-alives notice the first failure
// in up to two seconds, and the quarantine may take two more.
const cutPatience = 4 * time.Second

// runProxyCut puts a worker behind proxies, for requests and for NATS, which silently drop everything for a
// while.
func cutProxy(ctx context.Context, e *env, r *result) error {
	var rpc, bus *proxy
	var failed error
	f, err := e.fleet(ctx, fleet.Config{Workers: 3, Frontends: 1, Each: func(role *fleet.Role) {
		if role.Kind != "worker" || role.ID != 1 {
			return
		}
		var err1, err2 error
		rpc, err1 = e.proxy(role.RPC)
		bus, err2 = e.proxy(strings.TrimPrefix(role.NATS, "nats://"))
		if failed = errors.Join(err1, err2); failed == nil {
			role.Advertise, role.NATS = rpc.addr(), "nats://"+bus.addr()
		}
	}})
	for _, p := range []*proxy{rpc, bus} {
		if p != nil {
			defer p.close()
		}
	}
	if err = errors.Join(failed, err); err != nil {
		return err
	}
	defer e.end(f, r)
	s := separation{
		e, r, f, f.Workers[0], "cut by a proxy",
		func() error { rpc.cut(); bus.cut(); return nil },
		func() error { rpc.mend(); bus.mend(); return nil },
	}
	return s.hold(ctx, pick(e, 25*time.Second, 4*time.Second))
}

func (e *env) proxy(target string) (*proxy, error) {
	addr, err := e.ports.Addr("127.0.0.1")
	if err != nil {
		return nil, err
	}
	return newProxy(addr, target)
}

// partitionScenario separates a worker from all others for a while.
type separation struct {
	e         *env
	r         *result
	f         *fleet.Fleet
	worker    *fleet.Role
	what      string
	cut, mend func() error
}

// runPartition separates the worker under load, and checks that streams continue elsewhere, that every router
// stops using it, and that it recovers by itself.
func (s separation) hold(ctx context.Context, length time.Duration) error {
	load := s.e.load(s.f.Doors()...).Start(ctx, 8)
	defer load.Abandon()
	if err := pause(ctx, 2*time.Second); err != nil {
		return err
	}
	began := time.Now()
	load.Dead(s.worker.ID, began)
	if err := s.cut(); err != nil {
		return err
	}
	s.e.say("%s for %v", s.what, length)
	for _, door := range s.f.Watchers() {
		if _, err := fleet.Until(ctx, 5*time.Millisecond, returnPatience, gone(door, s.worker)); err != nil {
			return errors.Join(err, s.mend())
		}
	}
	noticed := time.Since(began)
	s.r.time(s.what+": to quarantine in every router", noticed)
	if noticed > cutPatience {
		s.r.problem("%s: the worker counted as ready for %v", s.what, noticed)
	}
	if err := pause(ctx, length-noticed); err != nil {
		return errors.Join(err, s.mend())
	}
	if err := s.mend(); err != nil {
		return err
	}
	mended := time.Now()
	if err := s.f.Ready(ctx); err != nil {
		return fmt.Errorf("after the end: %w", err)
	}
	s.r.time(s.what+": from its end to ready in every router", time.Since(mended))
	if err := s.serves(ctx); err != nil {
		return err
	}
	tally, held := load.Finish()
	s.r.flawless(&tally)
	s.r.times(s.what+": to the next token of its streams", &held)
	s.r.times(s.what+": longest pause of any stream", &tally.Pause)
	return nil
}

// awaitServing waits until the worker gets requests again.
func (s separation) serves(ctx context.Context) error {
	done := func() (float64, error) {
		m, err := fleet.Look(ctx, s.worker.URL())
		return m.Sum("penstock_worker_requests_total", `outcome="ok"`), err
	}
	before, err := done()
	if err != nil {
		return err
	}
	took, err := fleet.Until(ctx, 50*time.Millisecond, returnPatience, func(context.Context) error {
		now, err := done()
		if err == nil && now <= before {
			err = fmt.Errorf("%s is given nothing", s.worker.Name())
		}
		return err
	})
	if err != nil {
		return err
	}
	s.r.time(s.what+": from ready to an answer of its own", took)
	return nil
}

// runNamespaceCut puts a worker in its own network namespace and takes its link down: packets are silently
// dropped.
func cutNamespace(ctx context.Context, e *env, r *result) error {
	ns, err := newNamespace(e.seed)
	if err != nil {
		return err
	}
	defer ns.remove()
	f, err := e.fleet(ctx, fleet.Config{Workers: 3, Frontends: 1, HubHost: ns.host, Each: func(role *fleet.Role) {
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
	defer e.end(f, r)
	s := separation{e, r, f, f.Workers[0], "link down", ns.down, ns.up}
	return s.hold(ctx, pick(e, 25*time.Second, 4*time.Second))
}

// netNamespace is a network namespace with one link to the outside.
type namespace struct {
	name, link   string
	host, inside string // addresses of the two ends
}

// newNetNamespace makes a namespace; it needs root and the program "ip".
func newNamespace(seed uint64) (*namespace, error) {
	if os.Geteuid() != 0 {
		return nil, skipped{"a network namespace takes root"}
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, skipped{"the program ip (iproute2) is not there"}
	}
	id := os.Getpid()
	net := fmt.Sprintf("10.213.%d.", (uint64(id)+seed)%250)
	n := &namespace{name: "penstock-" + strconv.Itoa(id), link: "ps" + strconv.Itoa(id), host: net + "1", inside: net + "2"}
	err := n.ip(
		"netns add "+n.name,
		"link add "+n.link+" type veth peer name eth0 netns "+n.name,
		"addr add "+n.host+"/30 dev "+n.link,
		"link set "+n.link+" up",
		"-n "+n.name+" addr add "+n.inside+"/30 dev eth0",
		"-n "+n.name+" link set lo up",
		"-n "+n.name+" link set eth0 up",
	)
	if err != nil {
		n.remove()
		return nil, skipped{fmt.Sprintf("network namespaces cannot be made here: %v", err)}
	}
	return n, nil
}

// takeDown takes the far end's link down. The near end keeps a permanent neighbour entry, so that it goes on
// sending instead of detecting that the peer is gone.
func (n *namespace) down() error {
	mac, err := exec.Command("ip", "-n", n.name, "-br", "link", "show", "eth0").Output()
	if err != nil {
		return err
	}
	fields := strings.Fields(string(mac)) // NAME STATE MAC FLAGS
	if len(fields) < 3 {
		return fmt.Errorf("ip link: %q", mac)
	}
	return n.ip(
		"neigh replace "+n.inside+" lladdr "+fields[2]+" dev "+n.link+" nud permanent",
		"-n "+n.name+" link set eth0 down",
	)
}

func (n *namespace) up() error { return n.ip("-n " + n.name + " link set eth0 up") }

func (n *namespace) remove() {
	// Both go if the namespace was made at all; the link goes with its far end.
	_ = n.ip("netns del " + n.name)
	_ = exec.Command("ip", "link", "del", n.link).Run()
}

// runIP runs the program ip with each line of arguments.
func (n *namespace) ip(lines ...string) error {
	for _, line := range lines {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// runWorkerPause pauses a worker: its sockets stay open without an answer.
func stopWorker(ctx context.Context, e *env, r *result) error {
	f, err := e.fleet(ctx, fleet.Config{Workers: 3, Frontends: 1})
	if err != nil {
		return err
	}
	defer e.end(f, r)
	w := f.Workers[0]
	for range pick(e, 3, 1) {
		s := separation{e, r, f, w, "paused", w.Pause, w.Resume}
		if err := s.hold(ctx, 5*time.Second); err != nil {
			return err
		}
	}
	return nil
}
