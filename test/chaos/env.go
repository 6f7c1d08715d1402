package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"penstock/internal/config"
	"penstock/test/fleet"
)

// scenario is one kind of disturbance.
type scenario struct {
	name, about string
	// long and short bound the time of the two forms; 0 is not part of the form
	// unless it is asked for by name.
	long, short time.Duration
	run         func(context.Context, *env, *result) error
}

func scenarios() []scenario {
	return []scenario{
		{"kill", "workers die (SIGKILL) at random tokens of streams", 30 * time.Minute, time.Minute, kill},
		{"nats", "the NATS server is away for five leases, then paused as long", 6 * time.Minute, time.Minute, natsAway},
		{"cut", "a proxy drops everything between one worker and the rest", 4 * time.Minute, time.Minute, cutProxy},
		{"netns", "a worker in a network namespace loses its link", 4 * time.Minute, 0, cutNamespace},
		{"stop", "a worker is paused (SIGSTOP) for 5 s", 4 * time.Minute, 0, stopWorker},
		{"flip", "a proxy flips one bit in about a thousand frames between a frontend and its workers", 15 * time.Minute, time.Minute, flipBits},
		{"freeze", "an engine says nothing more (SIGSTOP) under load, with and without other traffic, and goes on", 10 * time.Minute, 3 * time.Minute, freeze},
		{"stall", "streams of an engine that works stall, in the middle and before the first token", 10 * time.Minute, 3 * time.Minute, stalls},
		{"slow", "clients read one byte a second, or nothing, beside normal ones", 4 * time.Minute, 0, slowClients},
		{"disk", "the disk of JetStream is full", 4 * time.Minute, 0, diskFull},
		{"frontend", "a frontend dies with streams in progress", 4 * time.Minute, time.Minute, killFrontend},
		{"state", "all frontends but one die, while snapshots are written; then the store is restarted", 6 * time.Minute, time.Minute, deadRouters},
		{"store", "workers die, then the NATS server is killed and started: the dead stay dead", 8 * time.Minute, time.Minute, restartStore},
		{"rolling", "all workers and frontends are restarted in turn, under load", 60 * time.Minute, time.Minute, rolling},
		{"overload", "ten times the clients come for a while", 4 * time.Minute, 0, overload},
		{"cancel", "clients leave while queued, in prefill, in decode, and while their request moves", 4 * time.Minute, 0, cancelled},
		{"churn", "clients do everything wrong, adapters come and go, workers die, NATS stops: nothing of it is left", 15 * time.Minute, 2 * time.Minute, churn},
	}
}

// skipped is why a scenario cannot be held here.
type skipped struct{ why string }

func (s skipped) Error() string { return "skipped: " + s.why }

// env is what all scenarios share.
type env struct {
	options
	dir    string
	name   string // of the scenario that runs
	ports  *fleet.Ports
	random *rand.Rand
	client *fleet.Client
	mix    []fleet.Known
	help   map[string]string // what --help of a command says
	fleets int
	began  time.Time
}

func newEnv(o options) (*env, error) {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(bin); err != nil {
		return nil, fmt.Errorf("%w; build it: go build -o penstock ./cmd/penstock", err)
	}
	o.bin = bin
	dir := o.keep
	if dir == "" {
		dir, err = os.MkdirTemp("", "penstock-chaos-")
	} else {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, err
	}
	e := &env{
		options: o, dir: dir, name: "chaos", began: time.Now(), help: map[string]string{},
		ports:  fleet.NewPorts(o.seed ^ uint64(os.Getpid())<<32),
		random: rand.New(rand.NewPCG(o.seed, 1)),
		client: fleet.NewClient(fleet.Fresh),
	}
	e.say("seed %d, logs in %s", o.seed, dir)
	return e, nil
}

func (e *env) close() {
	e.client.Close()
	if e.keep == "" {
		_ = os.RemoveAll(e.dir)
	}
}

// say prints one line of progress.
func (e *env) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs %-9s %s\n", time.Since(e.began).Seconds(), e.name, fmt.Sprintf(format, args...))
}

// pick is n in the long form and fewer in the short one.
func pick[T any](e *env, long, short T) T {
	if e.short {
		return short
	}
	return long
}

// mixTokens is how long answers are, about.
const mixTokens = 96

// learn takes the answers of all requests from one process that nothing disturbs.
func (e *env) learn(ctx context.Context) error {
	f, err := fleet.StartUp(ctx, fleet.Config{Bin: e.bin, Dir: filepath.Join(e.dir, "known"), Ports: e.ports, Workers: 1, HubArgs: e.engineArgs()})
	if err != nil {
		return err
	}
	mix := fleet.Mix(24, mixTokens)
	if e.engine == config.EngineSim {
		mix = slices.DeleteFunc(mix, func(r fleet.Request) bool { return r.Guided() })
	} else {
		pictures, err := fleet.Pictures(8, mixTokens)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		mix = append(mix, pictures...)
	}
	e.mix, err = fleet.Learn(ctx, e.client, f.Hub.URL(), mix)
	return errors.Join(err, f.Close())
}

// engineArgs are the flags of workers of the engine asked for, whatever its own model
// is called. What those that see are shown comes to them in shared memory.
func (e *env) engineArgs() []string {
	args := []string{"--engine", e.engine, "--served-model-name", fleet.Model}
	if e.engine != config.EngineSim {
		args = append(args, "--frontend-decoding")
	}
	return args
}

// fleet starts a fleet for the scenario that runs.
func (e *env) fleet(ctx context.Context, cfg fleet.Config) (*fleet.Fleet, error) {
	e.fleets++
	cfg.Bin, cfg.Ports = e.bin, e.ports
	grace := e.flags("frontend", "drain-grace", "100ms") // nobody comes at the end of a scenario
	cfg.HubArgs, cfg.FrontendArgs = slices.Concat(grace, cfg.HubArgs), slices.Concat(grace, cfg.FrontendArgs)
	cfg.WorkerArgs = slices.Concat(e.engineArgs(), cfg.WorkerArgs)
	cfg.Dir = filepath.Join(e.dir, fmt.Sprintf("%02d-%s", e.fleets, e.name))
	if cfg.NATSServer == "" {
		cfg.NATSServer = e.nats
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	return fleet.Start(ctx, cfg)
}

// end stops a fleet, and reports what its processes did that nothing excuses.
func (e *env) end(f *fleet.Fleet, r *result) {
	if err := f.Died(); err != nil {
		r.problem("%v", err)
	}
	if err := f.Close(); err != nil {
		r.problem("at the end: %v", err)
	}
	alarms := slices.DeleteFunc(f.Alarms(), func(line string) bool { return r.excused != "" && strings.Contains(line, r.excused) })
	if len(alarms) > 0 {
		r.problem("%d lines of the logs need an explanation, such as: %s", len(alarms), strings.Join(alarms[:min(3, len(alarms))], "\n"))
	}
}

// has reports whether a command of the binary knows a flag.
func (e *env) has(command, name string) bool {
	text, known := e.help[command]
	if !known {
		out, _ := exec.Command(e.bin, command, "--help").CombinedOutput()
		text = string(out)
		e.help[command] = text
	}
	return strings.Contains(text, "--"+name+" ")
}

// flags returns those flags and values that a command knows: settings may be
// younger than this program.
func (e *env) flags(command string, pairs ...string) []string {
	var args []string
	for i := 0; i+1 < len(pairs); i += 2 {
		if e.has(command, pairs[i]) {
			args = append(args, "--"+pairs[i], pairs[i+1])
		}
	}
	return args
}

// load returns clients of the given processes; half of their requests find no
// cache.
func (e *env) load(doors ...*fleet.Role) *fleet.Load {
	l := &fleet.Load{Client: e.client, Mix: e.mix, Fresh: 0.5, Seed: e.random.Uint64()}
	for _, d := range doors {
		l.URLs = append(l.URLs, d.URL())
	}
	return l
}

// pause waits, as the world does between two events.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
