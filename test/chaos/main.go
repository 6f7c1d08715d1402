// Command chaos disturbs a fleet of real processes and compares every response with the known one: workers
// are killed in the middle of streams or of transfers of blocks, NATS is away for longer than leases last,
// networks are cut, disks fill up, clients stop reading, everything is restarted under load. It reports the
// counts of sent, failed and duplicated requests, and exits with 1 if anything was wrong.
//
//	go build -o penstock ./cmd/penstock
//	go run ./test/chaos -bin ./penstock              # all scenarios, about three hours
//	go run ./test/chaos -bin ./penstock -short       # a few of each fault, some minutes
//	go run ./test/chaos -bin ./penstock -runs 200 kill
//	go run ./test/chaos -bin ./penstock -times 50 -cases writing,stopped prefill
//
// Everything is on loopback, or in a network namespace which it makes and removes. Its processes never
// outlive it (on Linux).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 {
		if serve := helperCommands[os.Args[1]]; serve != nil {
			if err := serve(ctx, os.Args[2:]); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
				os.Exit(1)
			}
			return
		}
	}
	if err := runChaos(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// helperCommands are the arguments with which this program runs as another one for a scenario.
var helperCommands = map[string]func(ctx context.Context, args []string) error{engineCommand: serveEngine, natsCommand: serveNATS}

// options are the command line's.
type options struct {
	bin, file, keep string
	nats, engine    string
	otherBin, cases string
	runs, times     int
	wait            time.Duration
	seed            uint64
	short           bool
}

func runChaos(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.StringVar(&o.bin, "bin", "./penstock", "the binary to disturb")
	flags.StringVar(&o.file, "json", "", "also write the report to this file")
	flags.StringVar(&o.keep, "keep", "", "keep the logs of all processes in this directory")
	flags.StringVar(&o.nats, "nats-server", "", "a nats-server binary to run instead of the one that is embedded in a role")
	flags.StringVar(&o.engine, "engine", "tiny", "the engine of the workers: tiny, or sim, which is asked for no JSON")
	flags.IntVar(&o.runs, "runs", 200, "deaths, and restarts, in the scenarios that repeat themselves")
	flags.IntVar(&o.times, "times", 0, "how often each case of the scenarios prefill, leader and full is tried; 0 is 50, with -short 3")
	flags.DurationVar(&o.wait, "prefill-wait", 10*time.Second, "the setting of that name in these scenarios, whose bounds follow from it")
	flags.StringVar(&o.cases, "cases", "", "cases of these scenarios, separated by commas; empty is all")
	flags.StringVar(&o.otherBin, "other-bin", "", "a binary with other numerics, for the case numerics, such as one built with GOEXPERIMENT=simd; without it a simulated engine stands in")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of all that is chosen at random")
	flags.BoolVar(&o.short, "short", false, "the short form: the scenarios that fit in a minute or two, with fewer and shorter faults")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: chaos [flags] [scenario…]\n\nscenarios:")
		for _, s := range scenarios() {
			fmt.Fprintf(flags.Output(), "  %-10s %s\n", s.name, s.about)
		}
		fmt.Fprintln(flags.Output(), "\nflags:")
		flags.PrintDefaults()
	}
	// Flags may follow the names too.
	var names []string
	for rest := args; ; {
		if err := flags.Parse(rest); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil
			}
			return err
		}
		if flags.NArg() == 0 {
			break
		}
		names, rest = append(names, flags.Arg(0)), flags.Args()[1:]
	}
	chosen, err := chooseScenarios(names, o)
	if err != nil {
		return err
	}
	return performScenarios(ctx, o, chosen)
}

// chooseScenarios returns the scenarios of the given names, or all of the form.
func chooseScenarios(names []string, o options) ([]scenario, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(scenarios(), func(s scenario) bool { return o.short && s.short == 0 }), nil
	}
	var chosen []scenario
	for _, name := range names {
		at := slices.IndexFunc(scenarios(), func(s scenario) bool { return s.name == name })
		if at < 0 {
			return nil, fmt.Errorf("no scenario is called %q; -h lists them", name)
		}
		chosen = append(chosen, scenarios()[at])
	}
	return chosen, nil
}

// performScenarios runs scenarios one after another and reports on them.
func performScenarios(ctx context.Context, o options, chosen []scenario) error {
	e, err := newTestEnv(o)
	if err != nil {
		return err
	}
	defer e.cleanUp()
	if slices.ContainsFunc(chosen, func(s scenario) bool { return !slices.Contains(ownRequests, s.name) }) {
		if err := e.learnMix(ctx); err != nil {
			return err
		}
	}
	form := "long"
	if o.short {
		form = "short"
	}
	rep := newChaosReport(o.seed, form)
	for _, s := range chosen {
		if ctx.Err() != nil {
			break
		}
		rep.Scenarios = append(rep.Scenarios, e.performScenario(ctx, s))
	}
	if err := rep.printTable(os.Stdout); err != nil {
		return err
	}
	if o.file != "" {
		if err := rep.writeFile(o.file); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if failed := rep.failedScenarios(); len(failed) > 0 {
		return fmt.Errorf("not as it must be: %s", strings.Join(failed, ", "))
	}
	return nil
}

// performScenario runs one scenario, within its time.
func (e *testEnv) performScenario(ctx context.Context, s scenario) *scenarioResult {
	r := &scenarioResult{Scenario: s.name, Status: "ok"}
	limit := s.long
	if e.short && s.short > 0 {
		limit = s.short
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the scenario took longer than %v", limit))
	defer cancel()
	e.name = s.name
	e.logProgress("begins: %s", s.about)
	began := time.Now()
	err := s.run(ctx, e, r)
	r.Took = time.Since(began).Seconds()
	var skip skippedError
	switch {
	case errors.As(err, &skip):
		r.Status = "skipped"
		r.addNote("SKIPPED: %s", skip.why)
	case err != nil:
		r.addProblem("%v", errors.Join(err, context.Cause(ctx)))
	}
	if len(r.Problems) > 0 {
		r.Status = "failed"
	}
	e.logProgress("%s: sent %d, right %d, failed %d, refused %d, duplicated %d, missing %d, altered %d, moved %d, in %.0fs", r.Status,
		r.Sent, r.Right, r.Failed, r.Refused, r.Duplicated, r.Missing, r.Altered, r.Moved, r.Took)
	for _, p := range r.Problems {
		e.logProgress("problem: %s", p)
	}
	return r
}
