package main

import (
	"cmp"
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
	// long and short bound the time of the two forms; a scenario with 0 is not in the form unless it is
	// named.
	long, short time.Duration
	run         func(context.Context, *testEnv, *scenarioResult) error
}

// onFleet returns the run of a scenario on a fleet which is started before and checked and stopped after.
func onFleet(cfg fleet.Config, run func(context.Context, *testEnv, *scenarioResult, *fleet.Fleet) error) func(context.Context, *testEnv, *scenarioResult) error {
	return func(ctx context.Context, e *testEnv, r *scenarioResult) error {
		f, err := e.startFleet(ctx, cfg)
		if err != nil {
			return err
		}
		defer e.endFleet(f, r)
		return run(ctx, e, r, f)
	}
}

func scenarios() []scenario {
	return []scenario{
		{"kill", "workers die (SIGKILL) at random tokens of streams", 30 * time.Minute, time.Minute, onFleet(fleet.Config{Workers: 3, Frontends: 2, Routers: 1, Routed: 1}, runKill)},
		{"pool", "workers which share a pool of KV blocks die (SIGKILL) at random tokens of streams", 30 * time.Minute, 2 * time.Minute, runPoolKill},
		{"nats", "the NATS server is away for five leases, then paused as long", 6 * time.Minute, time.Minute, onFleet(fleet.Config{Workers: 3, Frontends: 2}, runNATSAway)},
		{"cut", "a proxy drops everything between one worker and the rest", 4 * time.Minute, time.Minute, runProxyCut},
		{"netns", "a worker in a network namespace loses its link", 4 * time.Minute, 0, runNamespaceCut},
		{"stop", "a worker is paused (SIGSTOP) for 5 s", 4 * time.Minute, 0, onFleet(fleet.Config{Workers: 3, Frontends: 1}, runWorkerPause)},
		{"flip", "a proxy flips one bit in about a thousand frames between a frontend and its workers", 15 * time.Minute, time.Minute, runBitFlips},
		{"freeze", "an engine says nothing more (SIGSTOP) under load, with and without other traffic, and goes on", 10 * time.Minute, 3 * time.Minute, runFreeze},
		{"stall", "streams of an engine that works stall, in the middle and before the first token", 10 * time.Minute, 3 * time.Minute, runStalls},
		{"slow", "clients read one byte a second, or nothing, beside normal ones", 4 * time.Minute, 0, onFleet(fleet.Config{Workers: 2, Frontends: 1}, runSlowClients)},
		{"disk", "the disk of JetStream is full", 4 * time.Minute, 0, runDiskFull},
		{"frontend", "a frontend dies with streams in progress", 4 * time.Minute, time.Minute, runFrontendKill},
		{"state", "all frontends but one die, while snapshots are written; then the store is restarted", 6 * time.Minute, time.Minute, runRouterDeaths},
		{"store", "workers die, then the NATS server is killed and started: the dead stay dead", 8 * time.Minute, time.Minute, onFleet(fleet.Config{Workers: 4, Frontends: 1}, runStoreRestart)},
		{"rolling", "all workers and frontends are restarted in turn, under load", 60 * time.Minute, time.Minute, runRolling},
		{"overload", "ten times the clients come for a while", 4 * time.Minute, 0, onFleet(fleet.Config{Workers: 2, Frontends: 1, WorkerArgs: []string{"--max-num-seqs", "8", "--max-waiting", "8"}}, runOverload)},
		{"cancel", "clients leave while queued, in prefill, in decode, and while their request moves", 4 * time.Minute, 0, runCancel},
		{"media", "encode workers die, are paused and starve, and workers die, among pictures, videos and texts", 15 * time.Minute, 3 * time.Minute, onFleet(fleet.Config{Workers: 2, Encoders: 2, Frontends: 1}, runMedia)},
		{"prefill", "prefill and decode workers die, or stand still, in every stage of a handoff; the queue is lost; a build differs", 4 * time.Hour, 0, runPrefill},
		{"leader", "the NATS server, of three, which leads the queue of prefill jobs dies", time.Hour, 0, runPrefillLeader},
		{"full", "the memory of decode workers and the queue of prefill jobs are full", 2 * time.Hour, 0, runPrefillFull},
		{"churn", "clients do everything wrong, adapters come and go, workers die, NATS stops: nothing of it is left", 15 * time.Minute, 2 * time.Minute, onFleet(fleet.Config{Workers: 2, Frontends: 2}, runChurn)},
	}
}

// skippedError is the reason why a scenario cannot run here.
type skippedError struct{ why string }

func (s skippedError) Error() string { return "skipped: " + s.why }

// testEnv is the state shared by all scenarios.
type testEnv struct {
	options
	dir    string
	name   string // of the current scenario
	ports  *fleet.Ports
	random *rand.Rand
	client *fleet.Client
	mix    []fleet.KnownRequest
	help   map[string]string // the --help of commands
	fleets int
	began  time.Time
}

func newTestEnv(o options) (*testEnv, error) {
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
	e := &testEnv{
		options: o, dir: dir, name: "chaos", began: time.Now(), help: map[string]string{},
		ports:  fleet.NewPorts(o.seed ^ uint64(os.Getpid())<<32),
		random: rand.New(rand.NewPCG(o.seed, 1)),
		client: fleet.NewClient(fleet.FreshConnections),
	}
	e.logProgress("seed %d, logs in %s", o.seed, dir)
	return e, nil
}

func (e *testEnv) cleanUp() {
	e.client.Close()
	if e.keep == "" {
		_ = os.RemoveAll(e.dir)
	}
}

// logProgress prints one line of progress.
func (e *testEnv) logProgress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%6.1fs %-9s %s\n", time.Since(e.began).Seconds(), e.name, fmt.Sprintf(format, args...))
}

// longOrShort returns the value for the form.
func longOrShort[T any](e *testEnv, long, short T) T {
	if e.short {
		return short
	}
	return long
}

// mixTokens is the approximate length of responses.
const mixTokens = 96

// learnMix gets the responses of the requests which most scenarios send.
func (e *testEnv) learnMix(ctx context.Context) error {
	mix := fleet.RequestMix(24, mixTokens)
	if e.engine == config.EngineSim {
		mix = slices.DeleteFunc(mix, func(r fleet.Request) bool { return r.IsGuided() })
	} else {
		pictures, err := fleet.PictureRequests(8, mixTokens)
		if err != nil {
			return err
		}
		mix = append(mix, pictures...)
	}
	var err error
	e.mix, err = e.learnAnswers(ctx, mix)
	return err
}

// learnAnswers gets the responses of requests from one undisturbed process.
func (e *testEnv) learnAnswers(ctx context.Context, mix []fleet.Request) ([]fleet.KnownRequest, error) {
	e.fleets++
	dir := filepath.Join(e.dir, fmt.Sprintf("%02d-known", e.fleets))
	f, err := fleet.StartUp(ctx, fleet.Config{Bin: e.bin, Dir: dir, Ports: e.ports, Workers: 1, HubArgs: e.engineArgs()})
	if err != nil {
		return nil, err
	}
	known, err := fleet.LearnAnswers(ctx, e.client, f.Hub.URL(), mix)
	return known, errors.Join(err, f.Close())
}

// engineArgs are the flags of workers with the chosen engine, whatever its own model is called. Engines with
// vision get decoded media in shared memory.
func (e *testEnv) engineArgs() []string {
	args := []string{"--engine", e.engine, "--served-model-name", fleet.Model}
	if e.engine != config.EngineSim {
		args = append(args, "--frontend-decoding")
	}
	return args
}

// startFleet starts a fleet for the current scenario.
func (e *testEnv) startFleet(ctx context.Context, cfg fleet.Config) (*fleet.Fleet, error) {
	e.fleets++
	cfg.Bin, cfg.Ports = e.bin, e.ports
	grace := e.knownFlags("frontend", "drain-grace", "100ms") // no load balancer needs the grace at the end of a scenario
	cfg.HubArgs, cfg.FrontendArgs = slices.Concat(grace, cfg.HubArgs), slices.Concat(grace, cfg.FrontendArgs)
	cfg.WorkerArgs = slices.Concat(e.engineArgs(), cfg.WorkerArgs)
	cfg.Dir = filepath.Join(e.dir, fmt.Sprintf("%02d-%s", e.fleets, e.name))
	cfg.NATSServer = cmp.Or(cfg.NATSServer, e.nats)
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	return fleet.Start(ctx, cfg)
}

// endFleet stops a fleet, and reports unexcused problems of its processes.
func (e *testEnv) endFleet(f *fleet.Fleet, r *scenarioResult) {
	if err := f.CheckDied(); err != nil {
		r.addProblem("%v", err)
	}
	if err := f.Close(); err != nil {
		r.addProblem("at the end: %v", err)
	}
	alarms := slices.DeleteFunc(f.LogAlarms(), func(line string) bool { return r.excused != "" && strings.Contains(line, r.excused) })
	if len(alarms) > 0 {
		r.addProblem("%d lines of the logs need an explanation, such as: %s", len(alarms), strings.Join(alarms[:min(3, len(alarms))], "\n"))
	}
}

// hasFlag reports whether a command of the binary has a flag.
func (e *testEnv) hasFlag(command, name string) bool {
	text, known := e.help[command]
	if !known {
		out, _ := exec.Command(e.bin, command, "--help").CombinedOutput()
		text = string(out)
		e.help[command] = text
	}
	return strings.Contains(text, "--"+name+" ")
}

// knownFlags returns the flags and values which a command has: a setting may be newer than the binary.
func (e *testEnv) knownFlags(command string, pairs ...string) []string {
	var args []string
	for i := 0; i+1 < len(pairs); i += 2 {
		if e.hasFlag(command, pairs[i]) {
			args = append(args, "--"+pairs[i], pairs[i+1])
		}
	}
	return args
}

// newLoad returns clients of the given processes; half of their requests are uncached.
func (e *testEnv) newLoad(doors ...*fleet.Role) *fleet.Load {
	l := &fleet.Load{Client: e.client, Mix: e.mix, Fresh: 0.5, Seed: e.random.Uint64()}
	for _, d := range doors {
		l.URLs = append(l.URLs, d.URL())
	}
	return l
}

// sleepContext waits between two events.
func sleepContext(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
