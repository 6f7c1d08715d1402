// Package fleet runs processes of the real binary for the programs which measure and disturb them
// (test/chaos, test/planes, test/soak): it starts roles on loopback, stops, kills and pauses them, sends them
// requests with known responses, and reads their metrics and state.
//
// It does not use the product's packages: processes are reached as users reach them, by flags, signals and
// HTTP.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Model is the model of all fleets.
const Model = "penstock-tiny"

// Lease is how long a registration outlives the process which refreshes it.
const Lease = 10 * time.Second

const (
	// startPatience bounds the time from a process's start to its responses.
	startPatience = 2 * time.Minute
	// stopPatience is beyond every drain timeout of fleets.
	stopPatience = 40 * time.Second
)

// Config describes a fleet. Arguments are appended to the common ones, so that they win.
type Config struct {
	Bin string
	// Dir gets logs and data directories.
	Dir string
	// Ports hands out addresses; fleets of one program share it.
	Ports *Ports
	// Workers, Frontends and Routers are counted without the hub, which is another frontend with the NATS
	// server inside.
	Workers, Frontends, Routers int
	// Encoders is the number of workers of role encode, and Prefillers that of role prefill. They have WorkerArgs too.
	// With prefill workers the Workers are decode workers.
	Encoders, Prefillers int
	// Routed is how many of the frontends, the last ones, use the routers.
	Routed int
	// HubData is the hub's data directory; empty for one in Dir.
	HubData string
	// HubHost is the listen address of the NATS server. Default 127.0.0.1.
	HubHost string
	// NATSServer is a nats-server binary to run instead of the hub; the fleet then has no hub.
	NATSServer string
	// NATSURLs are the addresses of NATS servers which the caller runs; the fleet then has no hub and no store.
	NATSURLs string

	HubArgs, WorkerArgs, FrontendArgs, RouterArgs []string
	// Each may change a role before its first start, such as its addresses.
	Each func(*Role)
}

// Role is one process of a fleet with its addresses.
type Role struct {
	*Process
	Kind string // hub, frontend, worker, encoder, prefiller or router
	ID   uint64 // of all but the first two
	// Routed reports that a frontend uses routers.
	Routed bool
	HTTP   string // HOST:PORT of its HTTP API
	RPC    string // HOST:PORT at which a worker or router serves requests
	// Advertise is the address which others use for RPC; empty is RPC itself.
	Advertise string
	// NATS is the URL of its NATS server.
	NATS string
	// Prefix is put before the command, for example to enter a namespace.
	Prefix []string
	// Args are appended.
	Args []string
}

// URL returns the address of the role's HTTP API.
func (r *Role) URL() string { return "http://" + r.HTTP }

// Fleet is a set of running roles.
type Fleet struct {
	cfg        Config
	NATS       string   // URL of the NATS server
	Hub        *Role    // nil with Config.NATSServer and Config.NATSURLs
	Store      *Process // nil with Config.NATSURLs
	Frontends  []*Role  // without the hub
	Workers    []*Role
	Encoders   []*Role
	Prefillers []*Role
	Routers    []*Role
}

// Start starts a fleet and returns when every frontend can send requests to every worker. The caller closes
// it; after an error there is nothing to close.
func Start(ctx context.Context, cfg Config) (*Fleet, error) {
	f := &Fleet{cfg: cfg}
	if err := f.startRoles(ctx); err != nil {
		return nil, errors.Join(err, f.Close(), f.startFailure())
	}
	return f, nil
}

func (f *Fleet) startRoles(ctx context.Context) error {
	f.cfg.HubHost = cmp.Or(f.cfg.HubHost, "127.0.0.1")
	if f.cfg.HubData == "" {
		f.cfg.HubData = filepath.Join(f.cfg.Dir, "hub-data")
	}
	if f.NATS = f.cfg.NATSURLs; f.NATS == "" {
		addr, err := f.cfg.Ports.ReserveAddr(f.cfg.HubHost)
		if err != nil {
			return err
		}
		f.NATS = "nats://" + addr
		if err := f.startStore(ctx, addr); err != nil {
			return err
		}
	}
	for _, of := range []struct {
		kind  string
		count int
	}{
		{"worker", f.cfg.Workers},
		{"encoder", f.cfg.Encoders},
		{"prefiller", f.cfg.Prefillers},
		{"router", f.cfg.Routers},
		{"frontend", f.cfg.Frontends},
	} {
		for i := range of.count {
			if err := f.addRole(of.kind, i+1); err != nil {
				return err
			}
		}
	}
	return f.WaitReady(ctx)
}

// startStore starts the process with the NATS server.
func (f *Fleet) startStore(ctx context.Context, addr string) error {
	if f.cfg.NATSServer != "" {
		host, port, _ := strings.Cut(addr, ":")
		f.Store = NewProcess("nats", filepath.Join(f.cfg.Dir, "nats.log"), f.cfg.NATSServer, "-a", host, "-p", port, "-js", "-sd", f.cfg.HubData)
		return f.Store.Start()
	}
	httpAddr, err := f.cfg.Ports.ReserveAddr("127.0.0.1")
	if err != nil {
		return err
	}
	f.Hub = &Role{Kind: "hub", HTTP: httpAddr, NATS: f.NATS, Args: f.cfg.HubArgs}
	if err := f.launchRole(f.Hub, "hub"); err != nil {
		return err
	}
	f.Store = f.Hub.Process
	_, err = WaitUntil(ctx, 10*time.Millisecond, startPatience, f.Hub.CheckAlive)
	return err
}

// addRole starts the nth role of a kind, counted from 1.
func (f *Fleet) addRole(kind string, n int) error {
	httpAddr, err := f.cfg.Ports.ReserveAddr("127.0.0.1")
	if err != nil {
		return err
	}
	r := &Role{Kind: kind, HTTP: httpAddr, NATS: f.NATS}
	switch kind {
	case "frontend":
		r.Args = f.cfg.FrontendArgs
		if r.Routed = n > f.cfg.Frontends-f.cfg.Routed; r.Routed {
			r.Args = append([]string{"--component", "router"}, r.Args...)
		}
		f.Frontends = append(f.Frontends, r)
	case "worker":
		r.ID, r.Args = uint64(n), f.cfg.WorkerArgs
		if f.cfg.Prefillers > 0 {
			r.Args = append([]string{"--role", "decode"}, r.Args...)
		}
		f.Workers = append(f.Workers, r)
	case "encoder":
		r.ID, r.Args = uint64(2000+n), append([]string{"--role", "encode"}, f.cfg.WorkerArgs...)
		f.Encoders = append(f.Encoders, r)
	case "prefiller":
		r.ID, r.Args = uint64(3000+n), append([]string{"--role", "prefill"}, f.cfg.WorkerArgs...)
		f.Prefillers = append(f.Prefillers, r)
	case "router":
		r.ID, r.Args = uint64(1000+n), f.cfg.RouterArgs
		f.Routers = append(f.Routers, r)
	}
	if kind != "frontend" {
		if r.RPC, err = f.cfg.Ports.ReserveAddr("127.0.0.1"); err != nil {
			return err
		}
	}
	return f.launchRole(r, fmt.Sprintf("%s-%d", kind, n))
}

func (f *Fleet) launchRole(r *Role, name string) error {
	if f.cfg.Each != nil {
		f.cfg.Each(r)
	}
	r.Process = NewProcess(name, filepath.Join(f.cfg.Dir, name+".log"), slices.Concat(r.Prefix, []string{f.cfg.Bin}, f.roleArgs(r))...)
	return r.Start()
}

// roleArgs are the arguments of the binary for a role.
func (f *Fleet) roleArgs(r *Role) []string {
	command := r.Kind
	if r.Kind == "encoder" || r.Kind == "prefiller" {
		command = "worker"
	}
	args := []string{command, "--http-addr", r.HTTP, "--nats", r.NATS}
	switch r.Kind {
	case "hub":
		args = []string{"frontend", "--http-addr", r.HTTP, "--nats-listen", strings.TrimPrefix(r.NATS, "nats://"), "--data-dir", f.cfg.HubData}
	case "worker", "encoder", "prefiller", "router":
		args = append(args, "--rpc-addr", r.RPC, "--worker-id", strconv.FormatUint(r.ID, 10))
		if r.Advertise != "" {
			args = append(args, "--rpc-advertise", r.Advertise)
		}
	}
	return append(args, r.Args...)
}

// CheckAlive returns nil if the role's HTTP API answers.
func (r *Role) CheckAlive(ctx context.Context) error {
	if err := r.CheckDied(); err != nil {
		return err
	}
	status, err := ReadStatus(ctx, r.URL()+"/live")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: /live answers %d", r.Name(), status)
	}
	return err
}

// DirectRouters returns the roles whose routers follow the workers themselves.
func (f *Fleet) DirectRouters() []*Role {
	return slices.DeleteFunc(slices.Concat(f.ClientRoles(), f.Routers), func(r *Role) bool { return r.Routed })
}

// ClientRoles returns the roles for clients: hub and frontends.
func (f *Fleet) ClientRoles() []*Role {
	if f.Hub == nil {
		return f.Frontends
	}
	return append([]*Role{f.Hub}, f.Frontends...)
}

// AllRoles returns every role.
func (f *Fleet) AllRoles() []*Role {
	return slices.Concat(f.ClientRoles(), f.Routers, f.Workers, f.Encoders, f.Prefillers)
}

// WaitReady waits until every frontend can send requests to every worker, or router, and knows every encode worker and
// prefill worker.
func (f *Fleet) WaitReady(ctx context.Context) error {
	for _, door := range slices.Concat(f.ClientRoles(), f.Routers) {
		sends := f.Workers
		if door.Routed {
			sends = f.Routers
		}
		if _, err := WaitUntil(ctx, 10*time.Millisecond, startPatience, func(ctx context.Context) error { return f.CheckSees(ctx, door, sends...) }); err != nil {
			return err
		}
	}
	for _, door := range f.ClientRoles() {
		if _, err := WaitUntil(ctx, 10*time.Millisecond, startPatience, func(ctx context.Context) error {
			return checkHelpers(ctx, door, slices.Concat(f.Encoders, f.Prefillers))
		}); err != nil {
			return err
		}
	}
	return nil
}

// checkHelpers returns nil if a frontend has each of the encode workers or prefill workers ready, with its current
// process.
func checkHelpers(ctx context.Context, door *Role, helpers []*Role) error {
	if len(helpers) == 0 {
		return nil
	}
	rows, err := ReadWorkers(ctx, door.URL())
	if err != nil {
		return err
	}
	for _, w := range helpers {
		if err := w.CheckDied(); err != nil {
			return err
		}
		if !slices.ContainsFunc(rows, func(r WorkerRow) bool { return r.ID == w.ID && r.State == "ready" && r.PID == w.PID() }) {
			return fmt.Errorf("%s does not have %s as ready", door.Name(), w.Name())
		}
	}
	return nil
}

// CheckSees returns nil if a router, and the frontend around it if there is one, have each of the workers
// ready, with its current process.
func (f *Fleet) CheckSees(ctx context.Context, door *Role, workers ...*Role) error {
	rows, err := ReadWorkers(ctx, door.URL())
	if err != nil {
		return err
	}
	var instances []Instance
	if door.Kind != "router" {
		if instances, err = ReadInstances(ctx, door.URL()); err != nil {
			return err
		}
	}
	for _, w := range workers {
		if err := w.CheckDied(); err != nil {
			return err
		}
		at := slices.IndexFunc(rows, func(r WorkerRow) bool {
			// A router registers once for each model, with generated ids.
			return r.ID == w.ID || w.Kind == "router" && r.PID == w.PID()
		})
		switch {
		case at < 0:
			return fmt.Errorf("%s does not know %s", door.Name(), w.Name())
		case rows[at].State != "ready":
			return fmt.Errorf("%s has %s as %s %s", door.Name(), w.Name(), rows[at].State, rows[at].Problem)
		case rows[at].PID != w.PID():
			return fmt.Errorf("%s has %s in an earlier life", door.Name(), w.Name())
		case door.Kind != "router" && !slices.Contains(instances, Instance{rows[at].ID, w.PID(), "ready"}):
			return fmt.Errorf("the router of %s has %s ready, its frontend has not", door.Name(), w.Name())
		}
	}
	return nil
}

// Close stops all roles at once, and returns unclean exits.
func (f *Fleet) Close() error {
	errs := make([]error, 0, 16)
	var mu sync.Mutex
	stop := func(p *Process) {
		if p == nil {
			return
		}
		_ = p.Resume() // a paused process would not get the signal
		if err := p.Stop(stopPatience); err != nil {
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		}
	}
	for _, kind := range [][]*Role{f.Frontends, f.Routers, f.Workers, f.Encoders, f.Prefillers} {
		var wg sync.WaitGroup
		for _, r := range kind {
			wg.Go(func() { stop(r.Process) })
		}
		wg.Wait()
	}
	stop(f.Store)
	return errors.Join(errs...)
}

// startFailure returns the ends of the logs, for a fleet which did not start.
func (f *Fleet) startFailure() error {
	var b strings.Builder
	for _, r := range f.AllRoles() {
		if r.Process != nil {
			fmt.Fprintf(&b, "--- %s\n%s", r.Name(), r.LogTail(1500))
		}
	}
	return errors.New(b.String())
}

// CheckDied returns every role which ended by itself.
func (f *Fleet) CheckDied() error {
	var errs []error
	for _, r := range f.AllRoles() {
		errs = append(errs, r.CheckDied())
	}
	return errors.Join(errs...)
}

// LogAlarms returns the log lines which no disturbance excuses.
func (f *Fleet) LogAlarms() []string {
	var alarms []string
	for _, r := range f.AllRoles() {
		alarms = append(alarms, r.LogAlarms()...)
	}
	return alarms
}

// StartUp starts "penstock up", all roles in one process, as a fleet with only the hub.
func StartUp(ctx context.Context, cfg Config) (*Fleet, error) {
	httpAddr, err := cfg.Ports.ReserveAddr("127.0.0.1")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	f := &Fleet{cfg: cfg}
	f.Hub = &Role{Kind: "up", HTTP: httpAddr}
	args := append([]string{cfg.Bin, "up", "--http-addr", httpAddr, "--workers", strconv.Itoa(cfg.Workers)}, cfg.HubArgs...)
	f.Hub.Process = NewProcess("up", filepath.Join(cfg.Dir, "up.log"), args...)
	f.Store = f.Hub.Process
	if err := f.Hub.Start(); err != nil {
		return nil, err
	}
	_, err = WaitUntil(ctx, 10*time.Millisecond, startPatience, func(ctx context.Context) error {
		if err := f.Hub.CheckAlive(ctx); err != nil {
			return err
		}
		status, err := ReadStatus(ctx, f.Hub.URL()+"/health")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("up: /health answers %d", status)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, f.Close(), f.startFailure())
	}
	return f, nil
}
